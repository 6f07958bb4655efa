//! What the package does to a described stream before it runs: shuffles of shards, epochs, nodes, workers.

use super::source::{IterableError, Source};
use crate::rng::numpy::Generator;

/// `skip` and `take` fix the sequence of shards (`DataSourcesShufflingDisallowed`).
pub(super) struct Frozen;

impl Source {
    /// What iterating after `set_epoch(epoch)` reads; epoch 0 is the stream itself.
    ///
    /// # Errors
    /// [`IterableError::Refused`] when a shifted seed is negative, which numpy refuses.
    pub fn for_epoch(&self, epoch: u64) -> Result<Self, IterableError> {
        if epoch == 0 {
            return Ok(self.clone());
        }
        let shuffled = self
            .shuffled_sources(&Generator::default_rng(epoch))
            .unwrap_or_else(|Frozen| self.clone());
        shuffled.shifted(epoch)
    }

    /// What rank `rank` reads after `split_dataset_by_node(dataset, rank, world_size)`, strategy `auto`: whole shards
    /// when their number divides by `world_size`, else every `world_size`-th row.
    pub fn for_node(&self, rank: u64, world_size: u64) -> Self {
        if self.splits_by_shards(world_size) {
            self.shard(world_size, rank, false)
        } else {
            Source::Step {
                source: Box::new(self.clone()),
                step: world_size,
                offset: rank,
            }
        }
    }

    /// Strategy `auto` of `split_dataset_by_node` gives whole shards to `world_size` nodes.
    pub fn splits_by_shards(&self, world_size: u64) -> bool {
        self.num_shards().is_multiple_of(world_size)
    }

    /// What worker `worker` of a torch `DataLoader` with `num_workers` of them reads; `None` for one without shards.
    ///
    /// # Errors
    /// [`IterableError::Refused`] when a shifted seed is negative, which numpy refuses.
    pub fn for_worker(&self, worker: u64, num_workers: u64) -> Result<Option<Self>, IterableError> {
        if worker >= self.num_shards() {
            return Ok(None);
        }
        self.shard(num_workers, worker, false).shifted(worker).map(Some)
    }

    /// `shuffle_data_sources`: each list of shards is shuffled with its own copy of the generator, and a random mix
    /// draws with the generator from now on.
    pub(super) fn shuffled_sources(&self, generator: &Generator) -> Result<Self, Frozen> {
        let inner = |source: &Source| source.shuffled_sources(generator).map(Box::new);
        let each = |sources: &[Source]| {
            sources
                .iter()
                .map(|s| s.shuffled_sources(generator))
                .collect::<Result<_, _>>()
        };
        Ok(match self {
            Source::Shards { shards, tables } => {
                let mut shards = shards.clone();
                generator.clone().shuffle(&mut shards);
                Source::Shards {
                    shards,
                    tables: *tables,
                }
            }
            Source::Rebatch { source, rows } => Source::Rebatch {
                source: inner(source)?,
                rows: *rows,
            },
            Source::Cycle {
                sources,
                stopping_strategy,
            } => Source::Cycle {
                sources: each(sources)?,
                stopping_strategy: *stopping_strategy,
            },
            Source::Draw {
                sources,
                probabilities,
                stopping_strategy,
                ..
            } => Source::Draw {
                sources: each(sources)?,
                probabilities: probabilities.clone(),
                generator: generator.clone(),
                stopping_strategy: *stopping_strategy,
            },
            Source::InterleaveShards { source, max } => Source::InterleaveShards {
                source: inner(source)?,
                max: *max,
            },
            Source::Buffer {
                source,
                size,
                generator: own,
            } => Source::Buffer {
                source: inner(source)?,
                size: *size,
                generator: own.clone(),
            },
            Source::Step { source, step, offset } => Source::Step {
                source: inner(source)?,
                step: *step,
                offset: *offset,
            },
            Source::Skip { .. } | Source::Take { .. } => return Err(Frozen),
        })
    }

    /// `shard_data_sources(num_shards, index, contiguous)`.
    pub(super) fn shard(&self, num_shards: u64, index: u64, contiguous: bool) -> Self {
        let inner = |source: &Source| Box::new(source.shard(num_shards, index, contiguous));
        // A mix cannot be divided further than its least divisible source.
        let each = |sources: &[Source]| -> Vec<Source> {
            let parts = num_shards.min(self.num_shards());
            let take = if num_shards < self.num_shards() || index < parts {
                sources
            } else {
                &[]
            };
            take.iter()
                .map(|source| source.shard(parts, index, contiguous))
                .collect()
        };
        let counted = |source: &Source, rows: u64, split: bool| {
            let parts = num_shards.min(source.num_shards());
            let rows = match (split, index < parts) {
                (false, _) => rows,
                (true, true) => rows / parts + u64::from(index < rows % parts),
                (true, false) => 0,
            };
            (inner(source), rows)
        };
        match self {
            Source::Shards { shards, tables } => {
                let n = shards.len() as u64;
                let shards = if contiguous {
                    let start = |part: u64| (n / num_shards * part + part.min(n % num_shards)) as usize;
                    shards[start(index)..start(index + 1)].to_vec()
                } else {
                    let step = usize::try_from(num_shards).unwrap_or(usize::MAX);
                    shards
                        .iter()
                        .skip(index as usize)
                        .step_by(step)
                        .cloned()
                        .collect()
                };
                Source::Shards {
                    shards,
                    tables: *tables,
                }
            }
            Source::Rebatch { source, rows } => Source::Rebatch {
                source: inner(source),
                rows: *rows,
            },
            Source::Cycle {
                sources,
                stopping_strategy,
            } => Source::Cycle {
                sources: each(sources),
                stopping_strategy: *stopping_strategy,
            },
            Source::Draw {
                sources,
                probabilities,
                generator,
                stopping_strategy,
            } => Source::Draw {
                sources: each(sources),
                probabilities: probabilities.clone(),
                generator: generator.clone(),
                stopping_strategy: *stopping_strategy,
            },
            Source::InterleaveShards { source, max } => Source::InterleaveShards {
                source: inner(source),
                max: *max,
            },
            Source::Buffer {
                source,
                size,
                generator,
            } => Source::Buffer {
                source: inner(source),
                size: *size,
                generator: generator.clone(),
            },
            Source::Step { source, step, offset } => Source::Step {
                source: inner(source),
                step: *step,
                offset: *offset,
            },
            Source::Skip { source, rows, split } => {
                let (source, rows) = counted(source, *rows, *split);
                Source::Skip {
                    source,
                    rows,
                    split: *split,
                }
            }
            Source::Take { source, rows, split } => {
                let (source, rows) = counted(source, *rows, *split);
                Source::Take {
                    source,
                    rows,
                    split: *split,
                }
            }
        }
    }

    /// `shift_ex_examples_rngs(value)`: every generator gets the seed it would draw next, less `value`.
    fn shifted(mut self, value: u64) -> Result<Self, IterableError> {
        self.shift(value)?;
        Ok(self)
    }

    fn shift(&mut self, value: u64) -> Result<(), IterableError> {
        match self {
            Source::Shards { .. } => {}
            Source::Draw {
                sources, generator, ..
            } => {
                *generator = shifted(generator, value)?;
                sources.iter_mut().try_for_each(|source| source.shift(value))?;
            }
            Source::Cycle { sources, .. } => sources.iter_mut().try_for_each(|source| source.shift(value))?,
            Source::Buffer {
                source, generator, ..
            } => {
                *generator = shifted(generator, value)?;
                source.shift(value)?;
            }
            Source::Rebatch { source, .. }
            | Source::InterleaveShards { source, .. }
            | Source::Step { source, .. }
            | Source::Skip { source, .. }
            | Source::Take { source, .. } => source.shift(value)?,
        }
        Ok(())
    }
}

fn shifted(generator: &Generator, value: u64) -> Result<Generator, IterableError> {
    let drawn: i64 = generator.clone().integer(0, 1 << 63)?;
    let seed = i128::from(drawn) - i128::from(value);
    match u64::try_from(seed) {
        Ok(seed) => Ok(Generator::default_rng(seed)),
        Err(_) => Err(IterableError::Refused(format!(
            "the shuffle's generator would be seeded with {seed} in this epoch or worker, which numpy refuses"
        ))),
    }
}
