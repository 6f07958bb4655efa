//! From a data path, a split and sizes to what each dataset of a run has to hold.
//!
//! Reproduces `BlendedMegatronDatasetBuilder` of Megatron-Core 0.19.2 and `get_blend_from_list`: which sequences of
//! each stored dataset a split gets, how many samples are asked of it, and how a blend shares its draws out.

use std::ops::Range;
use std::path::Path;

use ceteris_samplers::orders::blend::{BlendError, DEFAULT_SURPLUS, Shares, checked_weights, share};
use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::split::{Split, SplitError, SplitMatrix};
use serde::{Deserialize, Serialize};

use crate::source::megatron::idx_path;

/// Datasets by prefix, and their weights as given (not normalized); no weights mean "as many as there are".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlendSpec {
    /// Paths without ending.
    pub prefixes: Vec<String>,
    /// One weight per prefix, or none.
    pub weights: Option<Vec<f64>>,
}

impl BlendSpec {
    /// Reads Megatron's `--data-path` list: prefixes, or weights and prefixes in turn.
    ///
    /// # Errors
    /// A sentence naming what is neither.
    pub fn parse(items: &[String]) -> Result<Self, String> {
        let trimmed = |items: &mut dyn Iterator<Item = &String>| -> Vec<String> {
            items.map(|item| item.trim().to_owned()).collect()
        };
        if items.is_empty() {
            return Err("the data path is empty: give a prefix, or weights and prefixes in turn".to_owned());
        }
        if !items.len().is_multiple_of(2) {
            return Ok(BlendSpec {
                prefixes: trimmed(&mut items.iter()),
                weights: None,
            });
        }
        let weights: Vec<Option<f64>> = items.iter().step_by(2).map(|item| python_float(item)).collect();
        match weights.iter().filter(|w| w.is_some()).count() {
            0 => Ok(BlendSpec {
                prefixes: trimmed(&mut items.iter()),
                weights: None,
            }),
            n if n == weights.len() => Ok(BlendSpec {
                prefixes: trimmed(&mut items.iter().skip(1).step_by(2)),
                weights: Some(weights.into_iter().flatten().collect()),
            }),
            _ => {
                let at = weights.iter().position(Option::is_none).unwrap_or(0) * 2;
                Err(format!(
                    "the data path mixes weights and prefixes: {:?} stands where a weight is expected (\"0.3 A 0.7 B\"); \
                     give a weight for every dataset, or for none",
                    items[at]
                ))
            }
        }
    }

    /// A prefix that looks like a weight and names no file: an odd number of items are all prefixes to Megatron, which then
    /// misses a file of the weight's name.
    pub fn lone_weight(&self) -> Option<&str> {
        let several = self.weights.is_none() && self.prefixes.len() > 1;
        let mut prefixes = self.prefixes.iter().filter(|_| several);
        prefixes
            .find(|prefix| python_float(prefix).is_some() && !idx_path(Path::new(prefix)).exists())
            .map(String::as_str)
    }
}

/// What Python's `float()` reads, as far as Rust reads the same.
fn python_float(text: &str) -> Option<f64> {
    let text = text.trim();
    let between_digits = |t: &str| {
        let b = t.as_bytes();
        (0..b.len()).all(|i| {
            b[i] != b'_'
                || (i > 0 && i + 1 < b.len() && b[i - 1].is_ascii_digit() && b[i + 1].is_ascii_digit())
        })
    };
    between_digits(text)
        .then(|| text.replace('_', "").parse().ok())
        .flatten()
}

/// Where the splits come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataSpec {
    /// One blend, cut into train, valid and test (`--data-path` and `--split`).
    Cut {
        /// The datasets.
        blend: BlendSpec,
        /// The split string, "969,30,1".
        split: String,
    },
    /// A blend for each split (`--train-data-path`, `--valid-data-path`, `--test-data-path`).
    PerSplit([Option<BlendSpec>; 3]),
}

/// Everything that decides the samples of a Megatron run but the data itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MegatronConfig {
    /// The datasets and how they are cut.
    pub data: DataSpec,
    /// Tokens of a sample, without the extra one.
    pub sequence_length: u64,
    /// Seed of all shuffles, 0 to 2^32 - 1.
    pub random_seed: u64,
    /// Samples of the train, valid and test split; `None` is one epoch (or every sample once).
    pub num_samples: [Option<u64>; 3],
    /// Samples take one token more, which the next one starts with.
    pub add_extra_token_to_sequence: bool,
    /// Drop what is left behind the last whole validation sample.
    pub drop_last_partial_validation_sequence: bool,
    /// Margin built above what a blend asks of a dataset.
    pub mid_level_dataset_surplus: f64,
}

impl MegatronConfig {
    /// Megatron's defaults for all but the data, the sequence length and the seed.
    pub fn new(data: DataSpec, sequence_length: u64, random_seed: u64) -> Self {
        MegatronConfig {
            data,
            sequence_length,
            random_seed,
            num_samples: [None; 3],
            add_extra_token_to_sequence: true,
            drop_last_partial_validation_sequence: true,
            mid_level_dataset_surplus: DEFAULT_SURPLUS,
        }
    }

    /// The datasets a split draws on and its part of them, `None` where the split has no data.
    ///
    /// # Errors
    /// A split string that cannot be read.
    pub fn blend_of(&self, split: Split) -> Result<Option<(&BlendSpec, SplitMatrix)>, SplitError> {
        Ok(match &self.data {
            DataSpec::Cut { blend, split: text } => {
                let matrix = SplitMatrix::parse(text)?;
                matrix.0[split.index()].is_some().then_some((blend, matrix))
            }
            DataSpec::PerSplit(blends) => blends[split.index()]
                .as_ref()
                .map(|blend| (blend, SplitMatrix::only(split))),
        })
    }

    /// What decides the indices of one dataset of `split`.
    pub fn index_spec(&self, split: Split, num_samples: Option<u64>) -> GptIndexSpec {
        GptIndexSpec {
            sequence_length: self.sequence_length,
            add_extra_token: self.add_extra_token_to_sequence,
            random_seed: self.random_seed,
            num_samples,
            drop_last_partial_sequence: split != Split::Valid || self.drop_last_partial_validation_sequence,
        }
    }

    /// Plans one split.
    ///
    /// # Errors
    /// [`PlanError`] where the original asserts.
    pub fn plan(&self, split: Split) -> Result<Option<SplitPlan<'_>>, PlanError> {
        if !(self.mid_level_dataset_surplus >= 0.0 && self.mid_level_dataset_surplus.is_finite()) {
            return Err(PlanError::Surplus(self.mid_level_dataset_surplus));
        }
        let Some((blend, matrix)) = self.blend_of(split)? else {
            return Ok(None);
        };
        let size = self.num_samples[split.index()];
        let datasets = blend.prefixes.len();
        let weights = match &blend.weights {
            Some(weights) => Some(checked_weights(weights, datasets)?),
            None if datasets == 0 => return Err(BlendError::NoDatasets.into()),
            None => None,
        };
        // A dataset of its own needs no blend. Where the splits are cut from one data path, a weight makes it one.
        let per_split = matches!(self.data, DataSpec::PerSplit(_));
        let plain = datasets == 1 && (weights.is_none() || per_split);
        let asked = match (&weights, size) {
            _ if plain => vec![size],
            (None, _) => vec![None; datasets],
            (Some(_), None) => return Err(BlendError::WeightsWithoutSize { split }.into()),
            (Some(weights), Some(size)) => weights
                .iter()
                .map(|&w| Some(share(size, w, self.mid_level_dataset_surplus).1))
                .collect(),
        };
        Ok(Some(SplitPlan {
            split,
            blend,
            matrix,
            size,
            weights,
            plain,
            asked,
        }))
    }
}

/// What one split needs of its datasets.
#[derive(Clone, Debug)]
pub struct SplitPlan<'a> {
    /// The split.
    pub split: Split,
    /// Its datasets.
    pub blend: &'a BlendSpec,
    matrix: SplitMatrix,
    size: Option<u64>,
    weights: Option<Vec<f64>>,
    plain: bool,
    /// Samples asked of each dataset; `None` is one epoch.
    pub asked: Vec<Option<u64>>,
}

impl SplitPlan<'_> {
    /// The split's sequences in a dataset that has `num_sequences`.
    pub fn sequences(&self, num_sequences: u64) -> Range<u64> {
        self.matrix.sequences(self.split, num_sequences).unwrap_or(0..0)
    }

    /// How the draws are shared out once the datasets are built, `None` for a dataset without a blend.
    ///
    /// # Errors
    /// As [`Shares::of_split`].
    pub fn shares(&self, lengths: &[u64]) -> Result<Option<Shares>, BlendError> {
        if self.plain {
            return Ok(None);
        }
        Shares::of_split(self.split, self.weights.as_deref(), self.size, lengths).map(Some)
    }
}

/// Why a run cannot be planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The split string.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The weights.
    #[error(transparent)]
    Blend(#[from] BlendError),
    /// The margin.
    #[error("mid_level_dataset_surplus {0} is not a number from 0 on")]
    Surplus(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(items: &[&str]) -> Result<BlendSpec, String> {
        BlendSpec::parse(&items.iter().map(|&s| s.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn data_paths_as_megatron_reads_them() {
        let weighted = parse(&["0.3", " A", "7e-1", "B "]).unwrap();
        assert_eq!(
            weighted,
            BlendSpec {
                prefixes: vec!["A".into(), "B".into()],
                weights: Some(vec![0.3, 0.7])
            }
        );
        for plain in [&["A"][..], &["A", "B"], &["A", "B", "C"]] {
            let blend = parse(plain).unwrap();
            assert_eq!((blend.prefixes.len(), blend.weights), (plain.len(), None));
        }
        // An odd number of items is all prefixes, numbers or not.
        let odd = parse(&["1", "A", "2"]).unwrap();
        assert_eq!((odd.lone_weight(), &odd.weights), (Some("1"), &None));
        assert_eq!(parse(&["A", "B", "C"]).unwrap().lone_weight(), None);
        assert_eq!(parse(&["7"]).unwrap().lone_weight(), None);
        assert!(
            parse(&["1", "A", "B", "C"])
                .unwrap_err()
                .contains("\"B\" stands where a weight")
        );
        assert!(parse(&[]).is_err());
    }
}
