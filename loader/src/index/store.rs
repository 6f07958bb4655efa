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
//! Safe with any number of builders at once: every file appears by renaming, the record last, and a lock beside it lets
//! one build while the others wait (where the file system has no locks, all build, which gives the same files).

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceteris_samplers::orders::blend::{BlendError, BlendIndex, Shares};
use ceteris_samplers::orders::index_array::{Indices, SharedArray};
use ceteris_samplers::orders::megatron_epochs::{EpochRule, GptIndexSpec};
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use serde::{Deserialize, Serialize};

use super::megatron_cache::write_array;
use super::npy::{Element, ElementType, NpyFile};
use crate::atomic;
use crate::source::megatron::{IndexedDataset, bin_path, idx_path};
use crate::source::{DatasetFingerprint, FileFingerprint, FingerprintMode, SourceError};

/// Version of the record; another one is never read.
const FORMAT: u32 = 1;

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
}

/// How a file looked when its content was last known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    len: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Result<Self, SourceError> {
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
struct Key {
    /// The prefix without its folder.
    name: String,
    first_sequence: u64,
    end_sequence: u64,
    sequence_length: u64,
    add_extra_token: bool,
    random_seed: u64,
    num_samples: Option<u64>,
    drop_last_partial_sequence: bool,
}

impl Key {
    /// The same but for which sequences the split takes.
    fn same_order(&self, other: &Key) -> bool {
        let sequences = (other.first_sequence, other.end_sequence);
        let mut moved = self.clone();
        (moved.first_sequence, moved.end_sequence) = sequences;
        moved == *other
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    idx: FileFingerprint,
    bin: FileFingerprint,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    num_epochs: u64,
    tokens_per_epoch: u64,
    separate_final_epoch: Option<bool>,
    samples_sans_final_epoch: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrayRecord {
    file: String,
    entries: u64,
    wide: bool,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    key: Key,
    /// The `.idx` file it was built from, without symbolic links.
    place: PathBuf,
    content: Content,
    idx_stamp: Stamp,
    bin_stamp: Stamp,
    rule: Rule,
    document_index: ArrayRecord,
    sample_index: ArrayRecord,
    shuffle_index: ArrayRecord,
    /// Hash over all values of the three arrays ([`index_hash`]).
    index_hash: String,
}

/// The record of a blend. Its shares say all there is to know; no data is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlendRecord {
    format: u32,
    weights: Option<Vec<f64>>,
    lengths: Option<Vec<u64>>,
    size: u64,
    counts: Vec<u64>,
    dataset_index: ArrayRecord,
    dataset_sample_index: ArrayRecord,
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

/// BLAKE3 over an index: for each of document, sample and shuffle index its number of values (u64) and the values (u64),
/// all little-endian. The same for the same index, however wide it is stored.
pub fn index_hash(index: &GptIndex) -> String {
    let mut hasher = ValueHasher::new();
    let documents = &index.document_index;
    hasher.start(documents.len());
    (0..documents.len()).for_each(|i| hasher.value(documents.get(i).map_or(u64::MAX, u64::from)));
    hasher.start(2 * index.sample_index.len());
    (0..index.sample_index.len()).for_each(|i| {
        let (document, offset) = index.sample_index.get(i).unwrap_or((u64::MAX, u64::MAX));
        hasher.value(document);
        hasher.value(offset);
    });
    hasher.start(index.len());
    index.shuffle_index.iter().for_each(|value| hasher.value(value));
    hasher.finish()
}

struct ValueHasher {
    hasher: blake3::Hasher,
    bytes: Vec<u8>,
}

impl ValueHasher {
    fn new() -> Self {
        ValueHasher {
            hasher: blake3::Hasher::new(),
            bytes: Vec::with_capacity(1 << 16),
        }
    }

    fn start(&mut self, values: u64) {
        self.value(values);
    }

    fn value(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        if self.bytes.len() >= (1 << 16) {
            self.hasher.update(&self.bytes);
            self.bytes.clear();
        }
    }

    fn finish(mut self) -> String {
        self.hasher.update(&self.bytes);
        self.hasher.finalize().to_hex().to_string()
    }
}

/// First 32 hex digits of the BLAKE3 of a key's JSON.
fn short_hash(key: &impl Serialize, salt: &str) -> String {
    // Plain data always serialises.
    let mut text = serde_json::to_string(key).unwrap_or_default();
    text.push('\n');
    text.push_str(salt);
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// Fingerprints of a dataset's files: every byte of the index, which decides the order, and a sample of the tokens.
fn content_of(data: &IndexedDataset) -> Result<Content, SourceError> {
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
fn difference(then: &Content, now: &Content) -> Option<String> {
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
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
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
            .and_then(|record| self.open(&record).ok())
        {
            Some(index) => index,
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
        let record = match self.read_record(base) {
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
        let index = match self.open(&record) {
            Ok(index) => index,
            Err(reason) => return Ok(Err(Some(reason))),
        };
        if untouched {
            return Ok(Ok(stored(&record, index, Outcome::Hit)));
        }
        let renewed = Record {
            idx_stamp: idx,
            bin_stamp: bin,
            ..record
        };
        // A cache that cannot be written to is still good for reading.
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
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Ok(Err(None));
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .filter(|name| name.starts_with("ceteris-") && name != base)
            .collect();
        names.sort();
        let (mut content, mut stale) = (None, None);
        for name in names {
            let Ok(Some(record)) = self.read_record(&name) else {
                continue;
            };
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
            let Ok(index) = self.open(&record) else { continue };
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

    fn read_record(&self, base: &str) -> Result<Option<Record>, String> {
        let record: Option<Record> = self.read_json(base)?;
        match record {
            Some(record) if record.format != FORMAT => {
                Err(format!("the record has format {}, not {FORMAT}", record.format))
            }
            record => Ok(record),
        }
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, base: &str) -> Result<Option<T>, String> {
        // Records are small; what is larger was not written here.
        const LARGEST: u64 = 16 << 20;
        let path = self.path(&format!("{base}.json"));
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > LARGEST => return Err(format!("{} is no record", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let text = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| format!("{} is damaged: {e}", path.display()))
    }

    fn write_record(&self, base: &str, record: &impl Serialize) -> Result<(), SourceError> {
        let path = self.path(&format!("{base}.json"));
        let mut text = serde_json::to_vec_pretty(record).unwrap_or_default();
        text.push(b'\n');
        atomic::write(&path, &text).map_err(|e| SourceError::io(path, "write", e))
    }

    /// Maps an array that a record names. Its size must be the one it was written with.
    fn array<T: Element>(&self, record: &ArrayRecord) -> Result<SharedArray<T>, String> {
        if record.file.contains('/') {
            return Err(format!(
                "the record names a file outside its folder: {}",
                record.file
            ));
        }
        let path = self.path(&record.file);
        let file = NpyFile::open(&path).map_err(|e| e.to_string())?;
        let bytes = fs::metadata(&path)
            .map_err(|e| format!("{}: {e}", path.display()))?
            .len();
        if bytes != record.bytes || file.len() != record.entries {
            return Err(format!(
                "{} has another size than the record says",
                path.display()
            ));
        }
        file.array()
            .ok_or_else(|| format!("{} holds another type than the record says", path.display()))
    }

    fn indices(&self, record: &ArrayRecord) -> Result<Indices, String> {
        Ok(if record.wide {
            Indices::Wide(self.array(record)?)
        } else {
            Indices::Narrow(self.array(record)?)
        })
    }

    fn open(&self, record: &Record) -> Result<GptIndex, String> {
        let sample_index = if record.sample_index.wide {
            SampleIndex::Wide(self.array(&record.sample_index)?)
        } else {
            SampleIndex::Narrow(self.array(&record.sample_index)?)
        };
        let shuffle_index = self.indices(&record.shuffle_index)?;
        if shuffle_index.len().checked_add(1) != Some(sample_index.len()) {
            return Err("the sample index and the shuffle index differ in length".to_owned());
        }
        Ok(GptIndex {
            rule: EpochRule {
                num_epochs: record.rule.num_epochs,
                tokens_per_epoch: record.rule.tokens_per_epoch,
                separate_final_epoch: record.rule.separate_final_epoch,
                samples_sans_final_epoch: record.rule.samples_sans_final_epoch,
            },
            document_index: self.array(&record.document_index)?,
            sample_index,
            shuffle_index,
        })
    }

    fn keep_array<T: Element>(
        &self,
        base: &str,
        what: &str,
        element: ElementType,
        array: &SharedArray<T>,
    ) -> Result<ArrayRecord, SourceError> {
        let file = format!("{base}-{what}.npy");
        let path = self.path(&file);
        write_array(&path, element, &**array)?;
        let bytes = fs::metadata(&path)
            .map_err(|e| SourceError::io(&path, "examine", e))?
            .len();
        Ok(ArrayRecord {
            file,
            entries: array.len(),
            wide: element == ElementType::I64,
            bytes,
        })
    }

    fn keep_indices(&self, base: &str, what: &str, indices: &Indices) -> Result<ArrayRecord, SourceError> {
        match indices {
            Indices::Narrow(v) => self.keep_array(base, what, ElementType::U32, v),
            Indices::Wide(v) => self.keep_array(base, what, ElementType::I64, v),
        }
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
        let (content, index_hash) = rayon::join(|| content_of(data), || index_hash(index));
        let document_index =
            self.keep_array(base, "document_index", ElementType::I32, &index.document_index)?;
        let sample_index = match &index.sample_index {
            SampleIndex::Narrow(v) => self.keep_array(base, "sample_index", ElementType::I32, v)?,
            SampleIndex::Wide(v) => self.keep_array(base, "sample_index", ElementType::I64, v)?,
        };
        let shuffle_index = self.keep_indices(base, "shuffle_index", &index.shuffle_index)?;
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

    /// The draws of a blend: from the cache, or built and kept. Shares decide them alone, so nothing can be stale.
    ///
    /// # Errors
    /// As [`Shares::build`], writes that fail, and [`StoreError::NoRebuild`].
    pub fn blend<E: From<StoreError> + From<BlendError>>(
        &self,
        shares: &Shares,
    ) -> Result<(BlendIndex, Outcome), E> {
        let (weights, lengths) = match shares {
            Shares::Weighted { weights, .. } => (Some(weights.clone()), None),
            Shares::Exhaustive { lengths } => (None, Some(lengths.clone())),
        };
        let size = shares.size();
        let base = format!("ceteris-blend-{}", short_hash(&(&weights, &lengths, size), ""));
        let read = || -> Result<Option<BlendIndex>, String> {
            let Some(record) = self.read_json::<BlendRecord>(&base)? else {
                return Ok(None);
            };
            let fits = record.format == FORMAT
                && (&record.weights, &record.lengths, record.size) == (&weights, &lengths, size)
                && record.counts.len() == shares.num_datasets();
            if !fits {
                return Err("the record belongs to another blend".to_owned());
            }
            let datasets = self.array(&record.dataset_index)?;
            let samples = self.indices(&record.dataset_sample_index)?;
            let blend = BlendIndex::from_parts(datasets, samples, record.counts);
            blend
                .filter(|blend| blend.len() == size)
                .map(Some)
                .ok_or_else(|| "the arrays differ in length".to_owned())
        };
        let why = match read() {
            Ok(Some(blend)) => return Ok((blend, Outcome::Hit)),
            Ok(None) => None,
            Err(reason) => Some(reason),
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
        if lock.waited
            && let Ok(Some(blend)) = read()
        {
            return Ok((blend, Outcome::Hit));
        }
        let blend = shares.build()?;
        let keep = || -> Result<(), SourceError> {
            let dataset_index =
                self.keep_array(&base, "dataset_index", ElementType::I16, blend.dataset_index())?;
            let dataset_sample_index =
                self.keep_indices(&base, "dataset_sample_index", blend.dataset_sample_index())?;
            let counts = blend.counts().to_vec();
            let (weights, lengths) = (weights.clone(), lengths.clone());
            self.write_record(
                &base,
                &BlendRecord {
                    format: FORMAT,
                    weights,
                    lengths,
                    size,
                    counts,
                    dataset_index,
                    dataset_sample_index,
                },
            )
        };
        keep().map_err(StoreError::from)?;
        drop(lock);
        let outcome = why.map_or(Outcome::Built, |reason| Outcome::Rebuilt { reason });
        Ok((read().ok().flatten().unwrap_or(blend), outcome))
    }
}

/// Lets one process build at a time. Advisory: a file system without locks costs double work, nothing else.
struct Lock {
    path: PathBuf,
    file: Option<File>,
    /// Another process held it: what it built may be there now.
    waited: bool,
}

impl Lock {
    fn take(path: PathBuf) -> Self {
        let Ok(file) = File::create(&path) else {
            return Lock {
                path,
                file: None,
                waited: false,
            };
        };
        let waited = match file.try_lock() {
            Ok(()) => false,
            Err(fs::TryLockError::WouldBlock) => file.lock().is_ok(),
            Err(fs::TryLockError::Error(_)) => {
                return Lock {
                    path,
                    file: None,
                    waited: false,
                };
            }
        };
        Lock {
            path,
            file: Some(file),
            waited,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever waits on the unlinked file goes on to look for what was built; a newcomer makes a new one.
        let _ = fs::remove_file(&self.path);
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}
