//! Builds the datasets of one split, blend included.
//!
//! Each dataset's indices are independent of the others', so they are built side by side; the result does not depend on
//! how many threads there are. With a cache ([`Store`]) what is there is mapped instead of built, and what is built is
//! written and then mapped. Memory: the indices (none of them once they are cached), and the lengths of the datasets
//! being built (4 bytes a sequence).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceteris_samplers::orders::blend::{BlendError, Shares};
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_index::{GptIndex, GptIndexError};
use ceteris_samplers::orders::split::Split;
use rayon::prelude::*;

use super::import::{ImportError, MegatronCaches};
use super::plan::{MegatronConfig, PlanError, SplitPlan};
use super::store::{Outcome, Store, StoreError, Stored};
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
    /// The cache.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Megatron's cache.
    #[error(transparent)]
    Import(#[from] ImportError),
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
    /// How they were come by.
    pub outcome: Outcome,
    /// Hash over their values, where they are cached ([`super::store::index_hash`]).
    pub index_hash: Option<String>,
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
    /// How the blend was come by, where there is one.
    pub blend_outcome: Option<Outcome>,
}

/// Where indices come from and what else a build is told.
#[derive(Clone, Copy)]
pub struct BuildOptions<'a> {
    /// Our cache: used where it fits, filled where it does not.
    pub store: Option<&'a Store>,
    /// A cache of Megatron's to take the indices from instead, as they are ([`super::import`]).
    pub import: Option<&'a MegatronCaches>,
    /// Refuse token ids from here on.
    pub vocab_size: Option<u32>,
    /// Told of every dataset that is ready.
    pub done: &'a (dyn Fn() + Sync),
}

impl Default for BuildOptions<'_> {
    fn default() -> Self {
        BuildOptions {
            store: None,
            import: None,
            vocab_size: None,
            done: &|| (),
        }
    }
}

/// Builds `split`, or returns `None` where it has no data.
///
/// # Errors
/// [`BuildError`], naming dataset and split.
pub fn build_split(
    config: &MegatronConfig,
    split: Split,
    options: &BuildOptions<'_>,
) -> Result<Option<BuiltSplit>, BuildError> {
    match open_split(config, split, options)? {
        Some(opened) => opened.build(config, options).map(Some),
        None => Ok(None),
    }
}

/// A split whose data is open and checked, so that a bad dataset is found before anything is written for another.
#[derive(Debug)]
pub struct OpenedSplit<'a> {
    plan: SplitPlan<'a>,
    data: Vec<Arc<IndexedDataset>>,
}

/// Opens the data of `split`, or returns `None` where it has none. What a build would read is read and checked wholly;
/// data with a record in the cache is opened and no more.
///
/// # Errors
/// [`BuildError`], naming the dataset.
pub fn open_split<'a>(
    config: &'a MegatronConfig,
    split: Split,
    options: &BuildOptions<'_>,
) -> Result<Option<OpenedSplit<'a>>, BuildError> {
    let Some(plan) = config.plan(split)? else {
        return Ok(None);
    };
    let data = plan
        .blend
        .prefixes
        .par_iter()
        .zip(&plan.asked)
        .map(|(prefix, &num_samples)| {
            let mut data = IndexedDataset::open(Path::new(prefix), Check::Quick)?;
            if let Some(vocab_size) = options.vocab_size {
                data = data.with_vocab_size(vocab_size);
            }
            let known = options.store.is_some_and(|store| {
                let sequences = plan.sequences(data.index().num_sequences());
                store.has_record(&data, sequences, &config.index_spec(split, num_samples))
            });
            if !known {
                data.validate()?;
            }
            Ok(Arc::new(data))
        })
        .collect::<Result<Vec<_>, BuildError>>()?;
    Ok(Some(OpenedSplit { plan, data }))
}

impl OpenedSplit<'_> {
    /// Builds the split's datasets, or takes them from a cache.
    ///
    /// # Errors
    /// [`BuildError`], naming dataset and split.
    pub fn build(
        self,
        config: &MegatronConfig,
        options: &BuildOptions<'_>,
    ) -> Result<BuiltSplit, BuildError> {
        let OpenedSplit { plan, data } = self;
        build_opened(config, &plan, &data, options)
    }
}

fn build_opened(
    config: &MegatronConfig,
    plan: &SplitPlan<'_>,
    data: &[Arc<IndexedDataset>],
    options: &BuildOptions<'_>,
) -> Result<BuiltSplit, BuildError> {
    let split = plan.split;
    let store = options.store.map(Store::afresh);
    let parts = plan
        .blend
        .prefixes
        .par_iter()
        .zip(&plan.asked)
        .zip(data)
        .map(|((prefix, &num_samples), data)| {
            let data = Arc::clone(data);
            let sequences = plan.sequences(data.index().num_sequences());
            let spec = config.index_spec(split, num_samples);
            let build = || -> Result<GptIndex, BuildError> {
                data.validate()?;
                GptIndex::build(&data.index().lengths()?, sequences.clone(), &spec).map_err(|error| {
                    BuildError::Index {
                        prefix: data.prefix().to_owned(),
                        split,
                        error,
                    }
                })
            };
            let stored = match (options.import, &store) {
                (Some(caches), _) => {
                    let fresh = build()?;
                    let lengths = data.index().lengths()?;
                    let index = caches.gpt(config, split, prefix, num_samples, &fresh, &lengths)?;
                    Stored {
                        index: Arc::new(index),
                        outcome: Outcome::Imported,
                        index_hash: None,
                    }
                }
                (None, Some(store)) => store.gpt(&data, sequences.clone(), &spec, build)?,
                (None, None) => Stored {
                    index: Arc::new(build()?),
                    outcome: Outcome::Built,
                    index_hash: None,
                },
            };
            let Stored {
                index,
                outcome,
                index_hash,
            } = stored;
            (options.done)();
            Ok(BuiltPart {
                prefix: prefix.clone(),
                data,
                sequences,
                num_samples,
                index,
                outcome,
                index_hash,
            })
        })
        .collect::<Result<Vec<_>, BuildError>>()?;
    let lengths: Vec<u64> = parts.iter().map(|part| part.index.len()).collect();
    let shares = plan.shares(&lengths)?;
    let fail = |error| BuildError::Index {
        prefix: parts[0].data.prefix().to_owned(),
        split,
        error,
    };
    let (dataset, blend_outcome) = match &shares {
        None => (MegatronDataset::single(Arc::clone(&parts[0].index)), None),
        Some(shares) => {
            let (blend, outcome) = match &store {
                Some(store) => store.blend::<BuildError>(shares)?,
                None => (shares.build()?, Outcome::Built),
            };
            blend.check(split, &lengths, config.mid_level_dataset_surplus)?;
            let indices = parts.iter().map(|part| Arc::clone(&part.index)).collect();
            (
                MegatronDataset::blended(indices, Arc::new(blend)).map_err(fail)?,
                Some(outcome),
            )
        }
    };
    Ok(BuiltSplit {
        split,
        parts,
        shares,
        dataset: Arc::new(dataset),
        blend_outcome,
    })
}
