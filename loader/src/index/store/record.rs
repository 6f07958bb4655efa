//! What is written beside cached arrays: what they were built from, and how that is compared with what lies there now.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::source::megatron::{IndexedDataset, bin_path, idx_path};
use crate::source::{DatasetFingerprint, FileFingerprint, FingerprintMode, SourceError};

/// Version of the record; another one is never read.
pub(super) const FORMAT: u32 = 2;

/// How a file looked when its content was last known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    pub(super) len: u64,
    pub(super) mtime: (i64, i64),
    pub(super) ctime: (i64, i64),
    pub(super) inode: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, SourceError> {
        let meta = fs::metadata(path).map_err(|e| SourceError::io(path, "examine", e))?;
        Ok(Stamp {
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        })
    }
}

/// What decides the indices of one dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    /// The prefix without its folder.
    pub(super) name: String,
    pub(super) first_sequence: u64,
    pub(super) end_sequence: u64,
    pub(super) sequence_length: u64,
    pub(super) add_extra_token: bool,
    pub(super) random_seed: u64,
    pub(super) num_samples: Option<u64>,
    pub(super) drop_last_partial_sequence: bool,
}

impl Key {
    /// The same but for which sequences the split takes.
    pub(super) fn same_order(&self, other: &Key) -> bool {
        let sequences = (other.first_sequence, other.end_sequence);
        let mut moved = self.clone();
        (moved.first_sequence, moved.end_sequence) = sequences;
        moved == *other
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    pub(super) idx: FileFingerprint,
    pub(super) bin: FileFingerprint,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) num_epochs: u64,
    pub(super) tokens_per_epoch: u64,
    pub(super) separate_final_epoch: Option<bool>,
    pub(super) samples_sans_final_epoch: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArrayRecord {
    pub(super) file: String,
    pub(super) entries: u64,
    pub(super) wide: bool,
    /// How the file looked when its values were last known to be those of the record's hash.
    pub(super) stamp: Stamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) key: Key,
    /// The `.idx` file it was built from, without symbolic links.
    pub(super) place: PathBuf,
    pub(super) content: Content,
    pub(super) idx_stamp: Stamp,
    pub(super) bin_stamp: Stamp,
    pub(super) rule: Rule,
    pub(super) document_index: ArrayRecord,
    pub(super) sample_index: ArrayRecord,
    pub(super) shuffle_index: ArrayRecord,
    /// Hash over all values of the three arrays ([`index_hash`]).
    pub(super) index_hash: String,
}

/// The record of a blend. Its shares say all there is to know; no data is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlendRecord {
    pub(super) format: u32,
    pub(super) weights: Option<Vec<f64>>,
    pub(super) lengths: Option<Vec<u64>>,
    pub(super) size: u64,
    pub(super) counts: Vec<u64>,
    pub(super) dataset_index: ArrayRecord,
    pub(super) dataset_sample_index: ArrayRecord,
    /// Hash over all values of the two arrays ([`super::hash::blend_hash`]).
    pub(super) index_hash: String,
}

/// First 32 hex digits of the BLAKE3 of a key's JSON.
pub(super) fn short_hash(key: &impl Serialize, salt: &str) -> String {
    // Plain data always serialises.
    let mut text = serde_json::to_string(key).unwrap_or_default();
    text.push('\n');
    text.push_str(salt);
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// Fingerprints of a dataset's files: every byte of the index, which decides the order, and a sample of the tokens.
pub(super) fn content_of(data: &IndexedDataset) -> Result<Content, SourceError> {
    let one = |path: PathBuf, mode: FingerprintMode| -> Result<FileFingerprint, SourceError> {
        let files = DatasetFingerprint::compute(std::slice::from_ref(&path), mode, &|_| ())?.files;
        files
            .into_iter()
            .next()
            .ok_or_else(|| SourceError::corrupt(&path, "could not be fingerprinted"))
    };
    Ok(Content {
        idx: one(idx_path(data.prefix()), FingerprintMode::Full)?,
        bin: one(bin_path(data.prefix()), FingerprintMode::Sampled)?,
    })
}

/// What differs between the content in a record and what is there now.
pub(super) fn difference(then: &Content, now: &Content) -> Option<String> {
    for (file, then, now) in [(".idx", &then.idx, &now.idx), (".bin", &then.bin, &now.bin)] {
        if then.len != now.len {
            return Some(format!(
                "the {file} file had {} bytes and has {} now",
                then.len, now.len
            ));
        }
        if then.hash != now.hash {
            return Some(format!("the content of the {file} file is another one"));
        }
    }
    None
}
