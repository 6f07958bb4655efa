//! The loss curve of a run, whichever program wrote its log.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::log_error::LogError;

/// What wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogKind {
    /// `metrics.jsonl` of a run of this trainer.
    Metrics,
    /// What the Hugging Face `Trainer` prints: one Python dict a record.
    HfConsole,
    /// `trainer_state.json` of a Hugging Face checkpoint.
    HfState,
    /// Lines of Megatron-LM and what is built on it: `iteration … | lm loss: …`.
    Megatron,
    /// A table with a header.
    Csv,
}

impl LogKind {
    /// Every kind with its name on the command line and in JSON.
    pub const ALL: [(&'static str, LogKind); 5] = [
        ("metrics", LogKind::Metrics),
        ("hf-console", LogKind::HfConsole),
        ("hf-state", LogKind::HfState),
        ("megatron", LogKind::Megatron),
        ("csv", LogKind::Csv),
    ];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, kind)| *kind == self)
            .map_or("", |(name, _)| name)
    }

    /// Whether the Hugging Face `Trainer` wrote it.
    pub fn is_hf(self) -> bool {
        matches!(self, LogKind::HfConsole | LogKind::HfState)
    }
}

/// One logged step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Optimizer steps done, from 1.
    pub step: u64,
    /// Tokens consumed since the start of the run.
    pub tokens: Option<u64>,
    /// Mean negative log-likelihood a token, after division by [`ReadOptions::loss_divisor`]; NaN is kept.
    pub loss: f64,
    /// Decimals the log gives of the loss (after the division, those that the logged digits still bear).
    #[serde(skip)]
    pub loss_decimals: u8,
    /// Global gradient norm before clipping.
    pub grad_norm: Option<f64>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Tokens per second on one device.
    pub tokens_per_s: Option<f64>,
    /// Model arithmetic per second on one device, in 10^12 operations.
    pub tflops_per_s: Option<f64>,
    /// Seconds a step took (the mean since the point before, where the log has no more).
    pub step_s: Option<f64>,
    /// Fingerprint of the samples consumed.
    pub batch_fingerprint: Option<String>,
}

/// A run's curve: steps ascend strictly.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name in tables.
    pub name: String,
    /// The file read.
    pub origin: PathBuf,
    /// What wrote it.
    pub kind: LogKind,
    /// Logged steps, ascending, each once.
    pub points: Vec<Point>,
    /// Seconds of the whole run and its steps, where the log sums up.
    pub whole_run: Option<(f64, u64)>,
    /// What logged losses were divided by.
    pub loss_divisor: f64,
    /// Tokens that one step consumes on all devices together, where given or logged.
    pub tokens_per_step: Option<u64>,
    /// Devices of the run, where given or logged.
    pub devices: Option<u64>,
    /// What a reader of the comparison should know of how the log was read.
    pub notes: Vec<String>,
}

impl Curve {
    /// The point of a step.
    pub fn at(&self, step: u64) -> Option<&Point> {
        let i = self.points.binary_search_by_key(&step, |p| p.step).ok()?;
        self.points.get(i)
    }

    /// Losses with their steps.
    pub fn losses(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.points.iter().map(|p| (p.step, p.loss))
    }
}

/// How a log is read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Name of the curve; the file's (or run folder's) where not given.
    pub name: Option<String>,
    /// What wrote the log; found out from its content where not given.
    pub kind: Option<LogKind>,
    /// What logged losses are divided by: the number of ranks they were summed over.
    pub loss_divisor: f64,
    /// Whether the divisor is for logs of the Hugging Face `Trainer` alone.
    pub divides_hf_only: bool,
    /// Steps between two records of a log that does not count steps.
    pub logging_steps: Option<u64>,
    /// Tokens that one step consumes on all devices together.
    pub tokens_per_step: Option<u64>,
    /// Devices of the run: rates of the whole run are divided by it.
    pub devices: Option<u64>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            name: None,
            kind: None,
            loss_divisor: 1.0,
            divides_hf_only: false,
            logging_steps: None,
            tokens_per_step: None,
            devices: None,
        }
    }
}

/// Reads the log at `path`: a file, or the folder of a run.
///
/// # Errors
/// [`LogError`], which names the file and, where there is one, the line and the field.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Curve, LogError> {
    super::read::read(path, options)
}
