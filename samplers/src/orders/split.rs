//! Train, valid and test splits of one dataset.
//!
//! Reproduces Megatron-Core 0.19.2 (0.16.1 is the same): `parse_and_normalize_split` and
//! `convert_split_vector_to_split_matrix` of `blended_megatron_dataset_config.py`, and the bounds that
//! `BlendedMegatronDatasetBuilder` derives from the matrix.
//!
//! Bias: a split cuts the *stored* order, so a sorted corpus gives a validation set unlike its training set. For GPT
//! data the unit is the sequence, not the document; a document of several sequences may be cut in two.
//! Memory: none.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::blend::normalize;

/// One of the three splits, in Megatron's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Training data, the first part.
    Train,
    /// Validation data, the second part.
    Valid,
    /// Test data, the last part.
    Test,
}

impl Split {
    /// All splits, in the order of a split string.
    pub const ALL: [Split; 3] = [Split::Train, Split::Valid, Split::Test];

    /// The name Megatron uses in descriptions and cache file names.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Valid => "valid",
            Split::Test => "test",
        }
    }

    /// Position in a split string, 0 to 2.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Split::ALL
            .into_iter()
            .find(|split| split.name() == text)
            .ok_or_else(|| format!("{text:?} is not a split: train, valid or test"))
    }
}

/// Why a split string is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A run of digits and dots that is no number.
    #[error("split {text:?}: {part:?} is not a number; write three weights as in \"969,30,1\"")]
    NotANumber {
        /// The whole split string.
        text: String,
        /// The part in question.
        part: String,
    },
    /// More weights than splits.
    #[error("split {text:?} has {found} weights; there are three splits (train, valid, test)")]
    TooMany {
        /// The whole split string.
        text: String,
        /// Weights found.
        found: usize,
    },
    /// The weights add up to nothing, or to no finite number.
    #[error("split {text:?}: the weights add up to {sum}, so no part of the data can be told from it")]
    NoWeight {
        /// The whole split string.
        text: String,
        /// Their sum.
        sum: f64,
    },
}

/// Bounds of each split as fractions of the dataset, `None` where a split is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitMatrix(pub [Option<(f64, f64)>; 3]);

impl SplitMatrix {
    /// Reads a split string such as `969,30,1`, `98,1,1` or `0.8,0.1,0.1`; missing weights are 0.
    ///
    /// Every run of digits and dots is a weight and everything else separates them, as in Megatron (so a sign or an
    /// exponent is *not* read; callers with a user in front of them should refuse those).
    ///
    /// # Errors
    /// [`SplitError`] where Megatron fails too, and for weights that are all 0 (there: bounds that are not numbers).
    pub fn parse(text: &str) -> Result<Self, SplitError> {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let mut weights = Vec::new();
        for part in text.split(|c| !is_number(c)).filter(|part| !part.is_empty()) {
            let weight: f64 = part.parse().map_err(|_| SplitError::NotANumber {
                text: text.to_owned(),
                part: part.to_owned(),
            })?;
            weights.push(weight);
        }
        if weights.len() > 3 {
            return Err(SplitError::TooMany {
                text: text.to_owned(),
                found: weights.len(),
            });
        }
        weights.resize(3, 0.0);
        let normalized = normalize(&weights);
        if !normalized.iter().all(|w| w.is_finite()) {
            return Err(SplitError::NoWeight {
                text: text.to_owned(),
                sum: weights.iter().sum(),
            });
        }
        let mut bounds = [0.0; 4];
        for i in 0..3 {
            bounds[i + 1] = bounds[i] + normalized[i];
        }
        let part = |i: usize| (bounds[i + 1] > bounds[i]).then_some((bounds[i], bounds[i + 1]));
        Ok(SplitMatrix([part(0), part(1), part(2)]))
    }

    /// The matrix that gives everything to one split, used when each split has data of its own.
    pub fn only(split: Split) -> Self {
        let mut parts = [None; 3];
        parts[split.index()] = Some((0.0, 1.0));
        SplitMatrix(parts)
    }

    /// The sequences of `split` in a dataset of `num_sequences`: each bound times the count, rounded half to even.
    /// `None` when the split has no weight; the range may still be empty when it has.
    pub fn sequences(&self, split: Split, num_sequences: u64) -> Option<Range<u64>> {
        let (low, high) = self.0[split.index()]?;
        // The product of a bound in [0, 1] (or a few ulps above) and a count: never negative, and past 2^53 the float
        // is what the original uses too. It is clamped so that no range leaves the dataset.
        let bound = |x: f64| ((x * num_sequences as f64).round_ties_even() as u64).min(num_sequences);
        Some(bound(low)..bound(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_weights_are_zero_and_empty_splits_are_none() {
        let all = SplitMatrix::parse("7").unwrap();
        assert_eq!(all.0, [Some((0.0, 1.0)), None, None]);
        assert_eq!(all.sequences(Split::Train, 10), Some(0..10));
        assert_eq!(all.sequences(Split::Valid, 10), None);
    }

    #[test]
    fn bounds_round_half_to_even() {
        let halves = SplitMatrix::parse("1,1,0").unwrap();
        assert_eq!(halves.sequences(Split::Train, 5), Some(0..2));
        assert_eq!(halves.sequences(Split::Train, 7), Some(0..4));
    }

    #[test]
    fn refused_split_strings() {
        assert!(matches!(
            SplitMatrix::parse("1.2.3,4"),
            Err(SplitError::NotANumber { .. })
        ));
        assert!(matches!(
            SplitMatrix::parse("1,2,3,4"),
            Err(SplitError::TooMany { found: 4, .. })
        ));
        assert!(matches!(
            SplitMatrix::parse("0,0,0"),
            Err(SplitError::NoWeight { .. })
        ));
        assert!(matches!(SplitMatrix::parse(""), Err(SplitError::NoWeight { .. })));
    }
}
