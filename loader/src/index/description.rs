//! The description Megatron keeps of a dataset, whose MD5 names its cache files.
//!
//! Reproduces `unique_description` of `MegatronDataset` and `BlendedDataset` in Megatron-Core 0.19.2 (0.16.1 is the
//! same). It leaves out the extra token, the partial-sequence option and the data's contents: two different datasets can
//! share a name. That is Megatron's; our own cache names files by everything that matters.

use std::fmt::Write as _;

use ceteris_samplers::orders::blend::Shares;
use ceteris_samplers::orders::split::{Split, SplitMatrix};
use md5::{Digest, Md5};

use super::python_json::PyJson;

/// What the descriptions of all datasets of a run have in common.
#[derive(Clone, Debug)]
pub struct RunDescription {
    /// Seed of the run.
    pub random_seed: u64,
    /// Tokens of a sample.
    pub sequence_length: u64,
    /// The split string, `None` where each split has data of its own.
    pub split: Option<String>,
    /// What the tokenizer calls itself (`unique_identifiers`).
    pub tokenizer: PyJson,
}

fn text(value: &str) -> PyJson {
    PyJson::Str(value.to_owned())
}

fn entry(key: &str, value: PyJson) -> (String, PyJson) {
    (key.to_owned(), value)
}

fn size(value: Option<u64>) -> PyJson {
    value.map_or(PyJson::Null, |n| PyJson::Int(n.into()))
}

/// The split matrix as Python holds it: the very first bound is the integer 0, all others are floats.
fn matrix(matrix: &SplitMatrix) -> PyJson {
    let row = |(i, bounds): (usize, &Option<(f64, f64)>)| match *bounds {
        None => PyJson::Null,
        Some((low, high)) => {
            let low = if i == 0 {
                PyJson::Int(0)
            } else {
                PyJson::Float(low)
            };
            PyJson::List(vec![low, PyJson::Float(high)])
        }
    };
    PyJson::List(matrix.0.iter().enumerate().map(row).collect())
}

impl RunDescription {
    /// The description of a GPT dataset at `dataset_path` (the prefix, as it was given to Megatron).
    pub fn gpt(&self, dataset_path: &str, num_samples: Option<u64>, index_split: Split) -> PyJson {
        let parsed = self.split.as_deref().and_then(|s| SplitMatrix::parse(s).ok());
        PyJson::Object(vec![
            entry("class", text("GPTDataset")),
            entry("dataset_path", text(dataset_path)),
            entry("num_samples", size(num_samples)),
            entry("index_split", text(index_split.name())),
            entry("random_seed", PyJson::Int(self.random_seed.into())),
            entry("sequence_length", PyJson::Int(self.sequence_length.into())),
            entry("split", self.split.as_deref().map_or(PyJson::Null, text)),
            entry("split_matrix", parsed.as_ref().map_or(PyJson::Null, matrix)),
            entry("tokenizer", self.tokenizer.clone()),
        ])
    }
}

/// The description of a blend of datasets, given theirs.
pub fn blended(datasets: &[PyJson], split: Split, shares: &Shares) -> PyJson {
    let (weights, draws) = match shares {
        Shares::Weighted { weights, size } => {
            (weights.iter().map(|&w| PyJson::Float(w)).collect(), Some(*size))
        }
        Shares::Exhaustive { lengths } => (lengths.iter().map(|&n| PyJson::Int(n.into())).collect(), None),
    };
    PyJson::Object(vec![
        entry("class", text("BlendedDataset")),
        entry("datasets", PyJson::List(datasets.to_vec())),
        entry("split", text(split.name())),
        entry("weights", PyJson::List(weights)),
        entry("size", size(draws)),
    ])
}

/// Lower-case hex MD5 of a text.
pub fn md5_hex(text: &str) -> String {
    Md5::digest(text.as_bytes())
        .iter()
        .fold(String::new(), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}
