//! Checkpoints: Hugging Face weights and configuration, optimizer, loader position; written whole or not at all.
//!
//! A checkpoint is a folder `step-N`: `model.safetensors` and `config.json` (what transformers and
//! flash-linear-attention load), `optimizer.safetensors` (`<name>.exp_avg`, `<name>.exp_avg_sq`), `loader.json` (the
//! loader's state), `trainer_state.json`, and `checksums.json` over all of them. It is written under a name of its own,
//! synced, and renamed; a crash at any point leaves the earlier checkpoints as they were. What a crash left half written
//! or half removed has a name that starts with a dot and is cleared at the next start.

mod hand_over;
mod hf;
pub mod safetensors;
mod verify;
pub mod write_points;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ceteris_loader::pipeline::LoaderState;
use serde::{Deserialize, Serialize};

use self::safetensors::{Stored, WriteError};
use self::write_points::PointFile;

pub use hand_over::hand_over;
pub use hf::config_json;
pub use verify::{Found, newest_valid, steps_in, verify};

/// Format of a checkpoint; raised when a file changes its meaning.
pub const FORMAT: u32 = 1;

/// Where a run stands, beside weights, moments and data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// Version of the writer.
    pub ceteris_version: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Tokens consumed, padding included.
    pub tokens: u64,
    /// All settings of the run that wrote it.
    pub config: serde_json::Value,
}

/// What a tensor's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The weights.
    Value,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
}

/// Fills numbers of a tensor, by its index, from an index on.
pub type Values<'a, E> = dyn FnMut(Part, usize, usize, &mut [f64]) -> Result<(), E> + 'a;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A file is damaged or not what it should be.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// File or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Weights or moments.
    #[error(transparent)]
    Tensors(#[from] safetensors::SafetensorsError),
    /// The values could not be read from the device.
    #[error("cannot read the weights from the device: {0}")]
    Device(String),
}

fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

/// What is saved.
pub struct Snapshot<'a, E> {
    /// Names and shapes, in the order `values` counts them.
    pub tensors: &'a [(String, Vec<usize>)],
    /// Float type of the files.
    pub stored: Stored,
    /// The numbers.
    pub values: &'a mut Values<'a, E>,
    /// Contents of `config.json`.
    pub config_json: serde_json::Value,
    /// Position of the run.
    pub state: &'a TrainerState,
    /// Position in the data.
    pub loader: &'a LoaderState,
}

/// Name of the folder of a step.
pub fn folder_name(step: u64) -> String {
    format!("step-{step}")
}

/// Writes `folder/step-N` and removes all but the newest `keep_last` checkpoints. An existing `step-N` is replaced.
///
/// # Errors
/// [`CheckpointError`]; nothing that was valid before is lost.
pub fn save<E: std::fmt::Display>(
    folder: &Path,
    keep_last: usize,
    snapshot: &mut Snapshot<'_, E>,
) -> Result<PathBuf, CheckpointError> {
    std::fs::create_dir_all(folder).map_err(io(folder, "create"))?;
    let name = folder_name(snapshot.state.step);
    let (temporary, target) = (folder.join(format!(".tmp-{name}")), folder.join(&name));
    if temporary.exists() {
        write_points::remove_folder(&temporary).map_err(io(&temporary, "remove"))?;
    }
    std::fs::create_dir(&temporary).map_err(io(&temporary, "create"))?;
    write_files(&temporary, snapshot)?;
    write_points::sync_folder(&temporary).map_err(io(&temporary, "sync"))?;
    let replaced = folder.join(format!(".old-{name}"));
    if target.exists() {
        if replaced.exists() {
            write_points::remove_folder(&replaced).map_err(io(&replaced, "remove"))?;
        }
        write_points::rename(&target, &replaced).map_err(io(&target, "rename"))?;
    }
    write_points::rename(&temporary, &target).map_err(io(&target, "rename to"))?;
    write_points::sync_folder(folder).map_err(io(folder, "sync"))?;
    if replaced.exists() {
        write_points::remove_folder(&replaced).map_err(io(&replaced, "remove"))?;
    }
    let steps = steps_in(folder)?;
    for step in steps.iter().rev().skip(keep_last) {
        remove(folder, &folder_name(*step))?;
    }
    Ok(target)
}

/// Removes what a crash left half written or half removed. A whole checkpoint that was about to be replaced by one of
/// the same step gets its name back.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn clear_leftovers(folder: &Path) -> Result<(), CheckpointError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(folder, "list")(e)),
    };
    for entry in entries {
        let path = entry.map_err(io(folder, "list"))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
            continue;
        };
        let replaced = name
            .strip_prefix(".old-")
            .map(|step| folder.join(step))
            .filter(|target| !target.exists() && verify(&path).is_ok());
        if let Some(target) = replaced {
            write_points::rename(&path, &target).map_err(io(&path, "rename"))?;
        } else if name.starts_with(".tmp-step-") || name.starts_with(".old-step-") {
            write_points::remove_folder(&path).map_err(io(&path, "remove"))?;
        }
    }
    Ok(())
}

/// Takes a checkpoint's name away first, so that a crash within the removal leaves no damaged one behind.
fn remove(folder: &Path, name: &str) -> Result<(), CheckpointError> {
    let (from, to) = (folder.join(name), folder.join(format!(".old-{name}")));
    if to.exists() {
        write_points::remove_folder(&to).map_err(io(&to, "remove"))?;
    }
    write_points::rename(&from, &to).map_err(io(&from, "rename"))?;
    write_points::remove_folder(&to).map_err(io(&to, "remove"))
}

fn write_files<E: std::fmt::Display>(
    folder: &Path,
    snapshot: &mut Snapshot<'_, E>,
) -> Result<(), CheckpointError> {
    let mut sums = Vec::new();
    let values = &mut *snapshot.values;
    file(folder, "model.safetensors", &mut sums, |out| {
        tensors(
            out,
            snapshot.tensors,
            snapshot.stored,
            &mut |tensor, first, block| values(Part::Value, tensor, first, block),
        )
    })?;
    let count = snapshot.tensors.len();
    let moments: Vec<(String, Vec<usize>)> = [".exp_avg", ".exp_avg_sq"]
        .iter()
        .flat_map(|suffix| {
            snapshot
                .tensors
                .iter()
                .map(move |(name, shape)| (format!("{name}{suffix}"), shape.clone()))
        })
        .collect();
    file(folder, "optimizer.safetensors", &mut sums, |out| {
        tensors(out, &moments, snapshot.stored, &mut |tensor, first, block| {
            let part = if tensor < count {
                Part::FirstMoment
            } else {
                Part::SecondMoment
            };
            values(part, tensor % count, first, block)
        })
    })?;
    for (name, value) in [
        ("config.json", Ok(snapshot.config_json.clone())),
        ("trainer_state.json", serde_json::to_value(snapshot.state)),
        ("loader.json", serde_json::to_value(snapshot.loader)),
    ] {
        file(folder, name, &mut sums, |out| {
            json(out, &value?).map_err(Failure::Io)
        })?;
    }
    verify::write_checksums(folder, sums)
}

enum Failure {
    Io(std::io::Error),
    Device(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Io(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Failure::Io(error.into())
    }
}

fn tensors<E: std::fmt::Display>(
    out: &mut dyn Write,
    list: &[(String, Vec<usize>)],
    stored: Stored,
    values: &mut safetensors::Giver<'_, E>,
) -> Result<(), Failure> {
    safetensors::write(out, list, stored, values).map_err(|e| match e {
        WriteError::Io(e) => Failure::Io(e),
        WriteError::Header(text) => Failure::Io(std::io::Error::other(text)),
        WriteError::Values(e) => Failure::Device(e.to_string()),
    })
}

fn json(out: &mut dyn Write, value: &serde_json::Value) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Writes one file of a checkpoint, synced, and notes its length and hash.
fn file(
    folder: &Path,
    name: &str,
    sums: &mut Vec<verify::Checksum>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<(), CheckpointError> {
    let path = folder.join(name);
    let mut out = Hashed {
        out: BufWriter::with_capacity(1 << 18, PointFile::create(&path).map_err(io(&path, "create"))?),
        hasher: blake3::Hasher::new(),
        bytes: 0,
    };
    write(&mut out).map_err(|e| match e {
        Failure::Io(e) => io(&path, "write")(e),
        Failure::Device(text) => CheckpointError::Device(text),
    })?;
    let Hashed { out, hasher, bytes } = out;
    let inner = out.into_inner().map_err(|e| io(&path, "write")(e.into_error()))?;
    inner.sync().map_err(io(&path, "sync"))?;
    sums.push(verify::Checksum {
        file: name.to_owned(),
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    });
    Ok(())
}

struct Hashed {
    out: BufWriter<PointFile>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
