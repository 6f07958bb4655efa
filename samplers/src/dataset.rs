//! Dataset-level steps: what a script does to a Hugging Face `Dataset` before it hands it to a sampler.
//!
//! Reproduces datasets 5.2.0 `Dataset.shuffle`, `select`, `shard`, `train_test_split`, `concatenate_datasets`,
//! `interleave_datasets` and `split_dataset_by_node` over numpy 2.4.6 `default_rng`. Steps compose: each applies to what the one before
//! left. The result is a list of rows of the stored table; positions are indices into it.
//!
//! Bias: `Generator.permutation` is exact (masked rejection); a second shuffle adds nothing but another order.
//! Memory: 4 bytes a row of the result while there are fewer than 2^32; a chain holds two lists while a step runs.

use serde::{Deserialize, Serialize};

use crate::interleave::{self, StoppingStrategy};
use crate::permute::Permutation;
use crate::rng::numpy::{Generator, RandomState};
use crate::spec::{OrderError, Seed};

/// One step. In a spec: a map with one key, `shuffle: {seed: 42}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetStep {
    /// `Dataset.shuffle`.
    Shuffle(Shuffle),
    /// `Dataset.select`.
    Select(Select),
    /// `Dataset.shard`.
    Shard(Shard),
    /// `datasets.distributed.split_dataset_by_node` of a map-style dataset.
    SplitByNode(SplitByNode),
    /// One side of `Dataset.train_test_split`.
    TrainTestSplit(TrainTestSplit),
    /// `concatenate_datasets` of several views of the dataset as the steps before left it.
    Concatenate(Vec<Vec<DatasetStep>>),
    /// `interleave_datasets` of several views of the dataset as the steps before left it.
    Interleave(Interleave),
}

/// `interleave_datasets([…], probabilities, seed, stopping_strategy)` of map-style datasets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interleave {
    /// The views to mix, each a list of steps.
    pub sources: Vec<Vec<DatasetStep>>,
    /// Chance of each source at every row; without it the sources take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probabilities: Option<Vec<f64>>,
    /// Seed of the draws; belongs to `probabilities`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// When the mix ends.
    #[serde(default)]
    pub stopping_strategy: StoppingStrategy,
}

impl Interleave {
    fn rule(&self) -> interleave::Interleave {
        interleave::Interleave {
            probabilities: self.probabilities.clone(),
            seed: self.seed,
            stopping_strategy: self.stopping_strategy,
        }
    }
}

/// `Dataset.shuffle(seed=seed)`, `.shuffle(generator=g)`, or `.shuffle()` after `np.random.seed(…)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// Seed of `numpy.random.default_rng`, 0 to 2^64-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// In place of `seed`: the script called `np.random.seed` with this and `shuffle()` without any seed, which
    /// takes its seed from the state of that generator. Holds as long as nothing else draws from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numpy_global_seed: Option<u32>,
    /// The how-many-th shuffle with this generator (`shuffle(generator=g)` several times), from 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub call: u64,
}

/// `Dataset.select(range(start, stop))` or `Dataset.select(indices)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// First index taken, 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// First index not taken, the length when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<u64>,
    /// In place of a range: the indices, in order; an index may stand there several times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indices: Option<Vec<u64>>,
}

/// `Dataset.shard(num_shards, index, contiguous)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Number of shards.
    pub num_shards: u64,
    /// Which one, from 0.
    pub index: u64,
    /// One run of rows (the default since datasets 3.0), else every `num_shards`-th row.
    #[serde(default = "yes")]
    pub contiguous: bool,
}

/// `split_dataset_by_node(dataset, rank, world_size)`: a contiguous shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitByNode {
    /// Which node, from 0.
    pub rank: u64,
    /// Number of nodes.
    pub world_size: u64,
}

/// `Dataset.train_test_split(test_size, train_size, shuffle, seed)[take]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainTestSplit {
    /// Which side goes on.
    pub take: Side,
    /// Samples of the test side: a count, or a fraction as a number with a point (0.25 when neither is given).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_size: Option<Size>,
    /// Samples of the train side, the rest when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_size: Option<Size>,
    /// Shuffle before cutting.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Seed of the shuffle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
}

/// A side of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// What remains.
    Train,
    /// What is held out.
    Test,
}

/// A count, or a fraction: `1` and `1.0` differ here, as they do in `train_test_split`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// Number of samples.
    Count(u64),
    /// Share of the samples.
    Fraction(f64),
}

fn one() -> u64 {
    1
}

fn is_one(x: &u64) -> bool {
    *x == 1
}

fn yes() -> bool {
    true
}

impl DatasetStep {
    /// `Dataset.shuffle(seed=seed)`.
    pub fn shuffle(seed: Seed) -> Self {
        DatasetStep::Shuffle(Shuffle {
            seed: Some(seed),
            numpy_global_seed: None,
            call: 1,
        })
    }

    /// The step's key in a spec.
    pub fn name(&self) -> &'static str {
        match self {
            DatasetStep::Shuffle(_) => "shuffle",
            DatasetStep::Select(_) => "select",
            DatasetStep::Shard(_) => "shard",
            DatasetStep::SplitByNode(_) => "split_by_node",
            DatasetStep::TrainTestSplit(_) => "train_test_split",
            DatasetStep::Concatenate(_) => "concatenate",
            DatasetStep::Interleave(_) => "interleave",
        }
    }
}

/// Checks what can be seen without a dataset: each random step has exactly one seed, and numpy takes it.
///
/// # Errors
/// [`OrderError::Dataset`] naming the step.
pub fn check(steps: &[DatasetStep]) -> Result<(), OrderError> {
    for (index, step) in steps.iter().enumerate() {
        let refuse = |why: String| OrderError::Dataset {
            index,
            step: step.name(),
            why,
        };
        let seeded = |seed: Seed| seed.numpy().map(|_| ()).map_err(|e| refuse(e.to_string()));
        match step {
            DatasetStep::Shuffle(s) => {
                match (s.seed, s.numpy_global_seed) {
                    (Some(seed), None) => seeded(seed)?,
                    (None, Some(_)) => {}
                    (None, None) => {
                        return Err(refuse(
                            "no seed: give `seed` (or `numpy_global_seed` for a script that seeds np.random and \
                             calls shuffle() without one)"
                                .to_string(),
                        ));
                    }
                    (Some(_), Some(_)) => {
                        return Err(refuse(
                            "`seed` and `numpy_global_seed` exclude each other".to_string(),
                        ));
                    }
                }
                if s.call == 0 {
                    return Err(refuse("`call` counts from 1".to_string()));
                }
            }
            DatasetStep::Select(s) => {
                if s.indices.is_some() && (s.start.is_some() || s.stop.is_some()) {
                    return Err(refuse("`indices` and a range exclude each other".to_string()));
                }
                if s.indices.is_none() && s.start.is_none() && s.stop.is_none() {
                    return Err(refuse("give `indices`, or `start` and/or `stop`".to_string()));
                }
            }
            DatasetStep::Shard(s) => {
                check_part(s.index, s.num_shards, "index", "num_shards").map_err(refuse)?
            }
            DatasetStep::SplitByNode(s) => {
                check_part(s.rank, s.world_size, "rank", "world_size").map_err(refuse)?
            }
            DatasetStep::TrainTestSplit(s) => match (s.shuffle, s.seed) {
                (true, Some(seed)) => seeded(seed)?,
                (true, None) => return Err(refuse("no seed: give `seed`, or `shuffle: false`".to_string())),
                (false, _) => {}
            },
            DatasetStep::Concatenate(parts) => {
                if parts.is_empty() {
                    return Err(refuse("nothing to concatenate".to_string()));
                }
                parts
                    .iter()
                    .try_for_each(|part| check(part))
                    .map_err(|e| refuse(e.to_string()))?;
            }
            DatasetStep::Interleave(mix) => {
                mix.rule().check(mix.sources.len()).map_err(refuse)?;
                mix.sources
                    .iter()
                    .try_for_each(|part| check(part))
                    .map_err(|e| refuse(e.to_string()))?;
            }
        }
    }
    Ok(())
}

fn check_part(index: u64, of: u64, index_name: &str, of_name: &str) -> Result<(), String> {
    if of == 0 {
        Err(format!("`{of_name}` is 0: it must be at least 1"))
    } else if index >= of {
        Err(format!(
            "`{index_name}` is {index}, but there are {of} (`{of_name}`)"
        ))
    } else {
        Ok(())
    }
}

/// Every seed the steps use, with what uses it.
pub fn seeds(steps: &[DatasetStep]) -> Vec<(&'static str, Seed)> {
    let mut seeds = Vec::new();
    for step in steps {
        match step {
            DatasetStep::Shuffle(s) => {
                seeds.extend(s.seed.map(|seed| ("dataset shuffle", seed)));
                let global = s.numpy_global_seed.map(|seed| Seed::from(u64::from(seed)));
                seeds.extend(global.map(|seed| ("np.random for the dataset shuffle", seed)));
            }
            DatasetStep::TrainTestSplit(s) if s.shuffle => {
                seeds.extend(s.seed.map(|seed| ("train_test_split", seed)));
            }
            DatasetStep::Concatenate(parts) => parts.iter().for_each(|part| seeds.extend(self::seeds(part))),
            DatasetStep::Interleave(mix) => {
                mix.sources
                    .iter()
                    .for_each(|part| seeds.extend(self::seeds(part)));
                seeds.extend(mix.seed.map(|seed| ("interleave", seed)));
            }
            _ => {}
        }
    }
    seeds
}

/// Rows of the stored table of `n` rows, as the steps leave them.
///
/// # Errors
/// [`OrderError::Dataset`] naming the step that cannot be applied.
pub fn apply(steps: &[DatasetStep], n: u64) -> Result<Permutation, OrderError> {
    check(steps)?;
    apply_to(steps, Permutation::Identity(n))
}

/// Number of rows the steps leave of `n`, without building anything.
///
/// # Errors
/// As [`apply`].
pub fn len(steps: &[DatasetStep], n: u64) -> Result<u64, OrderError> {
    check(steps)?;
    steps.iter().enumerate().try_fold(n, |n, (index, step)| {
        step_len(step, n).map_err(|why| OrderError::Dataset {
            index,
            step: step.name(),
            why,
        })
    })
}

fn step_len(step: &DatasetStep, n: u64) -> Result<u64, String> {
    match step {
        DatasetStep::Shuffle(_) => Ok(n),
        DatasetStep::Select(s) => match &s.indices {
            Some(indices) => match indices.iter().find(|i| **i >= n) {
                Some(i) => Err(format!("index {i} is out of range: there are {n} rows here")),
                None => Ok(indices.len() as u64),
            },
            None => {
                let (start, stop) = (s.start.unwrap_or(0), s.stop.unwrap_or(n));
                if start > stop || stop > n {
                    Err(format!("range {start}..{stop} does not fit the {n} rows here"))
                } else {
                    Ok(stop - start)
                }
            }
        },
        DatasetStep::Shard(s) if !s.contiguous => Ok(n.saturating_sub(s.index).div_ceil(s.num_shards)),
        DatasetStep::Shard(s) => Ok(contiguous(n, s.num_shards, s.index).1),
        DatasetStep::SplitByNode(s) => Ok(contiguous(n, s.world_size, s.rank).1),
        DatasetStep::TrainTestSplit(s) => {
            let (train, test) = s.sizes(n)?;
            Ok(match s.take {
                Side::Train => train,
                Side::Test => test,
            })
        }
        DatasetStep::Interleave(mix) => {
            let lengths = mix
                .sources
                .iter()
                .map(|part| len(part, n).map_err(|e| e.to_string()));
            mix.rule().len(&lengths.collect::<Result<Vec<_>, _>>()?)
        }
        DatasetStep::Concatenate(parts) => parts.iter().try_fold(0u64, |sum, part| {
            let more = len(part, n).map_err(|e| e.to_string())?;
            sum.checked_add(more)
                .ok_or_else(|| "the sum of the lengths overflows".to_string())
        }),
    }
}

fn apply_to(steps: &[DatasetStep], mut rows: Permutation) -> Result<Permutation, OrderError> {
    for (index, step) in steps.iter().enumerate() {
        let n = rows.len();
        step_len(step, n).map_err(|why| OrderError::Dataset {
            index,
            step: step.name(),
            why,
        })?;
        if let DatasetStep::Concatenate(parts) = step {
            let parts: Vec<Permutation> = parts
                .iter()
                .map(|part| apply_to(part, rows.clone()))
                .collect::<Result<_, _>>()?;
            rows = chain(&parts);
            continue;
        }
        if let DatasetStep::Interleave(mix) = step {
            let parts: Vec<Permutation> = mix
                .sources
                .iter()
                .map(|part| apply_to(part, rows.clone()))
                .collect::<Result<_, _>>()?;
            rows = mixed(&mix.rule(), &parts).map_err(|why| OrderError::Dataset {
                index,
                step: step.name(),
                why,
            })?;
            continue;
        }
        let mut next = step_rows(step, n)?;
        next.compose(&rows)?;
        rows = next;
    }
    Ok(rows)
}

/// Indices a step picks out of `n`; its length has been checked.
fn step_rows(step: &DatasetStep, n: u64) -> Result<Permutation, OrderError> {
    Ok(match step {
        DatasetStep::Shuffle(s) => s.permutation(n)?,
        DatasetStep::Select(s) => match &s.indices {
            Some(indices) => Permutation::from_indices(indices.clone()),
            None => range(s.start.unwrap_or(0), s.stop.unwrap_or(n), 1),
        },
        DatasetStep::Shard(s) if !s.contiguous => range(s.index, n, s.num_shards),
        DatasetStep::Shard(s) => run(contiguous(n, s.num_shards, s.index)),
        DatasetStep::SplitByNode(s) => run(contiguous(n, s.world_size, s.rank)),
        DatasetStep::TrainTestSplit(s) => s.rows(n)?,
        DatasetStep::Concatenate(_) | DatasetStep::Interleave(_) => Permutation::Identity(n),
    })
}

impl Shuffle {
    fn permutation(&self, n: u64) -> Result<Permutation, OrderError> {
        let mut permutation = Permutation::Identity(n);
        if n == 0 {
            // `Dataset.shuffle` returns an empty dataset before it looks at any generator.
            return Ok(permutation);
        }
        if let Some(seed) = self.numpy_global_seed {
            let mut global = RandomState::new(seed);
            for _ in 1..self.call {
                global.random_sample();
            }
            return Ok(Generator::default_rng(global.word_at_position().into()).permutation(n)?);
        }
        let mut generator = Generator::default_rng(self.seed.unwrap_or(Seed::from(0u64)).numpy()?);
        for _ in 0..self.call {
            permutation = generator.permutation(n)?;
        }
        Ok(permutation)
    }
}

impl TrainTestSplit {
    /// Samples of the train and the test side.
    fn sizes(&self, n: u64) -> Result<(u64, u64), String> {
        let check = |name: &str, size: Option<Size>| match size {
            Some(Size::Count(c)) if c == 0 || c >= n => Err(format!(
                "`{name}` is {c}: a count must be at least 1 and below the {n} rows here"
            )),
            Some(Size::Fraction(f)) if !(f > 0.0 && f < 1.0) => {
                Err(format!("`{name}` is {f}: a fraction must lie between 0 and 1"))
            }
            _ => Ok(()),
        };
        check("test_size", self.test_size)?;
        check("train_size", self.train_size)?;
        let test_size = match (self.test_size, self.train_size) {
            (None, None) => Some(Size::Fraction(0.25)),
            (test_size, _) => test_size,
        };
        if let (Some(Size::Fraction(a)), Some(Size::Fraction(b))) = (test_size, self.train_size)
            && a + b > 1.0
        {
            return Err(format!(
                "`test_size` and `train_size` add up to {}, above 1",
                a + b
            ));
        }
        let test = test_size.map(|s| match s {
            Size::Count(c) => c,
            Size::Fraction(f) => (f * n as f64).ceil() as u64,
        });
        let train = self.train_size.map(|s| match s {
            Size::Count(c) => c,
            Size::Fraction(f) => (f * n as f64).floor() as u64,
        });
        let (train, test) = match (train, test) {
            (Some(train), Some(test)) => (train, test),
            (None, Some(test)) => (n.saturating_sub(test), test),
            (Some(train), None) => (train, n.saturating_sub(train)),
            // `test_size` has been filled in above when neither is given.
            (None, None) => (n, 0),
        };
        match train.checked_add(test) {
            Some(sum) if sum <= n => {}
            _ => {
                return Err(format!(
                    "train {train} + test {test} samples are more than the {n} rows here"
                ));
            }
        }
        if train == 0 {
            return Err(format!("the train side of {n} rows would be empty"));
        }
        Ok((train, test))
    }

    fn rows(&self, n: u64) -> Result<Permutation, OrderError> {
        let refuse = |why| OrderError::Dataset {
            index: 0,
            step: "train_test_split",
            why,
        };
        let (train, test) = self.sizes(n).map_err(refuse)?;
        // Shuffled, the test side comes first; unshuffled, the train side does.
        let (start, end) = match (self.shuffle, self.take) {
            (true, Side::Test) => (0, test),
            (true, Side::Train) => (test, test + train),
            (false, Side::Train) => (0, train),
            (false, Side::Test) => (train, train + test),
        };
        let mut side = range(start, end, 1);
        if self.shuffle {
            let seed = self.seed.unwrap_or(Seed::from(0u64)).numpy()?;
            side.compose(&Generator::default_rng(seed).permutation(n)?)?;
        }
        Ok(side)
    }
}

/// Start and length of contiguous part `index` of `n` rows in `parts`: the first `n % parts` are one longer.
fn contiguous(n: u64, parts: u64, index: u64) -> (u64, u64) {
    let (each, more) = (n / parts, n % parts);
    (each * index + index.min(more), each + u64::from(index < more))
}

fn run((start, len): (u64, u64)) -> Permutation {
    range(start, start + len, 1)
}

fn range(start: u64, stop: u64, step: u64) -> Permutation {
    if start == 0 && step == 1 {
        return Permutation::Identity(stop);
    }
    let values = (start..stop).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    match u32::try_from(stop) {
        Ok(_) => Permutation::Narrow(values.map(|x| x as u32).collect()),
        Err(_) => Permutation::Wide(values.collect()),
    }
}

/// All entries fit u32.
fn narrow(parts: &[Permutation]) -> bool {
    parts.iter().all(|p| match p {
        Permutation::Identity(n) => u32::try_from(*n).is_ok(),
        Permutation::Narrow(_) => true,
        Permutation::Wide(_) => false,
    })
}

fn mixed(rule: &interleave::Interleave, parts: &[Permutation]) -> Result<Permutation, String> {
    let lengths: Vec<u64> = parts.iter().map(Permutation::len).collect();
    // Every row the mix names is below its source's length.
    let entry = |source: usize, row| parts[source].get(row).unwrap_or_default();
    if narrow(parts) {
        let mut rows = Vec::new();
        rule.visit(&lengths, |source, row| rows.push(entry(source, row) as u32))?;
        Ok(Permutation::Narrow(rows))
    } else {
        let mut rows = Vec::new();
        rule.visit(&lengths, |source, row| rows.push(entry(source, row)))?;
        Ok(Permutation::Wide(rows))
    }
}

fn chain(parts: &[Permutation]) -> Permutation {
    let entries = parts.iter().flat_map(Permutation::iter);
    if narrow(parts) {
        Permutation::Narrow(entries.map(|x| x as u32).collect())
    } else {
        Permutation::Wide(entries.collect())
    }
}
