//! Our own cache of built indices, tied to the content of the data.
//!
//! A dataset's three arrays lie beside a record (`ceteris-<key>.json`) that says what they were built from: everything
//! in the key that matters to the order and nothing else (no batch size, no learning rate), the content of `.idx`
//! (every byte) and `.bin` (a sample of it, see [`crate::source::fingerprint`]), and what the files looked like on disk.
//!
//! A second start with untouched files compares their stamps and maps the arrays: no work grows with the data. Files with
//! new stamps are fingerprinted again: the same content is a hit and gets its stamps renewed, other content is stale. A
//! record of the same content under another path (data and cache moved to another machine) is a hit too.
//!
//! The arrays have stamps as well: where one is another than recorded, its values are compared with the recorded hash
//! once, and damage is stale too.
//!
//! Safe with any number of builders at once: every file appears by renaming, the record last, and a lock beside it lets
//! one build while the others wait (where the file system has no locks, all build, which gives the same files).

mod blend;
mod files;
mod hash;
mod lock;
mod record;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fmt, fs, io};

use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use serde::Serialize;

use super::npy::ElementType;
use crate::source::SourceError;
use crate::source::megatron::{IndexedDataset, bin_path, idx_path};
pub use hash::index_hash;
use lock::Lock;
use record::{FORMAT, Key, Record, Rule, Stamp, content_of, difference, short_hash};

/// What a use of the cache came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Found and used without reading the data.
    Hit,
    /// Found; the data's files have new stamps but the same content.
    HitSameContent,
    /// Found under another path with the same content.
    HitMoved {
        /// The record.
        record: PathBuf,
    },
    /// Not there; built.
    Built,
    /// Taken from a cache of Megatron's as it is.
    Imported,
    /// Found, but made from other data or damaged; built anew.
    Rebuilt {
        /// What differed.
        reason: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Hit => f.write_str("found in the cache"),
            Outcome::HitSameContent => {
                f.write_str("found in the cache (files are newer, their content is the same)")
            }
            Outcome::HitMoved { record } => {
                write!(f, "found in the cache under another path ({})", record.display())
            }
            Outcome::Built => f.write_str("built"),
            Outcome::Imported => f.write_str("taken from Megatron's cache"),
            Outcome::Rebuilt { reason } => write!(f, "built anew: {reason}"),
        }
    }
}

/// Why the cache cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Building is not allowed and there is nothing to use.
    #[error("{}: no usable index ({reason}), and building one was ruled out (--no-rebuild)", record.display())]
    NoRebuild {
        /// The record looked for.
        record: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A folder of cached indices.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    no_rebuild: bool,
    /// Records of datasets, by name, as they were at the first miss: a build with a thousand sources misses a thousand
    /// times, and reads them once.
    others: Arc<OnceLock<Vec<(String, Record)>>>,
}

/// A cached or built dataset.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The indices.
    pub index: Arc<GptIndex>,
    /// How they were come by.
    pub outcome: Outcome,
    /// Hash over their values; `None` where they are not kept.
    pub index_hash: Option<String>,
}

/// What decides the indices, where the data lies, and the name the two give.
fn identity(
    data: &IndexedDataset,
    sequences: std::ops::Range<u64>,
    spec: &GptIndexSpec,
) -> (Key, PathBuf, String) {
    let key = Key {
        name: data
            .prefix()
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default(),
        first_sequence: sequences.start,
        end_sequence: sequences.end,
        sequence_length: spec.sequence_length,
        add_extra_token: spec.add_extra_token,
        random_seed: spec.random_seed,
        num_samples: spec.num_samples,
        drop_last_partial_sequence: spec.drop_last_partial_sequence,
    };
    let place = fs::canonicalize(idx_path(data.prefix())).unwrap_or_else(|_| idx_path(data.prefix()));
    let base = format!("ceteris-{}", short_hash(&key, &place.to_string_lossy()));
    (key, place, base)
}

/// The records in a folder, by name, as they stand.
///
/// # Errors
/// A folder that cannot be listed.
pub fn records(folder: &Path) -> Result<Vec<(String, serde_json::Value)>, SourceError> {
    let fail = |e: io::Error| SourceError::io(folder, "list", e);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
        if name.starts_with("ceteris-") && name.ends_with(".json") {
            names.push(name);
        }
    }
    names.sort();
    let store = Store::new(folder, true);
    Ok(names
        .into_iter()
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .map(|base| match store.read_json::<serde_json::Value>(&base) {
            Ok(Some(record)) => (base, record),
            Ok(None) => (base, serde_json::Value::Null),
            Err(problem) => (base, serde_json::json!({ "problem": problem })),
        })
        .collect())
}

impl Store {
    /// A cache in `folder`, which need not exist yet. With `no_rebuild` nothing is ever built.
    pub fn new(folder: &Path, no_rebuild: bool) -> Self {
        Store {
            folder: folder.to_owned(),
            no_rebuild,
            others: Arc::default(),
        }
    }

    /// The same folder for one more build: records that were written since are seen.
    #[must_use]
    pub fn afresh(&self) -> Self {
        Store::new(&self.folder, self.no_rebuild)
    }

    /// Records of datasets in the folder, in the order of their names.
    fn others(&self) -> &[(String, Record)] {
        self.others.get_or_init(|| {
            let Ok(entries) = fs::read_dir(&self.folder) else {
                return Vec::new();
            };
            let mut names: Vec<String> = entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
                .filter(|name| name.starts_with("ceteris-") && !name.starts_with("ceteris-blend-"))
                .collect();
            names.sort();
            names
                .into_iter()
                .filter_map(|name| self.read_record(&name).ok()?.map(|record| (name, record)))
                .collect()
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// A record of these indices is there, whatever it holds.
    pub fn has_record(
        &self,
        data: &IndexedDataset,
        sequences: std::ops::Range<u64>,
        spec: &GptIndexSpec,
    ) -> bool {
        let (_, _, base) = identity(data, sequences, spec);
        self.path(&format!("{base}.json")).exists()
    }

    /// The indices of `sequences` of a dataset: from the cache, or built by `build` and kept.
    ///
    /// # Errors
    /// What `build` returns, reads and writes that fail, and [`StoreError::NoRebuild`].
    pub fn gpt<E: From<StoreError>>(
        &self,
        data: &IndexedDataset,
        sequences: std::ops::Range<u64>,
        spec: &GptIndexSpec,
        build: impl FnOnce() -> Result<GptIndex, E>,
    ) -> Result<Stored, E> {
        let (key, place, base) = identity(data, sequences, spec);
        let mut why = match self.look_up(&base, &key, &place, data)? {
            Ok(stored) => return Ok(stored),
            Err(reason) => reason,
        };
        if self.no_rebuild {
            let reason = why.unwrap_or_else(|| "there is none".to_owned());
            return Err(StoreError::NoRebuild {
                record: self.path(&format!("{base}.json")),
                reason,
            }
            .into());
        }
        fs::create_dir_all(&self.folder)
            .map_err(|e| StoreError::from(SourceError::io(&self.folder, "create the folder", e)))?;
        let lock = Lock::take(self.path(&format!("{base}.lock")));
        if lock.waited {
            // Another process built it meanwhile.
            match self.look_up(&base, &key, &place, data)? {
                Ok(stored) => return Ok(stored),
                Err(reason) => why = reason,
            }
        }
        let index = build()?;
        let hash = self.keep(&base, key, place, data, &index)?;
        drop(lock);
        let outcome = why.map_or(Outcome::Built, |reason| Outcome::Rebuilt { reason });
        // The copy on disk is what later starts use: use it now too, and free the memory.
        let index = match self
            .read_record(&base)
            .ok()
            .flatten()
            .and_then(|mut record| self.open(&mut record).ok())
        {
            Some((index, _)) => index,
            None => index,
        };
        Ok(Stored {
            index: Arc::new(index),
            outcome,
            index_hash: Some(hash),
        })
    }

    /// A usable cached index, or why there is none (`None`: nothing was ever cached).
    fn look_up(
        &self,
        base: &str,
        key: &Key,
        place: &Path,
        data: &IndexedDataset,
    ) -> Result<Result<Stored, Option<String>>, StoreError> {
        let stored = |record: &Record, index: GptIndex, outcome: Outcome| Stored {
            index: Arc::new(index),
            outcome,
            index_hash: Some(record.index_hash.clone()),
        };
        let mut record = match self.read_record(base) {
            Ok(Some(record)) if record.key == *key => record,
            Ok(Some(_)) => return Ok(Err(Some("the record belongs to another order".to_owned()))),
            Err(reason) => return Ok(Err(Some(reason))),
            Ok(None) => return self.look_elsewhere(base, key, place, data),
        };
        let (idx, bin) = (
            Stamp::of(&idx_path(data.prefix()))?,
            Stamp::of(&bin_path(data.prefix()))?,
        );
        let untouched = (&record.idx_stamp, &record.bin_stamp) == (&idx, &bin);
        if !untouched && let Some(reason) = difference(&record.content, &content_of(data)?) {
            return Ok(Err(Some(reason)));
        }
        let (index, renewed) = match self.open(&mut record) {
            Ok(opened) => opened,
            Err(reason) => return Ok(Err(Some(reason))),
        };
        if untouched {
            if renewed {
                // A cache that cannot be written to is still good for reading.
                let _ = self.write_record(base, &record);
            }
            return Ok(Ok(stored(&record, index, Outcome::Hit)));
        }
        let renewed = Record {
            idx_stamp: idx,
            bin_stamp: bin,
            ..record
        };
        let _ = self.write_record(base, &renewed);
        Ok(Ok(stored(&renewed, index, Outcome::HitSameContent)))
    }

    /// Looks for a record of the same order over the same content under another path, or of the same order over this
    /// path when it held other sequences: the data has grown or shrunk since, and the reason says so.
    fn look_elsewhere(
        &self,
        base: &str,
        key: &Key,
        place: &Path,
        data: &IndexedDataset,
    ) -> Result<Result<Stored, Option<String>>, StoreError> {
        let (mut content, mut stale) = (None, None);
        for (name, record) in self.others().iter().filter(|(name, _)| name != base) {
            let replaced = stale.is_none() && record.place == place && record.key.same_order(key);
            if record.key != *key && !replaced {
                continue;
            }
            let now = match &content {
                Some(now) => now,
                None => content.insert(content_of(data)?),
            };
            if let Some(reason) = difference(&record.content, now) {
                stale = stale.or(replaced.then_some(reason));
                continue;
            }
            if record.key != *key {
                continue;
            }
            let mut record = record.clone();
            let Ok((index, _)) = self.open(&mut record) else {
                continue;
            };
            let outcome = Outcome::HitMoved {
                record: self.path(&format!("{name}.json")),
            };
            let hash = record.index_hash.clone();
            // The next start finds it under its own name.
            if let (Ok(idx_stamp), Ok(bin_stamp)) = (
                Stamp::of(&idx_path(data.prefix())),
                Stamp::of(&bin_path(data.prefix())),
            ) {
                let _ = self.write_record(
                    base,
                    &Record {
                        place: place.to_owned(),
                        idx_stamp,
                        bin_stamp,
                        ..record
                    },
                );
            }
            return Ok(Ok(Stored {
                index: Arc::new(index),
                outcome,
                index_hash: Some(hash),
            }));
        }
        Ok(Err(stale))
    }

    /// Writes arrays and record; returns the hash of the index.
    fn keep(
        &self,
        base: &str,
        key: Key,
        place: PathBuf,
        data: &IndexedDataset,
        index: &GptIndex,
    ) -> Result<String, StoreError> {
        // Stamps before content: a file that changes in between is then found changed at the next start.
        let (idx_stamp, bin_stamp) = (
            Stamp::of(&idx_path(data.prefix()))?,
            Stamp::of(&bin_path(data.prefix()))?,
        );
        let documents = || self.keep_array(base, "document_index", ElementType::I32, &index.document_index);
        let samples = || match &index.sample_index {
            SampleIndex::Narrow(v) => self.keep_array(base, "sample_index", ElementType::I32, v),
            SampleIndex::Wide(v) => self.keep_array(base, "sample_index", ElementType::I64, v),
        };
        let shuffled = || self.keep_indices(base, "shuffle_index", &index.shuffle_index);
        // Writing waits for the disk, hashing for nothing: side by side.
        let ((content, index_hash), (document_index, (sample_index, shuffle_index))) = rayon::join(
            || rayon::join(|| content_of(data), || index_hash(index)),
            || rayon::join(documents, || rayon::join(samples, shuffled)),
        );
        let (document_index, sample_index, shuffle_index) = (document_index?, sample_index?, shuffle_index?);
        let record = Record {
            format: FORMAT,
            key,
            place,
            content: content?,
            idx_stamp,
            bin_stamp,
            rule: Rule {
                num_epochs: index.rule.num_epochs,
                tokens_per_epoch: index.rule.tokens_per_epoch,
                separate_final_epoch: index.rule.separate_final_epoch,
                samples_sans_final_epoch: index.rule.samples_sans_final_epoch,
            },
            document_index,
            sample_index,
            shuffle_index,
            index_hash: index_hash.clone(),
        };
        self.write_record(base, &record)?;
        Ok(index_hash)
    }
}
