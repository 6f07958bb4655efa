//! Megatron's own index cache: written so that a run can start from it, read so that a run's can be audited.
//!
//! Reproduces the file names and contents of Megatron-Core 0.19.2 (`gpt_dataset.py`, `blended_dataset.py`): for each
//! dataset `<md5>-GPTDataset-<split>-{document_index,sample_index,shuffle_index}.npy` and `-description.txt`, for each
//! blend `<md5>-BlendedDataset-<split>-{dataset_index,dataset_sample_index}.npy` and `-description.txt`.
//!
//! The MD5 is over a description that does not see the data's contents ([`super::description`]). So an audit compares
//! what is stored with what the data at hand would give, entry by entry, and says what it cannot see.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use ceteris_samplers::orders::blend::BlendIndex;
use ceteris_samplers::orders::index_array::{IndexArray, Indices, SharedArray};
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use ceteris_samplers::orders::split::Split;
use serde::Serialize;

use super::build::BuiltSplit;
use super::description::{RunDescription, blended, md5_hex};
use super::npy::{self, Element, ElementType, NpyFile};
use super::python_json::PyJson;
use crate::atomic;
use crate::source::SourceError;

/// The folder Megatron uses for a dataset when it is given none: `<prefix>/cache/GPTDataset_indices`. It keeps no blend
/// there.
pub fn default_folder(prefix: &Path) -> PathBuf {
    prefix.join("cache").join("GPTDataset_indices")
}

/// Name and content of the description of one cached dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheName {
    /// What files are called, up to the last `-`.
    pub base: String,
    /// The MD5.
    pub md5: String,
    /// The text it is the MD5 of.
    pub description: String,
    /// The same as a value, which blends include.
    pub value: PyJson,
}

impl CacheName {
    fn new(value: PyJson, class: &str, split: Split) -> Self {
        let description = value.dumps();
        let md5 = md5_hex(&description);
        CacheName {
            base: format!("{md5}-{class}-{split}"),
            md5,
            description,
            value,
        }
    }

    /// A file of this dataset.
    pub fn path(&self, folder: &Path, what: &str) -> PathBuf {
        folder.join(format!("{}-{what}", self.base))
    }
}

/// Names of all datasets of a split, and of the blend if there is one.
pub fn names(run: &RunDescription, built: &BuiltSplit) -> (Vec<CacheName>, Option<CacheName>) {
    let parts: Vec<CacheName> = built
        .parts
        .iter()
        .map(|part| {
            CacheName::new(
                run.gpt(&part.prefix, part.num_samples, built.split),
                "GPTDataset",
                built.split,
            )
        })
        .collect();
    let blend = built.shares.as_ref().map(|shares| {
        let values: Vec<PyJson> = parts.iter().map(|name| name.value.clone()).collect();
        CacheName::new(
            blended(&values, built.split, shares),
            "BlendedDataset",
            built.split,
        )
    });
    (parts, blend)
}

/// Writes one array atomically. Its name is made to last by the record or description that is committed after it.
pub(super) fn write_array<T: Element>(
    path: &Path,
    element: ElementType,
    array: &dyn IndexArray<T>,
) -> Result<(), SourceError> {
    let fail = |action: &'static str| {
        let path = path.to_owned();
        move |e: io::Error| SourceError::io(path, action, e)
    };
    let mut file = BufWriter::with_capacity(1 << 20, atomic::begin(path).map_err(fail("create"))?);
    npy::write(&mut file, element, array).map_err(fail("write"))?;
    let file = file.into_inner().map_err(|e| fail("write")(e.into_error()))?;
    atomic::name(file, path).map_err(fail("finish"))
}

/// Entries of a 32-bit list as 64-bit ones, which Megatron stores for draws of a blend.
struct Widened(SharedArray<u32>);

impl IndexArray<u64> for Widened {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn get(&self, i: u64) -> Option<u64> {
        self.0.get(i).map(u64::from)
    }
}

/// Writes the files of one dataset, the description last: Megatron takes the cache when all four are there.
///
/// # Errors
/// Writes that fail.
pub fn write_gpt(folder: &Path, name: &CacheName, index: &GptIndex) -> Result<(), SourceError> {
    fs::create_dir_all(folder).map_err(|e| SourceError::io(folder, "create the folder", e))?;
    let path = |what: &str| name.path(folder, what);
    // Most of the time goes into waiting for the disk.
    let documents = || {
        write_array(
            &path("document_index.npy"),
            ElementType::I32,
            &*index.document_index,
        )
    };
    let samples = || match &index.sample_index {
        SampleIndex::Narrow(v) => write_array(&path("sample_index.npy"), ElementType::I32, &**v),
        SampleIndex::Wide(v) => write_array(&path("sample_index.npy"), ElementType::I64, &**v),
    };
    let shuffled = || match &index.shuffle_index {
        Indices::Narrow(v) => write_array(&path("shuffle_index.npy"), ElementType::U32, &**v),
        Indices::Wide(v) => write_array(&path("shuffle_index.npy"), ElementType::I64, &**v),
    };
    let (documents, (samples, shuffled)) = rayon::join(documents, || rayon::join(samples, shuffled));
    documents.and(samples).and(shuffled)?;
    write_description(folder, name)
}

/// Writes the files of a blend.
///
/// # Errors
/// Writes that fail.
pub fn write_blend(folder: &Path, name: &CacheName, blend: &BlendIndex) -> Result<(), SourceError> {
    fs::create_dir_all(folder).map_err(|e| SourceError::io(folder, "create the folder", e))?;
    write_array(
        &name.path(folder, "dataset_index.npy"),
        ElementType::I16,
        &**blend.dataset_index(),
    )?;
    let samples = name.path(folder, "dataset_sample_index.npy");
    match blend.dataset_sample_index() {
        Indices::Narrow(v) => write_array(&samples, ElementType::I64, &Widened(v.clone()))?,
        Indices::Wide(v) => write_array(&samples, ElementType::I64, &**v)?,
    }
    write_description(folder, name)
}

fn write_description(folder: &Path, name: &CacheName) -> Result<(), SourceError> {
    let path = name.path(folder, "description.txt");
    atomic::write(&path, name.description.as_bytes()).map_err(|e| SourceError::io(path, "write", e))
}

/// How a cached file compares with what the data at hand gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Finding {
    /// Every value is the same.
    Same,
    /// The file is not there.
    Missing,
    /// The file cannot be read as the array it should be.
    Unreadable {
        /// Why.
        reason: String,
    },
    /// Another type or shape.
    Shape {
        /// What the file holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// The first value that differs, counted over all values of the array.
    Differs {
        /// Position in the flattened array.
        at: u64,
        /// Values that differ in all.
        values: u64,
        /// Stored value.
        found: i64,
        /// Value from the data at hand.
        expected: i64,
        /// Some stored value lies outside what the data can have.
        out_of_range: bool,
    },
}

impl Finding {
    /// True when nothing differs.
    pub fn is_same(&self) -> bool {
        *self == Finding::Same
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Same => f.write_str("the same"),
            Finding::Missing => f.write_str("missing"),
            Finding::Unreadable { reason } => write!(f, "unreadable: {reason}"),
            Finding::Shape { found, expected } => write!(f, "holds {found}; the data gives {expected}"),
            Finding::Differs {
                at,
                values,
                found,
                expected,
                out_of_range,
            } => {
                write!(
                    f,
                    "{values} values differ, the first at {at}: {found}, the data gives {expected}"
                )?;
                if *out_of_range {
                    f.write_str("; some values lie outside the data")?;
                }
                Ok(())
            }
        }
    }
}

/// A cached file and how it compares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The file.
    pub file: PathBuf,
    /// How it compares.
    #[serde(flatten)]
    pub finding: Finding,
}

/// Compares the array files of one dataset with what the data at hand gives: types, lengths and every value.
///
/// `path` names the files; the dataset has `num_sequences` sequences of up to `longest` tokens.
pub fn compare_gpt(
    path: &dyn Fn(&str) -> PathBuf,
    index: &GptIndex,
    num_sequences: u64,
    longest: u32,
) -> Vec<Checked> {
    let documents =
        (0..index.document_index.len()).map(|i| index.document_index.get(i).map_or(-1, i64::from));
    let samples = (0..index.sample_index.len()).flat_map(|i| {
        let (document, offset) = index.sample_index.get(i).unwrap_or((u64::MAX, u64::MAX));
        [document as i64, offset as i64]
    });
    let shuffled = index.shuffle_index.iter().map(|v| v as i64);
    let sample_element = match index.sample_index {
        SampleIndex::Narrow(_) => ElementType::I32,
        SampleIndex::Wide(_) => ElementType::I64,
    };
    let shuffle_element = match index.shuffle_index {
        Indices::Narrow(_) => ElementType::U32,
        Indices::Wide(_) => ElementType::I64,
    };
    // Positions and offsets share the array: neither is above the larger of their limits.
    let limit = index.document_index.len().max(u64::from(longest) + 1);
    let shape = [index.document_index.len()];
    vec![
        compare(
            path("document_index.npy"),
            ElementType::I32,
            &shape,
            documents,
            num_sequences,
        ),
        compare(
            path("sample_index.npy"),
            sample_element,
            &[index.sample_index.len(), 2],
            samples,
            limit,
        ),
        compare(
            path("shuffle_index.npy"),
            shuffle_element,
            &[index.len()],
            shuffled,
            index.len(),
        ),
    ]
}

/// Compares the array files of a blend with what its weights give.
pub fn compare_blend(path: &dyn Fn(&str) -> PathBuf, blend: &BlendIndex) -> Vec<Checked> {
    let datasets = (0..blend.len()).map(|i| blend.dataset_index().get(i).map_or(-1, i64::from));
    let draws = blend.dataset_sample_index().iter().map(|v| v as i64);
    let most = blend.counts().iter().copied().max().unwrap_or(0);
    let (shape, limit) = ([blend.len()], blend.counts().len() as u64);
    vec![
        compare(
            path("dataset_index.npy"),
            ElementType::I16,
            &shape,
            datasets,
            limit,
        ),
        compare(
            path("dataset_sample_index.npy"),
            ElementType::I64,
            &shape,
            draws,
            most,
        ),
    ]
}

fn compare(
    file: PathBuf,
    element: ElementType,
    shape: &[u64],
    expected: impl Iterator<Item = i64>,
    limit: u64,
) -> Checked {
    let finding = compare_values(&file, element, shape, expected, limit);
    Checked { file, finding }
}

fn compare_values(
    file: &Path,
    element: ElementType,
    shape: &[u64],
    mut expected: impl Iterator<Item = i64>,
    limit: u64,
) -> Finding {
    if !file.exists() {
        return Finding::Missing;
    }
    let array = match NpyFile::open(file) {
        Ok(array) => array,
        Err(e) => {
            return Finding::Unreadable {
                reason: e.to_string(),
            };
        }
    };
    let header = array.header();
    if header.element != element || header.shape != shape {
        let say = |element: ElementType, shape: &[u64]| format!("{} of shape {shape:?}", element.descr());
        return Finding::Shape {
            found: say(header.element, &header.shape),
            expected: say(element, shape),
        };
    }
    let (mut at, mut values, mut first, mut out_of_range) = (0u64, 0u64, None, false);
    let read = array.for_each(|found| {
        let want = expected.next().unwrap_or(-1);
        out_of_range |= found >= limit;
        if found as i64 != want {
            values += 1;
            first.get_or_insert((at, found as i64, want));
        }
        at += 1;
    });
    match (read, first) {
        (Err(e), _) => Finding::Unreadable {
            reason: e.to_string(),
        },
        (Ok(()), None) => Finding::Same,
        (Ok(()), Some((at, found, expected))) => Finding::Differs {
            at,
            values,
            found,
            expected,
            out_of_range,
        },
    }
}
