//! `trainer isolate`: how much of a difference in loss each factor explains.
//!
//! A factor ([`factors`]) is a settings key with values. A design ([`design`]) is a set of cells, one level of each
//! factor. Before anything is trained, [`proof`] shows by hashes that each factor moves its own part of a run alone.
//! [`execute`] runs the cells, each in its own folder, and one of them a second time, which must give the same bits.
//! [`anova`] divides the variance between the runs, [`effects`] gives differences with intervals from the seeds,
//! [`sentence`] says it in words; [`report`] is all of it as data, [`text`], [`markdown`] and [`html`] show it.

pub mod anova;
pub mod design;
pub mod effects;
pub mod execute;
pub mod factors;
pub mod fit;
pub mod hashes;
pub mod html;
pub mod markdown;
pub mod orders;
pub mod plan;
pub mod progress;
pub mod proof;
pub mod report;
pub mod sentence;
pub mod student;
pub mod text;

use std::path::{Path, PathBuf};

use crate::compare::log_error::LogError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::init::InitError;
use crate::run::RunError;

/// Why an isolation cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IsolateError {
    /// `--vary` does not read, or names something that cannot be varied.
    #[error("--vary {text}: {problem}")]
    Vary {
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
    /// Initial weights.
    #[error(transparent)]
    Init(Box<InitError>),
    /// A run.
    #[error(transparent)]
    Run(Box<RunError>),
    /// The metrics of a run.
    #[error(transparent)]
    Log(Box<LogError>),
    /// No design can be made.
    #[error("{0}")]
    Design(String),
    /// Turning a factor moves a hash of something else.
    #[error("--vary {factor}: {level} instead of {first} also moves the {hash} hash: {advice}")]
    Moves {
        /// The factor.
        factor: String,
        /// Its level.
        level: String,
        /// Its first level.
        first: String,
        /// The hash.
        hash: &'static str,
        /// What to do.
        advice: &'static str,
    },
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
    /// A run in a process of its own failed.
    #[error("run {run}: {problem}")]
    Child {
        /// The run.
        run: String,
        /// What it said.
        problem: String,
    },
    /// Orders cannot be compared.
    #[error("orders cannot be compared: {0}")]
    Orders(String),
}

impl From<ConfigError> for IsolateError {
    fn from(error: ConfigError) -> Self {
        IsolateError::Config(Box::new(error))
    }
}

impl From<DataError> for IsolateError {
    fn from(error: DataError) -> Self {
        IsolateError::Data(Box::new(error))
    }
}

impl From<InitError> for IsolateError {
    fn from(error: InitError) -> Self {
        IsolateError::Init(Box::new(error))
    }
}

impl From<RunError> for IsolateError {
    fn from(error: RunError) -> Self {
        IsolateError::Run(Box::new(error))
    }
}

impl From<LogError> for IsolateError {
    fn from(error: LogError) -> Self {
        IsolateError::Log(Box::new(error))
    }
}

pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> IsolateError {
    let path = path.to_owned();
    move |source| IsolateError::Io { path, action, source }
}
