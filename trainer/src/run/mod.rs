//! A training run: its files, its loop and what it shows.
//!
//! A run's folder holds `config.resolved.yaml`, `manifest.json`, `metrics.jsonl`, `weight_decay.txt`,
//! `checkpoints/step-N/` and `tensorboard/`.

pub mod engine;
pub mod evaluate;
pub mod folder;
mod made_up;
pub mod manifest;
pub mod metrics;
pub mod profile;
pub mod progress;
pub(crate) mod resume;
pub mod selftest;
mod selftest_cuda;
pub mod train;

use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;
use crate::config::SettingError;
use crate::data::DataError;
use crate::init::InitError;

use engine::EngineError;

/// Why a run cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Settings.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Initial weights.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The device.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file of the run.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The folder holds something that does not fit.
    #[error("{}: {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl From<ceteris_kernels::backend::ExecError> for RunError {
    fn from(error: ceteris_kernels::backend::ExecError) -> Self {
        RunError::Engine(error.into())
    }
}

impl From<ceteris_loader::source::SourceError> for RunError {
    fn from(error: ceteris_loader::source::SourceError) -> Self {
        RunError::Data(error.into())
    }
}

pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    let path = path.to_owned();
    move |source| RunError::Io { path, action, source }
}

/// Writes a file whole or not at all.
pub(crate) fn write_atomic(path: &Path, text: &str) -> Result<(), RunError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), text)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(io(path, "write"))
}
