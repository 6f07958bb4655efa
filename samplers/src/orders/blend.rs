//! Weighted blends of datasets: which dataset each draw comes from, and which of its samples.
//!
//! Reproduces Megatron-Core 0.19.2: `build_blending_indices` and `build_exhaustive_blending_indices` of
//! `helpers.cpp`, `BlendedDataset`, and the sizes `BlendedMegatronDatasetBuilder` asks of each dataset
//! (`_get_size_per_split_per_dataset`); `normalize` of `utils.py` on numpy 2.4.
//!
//! Rule: draw `i` goes to the dataset whose `weight * max(i, 1) - drawn` is largest in double precision, the first
//! one at a tie. Weights are shares of the *blend*, not epochs of a dataset.
//! Bias: deterministic and evenly spread, so two datasets with simple weights alternate in a fixed pattern; the
//! shuffle happens inside each dataset only. A dataset's share is exact to about one sample, never random.
//! Memory: 6 bytes a draw (10 from 2^32 draws on). Time: draws x datasets.

use super::index_array::{Indices, SharedArray};
use super::split::Split;

/// Most datasets a blend may hold: the dataset index is 16 bits wide, and Megatron asserts fewer than 32767.
pub const MAX_DATASETS: usize = 32_766;

/// Margin Megatron builds above what a blend asks of a dataset (`mid_level_dataset_surplus`).
pub const DEFAULT_SURPLUS: f64 = 0.005;

/// Why a blend is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BlendError {
    /// No dataset at all.
    #[error("a blend needs at least one dataset")]
    NoDatasets,
    /// More datasets than the 16-bit dataset index can name.
    #[error(
        "a blend of {found} datasets does not fit Megatron's 16-bit dataset index (at most {MAX_DATASETS})"
    )]
    TooManyDatasets {
        /// Datasets given.
        found: usize,
    },
    /// A weight for each dataset, or none.
    #[error("{weights} weights for {datasets} datasets: give one weight per dataset, or none at all")]
    WeightCount {
        /// Weights given.
        weights: usize,
        /// Datasets given.
        datasets: usize,
    },
    /// A weight that is zero, negative or not finite.
    #[error("weight {weight} of dataset {dataset} is not a positive number; leave the dataset out instead")]
    BadWeight {
        /// Position of the dataset in the blend.
        dataset: usize,
        /// Its weight.
        weight: f64,
    },
    /// Weights whose sum is no finite number.
    #[error(
        "the sum of the weights overflows: it is above 1.8e308; only their ratios count, so divide all of them by one number"
    )]
    SumOverflows,
    /// A weight that is nothing beside the others.
    #[error(
        "weight {weight} of dataset {dataset} is nothing beside the other weights: its share of the blend rounds to 0; \
         leave the dataset out instead"
    )]
    VanishingWeight {
        /// Position of the dataset in the blend.
        dataset: usize,
        /// Its weight.
        weight: f64,
    },
    /// Weights given, but not how many samples to draw.
    #[error(
        "the {split} split has weights but no number of samples: weights say how to share samples out, not how many \
         there are; give a size, or leave the weights out to use every sample once"
    )]
    WeightsWithoutSize {
        /// The split.
        split: Split,
    },
    /// A dataset without a single sample takes part in a blend.
    #[error(
        "dataset {dataset} has no sample in the {split} split; Megatron refuses it, and so does this blend"
    )]
    EmptyDataset {
        /// The split.
        split: Split,
        /// Position of the dataset in the blend.
        dataset: usize,
    },
    /// The blend draws more samples from a dataset than were built for it.
    #[error(
        "the {split} blend draws {drawn} samples from dataset {dataset}, which has {built}; the first draw past its \
         end is number {first_draw} of the blend. Megatron stops here too (raise mid_level_dataset_surplus, now \
         {surplus}, or ask for fewer samples)"
    )]
    Oversampled {
        /// The split.
        split: Split,
        /// Position of the dataset in the blend.
        dataset: usize,
        /// Samples drawn from it.
        drawn: u64,
        /// Samples it has.
        built: u64,
        /// Position in the blend of the first draw that has no sample.
        first_draw: u64,
        /// The surplus in force.
        surplus: f64,
    },
    /// More draws than can be held or counted exactly.
    #[error("a blend of {size} samples cannot be held: {bytes} bytes")]
    TooLarge {
        /// Draws asked for.
        size: u64,
        /// Bytes they take.
        bytes: u128,
    },
}

/// Sum of doubles in numpy's order of additions (pairwise above 8 values, eight running sums up to 128).
fn numpy_sum(values: &[f64]) -> f64 {
    const BLOCK: usize = 128;
    let n = values.len();
    if n < 8 {
        return values.iter().fold(0.0, |sum, v| sum + v);
    }
    if n > BLOCK {
        let half = n / 2 - (n / 2) % 8;
        return numpy_sum(&values[..half]) + numpy_sum(&values[half..]);
    }
    let mut lanes = [0.0; 8];
    lanes.copy_from_slice(&values[..8]);
    let whole = n - n % 8;
    for row in values[8..whole].chunks_exact(8) {
        for (lane, v) in lanes.iter_mut().zip(row) {
            *lane += v;
        }
    }
    let sum =
        ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    values[whole..].iter().fold(sum, |sum, v| sum + v)
}

/// Divides weights by their sum, bit for bit as numpy does. All zero gives values that are not numbers.
pub fn normalize(weights: &[f64]) -> Vec<f64> {
    let sum = numpy_sum(weights);
    weights.iter().map(|w| w / sum).collect()
}

/// Checks that there is one positive weight per dataset and normalizes them.
///
/// # Errors
/// [`BlendError`] for a wrong number of weights or datasets, and for a weight that is not positive and finite.
pub fn checked_weights(weights: &[f64], datasets: usize) -> Result<Vec<f64>, BlendError> {
    check_count(datasets)?;
    if weights.len() != datasets {
        return Err(BlendError::WeightCount {
            weights: weights.len(),
            datasets,
        });
    }
    for (dataset, &weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(BlendError::BadWeight { dataset, weight });
        }
    }
    if !numpy_sum(weights).is_finite() {
        return Err(BlendError::SumOverflows);
    }
    let normalized = normalize(weights);
    for (dataset, (&share, &weight)) in normalized.iter().zip(weights).enumerate() {
        // Weights of extreme ratio vanish in the division.
        if share.is_nan() || share <= 0.0 {
            return Err(BlendError::VanishingWeight { dataset, weight });
        }
    }
    Ok(normalized)
}

fn check_count(datasets: usize) -> Result<(), BlendError> {
    match datasets {
        0 => Err(BlendError::NoDatasets),
        found if found > MAX_DATASETS => Err(BlendError::TooManyDatasets { found }),
        _ => Ok(()),
    }
}

/// Samples a blend of `size` uses of a dataset with normalized weight `weight`, and the samples Megatron builds for
/// it: `ceil(size * weight)` and `ceil(ceil(size * weight) * (1 + surplus))`.
pub fn share(size: u64, weight: f64, surplus: f64) -> (u64, u64) {
    let used = (size as f64 * weight).ceil();
    (used as u64, (used * (1.0 + surplus)).ceil() as u64)
}

/// How a blend shares its draws out.
#[derive(Clone, Debug, PartialEq)]
pub enum Shares {
    /// Normalized weights and how many draws to make.
    Weighted {
        /// Normalized weights, one per dataset.
        weights: Vec<f64>,
        /// Draws.
        size: u64,
    },
    /// Every sample of every dataset exactly once, spread in proportion to their lengths.
    Exhaustive {
        /// Samples of each dataset.
        lengths: Vec<u64>,
    },
}

impl Shares {
    /// What `BlendedMegatronDatasetBuilder` gives the blend of one split, once its datasets are built.
    ///
    /// `weights` are normalized ([`checked_weights`]); `lengths` are the built samples of each dataset.
    ///
    /// # Errors
    /// As the builder: weights without a size, and a dataset without samples where lengths are the weights.
    pub fn of_split(
        split: Split,
        weights: Option<&[f64]>,
        size: Option<u64>,
        lengths: &[u64],
    ) -> Result<Self, BlendError> {
        check_count(lengths.len())?;
        if let Some(weights) = weights {
            let size = size.ok_or(BlendError::WeightsWithoutSize { split })?;
            // Each share is rounded up on its own, so the blend may be a little longer than was asked for.
            let total = weights.iter().map(|&w| share(size, w, 0.0).0).sum();
            // The blend normalizes once more, which may move a weight by an ulp.
            return Ok(Shares::Weighted {
                weights: normalize(weights),
                size: total,
            });
        }
        if let Some(dataset) = lengths.iter().position(|&n| n == 0) {
            return Err(BlendError::EmptyDataset { split, dataset });
        }
        match size {
            Some(size) => {
                let weights: Vec<f64> = lengths.iter().map(|&n| n as f64).collect();
                let total: u64 = lengths.iter().sum();
                Ok(Shares::Weighted {
                    weights: normalize(&weights),
                    size: size.min(total),
                })
            }
            None => Ok(Shares::Exhaustive {
                lengths: lengths.to_vec(),
            }),
        }
    }

    /// Datasets in the blend.
    pub fn num_datasets(&self) -> usize {
        match self {
            Shares::Weighted { weights, .. } => weights.len(),
            Shares::Exhaustive { lengths } => lengths.len(),
        }
    }

    /// Draws of the blend.
    pub fn size(&self) -> u64 {
        match self {
            Shares::Weighted { size, .. } => *size,
            Shares::Exhaustive { lengths } => lengths.iter().sum(),
        }
    }

    /// Makes all draws.
    ///
    /// # Errors
    /// [`BlendError`] for a dataset count out of range, a weight or length that is not positive, or a blend too
    /// large to hold.
    pub fn build(&self) -> Result<BlendIndex, BlendError> {
        check_count(self.num_datasets())?;
        match self {
            Shares::Weighted { weights, size } => {
                for (dataset, &weight) in weights.iter().enumerate() {
                    if !(weight.is_finite() && weight > 0.0) {
                        return Err(BlendError::BadWeight { dataset, weight });
                    }
                }
                let mut race = Race::new(weights.clone());
                BlendIndex::draw(*size, weights.len(), |i| race.next(i))
            }
            Shares::Exhaustive { lengths } => {
                let mut total = 0u64;
                for (dataset, &n) in lengths.iter().enumerate() {
                    if n == 0 {
                        return Err(BlendError::BadWeight { dataset, weight: 0.0 });
                    }
                    total = total
                        .checked_add(n)
                        .filter(|&t| t < 1 << 53)
                        .ok_or(BlendError::TooLarge {
                            size: u64::MAX,
                            bytes: u128::MAX,
                        })?;
                }
                let mut race = Race::new(lengths.iter().map(|&n| n as f64 / total as f64).collect());
                BlendIndex::draw(total, lengths.len(), |i| {
                    let dataset = race.next(i);
                    if race.drawn[dataset] == lengths[dataset] as f64 {
                        race.retire(dataset);
                    }
                    dataset
                })
            }
        }
    }
}

/// The datasets competing for the next draw. Counts are held as doubles, exact far beyond any blend that fits.
struct Race {
    weights: Vec<f64>,
    drawn: Vec<f64>,
}

impl Race {
    /// Datasets compared in one go, so that the search for the winner re-reads one block only.
    const BLOCK: usize = 64;

    fn new(weights: Vec<f64>) -> Self {
        let drawn = vec![0.0; weights.len()];
        Race { weights, drawn }
    }

    /// The dataset of draw `i`: largest `weight * max(i, 1) - drawn`, the first one at a tie.
    fn next(&mut self, i: u64) -> usize {
        let at = (i as f64).max(1.0);
        let (mut best, mut start) = (f64::MIN, 0);
        for (block, (weights, drawn)) in self
            .weights
            .chunks(Self::BLOCK)
            .zip(self.drawn.chunks(Self::BLOCK))
            .enumerate()
        {
            let mut lanes = [f64::MIN; 8];
            let (heads, tail) = weights.as_chunks::<8>();
            let (drawn_heads, drawn_tail) = drawn.as_chunks::<8>();
            for (w, d) in heads.iter().zip(drawn_heads) {
                for l in 0..8 {
                    let behind = w[l] * at - d[l];
                    lanes[l] = if behind > lanes[l] { behind } else { lanes[l] };
                }
            }
            for (w, d) in tail.iter().zip(drawn_tail) {
                let behind = w * at - d;
                lanes[0] = if behind > lanes[0] { behind } else { lanes[0] };
            }
            let most = lanes.into_iter().fold(f64::MIN, |a, b| if b > a { b } else { a });
            if most > best {
                (best, start) = (most, block * Self::BLOCK);
            }
        }
        let end = (start + Self::BLOCK).min(self.weights.len());
        let winner = (start..end)
            .find(|&j| self.weights[j] * at - self.drawn[j] == best)
            .unwrap_or(start);
        self.drawn[winner] += 1.0;
        winner
    }

    /// Takes a dataset out of the race: nothing is ever as far ahead as it is now.
    fn retire(&mut self, dataset: usize) {
        self.weights[dataset] = 0.0;
        self.drawn[dataset] = f64::INFINITY;
    }
}

/// The draws of a blend.
#[derive(Clone, Debug)]
pub struct BlendIndex {
    dataset_index: SharedArray<i16>,
    dataset_sample_index: Indices,
    counts: Vec<u64>,
}

impl BlendIndex {
    fn draw(size: u64, datasets: usize, mut next: impl FnMut(u64) -> usize) -> Result<Self, BlendError> {
        let wide = size > 1 << 32;
        let bytes = u128::from(size) * if wide { 10 } else { 6 };
        let too_large = || BlendError::TooLarge { size, bytes };
        let n = usize::try_from(size).map_err(|_| too_large())?;
        let mut dataset_index: Vec<i16> = Vec::new();
        dataset_index.try_reserve_exact(n).map_err(|_| too_large())?;
        let mut counts = vec![0u64; datasets];
        let mut step = |i: u64, dataset_index: &mut Vec<i16>| {
            let dataset = next(i);
            // `check_count` holds: every dataset number fits 15 bits.
            dataset_index.push(dataset as i16);
            let sample = counts[dataset];
            counts[dataset] += 1;
            sample
        };
        let dataset_sample_index = if wide {
            let mut samples = Vec::new();
            samples.try_reserve_exact(n).map_err(|_| too_large())?;
            samples.extend((0..size).map(|i| step(i, &mut dataset_index)));
            Indices::Wide(SharedArray::new(samples))
        } else {
            let mut samples = Vec::new();
            samples.try_reserve_exact(n).map_err(|_| too_large())?;
            samples.extend((0..size).map(|i| step(i, &mut dataset_index) as u32));
            Indices::Narrow(SharedArray::new(samples))
        };
        Ok(BlendIndex {
            dataset_index: SharedArray::new(dataset_index),
            dataset_sample_index,
            counts,
        })
    }

    /// Puts a blend together that was built before. `counts` are the draws from each dataset.
    ///
    /// Returns `None` when the arrays differ in length or the counts do not add up to it. Entries are not read.
    pub fn from_parts(
        dataset_index: SharedArray<i16>,
        dataset_sample_index: Indices,
        counts: Vec<u64>,
    ) -> Option<Self> {
        let draws = dataset_index.len();
        let total = counts.iter().try_fold(0u64, |sum, &n| sum.checked_add(n))?;
        (dataset_sample_index.len() == draws && total == draws).then_some(BlendIndex {
            dataset_index,
            dataset_sample_index,
            counts,
        })
    }

    /// Draws of the blend.
    pub fn len(&self) -> u64 {
        self.dataset_index.len()
    }

    /// True when the blend draws nothing.
    pub fn is_empty(&self) -> bool {
        self.dataset_index.is_empty()
    }

    /// Dataset of draw `i` and the sample asked of it, `None` past the end.
    pub fn get(&self, i: u64) -> Option<(usize, u64)> {
        let dataset = usize::try_from(self.dataset_index.get(i)?).ok()?;
        Some((dataset, self.dataset_sample_index.get(i)?))
    }

    /// Dataset of every draw (Megatron's `dataset_index`, int16).
    pub fn dataset_index(&self) -> &SharedArray<i16> {
        &self.dataset_index
    }

    /// Sample within its dataset of every draw (Megatron's `dataset_sample_index`, int64).
    pub fn dataset_sample_index(&self) -> &Indices {
        &self.dataset_sample_index
    }

    /// Draws from each dataset.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Checks that no dataset is asked for a sample it does not have.
    ///
    /// # Errors
    /// [`BlendError::Oversampled`] for the first dataset that is, with the draw at which it would happen.
    pub fn check(&self, split: Split, lengths: &[u64], surplus: f64) -> Result<(), BlendError> {
        for (dataset, (&drawn, &built)) in self.counts.iter().zip(lengths).enumerate() {
            if drawn > built {
                let first_draw = (0..self.len())
                    .find(|&i| self.get(i) == Some((dataset, built)))
                    .unwrap_or(0);
                return Err(BlendError::Oversampled {
                    split,
                    dataset,
                    drawn,
                    built,
                    first_draw,
                    surplus,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(index: &BlendIndex) -> Vec<i16> {
        index.dataset_index().as_slice().unwrap().to_vec()
    }

    #[test]
    fn ties_go_to_the_first_dataset() {
        let shares = Shares::Weighted {
            weights: vec![0.5, 0.5],
            size: 6,
        };
        assert_eq!(order(&shares.build().unwrap()), [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn exhaustive_uses_every_sample_once() {
        let lengths = vec![3, 7, 1, 250];
        let index = Shares::Exhaustive {
            lengths: lengths.clone(),
        }
        .build()
        .unwrap();
        assert_eq!(index.counts(), lengths);
        index.check(Split::Train, &lengths, 0.0).unwrap();
    }

    /// More datasets than one block, against the plain form of the rule.
    #[test]
    fn blocks_do_not_change_the_winner() {
        let weights = normalize(
            &(0..333)
                .map(|i| 1.0 + f64::from(i % 7) + f64::from(i) / 97.0)
                .collect::<Vec<_>>(),
        );
        let index = Shares::Weighted {
            weights: weights.clone(),
            size: 5000,
        }
        .build()
        .unwrap();
        let mut drawn = vec![0i64; weights.len()];
        for (i, &got) in index.dataset_index().as_slice().unwrap().iter().enumerate() {
            let at = (i as f64).max(1.0);
            let mut best = (0, weights[0] * at - drawn[0] as f64);
            for d in 1..weights.len() {
                let behind = weights[d] * at - drawn[d] as f64;
                if behind > best.1 {
                    best = (d, behind);
                }
            }
            assert_eq!(got as usize, best.0, "draw {i}");
            drawn[best.0] += 1;
        }
    }

    #[test]
    fn refused_weights() {
        assert!(matches!(checked_weights(&[], 0), Err(BlendError::NoDatasets)));
        assert!(matches!(
            checked_weights(&[1.0], 2),
            Err(BlendError::WeightCount { .. })
        ));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                checked_weights(&[1.0, bad], 2),
                Err(BlendError::BadWeight { dataset: 1, .. })
            ));
        }
        assert!(matches!(
            checked_weights(&[f64::MAX, f64::MAX], 2),
            Err(BlendError::SumOverflows)
        ));
        assert!(matches!(
            checked_weights(&[1e300, 1e-300], 2),
            Err(BlendError::VanishingWeight { dataset: 1, .. })
        ));
        let many = vec![1.0; MAX_DATASETS + 1];
        assert!(matches!(
            checked_weights(&many, many.len()),
            Err(BlendError::TooManyDatasets { .. })
        ));
    }
}
