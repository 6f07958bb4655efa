//! Recorded operators and models of the reference implementation, computed in f64 by PyTorch.
//!
//! The set is the folder named by `CETERIS_MODEL_GOLDEN_DIR`, else the copies under `tests/golden/model`: a folder
//! per model case, and `ops/<operator>….safetensors`. Every case is run in f64 and f32; an operator or a model kind
//! that is not known fails the test. Hybrids with attention layers are skipped by name.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod models;
mod ops;

use std::path::{Path, PathBuf};

use ceteris_kernels::backend::Executor;
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::Plan;

/// Kinds of numbers a case is run in, with the bound on its relative errors.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// Name in messages.
    pub name: &'static str,
    /// Bound for operators: norm of the difference over norm of the recorded tensor.
    pub operators: f64,
    /// Bound for the scalars and norms of models, see [`models`].
    pub models: f64,
    /// Bound for single values of a model's tensors, and for gradient norms after several updates.
    pub values: f64,
    float: Float,
}

/// f64 and f32.
pub const PRECISIONS: [Precision; 2] = [
    Precision {
        name: "f64",
        operators: 1e-9,
        models: 1e-9,
        values: 1e-9,
        float: Float::F64,
    },
    Precision {
        name: "f32",
        operators: 2e-6,
        models: 1e-4,
        values: 5e-4,
        float: Float::F32,
    },
];

impl Precision {
    /// An executor whose working memory is NaN, so that reading what nothing wrote shows.
    pub fn executor(&self, plan: Plan) -> Box<dyn Executor> {
        let mut executor = cpu::executor(plan, self.float, 1).unwrap();
        executor.poison();
        executor
    }
}

/// The folder of the golden set in use.
pub fn model_golden_dir() -> PathBuf {
    match std::env::var_os("CETERIS_MODEL_GOLDEN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/model"),
    }
}

/// Entries of a folder in order of their names.
pub fn entries(dir: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = list.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Fails naming every case that failed, and prints what ran.
pub fn report(kind: &str, results: Vec<(String, Result<String, String>)>) {
    assert!(
        !results.is_empty(),
        "the golden set {} holds no {kind}",
        model_golden_dir().display()
    );
    let mut failed = 0;
    for (name, result) in &results {
        match result {
            Ok(said) => println!("golden {kind} {name}: {said}"),
            Err(problem) => {
                failed += 1;
                println!("golden {kind} {name}: FAILED: {problem}");
            }
        }
    }
    assert_eq!(
        failed,
        0,
        "{failed} of {} golden {kind} failed, see above",
        results.len()
    );
}
