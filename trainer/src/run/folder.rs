//! Where the files of a run lie.

use std::path::{Path, PathBuf};

/// Files of a run's folder.
#[derive(Clone, Debug)]
pub struct RunFolder(pub(super) PathBuf);

impl RunFolder {
    /// The folder at `path`.
    pub fn new(path: &Path) -> Self {
        RunFolder(path.to_owned())
    }

    /// Steps and evaluations.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// Checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Hashes and seeds.
    pub fn manifest(&self) -> PathBuf {
        self.0.join("manifest.json")
    }

    /// Algorithms of the matrix products on a CUDA device: with them another process computes the same bits.
    pub fn products(&self) -> PathBuf {
        self.0.join("products.json")
    }

    /// Settings.
    pub fn settings(&self) -> PathBuf {
        self.0.join("config.resolved.yaml")
    }
}
