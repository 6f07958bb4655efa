//! Decoded copies of token files that cannot be memory-mapped: Parquet, and Arrow with compressed record
//! batches.
//!
//! Random access into such files would decode a whole page or batch per row. So each dataset is decoded once,
//! column by column of interest, into a folder of plain Arrow streams of int32 rows, which is then mapped
//! like any other. The folder is a `save_to_disk` folder, so `datasets.load_from_disk` opens it too.
//!
//! Where: `decode_cache` of the options, else `$CETERIS_CACHE`, else `$XDG_CACHE_HOME/ceteris` or
//! `~/.cache/ceteris`; there in `decoded-<key>`, the key being a hash of the column and of each source file's
//! name, length, modification time and sampled content. Cost: 4 bytes of disk per token, once. Memory: one
//! batch of at most 1000 rows or 4 MiB per file worked on (for compressed Arrow: one batch as the file has
//! it). Checked at every use: the manifest, and length and sampled BLAKE3 of each copy; a copy that does not
//! fit is made again. Writes are atomic: made in a temporary folder beside it, synced, renamed; of two
//! processes one wins.

mod arrow;
mod parquet;
mod sink;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use sink::RowSink;

use super::SourceError;
use super::fingerprint::{FileFingerprint, FingerprintMode, file_fingerprint};
use super::hf::Progress;
use super::options::SourceOptions;

pub(crate) use parquet::columns as parquet_columns;

/// File in the decoded folder that says what it was made from.
pub(crate) const MANIFEST: &str = "ceteris-decoded.json";
const VERSION: u32 = 1;

/// A decoded folder, ready to be mapped.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    pub(crate) dir: PathBuf,
    /// Copies in the sequence of their sources, with their rows.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// Type of the column in the source files.
    pub(crate) token_type: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    column: String,
    token_type: String,
    sources: Vec<FileFingerprint>,
    files: Vec<Copy>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Copy {
    name: String,
    rows: u64,
    len: u64,
    hash: String,
}

/// What decoding needs to know about the source files before it begins.
struct Plan {
    pub(crate) token_type: String,
    /// Rows of each file.
    pub(crate) rows: Vec<u64>,
}

/// The decoded copy of parquet files, made if there is none.
///
/// # Errors
/// [`SourceError`] for files that cannot be read or decoded, values that are no token ids, and a cache that
/// cannot be written.
pub(crate) fn parquet_files(
    paths: &[PathBuf],
    options: &SourceOptions,
    progress: Progress<'_>,
) -> Result<Decoded, SourceError> {
    cached(paths, options, progress, &parquet::plan, &parquet::decode)
}

/// The decoded copy of Arrow files with compressed record batches, made if there is none.
///
/// # Errors
/// As [`parquet`].
pub(crate) fn compressed_arrow(
    paths: &[PathBuf],
    options: &SourceOptions,
    progress: Progress<'_>,
) -> Result<Decoded, SourceError> {
    cached(paths, options, progress, &arrow::plan, &arrow::decode)
}

type PlanFn<'a> = &'a dyn Fn(&[PathBuf], &str) -> Result<Plan, SourceError>;
type DecodeFn<'a> = &'a (dyn Fn(&Path, &mut RowSink<'_>) -> Result<(), SourceError> + Sync);

fn cached(
    paths: &[PathBuf],
    options: &SourceOptions,
    progress: Progress<'_>,
    plan: PlanFn<'_>,
    decode: DecodeFn<'_>,
) -> Result<Decoded, SourceError> {
    let root = cache_root(options)?;
    let sources = paths
        .iter()
        .map(|p| file_fingerprint(p, FingerprintMode::Sampled, &|_| {}))
        .collect::<Result<Vec<_>, _>>()?;
    let dir = root.join(format!("decoded-{}", key(paths, &sources, &options.column)?));
    if let Some(found) = reuse(&dir, &sources, &options.column) {
        return Ok(found);
    }
    let plan = guarded(&paths[0], || plan(paths, &options.column))?;
    fs::create_dir_all(&root).map_err(|e| SourceError::io(&root, "create", e))?;
    let work = tempfile::Builder::new()
        .prefix("decoding-")
        .tempdir_in(&root)
        .map_err(|e| SourceError::io(&root, "create a temporary folder in", e))?;
    let files = decode_all(paths, work.path(), &options.column, &plan, progress, decode)?;
    let manifest = Manifest {
        version: VERSION,
        column: options.column.clone(),
        token_type: plan.token_type,
        sources: sources.clone(),
        files,
    };
    write_side_files(work.path(), &manifest)?;
    install(work, &dir, &sources, &options.column)
}

/// Moves a finished folder to its place; an outdated one there is removed, a good one (another process was
/// faster) kept.
fn install(
    work: tempfile::TempDir,
    dir: &Path,
    sources: &[FileFingerprint],
    column: &str,
) -> Result<Decoded, SourceError> {
    if dir.exists() && reuse(dir, sources, column).is_none() {
        fs::remove_dir_all(dir).map_err(|e| SourceError::io(dir, "remove the damaged decoded copy", e))?;
    }
    match fs::rename(work.path(), dir) {
        Ok(()) => {
            // Renamed away: nothing is left to clean up.
            let _ = work.keep();
        }
        Err(e) if !dir.exists() => return Err(SourceError::io(dir, "put the decoded copy in place as", e)),
        Err(_) => {}
    }
    if let Some(parent) = dir.parent() {
        sync_dir(parent)?;
    }
    reuse(dir, sources, column)
        .ok_or_else(|| SourceError::corrupt(dir, "the decoded copy changed while it was put in place"))
}

/// Where what can be made again is kept: `$CETERIS_CACHE`, `$XDG_CACHE_HOME/ceteris` or `~/.cache/ceteris`; empty variables
/// count as unset.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    variable("CETERIS_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|d| d.join("ceteris")))
        .or_else(|| variable("HOME").map(|d| d.join(".cache").join("ceteris")))
}

fn cache_root(options: &SourceOptions) -> Result<PathBuf, SourceError> {
    options
        .decode_cache
        .clone()
        .or_else(cache_folder)
        .ok_or_else(|| {
            SourceError::Options(
                "parquet and compressed Arrow are decoded into a cache folder, and there is none: set CETERIS_CACHE or HOME"
                    .to_owned(),
            )
        })
}

fn key(paths: &[PathBuf], sources: &[FileFingerprint], column: &str) -> Result<String, SourceError> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(b"ceteris decoded");
    add(&VERSION.to_le_bytes());
    add(column.as_bytes());
    for (path, source) in paths.iter().zip(sources) {
        let meta = fs::metadata(path).map_err(|e| SourceError::io(path, "examine", e))?;
        let modified = meta
            .modified()
            .ok()
            .and_then(|t| t.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_nanos());
        add(source.name.as_bytes());
        add(&source.len.to_le_bytes());
        add(&modified.to_le_bytes());
        add(source.hash.as_bytes());
    }
    Ok(hasher.finalize().to_hex().as_str().chars().take(32).collect())
}

/// The folder, if its manifest and copies are what they should be.
fn reuse(dir: &Path, sources: &[FileFingerprint], column: &str) -> Option<Decoded> {
    let text = fs::read(dir.join(MANIFEST)).ok()?;
    let manifest: Manifest = serde_json::from_slice(&text).ok()?;
    if manifest.version != VERSION
        || manifest.column != column
        || manifest.sources != sources
        || manifest.files.len() != sources.len()
    {
        return None;
    }
    let mut files = Vec::new();
    for (i, copy) in manifest.files.iter().enumerate() {
        let path = dir.join(copy_name(i, sources.len()));
        let now = file_fingerprint(&path, FingerprintMode::Sampled, &|_| {}).ok()?;
        if (&now.name, now.len, &now.hash) != (&copy.name, copy.len, &copy.hash) {
            return None;
        }
        files.push((path, copy.rows));
    }
    Some(Decoded {
        dir: dir.to_owned(),
        files,
        token_type: manifest.token_type,
    })
}

fn copy_name(index: usize, count: usize) -> String {
    format!("data-{index:05}-of-{count:05}.arrow")
}

fn decode_all(
    paths: &[PathBuf],
    dir: &Path,
    column: &str,
    plan: &Plan,
    progress: Progress<'_>,
    decode: DecodeFn<'_>,
) -> Result<Vec<Copy>, SourceError> {
    let total: u64 = plan.rows.iter().sum();
    let done = AtomicU64::new(0);
    let slots: Vec<Mutex<Option<Result<Copy, SourceError>>>> =
        paths.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let report = |rows: u64| {
        progress(
            "decoding rows",
            done.fetch_add(rows, Ordering::Relaxed) + rows,
            total,
        )
    };
    let work = || {
        while let Some((i, (path, slot))) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            paths.get(i).zip(slots.get(i)).map(|both| (i, both))
        } {
            let first_row = plan.rows.iter().take(i).sum();
            let name = copy_name(i, paths.len());
            let one = decode_one(
                path,
                &dir.join(&name),
                column,
                first_row,
                plan.rows[i],
                &report,
                decode,
            );
            let failed = one.is_err();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(one.map(|mut copy| {
                copy.name = name;
                copy
            }));
            if failed {
                // The others would be thrown away.
                next.store(paths.len(), Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get().min(8))
        .min(paths.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let results: Vec<_> = slots
        .into_iter()
        .filter_map(|s| s.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect();
    results.into_iter().collect()
}

fn decode_one(
    path: &Path,
    to: &Path,
    column: &str,
    first_row: u64,
    rows: u64,
    report: &(dyn Fn(u64) + Sync),
    decode: DecodeFn<'_>,
) -> Result<Copy, SourceError> {
    let mut sink = RowSink::new(path, to, column, first_row, report)?;
    // Decoders of damaged files may panic; that is this file's error, not the end of the process.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decode(path, &mut sink)));
    outcome.unwrap_or_else(|_| {
        Err(SourceError::corrupt(
            path,
            "cannot be decoded: its decoder gave up on damaged data",
        ))
    })?;
    let written = sink.finish()?;
    if written != rows {
        return Err(SourceError::corrupt(
            path,
            format!("{written} rows were decoded, its metadata says {rows}"),
        ));
    }
    let copy = file_fingerprint(to, FingerprintMode::Sampled, &|_| {})?;
    Ok(Copy {
        name: copy.name,
        rows,
        len: copy.len,
        hash: copy.hash,
    })
}

/// Decoders of damaged files may panic; that is this file's error, not the end of the process.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(SourceError::corrupt(
            path,
            "cannot be decoded: its decoder gave up on damaged data",
        ))
    })
}

/// The JSON files of a saved dataset, and the manifest.
fn write_side_files(dir: &Path, manifest: &Manifest) -> Result<(), SourceError> {
    let names: Vec<_> = manifest
        .files
        .iter()
        .map(|f| serde_json::json!({"filename": f.name}))
        .collect();
    let key: String = manifest
        .sources
        .first()
        .map(|s| s.hash.chars().take(16).collect())
        .unwrap_or_default();
    let column = manifest.column.as_str();
    let state = serde_json::json!({
        "_data_files": names, "_fingerprint": key, "_format_columns": null, "_format_kwargs": {},
        "_format_type": null, "_output_all_columns": false, "_split": null,
    });
    let info = serde_json::json!({
        "citation": "", "description": "", "homepage": "", "license": "",
        "features": { column: {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"} },
    });
    let manifest = serde_json::to_value(manifest).map_err(|e| SourceError::corrupt(dir, e.to_string()))?;
    for (name, json) in [
        ("state.json", &state),
        ("dataset_info.json", &info),
        (MANIFEST, &manifest),
    ] {
        let path = dir.join(name);
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&path)?;
            serde_json::to_writer_pretty(&mut file, json)?;
            file.write_all(b"\n")?;
            file.sync_all()
        };
        write().map_err(|e| SourceError::io(&path, "write", e))?;
    }
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> Result<(), SourceError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| SourceError::io(dir, "sync", e))
}
