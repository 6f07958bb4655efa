//! `trainer replay`: a run as it would have been with another order.
//!
//! Everything else stays that of the run: settings, initial weights, layout, learning rates. [`sides`] reads the run and
//! the other order, [`switched`] makes the run, [`score`] holds one state of the model against the batches of both.

pub mod score;
pub mod sides;
pub mod switched;

use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;
use crate::compare::log_error::LogError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::run::RunError;

/// Why a replay cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// `--with` does not read.
    #[error("--with {text}: {problem}")]
    With {
        /// As given.
        text: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Settings.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// Data.
    #[error(transparent)]
    Data(Box<DataError>),
    /// A run.
    #[error(transparent)]
    Run(Box<RunError>),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The metrics of a run.
    #[error(transparent)]
    Log(Box<LogError>),
    /// A folder or its contents do not fit.
    #[error("{}: {problem}", path.display())]
    Folder {
        /// File or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A step that does not fit.
    #[error("step {step}: {problem}")]
    Step {
        /// The step.
        step: u64,
        /// What is wrong and what is allowed.
        problem: String,
    },
}

impl From<ConfigError> for ReplayError {
    fn from(error: ConfigError) -> Self {
        ReplayError::Config(Box::new(error))
    }
}

impl From<DataError> for ReplayError {
    fn from(error: DataError) -> Self {
        ReplayError::Data(Box::new(error))
    }
}

impl From<RunError> for ReplayError {
    fn from(error: RunError) -> Self {
        ReplayError::Run(Box::new(error))
    }
}

impl From<CheckpointError> for ReplayError {
    fn from(error: CheckpointError) -> Self {
        ReplayError::Checkpoint(Box::new(error))
    }
}

impl From<LogError> for ReplayError {
    fn from(error: LogError) -> Self {
        ReplayError::Log(Box::new(error))
    }
}

fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ReplayError {
    let path = path.to_owned();
    move |source| ReplayError::Io { path, action, source }
}

fn folder<T>(path: &Path, problem: impl Into<String>) -> Result<T, ReplayError> {
    Err(ReplayError::Folder {
        path: path.to_owned(),
        problem: problem.into(),
    })
}
