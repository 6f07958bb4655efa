//! NVRTC: kernel sources to machine code (CUBIN) for one architecture, cached on disk.
//!
//! The cache key is BLAKE3 over source, headers, options and the NVRTC version, so neither a changed kernel nor another
//! compiler can meet a stale file.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::nvrtc::sys;
use rayon::prelude::*;

use super::error::CudaError;
use super::source::{HEADERS, Unit};

/// Machine code of a unit, with the compiler's report.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// CUBIN image.
    pub image: Vec<u8>,
    /// Registers, shared memory and spills per kernel, as ptxas prints them; empty from the cache.
    pub report: String,
}

static COMPILATIONS: AtomicU64 = AtomicU64::new(0);

/// Units that this process compiled so far; what comes from the cache is not counted.
pub fn compilations() -> u64 {
    COMPILATIONS.load(Ordering::Relaxed)
}

/// Whether `libnvrtc` can be loaded.
pub fn nvrtc_present() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

fn options(unit: &Unit, arch: &str) -> Vec<String> {
    let mut o = vec![
        format!("--gpu-architecture={arch}"),
        "-std=c++17".into(),
        "-lineinfo".into(),
        "--ptxas-options=-v".into(),
        // Multiply-adds are fused only where the source says so: bits do not depend on the optimiser's taste.
        "--fmad=false".into(),
    ];
    o.extend(unit.defines.iter().map(|d| format!("-D{d}")));
    o
}

/// Compiles a unit for `arch` (e.g. `sm_90a`).
///
/// # Errors
/// [`CudaError::NoNvrtc`], [`CudaError::Compile`] with the compiler's log.
pub fn compile(unit: &Unit, arch: &str) -> Result<Compiled, CudaError> {
    if !nvrtc_present() {
        return Err(CudaError::NoNvrtc);
    }
    COMPILATIONS.fetch_add(1, Ordering::Relaxed);
    let failed = |log: String| CudaError::Compile {
        file: unit.source.file(),
        arch: arch.to_string(),
        log,
    };
    let text = |s: &str| CString::new(s).map_err(|_| failed("a source holds a NUL byte".into()));
    let source = text(unit.source.text())?;
    let name = text(unit.source.file())?;
    let mut headers = Vec::new();
    for (file, body) in HEADERS {
        headers.push((text(file)?, text(body)?));
    }
    let bodies: Vec<*const c_char> = headers.iter().map(|h| h.1.as_ptr()).collect();
    let names: Vec<*const c_char> = headers.iter().map(|h| h.0.as_ptr()).collect();
    let mut opts = Vec::new();
    for o in options(unit, arch) {
        opts.push(text(&o)?);
    }
    let opts: Vec<*const c_char> = opts.iter().map(|o| o.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: every pointer outlives the calls that use it; counts match their arrays; output buffers have the size
    // that the library just gave; the program is destroyed exactly once.
    unsafe {
        let count = c_int::try_from(HEADERS.len()).unwrap_or(0);
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            count,
            bodies.as_ptr(),
            names.as_ptr(),
        )
        .result()
        .map_err(|e| failed(e.to_string()))?;
        let status =
            sys::nvrtcCompileProgram(program, c_int::try_from(opts.len()).unwrap_or(0), opts.as_ptr());
        let mut size = 0usize;
        let mut log = Vec::new();
        if sys::nvrtcGetProgramLogSize(program, &mut size).result().is_ok() && size > 0 {
            log = vec![0u8; size];
            if sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast())
                .result()
                .is_err()
            {
                log.clear();
            }
        }
        let report = CStr::from_bytes_until_nul(&log)
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
        let image = status.result().map_err(|e| e.to_string()).and_then(|()| {
            let mut bytes = 0usize;
            sys::nvrtcGetCUBINSize(program, &mut bytes)
                .result()
                .map_err(|e| e.to_string())?;
            let mut image = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast())
                .result()
                .map_err(|e| e.to_string())?;
            Ok(image)
        });
        let _ = sys::nvrtcDestroyProgram(&mut program);
        match image {
            Ok(image) => Ok(Compiled { image, report }),
            Err(why) => Err(failed(format!("{why}\n{report}"))),
        }
    }
}

fn version() -> String {
    if !nvrtc_present() {
        return "none".into();
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two valid out-pointers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    format!("{major}.{minor}")
}

/// Where compiled kernels are kept: `$CETERIS_CACHE/cubin`, else `ceteris/cubin` in the user's cache folder.
pub(super) fn cache_dir() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    if let Some(dir) = folder("CETERIS_CACHE") {
        return Some(dir.join("cubin"));
    }
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(base.join("ceteris").join("cubin"))
}

fn key(unit: &Unit, arch: &str, version: &str) -> String {
    let mut hash = blake3::Hasher::new();
    let mut part = |s: &str| {
        hash.update(&(s.len() as u64).to_le_bytes());
        hash.update(s.as_bytes());
    };
    part(version);
    part(unit.source.text());
    HEADERS.iter().for_each(|h| part(h.1));
    options(unit, arch).iter().for_each(|o| part(o));
    hash.finalize().to_hex().to_string()
}

/// Machine code from the cache, else compiled and put there. A cache that cannot be written is not an error.
///
/// # Errors
/// As [`compile`].
pub fn compile_cached(unit: &Unit, arch: &str) -> Result<Vec<u8>, CudaError> {
    let key = key(unit, arch, &version());
    let path = cache_dir().map(|d| d.join(format!("{key}.cubin")));
    if let Some(image) = path
        .as_ref()
        .and_then(|p| std::fs::read(p).ok())
        .filter(|i| i.starts_with(b"\x7fELF"))
    {
        return Ok(image);
    }
    let image = compile(unit, arch)?.image;
    if let Some((path, dir)) = path.as_ref().and_then(|p| Some((p, p.parent()?))) {
        // Another process may write the same file: each renames its own complete copy over it.
        let temp = dir.join(format!("{}.{key}", std::process::id()));
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&temp, &image))
            .and_then(|()| std::fs::rename(&temp, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temp);
        }
    }
    Ok(image)
}

/// Fills the cache for these units, several at a time.
///
/// # Errors
/// As [`compile`]: of the first unit that fails.
pub fn compile_all(units: &BTreeSet<Unit>, arch: &str) -> Result<(), CudaError> {
    units
        .par_iter()
        .try_for_each(|unit| compile_cached(unit, arch).map(|_| ()))
}
