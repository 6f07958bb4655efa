//! Builds the datasets of one split, blend included.
//!
//! Each dataset's indices are independent of the others', so they are built side by side; the result does not depend on
//! how many threads there are. Memory: the indices, and the lengths of the datasets being built (4 bytes a sequence).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceteris_samplers::orders::blend::{BlendError, Shares};
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_index::{GptIndex, GptIndexError};
use ceteris_samplers::orders::split::Split;
use rayon::prelude::*;

use super::plan::{MegatronConfig, PlanError};
use crate::source::SourceError;
use crate::source::megatron::{Check, IndexedDataset};

/// Why a split cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The blend.
    #[error(transparent)]
    Blend(#[from] BlendError),
    /// The data.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The indices of one dataset.
    #[error("{}, {split} split: {error}", prefix.display())]
    Index {
        /// The dataset.
        prefix: PathBuf,
        /// The split.
        split: Split,
        /// What is wrong.
        error: GptIndexError,
    },
}

/// One dataset of a split.
#[derive(Clone, Debug)]
pub struct BuiltPart {
    /// Its prefix as given.
    pub prefix: String,
    /// Its stored sequences.
    pub data: Arc<IndexedDataset>,
    /// The sequences that belong to the split.
    pub sequences: Range<u64>,
    /// Samples asked of it, `None` for one epoch.
    pub num_samples: Option<u64>,
    /// Its indices.
    pub index: Arc<GptIndex>,
}

/// A built split.
#[derive(Clone, Debug)]
pub struct BuiltSplit {
    /// Which one.
    pub split: Split,
    /// Its datasets, in the order of the data path.
    pub parts: Vec<BuiltPart>,
    /// How the blend shares its draws out; `None` without a blend.
    pub shares: Option<Shares>,
    /// What a run consumes.
    pub dataset: Arc<MegatronDataset>,
}

/// Builds `split`, or returns `None` where it has no data.
///
/// # Errors
/// [`BuildError`], naming dataset and split.
pub fn build_split(config: &MegatronConfig, split: Split) -> Result<Option<BuiltSplit>, BuildError> {
    let Some(plan) = config.plan(split)? else {
        return Ok(None);
    };
    let parts = plan
        .blend
        .prefixes
        .par_iter()
        .zip(&plan.asked)
        .map(|(prefix, &num_samples)| {
            let data = Arc::new(IndexedDataset::open(Path::new(prefix), Check::Full)?);
            let sequences = plan.sequences(data.index().num_sequences());
            let lengths = data.index().lengths()?;
            let index = GptIndex::build(
                &lengths,
                sequences.clone(),
                &config.index_spec(split, num_samples),
            )
            .map_err(|error| BuildError::Index {
                prefix: data.prefix().to_owned(),
                split,
                error,
            })?;
            Ok(BuiltPart {
                prefix: prefix.clone(),
                data,
                sequences,
                num_samples,
                index: Arc::new(index),
            })
        })
        .collect::<Result<Vec<_>, BuildError>>()?;
    let lengths: Vec<u64> = parts.iter().map(|part| part.index.len()).collect();
    let shares = plan.shares(&lengths)?;
    let indices: Vec<Arc<GptIndex>> = parts.iter().map(|part| Arc::clone(&part.index)).collect();
    let dataset = match &shares {
        None => MegatronDataset::single(Arc::clone(&parts[0].index)),
        Some(shares) => {
            let blend = shares.build()?;
            blend.check(split, &lengths, config.mid_level_dataset_surplus)?;
            MegatronDataset::blended(indices, Arc::new(blend)).map_err(|error| BuildError::Index {
                prefix: parts[0].data.prefix().to_owned(),
                split,
                error,
            })?
        }
    };
    Ok(Some(BuiltSplit {
        split,
        parts,
        shares,
        dataset: Arc::new(dataset),
    }))
}
