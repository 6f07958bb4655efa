//! Descriptions of streams, and the package's ways to rewrite them.

use std::ops::Range;

use super::rewrite::Frozen;
use crate::interleave::StoppingStrategy;
use crate::rng::RngError;
use crate::rng::numpy::Generator;

/// Rows of one table where the package reads tables (`DEFAULT_MAX_BATCH_SIZE`).
pub(super) const TABLE_ROWS: u64 = 1000;

/// Why a stream cannot be made or resumed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum IterableError {
    /// The package raises here too.
    #[error("{0}")]
    Refused(String),
    /// The package would go on for ever without giving every row.
    #[error("this mix never ends: {0}")]
    Endless(String),
    /// A saved state belongs to another stream.
    #[error("the saved state does not fit this stream: {0}")]
    State(String),
    /// A generator refuses.
    #[error(transparent)]
    Rng(#[from] RngError),
}

/// A stream of rows, before it runs. Cloning is cheap except for lists of shards.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Shards of consecutive rows, one after the other (`ExamplesIterable`, `ArrowExamplesIterable`).
    Shards {
        /// The rows of each shard.
        shards: Vec<Range<u64>>,
        /// The shards are read as tables (Arrow, Parquet, `to_iterable_dataset`), not row by row (a generator, JSON
        /// lines): the shuffle buffer then moves blocks of rows.
        tables: bool,
    },
    /// Cuts tables to this many rows (`RebatchedArrowExamplesIterable`).
    Rebatch {
        /// What is cut.
        source: Box<Source>,
        /// Rows of a table, at least 1.
        rows: u64,
    },
    /// Sources that take turns (`CyclingMultiSourcesExamplesIterable`).
    Cycle {
        /// The sources.
        sources: Vec<Source>,
        /// When the mix ends.
        stopping_strategy: StoppingStrategy,
    },
    /// Sources drawn at random (`RandomlyCyclingMultiSourcesExamplesIterable`).
    Draw {
        /// The sources.
        sources: Vec<Source>,
        /// Chance of each source at every row.
        probabilities: Vec<f64>,
        /// Where the draws start.
        generator: Generator,
        /// When the mix ends.
        stopping_strategy: StoppingStrategy,
    },
    /// Up to `max` groups of shards that take turns, all rows once (`InterleavedShardsExamplesIterable`).
    InterleaveShards {
        /// The shards.
        source: Box<Source>,
        /// Groups at most.
        max: u64,
    },
    /// The shuffle buffer (`BufferShuffledExamplesIterable`).
    Buffer {
        /// What is shuffled.
        source: Box<Source>,
        /// Rows held.
        size: u64,
        /// Where the draws start.
        generator: Generator,
    },
    /// Every `step`-th row (`StepExamplesIterable`).
    Step {
        /// What is thinned out.
        source: Box<Source>,
        /// One row of so many is kept.
        step: u64,
        /// Which one.
        offset: u64,
    },
    /// All but the first rows (`SkipExamplesIterable`).
    Skip {
        /// What is cut.
        source: Box<Source>,
        /// Rows left out.
        rows: u64,
        /// The count is divided among shards; not so when the dataset was split by node before.
        split: bool,
    },
    /// The first rows (`TakeExamplesIterable`).
    Take {
        /// What is cut.
        source: Box<Source>,
        /// Rows kept.
        rows: u64,
        /// The count is divided among shards; not so when the dataset was split by node before.
        split: bool,
    },
}

impl Source {
    /// `interleave_datasets([…], probabilities, seed, stopping_strategy)` of iterable datasets. `generator` is
    /// `default_rng(seed)`.
    ///
    /// # Errors
    /// [`IterableError`] when probabilities do not fit, or the mix would never end.
    pub fn interleave(
        sources: Vec<Source>,
        probabilities: Option<(Vec<f64>, Generator)>,
        stopping_strategy: StoppingStrategy,
    ) -> Result<Self, IterableError> {
        if sources.is_empty() {
            return Err(IterableError::Refused(
                "there is no source to interleave".to_string(),
            ));
        }
        // Tables of one row, so that sources alternate row by row.
        let sources: Vec<Source> = if sources.iter().all(Source::has_tables) {
            sources
                .into_iter()
                .map(|source| Source::Rebatch {
                    source: Box::new(source),
                    rows: 1,
                })
                .collect()
        } else {
            sources
        };
        let Some((probabilities, generator)) = probabilities else {
            return Ok(Source::Cycle {
                sources,
                stopping_strategy,
            });
        };
        Generator::check_probabilities(&probabilities)?;
        if probabilities.len() != sources.len() {
            return Err(IterableError::Refused(format!(
                "{} probabilities for {} sources",
                probabilities.len(),
                sources.len()
            )));
        }
        if stopping_strategy != StoppingStrategy::FirstExhausted
            && let Some(i) = probabilities.iter().position(|p| *p == 0.0)
        {
            return Err(IterableError::Endless(format!(
                "source {i} has probability 0 and is never exhausted"
            )));
        }
        Ok(Source::Draw {
            sources,
            probabilities,
            generator,
            stopping_strategy,
        })
    }

    /// `IterableDataset.shuffle(seed, buffer_size, max_buffer_input_shards)`. `generator` is `default_rng(seed)`.
    pub fn shuffle(self, generator: &Generator, buffer_size: u64, max_buffer_input_shards: u64) -> Self {
        let (mut source, max_shards) = match self.shuffled_sources(generator) {
            Ok(shuffled) => (shuffled, max_buffer_input_shards),
            Err(Frozen) => (self, 1),
        };
        if source.has_tables() {
            let rows = (buffer_size / max_shards.max(1)).max(1);
            source = Source::Rebatch {
                source: Box::new(source),
                rows,
            };
        }
        if max_shards > 1 {
            source = Source::InterleaveShards {
                source: Box::new(source),
                max: max_shards,
            };
        }
        Source::Buffer {
            source: Box::new(source),
            size: buffer_size,
            generator: generator.clone(),
        }
    }

    /// Number of shards the stream can be divided into.
    pub fn num_shards(&self) -> u64 {
        match self {
            Source::Shards { shards, .. } => shards.len() as u64,
            Source::Cycle { sources, .. } | Source::Draw { sources, .. } => {
                sources.iter().map(Source::num_shards).min().unwrap_or(0)
            }
            Source::Rebatch { source, .. }
            | Source::InterleaveShards { source, .. }
            | Source::Buffer { source, .. }
            | Source::Step { source, .. }
            | Source::Skip { source, .. }
            | Source::Take { source, .. } => source.num_shards(),
        }
    }

    /// Rows of the stream where they do not depend on draws, `None` otherwise.
    pub fn fixed_len(&self) -> Option<u64> {
        match self {
            Source::Shards { shards, .. } => Some(shards.iter().map(|s| s.end - s.start).sum()),
            Source::Rebatch { source, .. }
            | Source::InterleaveShards { source, .. }
            | Source::Buffer { source, .. } => source.fixed_len(),
            Source::Step { source, step, offset } => {
                Some(source.fixed_len()?.saturating_sub(*offset).div_ceil(*step))
            }
            Source::Skip { source, rows, .. } => Some(source.fixed_len()?.saturating_sub(*rows)),
            Source::Take { source, rows, .. } => Some(source.fixed_len()?.min(*rows)),
            Source::Draw {
                sources,
                stopping_strategy,
                ..
            }
            | Source::Cycle {
                sources,
                stopping_strategy,
            } => {
                let lens: Option<Vec<u64>> = sources.iter().map(Source::fixed_len).collect();
                let lens = lens?;
                match (stopping_strategy, self) {
                    (StoppingStrategy::AllExhaustedWithoutReplacement, _) => Some(lens.iter().sum()),
                    // Turns end right after the row that shows a source, or the last source, to be used up.
                    (strategy, Source::Cycle { .. }) => {
                        let ends = lens
                            .iter()
                            .enumerate()
                            .map(|(i, len)| (len.max(&1) - 1, i as u64, *len));
                        let (round, at, _) = match strategy {
                            StoppingStrategy::FirstExhausted => ends.min()?,
                            _ => ends.max()?,
                        };
                        let turns = round * lens.len() as u64 + at + 1;
                        // An empty source takes its turns without giving a row.
                        let empty = lens.iter().enumerate().filter(|(_, len)| **len == 0);
                        let lost: u64 = empty.map(|(i, _)| round + u64::from(i as u64 <= at)).sum();
                        Some(turns - lost)
                    }
                    _ => None,
                }
            }
        }
    }

    /// Every list of shards has shards of one length, so that dividing them gives the same lengths in any sequence.
    pub fn has_equal_shards(&self) -> bool {
        self.leaves().all(|shards| {
            let lens = || shards.iter().map(|s| s.end - s.start);
            lens().min() == lens().max()
        })
    }

    /// The largest row, 0 where there is none.
    pub fn max_row(&self) -> u64 {
        let ends = self
            .leaves()
            .flat_map(|shards| shards.iter().map(|s| s.end.saturating_sub(1)));
        ends.max().unwrap_or(0)
    }

    /// Every list of shards in the description.
    fn leaves(&self) -> Box<dyn Iterator<Item = &[Range<u64>]> + '_> {
        match self {
            Source::Shards { shards, .. } => Box::new(std::iter::once(&shards[..])),
            Source::Cycle { sources, .. } | Source::Draw { sources, .. } => {
                Box::new(sources.iter().flat_map(Source::leaves))
            }
            Source::Rebatch { source, .. }
            | Source::InterleaveShards { source, .. }
            | Source::Buffer { source, .. }
            | Source::Step { source, .. }
            | Source::Skip { source, .. }
            | Source::Take { source, .. } => source.leaves(),
        }
    }

    /// The stream hands over tables (the package's `iter_arrow`).
    fn has_tables(&self) -> bool {
        match self {
            Source::Shards { tables, .. } => *tables,
            Source::Cycle { sources, .. } | Source::Draw { sources, .. } => {
                sources.iter().all(Source::has_tables)
            }
            Source::Rebatch { source, .. }
            | Source::InterleaveShards { source, .. }
            | Source::Buffer { source, .. }
            | Source::Step { source, .. }
            | Source::Skip { source, .. }
            | Source::Take { source, .. } => source.has_tables(),
        }
    }
}
