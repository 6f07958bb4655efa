//! `metrics.jsonl`: one object a line, one line a step or evaluation.
//!
//! Each line is written at once. When a run goes on from a checkpoint, lines of later steps are cut off first, so that
//! the file reads as if the run had never stopped; times and rates are those of the process that wrote the line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepMetrics {
    /// Optimizer step, from 1: the first line of a run has 1.
    pub step: u64,
    /// Epoch.
    pub epoch: u64,
    /// Mean negative log-likelihood over the counted tokens of the global batch.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of this step.
    pub lr: f64,
    /// Tokens consumed since the start of the run, padding included.
    pub tokens: u64,
    /// Tokens of this step that counted in the loss.
    pub counted_tokens: u64,
    /// Tokens per second on this device.
    pub tokens_per_s: f64,
    /// Model arithmetic per second on this device, in 10^12 operations.
    pub tflops_per_s: f64,
    /// Seconds the step took.
    pub step_s: f64,
    /// Milliseconds of it spent waiting for data.
    pub stall_ms: f64,
    /// Fingerprint of the samples consumed, in deal position order.
    pub batch_fingerprint: String,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalMetrics {
    /// Optimizer steps done before it.
    pub step: u64,
    /// Mean negative log-likelihood over the counted held-out tokens.
    pub eval_loss: f64,
    /// Held-out tokens that counted.
    pub eval_tokens: u64,
    /// Seconds it took.
    pub eval_s: f64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A step.
    Step(StepMetrics),
    /// An evaluation.
    Eval(EvalMetrics),
}

impl Line {
    /// Steps done when the line was written.
    pub fn step(&self) -> u64 {
        match self {
            Line::Step(line) => line.step,
            Line::Eval(line) => line.step,
        }
    }
}

/// The file, open for appending.
#[derive(Debug)]
pub struct MetricsFile {
    file: File,
    path: PathBuf,
}

impl MetricsFile {
    /// Opens `path`, keeping the lines up to `step` and dropping what follows them (a half-written line included).
    ///
    /// # Errors
    /// When the file cannot be read or replaced, or lacks the line of a step up to `step`.
    pub fn open(path: &Path, step: u64) -> io::Result<Self> {
        let kept = match std::fs::read_to_string(path) {
            Ok(text) => {
                let mut kept = String::new();
                let mut last = 0;
                for line in text.split_inclusive('\n') {
                    let Ok(parsed) = serde_json::from_str::<Line>(line) else {
                        break;
                    };
                    if parsed.step() > step {
                        break;
                    }
                    if let Line::Step(parsed) = &parsed {
                        last = parsed.step;
                    }
                    kept.push_str(line);
                }
                if last != step {
                    return Err(io::Error::other(format!(
                        "{}: ends at step {last}, the checkpoint stands at step {step}; move the file away to go on \
                         without it",
                        path.display()
                    )));
                }
                kept
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(kept.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        Ok(MetricsFile {
            file: OpenOptions::new().append(true).open(path)?,
            path: path.to_owned(),
        })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())
    }

    /// Makes the lines so far survive a crash: called before a checkpoint gets its name.
    ///
    /// # Errors
    /// When the file cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads all lines of a metrics file.
///
/// # Errors
/// When the file cannot be read, or a line is not one of a run; the line is named.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    text.lines()
        .enumerate()
        .map(|(i, line)| {
            serde_json::from_str(line)
                .map_err(|e| io::Error::other(format!("{}: line {}: {e}", path.display(), i + 1)))
        })
        .collect()
}
