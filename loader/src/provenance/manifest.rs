//! Manifests: an order in less than 10 kB, to be regenerated and verified on another machine.
//!
//! A manifest holds the configuration of a run (sections `data`, `order` and `run`, as in a configuration file), the
//! fingerprint of the dataset's files, and the hash of the whole order.
//!
//! Order hash, definition 1: BLAKE3 over the text `ceteris order 1` and a zero byte, then epoch by epoch for each
//! micro-step, for each rank: the number of its samples as u32 and their ids as u64, little-endian. It covers the
//! dealing to ranks, which a run fingerprint leaves out. A dataset of more than 48 files is recorded as 48 groups of
//! consecutive files, so that a manifest stays small.

use std::path::{Path, PathBuf};

use ceteris_samplers::{Order, OrderError, Place};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::source::{DatasetFingerprint, FileFingerprint, FingerprintMode};

/// The version this writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// Largest manifest, in bytes.
pub const MAX_BYTES: usize = 10_000;
/// Files, or groups of files, that are listed.
const LISTED: usize = 48;
/// Epochs whose own hash is listed.
const EPOCHS_LISTED: usize = 16;

/// A manifest. Serialises with its keys in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub ceteris_manifest: u32,
    /// Version of the program that wrote it.
    pub ceteris: String,
    /// How the dataset is read; paths in it are those of the machine it was written on.
    pub data: Map<String, Value>,
    /// The order with every option.
    pub order: Map<String, Value>,
    /// The layout over ranks.
    pub run: Map<String, Value>,
    /// What the order permutes.
    pub dataset: Dataset,
    /// What the order is.
    pub epochs: Epochs,
}

/// The dataset of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Samples.
    pub samples: u64,
    /// Tokens of a sample, where all have the same.
    pub seq_length: Option<u64>,
    /// How much of each file was hashed.
    pub mode: FingerprintMode,
    /// Fingerprint over all files.
    pub hash: String,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files.
    pub num_files: u64,
    /// Each file, or each group of consecutive files where there are many.
    pub files: Vec<Group>,
}

/// A file, or several consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name of the (first) file.
    pub name: String,
    /// Files, when it is not one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
    /// Bytes.
    pub len: u64,
    /// BLAKE3 of the file's bytes as the mode reads them; of several files, the fingerprint over them.
    pub hash: String,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

/// The epochs of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epochs {
    /// Epochs hashed, from 0.
    pub count: u64,
    /// Optimizer steps of each.
    pub steps_per_epoch: u64,
    /// Micro-steps of each.
    pub micro_steps_per_epoch: u64,
    /// Places of the first one: its samples, repeated ones included.
    pub samples_per_epoch: u64,
    /// Hash of the whole order.
    pub order_hash: String,
    /// Hash of each of the first epochs alone.
    pub epoch_hashes: Vec<String>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read or written.
    #[error("{}: cannot {action} the manifest", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read" or "write".
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not a manifest of this version.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It would be larger than [`MAX_BYTES`].
    #[error(
        "the manifest would have {bytes} bytes, more than {MAX_BYTES}: the order's own options are too long for it"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// An epoch cannot be built.
    #[error(transparent)]
    Order(#[from] OrderError),
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`ManifestError`] naming what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let wrong = |problem: String| ManifestError::Format {
            path: path.to_owned(),
            problem,
        };
        let io = |source| ManifestError::Io {
            path: path.to_owned(),
            action: "read",
            source,
        };
        let len = std::fs::metadata(path).map_err(io)?.len();
        if len > 16 * MAX_BYTES as u64 {
            return Err(wrong(format!(
                "{len} bytes are no manifest, which has up to {MAX_BYTES}"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        let value: Value = serde_json::from_str(&text).map_err(|e| wrong(format!("not JSON: {e}")))?;
        match value.get("ceteris_manifest").and_then(Value::as_u64) {
            Some(version) if version == u64::from(MANIFEST_VERSION) => {}
            Some(version) => {
                return Err(wrong(format!(
                    "a manifest of version {version}; this program reads version {MANIFEST_VERSION}"
                )));
            }
            None => return Err(wrong("not a manifest: it has no `ceteris_manifest`".to_owned())),
        }
        serde_json::from_value(value).map_err(|e| wrong(e.to_string()))
    }

    /// The manifest as it is written.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The manifest as it is written, if it is small enough.
    ///
    /// # Errors
    /// [`ManifestError::TooLarge`].
    pub fn checked_text(&self) -> Result<String, ManifestError> {
        let text = self.text();
        if text.len() > MAX_BYTES {
            return Err(ManifestError::TooLarge { bytes: text.len() });
        }
        Ok(text)
    }

    /// Writes it: beside the place first, then moved there.
    ///
    /// # Errors
    /// [`ManifestError::Io`], [`ManifestError::TooLarge`].
    pub fn write(&self, path: &Path) -> Result<(), ManifestError> {
        let text = self.checked_text()?;
        let io = |source| ManifestError::Io {
            path: path.to_owned(),
            action: "write",
            source,
        };
        crate::atomic::write(path, text.as_bytes()).map_err(io)
    }

    /// The configuration as a configuration file has it.
    pub fn config(&self) -> Value {
        serde_json::json!({"data": self.data, "order": self.order, "run": self.run})
    }
}

impl Dataset {
    /// Records a dataset.
    pub fn new(samples: u64, seq_length: Option<usize>, found: &DatasetFingerprint) -> Self {
        Self {
            samples,
            seq_length: seq_length.map(|length| length as u64),
            mode: found.mode,
            hash: found.hash.clone(),
            bytes: found.files.iter().map(|file| file.len).sum(),
            num_files: found.files.len() as u64,
            files: groups(found),
        }
    }

    /// The first difference from this record to the dataset found, naming the file or the group of files. `None` when
    /// it is the same dataset.
    pub fn difference(&self, found: &Self) -> Option<String> {
        if self.hash == found.hash && self.mode == found.mode && self.samples == found.samples {
            return None;
        }
        let counts = format!(
            "{} samples in {} file(s) of {} bytes, recorded were {} in {} of {}",
            found.samples, found.num_files, found.bytes, self.samples, self.num_files, self.bytes
        );
        if self.num_files == found.num_files {
            for (old, new) in self.files.iter().zip(&found.files) {
                if old == new {
                    continue;
                }
                let which = if old.count == 1 {
                    format!("file {}", new.name)
                } else {
                    format!("one of the {} files from {} on", old.count, new.name)
                };
                let how = if old.name != new.name {
                    format!("recorded was {}", old.name)
                } else if old.len != new.len {
                    format!("{} bytes, recorded were {}", new.len, old.len)
                } else {
                    format!(
                        "other content in as many bytes ({}; BLAKE3 {} now, {} recorded)",
                        new.len,
                        shortened(&new.hash),
                        shortened(&old.hash)
                    )
                };
                return Some(format!("{which} differs: {how} ({counts})"));
            }
        } else {
            let first = self.files.iter().zip(&found.files).find(|(old, new)| old != new);
            let (kept, now) = (self.files.len(), found.files.len());
            let named = match first {
                Some((old, new)) => {
                    format!("the first difference is at {} (recorded: {})", new.name, old.name)
                }
                None if now < kept => format!("the first file missing is {}", self.files[now].name),
                None if kept < now => format!(
                    "the first file that was not recorded is {}",
                    found.files[kept].name
                ),
                None => return Some(counts),
            };
            return Some(format!("there are {counts}; {named}"));
        }
        Some(counts)
    }
}

fn shortened(hash: &str) -> String {
    format!("{}…", hash.get(..16).unwrap_or(hash))
}

/// Files one by one, or in as many groups as are listed.
fn groups(found: &DatasetFingerprint) -> Vec<Group> {
    if found.files.len() <= LISTED {
        return found
            .files
            .iter()
            .map(|file| Group {
                name: file.name.clone(),
                count: 1,
                len: file.len,
                hash: file.hash.clone(),
            })
            .collect();
    }
    let size = found.files.len().div_ceil(LISTED);
    found
        .files
        .chunks(size)
        .map(|files: &[FileFingerprint]| Group {
            name: files.first().map(|file| file.name.clone()).unwrap_or_default(),
            count: files.len() as u64,
            len: files.iter().map(|file| file.len).sum(),
            hash: DatasetFingerprint::of_files(found.mode, files.to_vec()).hash,
        })
        .collect()
}

impl Epochs {
    /// Goes through the order; `done` hears how many samples more were hashed.
    ///
    /// # Errors
    /// [`ManifestError::Order`] for an epoch that cannot be built.
    pub fn of(order: &dyn Order, count: u64, done: &dyn Fn(u64)) -> Result<Self, ManifestError> {
        let mut whole = blake3::Hasher::new();
        whole.update(b"ceteris order 1\0");
        let (mut epoch_hashes, mut samples_per_epoch) = (Vec::new(), 0);
        let geometry = order.geometry();
        for epoch in 0..count {
            let index = order.epoch(epoch)?;
            let mut alone = blake3::Hasher::new();
            alone.update(b"ceteris order 1\0");
            let (mut buffer, mut samples) = (Vec::with_capacity(1 << 16), 0u64);
            for micro_step in 0..index.micro_steps() {
                for rank in 0..geometry.world_size {
                    let start = buffer.len();
                    buffer.extend_from_slice(&[0; 4]);
                    let mut rows = 0u32;
                    for slot in 0..geometry.micro_batch_size {
                        let place = Place {
                            micro_step,
                            rank,
                            slot,
                        };
                        let Some(sample) = index.sample(place) else { break };
                        buffer.extend_from_slice(&sample.to_le_bytes());
                        rows += 1;
                    }
                    buffer[start..start + 4].copy_from_slice(&rows.to_le_bytes());
                    samples += u64::from(rows);
                }
                if buffer.len() >= 1 << 16 || micro_step + 1 == index.micro_steps() {
                    whole.update(&buffer);
                    alone.update(&buffer);
                    done(buffer.len() as u64 / 8);
                    buffer.clear();
                }
            }
            if epoch == 0 {
                samples_per_epoch = samples;
            }
            if epoch_hashes.len() < EPOCHS_LISTED {
                epoch_hashes.push(alone.finalize().to_hex().to_string());
            }
        }
        Ok(Self {
            count,
            steps_per_epoch: order.steps_per_epoch(),
            micro_steps_per_epoch: order.micro_steps_per_epoch(),
            samples_per_epoch,
            order_hash: whole.finalize().to_hex().to_string(),
            epoch_hashes,
        })
    }

    /// The first difference from this record to the order found.
    pub fn difference(&self, found: &Self) -> Option<String> {
        for (what, old, new) in [
            ("steps per epoch", self.steps_per_epoch, found.steps_per_epoch),
            (
                "micro-steps per epoch",
                self.micro_steps_per_epoch,
                found.micro_steps_per_epoch,
            ),
            (
                "samples per epoch",
                self.samples_per_epoch,
                found.samples_per_epoch,
            ),
        ] {
            if old != new {
                return Some(format!("{new} {what}, recorded were {old}"));
            }
        }
        let listed = self.count.min(EPOCHS_LISTED as u64);
        if self.epoch_hashes.len() as u64 != listed {
            return Some(format!(
                "the manifest lists {} epoch hashes, {listed} belong to {} epochs: it was edited",
                self.epoch_hashes.len(),
                self.count
            ));
        }
        if self.order_hash == found.order_hash {
            let edited = self.epoch_hashes.iter().zip(&found.epoch_hashes);
            let edited = edited.into_iter().position(|(old, new)| old != new);
            return edited.map(|epoch| {
                format!("the hash recorded of epoch {epoch} is not that of the order, whose own hash is right: the manifest was edited")
            });
        }
        let epoch = self
            .epoch_hashes
            .iter()
            .zip(&found.epoch_hashes)
            .position(|(old, new)| old != new);
        Some(match epoch {
            Some(epoch) => format!("epoch {epoch} has another order than recorded"),
            None => "a later epoch has another order than recorded".to_owned(),
        })
    }
}
