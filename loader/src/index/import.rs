//! Reads indices out of Megatron's own cache, to replay exactly what a run used.
//!
//! A dataset is found by its description: prefix, samples asked for, split, seed, sequence length. The tokenizer, which
//! is part of the description too, does not touch the order, so it need not be known. Types, lengths and every bound are
//! checked against the data at hand; contents are taken as they are, also where the data would give others today (run
//! `loader index verify` to know).

use std::path::{Path, PathBuf};

use ceteris_samplers::orders::index_array::{Indices, SharedArray};
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use ceteris_samplers::orders::split::Split;

use super::described::{Content, Described, in_folder};
use super::npy::{Element, NpyFile};
use super::plan::MegatronConfig;
use crate::source::SourceError;

/// Why a cached dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file that is not there or is no sound array.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The arrays do not fit the data or each other.
    #[error("{}: {problem}", file.display())]
    Unfit {
        /// The file.
        file: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// No description in the folder is of the dataset.
    #[error("{}: no description there is of {prefix}, {split} split, {} samples, with this seed and sequence length", folder.display(), num_samples.map_or("one epoch's".to_owned(), |n| n.to_string()))]
    NotThere {
        /// The folder.
        folder: PathBuf,
        /// The dataset.
        prefix: String,
        /// The split.
        split: Split,
        /// Samples asked for.
        num_samples: Option<u64>,
    },
}

/// The descriptions of a cache folder.
#[derive(Clone, Debug)]
pub struct MegatronCaches {
    folder: PathBuf,
    described: Vec<Described>,
}

impl MegatronCaches {
    /// Reads all descriptions in a folder.
    ///
    /// # Errors
    /// A folder or file that cannot be read.
    pub fn open(folder: &Path) -> Result<Self, SourceError> {
        Ok(MegatronCaches {
            folder: folder.to_owned(),
            described: in_folder(folder)?,
        })
    }

    /// The indices of one dataset of a run; `fresh` are those that the data gives today, `lengths` all its sequences'.
    ///
    /// # Errors
    /// [`ImportError`] naming the file, or that there is none.
    pub fn gpt(
        &self,
        config: &MegatronConfig,
        split: Split,
        prefix: &str,
        num_samples: Option<u64>,
        fresh: &GptIndex,
        lengths: &[u32],
    ) -> Result<GptIndex, ImportError> {
        let found = self.described.iter().find(|described| match &described.content {
            Ok(Content::Gpt(gpt)) => gpt.is_of(config, split, prefix, num_samples),
            _ => false,
        });
        match found {
            Some(described) => import_gpt(described, fresh, lengths),
            None => Err(ImportError::NotThere {
                folder: self.folder.clone(),
                prefix: prefix.to_owned(),
                split,
                num_samples,
            }),
        }
    }
}

/// Reads the indices of one dataset out of Megatron's cache, for a replay of exactly what a run used.
///
/// Types, lengths and every bound are checked against the data: `sequence_lengths` of the whole dataset, and the indices
/// built from it. Contents are taken as they are, also where they differ from what the data would give today.
///
/// # Errors
/// [`ImportError`] naming the file.
fn import_gpt(
    described: &Described,
    fresh: &GptIndex,
    sequence_lengths: &[u32],
) -> Result<GptIndex, ImportError> {
    let open = |what: &str| -> Result<(PathBuf, NpyFile), ImportError> {
        let path = described.path(what);
        let file = NpyFile::open(&path)?;
        Ok((path, file))
    };
    let unfit = |file: &Path, problem: String| ImportError::Unfit {
        file: file.to_owned(),
        problem,
    };
    fn typed<T: Element>(path: &Path, file: NpyFile, len: u64) -> Result<SharedArray<T>, ImportError> {
        let unfit = |problem: String| ImportError::Unfit {
            file: path.to_owned(),
            problem,
        };
        let found = format!(
            "{} of shape {:?}",
            file.header().element.descr(),
            file.header().shape
        );
        let array = file
            .array::<T>()
            .ok_or_else(|| unfit(format!("holds {found}, another type than expected")))?;
        if array.len() != len {
            return Err(unfit(format!(
                "holds {} entries; the data has {len}",
                array.len()
            )));
        }
        Ok(array)
    }
    let lost = |file: &Path| unfit(file, "can no longer be read".to_owned());

    let (path, file) = open("document_index.npy")?;
    let documents: SharedArray<u32> = typed(&path, file, fresh.document_index.len())?;
    for i in 0..documents.len() {
        let document = documents.get(i).ok_or_else(|| lost(&path))?;
        if document as usize >= sequence_lengths.len() {
            let n = sequence_lengths.len();
            return Err(unfit(
                &path,
                format!("entry {i} is sequence {document}; the data has {n}"),
            ));
        }
    }
    let (path, file) = open("sample_index.npy")?;
    let entries = fresh.sample_index.len();
    let samples = match fresh.sample_index {
        SampleIndex::Narrow(_) => SampleIndex::Narrow(typed(&path, file, entries)?),
        SampleIndex::Wide(_) => SampleIndex::Wide(typed(&path, file, entries)?),
    };
    let mut previous = (0, 0);
    for i in 0..samples.len() {
        let entry = samples.get(i).ok_or_else(|| lost(&path))?;
        let length = documents
            .get(entry.0)
            .and_then(|d| sequence_lengths.get(d as usize));
        // A split without sequences has the one entry (0, 0).
        let empty = documents.is_empty() && entry == (0, 0);
        if !empty && (entry < previous || length.is_none_or(|&n| entry.1 > n.into())) {
            return Err(unfit(
                &path,
                format!(
                    "entry {i} is document {} at token {}, which the data does not have there",
                    entry.0, entry.1
                ),
            ));
        }
        previous = entry;
    }
    let (path, file) = open("shuffle_index.npy")?;
    let len = fresh.len();
    let shuffled = match fresh.shuffle_index {
        Indices::Narrow(_) => Indices::Narrow(typed(&path, file, len)?),
        Indices::Wide(_) => Indices::Wide(typed(&path, file, len)?),
    };
    for i in 0..len {
        let sample = shuffled.get(i).ok_or_else(|| lost(&path))?;
        if sample >= len {
            return Err(unfit(&path, format!("entry {i} is sample {sample} of {len}")));
        }
    }
    Ok(GptIndex {
        rule: fresh.rule,
        document_index: documents,
        sample_index: samples,
        shuffle_index: shuffled,
    })
}
