//! Finding checkpoints and checking that they are whole.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ceteris_loader::pipeline::LoaderState;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Failure, TrainerState, file, folder_name, io, json};

pub(super) const CHECKSUMS: &str = "checksums.json";

/// Length and hash of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Checksum {
    pub file: String,
    pub bytes: u64,
    pub blake3: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Checksums {
    pub format: u32,
    pub files: Vec<Checksum>,
}

/// Writes the list of a checkpoint's files, the last of them.
pub(super) fn write_checksums(folder: &Path, files: Vec<Checksum>) -> Result<(), CheckpointError> {
    let sums = Checksums {
        format: FORMAT,
        files,
    };
    file(folder, CHECKSUMS, &mut Vec::new(), |out| {
        json(out, &serde_json::to_value(&sums)?).map_err(Failure::Io)
    })
}

/// A checkpoint that is whole.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// Position of the run.
    pub state: TrainerState,
    /// Position in the data.
    pub loader: LoaderState,
}

/// Steps that `folder` holds checkpoints of, ascending. A folder that does not exist holds none.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn steps_in(folder: &Path) -> Result<Vec<u64>, CheckpointError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io(folder, "list")(e)),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry.map_err(io(folder, "list"))?.file_name();
        let step = name
            .to_str()
            .and_then(|n| n.strip_prefix("step-"))
            .and_then(|n| n.parse::<u64>().ok().filter(|s| folder_name(*s)[5..] == *n));
        steps.extend(step);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The newest checkpoint of `folder` that is whole, and why newer ones were passed over.
///
/// # Errors
/// [`CheckpointError::Io`] when the folder cannot be listed.
pub fn newest_valid(folder: &Path) -> Result<(Option<Found>, Vec<String>), CheckpointError> {
    let mut passed_over = Vec::new();
    for step in steps_in(folder)?.into_iter().rev() {
        match verify(&folder.join(folder_name(step))) {
            Ok(found) => return Ok((Some(found), passed_over)),
            Err(error) => passed_over.push(error.to_string()),
        }
    }
    Ok((None, passed_over))
}

/// Checks length and hash of every file of a checkpoint and reads its positions.
///
/// # Errors
/// [`CheckpointError`] naming the file that is missing, damaged or of another format. A checkpoint without a data
/// position is refused: it could only be resumed from the wrong place.
pub fn verify(path: &Path) -> Result<Found, CheckpointError> {
    let invalid = |file: &str, problem: String| CheckpointError::Invalid {
        path: path.join(file),
        problem,
    };
    let sums: Checksums = read_json(&path.join(CHECKSUMS))?;
    if sums.format != FORMAT {
        return Err(invalid(
            CHECKSUMS,
            format!("format {}, this version reads format {FORMAT}", sums.format),
        ));
    }
    for name in [
        "model.safetensors",
        "optimizer.safetensors",
        "config.json",
        "trainer_state.json",
        "loader.json",
    ] {
        if !sums.files.iter().any(|s| s.file == name) {
            return Err(invalid(
                name,
                "is not part of this checkpoint; without weights, moments and a data position a run cannot be resumed"
                    .into(),
            ));
        }
    }
    for sum in &sums.files {
        if Path::new(&sum.file).components().count() != 1 {
            return Err(invalid(
                CHECKSUMS,
                format!("'{}' is not a file of this folder", sum.file),
            ));
        }
        let file = path.join(&sum.file);
        let length = std::fs::metadata(&file).map_err(io(&file, "read"))?.len();
        if length != sum.bytes {
            return Err(invalid(
                &sum.file,
                format!("holds {length} bytes, {} were written", sum.bytes),
            ));
        }
        if hash(&file)? != sum.blake3 {
            return Err(invalid(
                &sum.file,
                "its contents are not those that were written".into(),
            ));
        }
    }
    let state: TrainerState = read_json(&path.join("trainer_state.json"))?;
    if state.format != FORMAT {
        return Err(invalid(
            "trainer_state.json",
            format!("format {}, this version reads format {FORMAT}", state.format),
        ));
    }
    let loader =
        LoaderState::load(&path.join("loader.json")).map_err(|e| invalid("loader.json", e.to_string()))?;
    Ok(Found {
        path: path.to_owned(),
        state,
        loader,
    })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let text = std::fs::read_to_string(path).map_err(io(path, "read"))?;
    serde_json::from_str(&text).map_err(|e| CheckpointError::Invalid {
        path: path.to_owned(),
        problem: e.to_string(),
    })
}

fn hash(path: &Path) -> Result<String, CheckpointError> {
    let mut file = File::open(path).map_err(io(path, "open"))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; 1 << 18];
    loop {
        match file.read(&mut buffer).map_err(io(path, "read"))? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            n => {
                hasher.update(&buffer[..n]);
            }
        }
    }
}
