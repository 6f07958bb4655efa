//! Calls: an operator lowered to launches with all arguments fixed, so that running a section is walking a list, and
//! capturing it in a graph is walking it once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};

use super::compile::compile_cached;
use super::device::Device;
use super::error::{CudaError, Doing};
use super::product::{Product, Products};
use super::source::{Source, Unit};

/// Most shared memory a block may use on compute capability 9.0: what units are listed for where no device is known.
pub(super) const HOPPER_SHARED: u32 = 227 * 1024;

/// A device address that may lie in the scratch block, whose place is known only when everything is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Device(u64),
    /// Byte offset in the scratch block.
    Scratch(u64),
}

impl Address {
    pub(super) const NULL: Address = Address::Device(0);

    pub(super) fn plus(self, bytes: u64) -> Address {
        match self {
            Address::Device(p) => Address::Device(p + bytes),
            Address::Scratch(o) => Address::Scratch(o + bytes),
        }
    }

    /// Bytes the address is a multiple of, at most 256; blocks start at multiples of that.
    pub(super) fn alignment(self) -> u32 {
        let (Address::Device(at) | Address::Scratch(at)) = self;
        1 << at.trailing_zeros().min(8)
    }

    pub(super) fn resolve(self, scratch: u64) -> u64 {
        match self {
            Address::Device(p) => p,
            Address::Scratch(o) => scratch + o,
        }
    }
}

/// A kernel argument, in the kernel's own type.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    At(Address),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// `struct Meta` of `delta_rule.cu`.
    Meta(Meta),
}

/// Mirrors `struct Meta` of `delta_rule.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Meta {
    pub(super) chunks: u64,
    pub(super) docs: u64,
    pub(super) counts: u64,
    pub(super) key_heads: i32,
    pub(super) value_heads: i32,
}

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    function: sys::CUfunction,
    name: &'static str,
}

// SAFETY: a function handle may be used from any thread while its context is current and its module loaded.
unsafe impl Send for Kernel {}

/// Everything a launch needs.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) grid: (u32, u32, u32),
    pub(super) threads: u32,
    pub(super) shared: u32,
    /// The kernel's first argument, a structure of 8-byte words by value; none where it is empty.
    pub(super) table: Vec<u64>,
    pub(super) args: Vec<Arg>,
}

/// One thing put on the stream.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Launch(Launch),
    Clear { at: Address, bytes: u64 },
    Product { index: usize, product: Product },
    Copy(RowCopy),
}

/// `rows` rows of `width` bytes, from one place to another; a place is an address and the bytes from row to row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowCopy {
    pub(super) from: (Address, u64),
    pub(super) to: (Address, u64),
    pub(super) width: u64,
    pub(super) rows: u64,
}

impl RowCopy {
    fn issue(&self, scratch: u64, stream: sys::CUstream) -> Result<(), CudaError> {
        let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: self.from.0.resolve(scratch),
            srcArray: std::ptr::null_mut(),
            srcPitch: self.from.1 as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: self.to.0.resolve(scratch),
            dstArray: std::ptr::null_mut(),
            dstPitch: self.to.1 as usize,
            WidthInBytes: self.width as usize,
            Height: self.rows as usize,
        };
        // SAFETY: both blocks of rows lie in blocks the executor keeps alive and do not overlap.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) }
            .result()
            .doing(|| "copying rows".into())
    }
}

/// The arguments of one launch laid out as the driver wants them: values in 8-byte cells, pointers to the cells.
#[derive(Debug)]
struct Packed {
    _cells: Box<[u64]>,
    pointers: Vec<*mut c_void>,
}

impl Packed {
    fn new(table: &[u64], args: &[Arg], scratch: u64) -> Self {
        let mut cells: Vec<u64> = table.to_vec();
        let mut starts = Vec::new();
        if !table.is_empty() {
            starts.push(0);
        }
        for arg in args {
            starts.push(cells.len());
            match *arg {
                Arg::At(a) => cells.push(a.resolve(scratch)),
                Arg::I32(v) => cells.push(u64::from(v as u32)),
                Arg::I64(v) => cells.push(v as u64),
                Arg::F32(v) => cells.push(u64::from(v.to_bits())),
                Arg::F64(v) => cells.push(v.to_bits()),
                Arg::Meta(m) => cells.extend([
                    m.chunks,
                    m.docs,
                    m.counts,
                    u64::from(m.key_heads as u32) | (u64::from(m.value_heads as u32) << 32),
                ]),
            }
        }
        let mut cells = cells.into_boxed_slice();
        let base = cells.as_mut_ptr();
        // SAFETY: every start is an index into `cells`, whose storage does not move while the box lives.
        let pointers = starts
            .into_iter()
            .map(|s| unsafe { base.add(s) }.cast())
            .collect();
        Packed {
            _cells: cells,
            pointers,
        }
    }
}

/// A list of calls with resolved addresses.
#[derive(Debug)]
pub(super) struct Program {
    calls: Vec<(Call, Option<Packed>)>,
    scratch: u64,
}

// SAFETY: the raw pointers are device handles and pointers into boxes that the value owns; nothing is thread-bound
// besides the current context, which every entry of the executor sets.
unsafe impl Send for Program {}

impl Program {
    pub(super) fn new(calls: Vec<Call>, scratch: u64) -> Self {
        let calls = calls
            .into_iter()
            .map(|c| {
                let packed = match &c {
                    Call::Launch(l) => Some(Packed::new(&l.table, &l.args, scratch)),
                    _ => None,
                };
                (c, packed)
            })
            .collect();
        Program { calls, scratch }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Name of a call: the kernel's, or what it is.
    pub(super) fn name(&self, call: usize) -> &'static str {
        match &self.calls[call].0 {
            Call::Launch(l) => l.kernel.name,
            Call::Clear { .. } => "clear",
            Call::Product { .. } => "product",
            Call::Copy(_) => "copy",
        }
    }

    /// Puts calls `range` on the stream.
    pub(super) fn issue(
        &mut self,
        range: std::ops::Range<usize>,
        stream: sys::CUstream,
        products: &Products,
    ) -> Result<(), CudaError> {
        for (call, packed) in &mut self.calls[range] {
            match (call, packed) {
                (Call::Launch(l), Some(p)) => {
                    if l.grid.0 == 0 || l.grid.1 == 0 || l.grid.2 == 0 {
                        continue;
                    }
                    // SAFETY: argument types and counts follow the kernel's signature (each is exercised by a
                    // conformance test); all addresses lie in blocks the executor keeps alive.
                    unsafe {
                        result::launch_kernel(
                            l.kernel.function,
                            l.grid,
                            (l.threads, 1, 1),
                            l.shared,
                            stream,
                            &mut p.pointers,
                        )
                    }
                    .doing(|| {
                        format!(
                            "launching {} on a grid of {:?} with {} bytes of shared memory",
                            l.kernel.name, l.grid, l.shared
                        )
                    })?;
                }
                (Call::Clear { at, bytes }, _) => {
                    let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
                    // SAFETY: the range lies in one buffer of the executor.
                    unsafe { result::memset_d8_async(at.resolve(self.scratch), 0, bytes, stream) }
                        .doing(|| "clearing memory".into())?;
                }
                (Call::Product { index, product }, _) => {
                    products.issue(*index, product, self.scratch, stream)?;
                }
                (Call::Copy(copy), _) => copy.issue(self.scratch, stream)?,
                (Call::Launch(_), None) => {}
            }
        }
        Ok(())
    }
}

/// Loaded modules: compiled on first use, one per unit.
#[derive(Debug)]
pub(super) struct Modules {
    /// None where units are only listed.
    arch: Option<String>,
    /// Most shared memory a block may use.
    shared: u32,
    loaded: BTreeMap<Unit, sys::CUmodule>,
}

// SAFETY: module handles may be used from any thread while their context is current.
unsafe impl Send for Modules {}

impl Modules {
    pub(super) fn new(device: &Device) -> Self {
        Modules {
            arch: Some(device.arch()),
            shared: device.shared_memory(),
            loaded: BTreeMap::new(),
        }
    }

    /// Compiles and loads nothing: [`units`](Self::units) then says what was asked for, for a device whose blocks may use
    /// `shared` bytes of shared memory.
    pub(super) fn listing(shared: u32) -> Self {
        Modules {
            arch: None,
            shared,
            loaded: BTreeMap::new(),
        }
    }

    /// Most shared memory a block may use, bytes.
    pub(super) fn shared_memory(&self) -> u64 {
        u64::from(self.shared)
    }

    /// Whether blocks can share their shared memory and a block may have 227 KiB of it: compute capability 9.0 and
    /// 10.x; 12.x has the first only. Where units are only listed, yes: the unit is the same.
    pub(super) fn has_clusters(&self) -> bool {
        self.arch
            .as_deref()
            .is_none_or(|a| a.starts_with("sm_9") || a.starts_with("sm_10"))
    }

    /// How many clusters of `size` blocks (the kernel's own cluster size) the device runs at once, at least 1. Where units
    /// are only listed, 1.
    pub(super) fn resident_clusters(
        &self,
        kernel: Kernel,
        size: u32,
        threads: u32,
        shared: u32,
    ) -> Result<u64, CudaError> {
        if self.arch.is_none() {
            return Ok(1);
        }
        let config = sys::CUlaunchConfig {
            gridDimX: size,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: std::ptr::null_mut(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        let mut clusters = 0;
        // SAFETY: a function of a loaded module, a complete launch configuration without attributes, a valid out-pointer.
        unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, kernel.function, &config) }
            .result()
            .doing(|| format!("asking how many clusters of {} run at once", kernel.name))?;
        Ok(u64::try_from(clusters).unwrap_or(0).max(1))
    }

    /// Every unit that a kernel was asked of.
    pub(super) fn units(self) -> BTreeSet<Unit> {
        self.loaded.keys().cloned().collect()
    }

    /// A kernel of `source` specialised by `defines`, allowed to use `shared` bytes of dynamic shared memory.
    pub(super) fn kernel(
        &mut self,
        source: Source,
        defines: &[String],
        name: &'static str,
        shared: u32,
    ) -> Result<Kernel, CudaError> {
        let unit = Unit {
            source,
            defines: defines.to_vec(),
        };
        let Some(arch) = &self.arch else {
            self.loaded.insert(unit, std::ptr::null_mut());
            return Ok(Kernel {
                function: std::ptr::null_mut(),
                name,
            });
        };
        let module = match self.loaded.get(&unit) {
            Some(&m) => m,
            None => {
                let image = compile_cached(&unit, arch)?;
                // SAFETY: a complete CUBIN image; the driver copies it.
                let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
                    .doing(|| format!("loading {}", source.file()))?;
                self.loaded.insert(unit, module);
                module
            }
        };
        let symbol = CString::new(name).map_err(|_| CudaError::Unsupported(format!("kernel name {name}")))?;
        // SAFETY: the module was loaded above and is never unloaded while functions are used.
        let function = unsafe { result::module::get_function(module, symbol) }
            .doing(|| format!("looking up {name} in {}", source.file()))?;
        // Past 48 KiB, what the kernel itself declares included, a block has to be given its shared memory.
        if shared > 0 {
            // SAFETY: a valid function and a documented attribute.
            unsafe {
                result::function::set_function_attribute(
                    function,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared as i32,
                )
            }
            .doing(|| format!("giving {name} {shared} bytes of shared memory"))?;
        }
        Ok(Kernel { function, name })
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        for &module in self.loaded.values().filter(|m| !m.is_null()) {
            // SAFETY: loaded by this value, unloaded once; the executor drops its programs first.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// A launch that makes the bf16 copy of `n` fp32 weights.
pub(super) fn copy_bf16(kernel: Kernel, source: u64, copy: u64, n: u64) -> Call {
    Call::Launch(Launch {
        kernel,
        grid: (n.div_ceil(2048) as u32, 1, 1),
        threads: 256,
        shared: 0,
        table: Vec::new(),
        args: vec![
            Arg::At(Address::Device(source)),
            Arg::At(Address::Device(copy)),
            Arg::I64(n as i64),
        ],
    })
}

/// A launch that fills `bytes` with random numbers, to measure products on.
pub(super) fn fill_random(kernel: Kernel, at: u64, bytes: u64) -> Call {
    Call::Launch(Launch {
        kernel,
        grid: (2048, 1, 1),
        threads: 256,
        shared: 0,
        table: Vec::new(),
        args: vec![Arg::At(Address::Device(at)), Arg::I64((bytes / 4) as i64)],
    })
}

/// A launch that adds the digest of `bytes` (a multiple of 4) at `at` to a word on the device.
pub(super) fn digest(kernel: Kernel, at: u64, bytes: u64, seed: u64, digest: u64) -> Call {
    Call::Launch(Launch {
        kernel,
        grid: (1024, 1, 1),
        threads: 256,
        shared: 0,
        table: Vec::new(),
        args: vec![
            Arg::At(Address::Device(at)),
            Arg::I64((bytes / 4) as i64),
            Arg::I64(seed as i64),
            Arg::At(Address::Device(digest)),
        ],
    })
}
