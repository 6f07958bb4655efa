//! Flags that say which part of an order is written, and how.

use clap::Args;

use super::config::Config;
use super::failure::Failure;
use super::header::Sheet;
use super::ranges::{Ranks, StepRange};
use crate::emit::{Emit, Format};

/// The part of the order, and the form it is written in.
#[derive(Args, Clone, Debug, Default)]
pub struct SelectArgs {
    /// First epoch (default 0).
    #[arg(long, value_name = "E", help_heading = "Which part")]
    epoch: Option<u64>,
    /// Epochs to go through, from --epoch on (default 1).
    #[arg(long, value_name = "N", help_heading = "Which part")]
    epochs: Option<u64>,
    /// Optimizer steps to go through, counted from the start of --epoch: 0..20 is the first 20 (20 not included).
    /// A range past the end of an epoch needs --epochs.
    #[arg(long, value_name = "A..B", help_heading = "Which part")]
    steps: Option<StepRange>,
    /// Ranks to write: one, a list like 0,3, or all (the default).
    #[arg(long, value_name = "R", help_heading = "Which part")]
    rank: Option<Ranks>,
    /// What to write for each micro-step and rank. Default: rows where --steps, --rank or a machine format is
    /// given, else summary.
    #[arg(long, value_name = "WHAT", help_heading = "Output")]
    emit: Option<Emit>,
    /// text (the default), or one of the machine formats json, jsonl and npy, which leave stdout to the data alone.
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<Format>,
    /// Write nothing to stderr but errors: no notes, no progress, and with a machine format no header or summary.
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

/// The same, resolved.
#[derive(Clone, Debug)]
pub struct Output {
    /// First epoch.
    pub epoch: u64,
    /// Epochs, when said.
    pub epochs: Option<u64>,
    /// Optimizer steps.
    pub steps: StepRange,
    /// Ranks.
    pub ranks: Ranks,
    /// What is written.
    pub emit: Emit,
    /// How.
    pub format: Format,
    /// Nothing on stderr but errors.
    pub quiet: bool,
}

impl SelectArgs {
    /// Resolves flags and file; `otherwise` is written when neither --emit nor anything that implies rows is given.
    ///
    /// # Errors
    /// A value of the wrong type in the file.
    pub fn output(&self, config: &mut Config, otherwise: Emit) -> Result<Output, Failure> {
        let format = self.format.unwrap_or(Format::Text);
        let steps = config.choose("run", "steps", self.steps)?;
        let implied = if steps.is_some() || self.rank.is_some() || format.is_machine() {
            Emit::Rows
        } else {
            otherwise
        };
        Ok(Output {
            epoch: config.choose("run", "epoch", self.epoch)?.unwrap_or(0),
            epochs: config.choose("run", "epochs", self.epochs)?,
            steps: steps.unwrap_or(StepRange::ALL),
            ranks: self.rank.clone().unwrap_or(Ranks::All),
            emit: self.emit.unwrap_or(implied),
            format,
            quiet: self.quiet,
        })
    }
}

impl Output {
    /// Writes to stderr what does not belong to the data: notes, warnings, and with a machine format the header.
    pub fn start(&self, notes: &[String], warnings: &[String], header: &Sheet) {
        if self.quiet {
            return;
        }
        for note in notes {
            eprint(&format!("note: {note}\n"));
        }
        for warning in warnings {
            eprint(&format!("warning: {warning}\n"));
        }
        if self.format.is_machine() {
            eprint(&header.text());
        }
    }

    /// Writes the summary to stderr with a machine format.
    pub fn end(&self, summary: &str) {
        if self.format.is_machine() && !self.quiet {
            eprint(summary);
        }
    }
}

/// Writes to stderr; a closed stderr is nobody's loss.
pub fn eprint(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
