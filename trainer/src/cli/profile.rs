//! `trainer profile`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::run::profile;
use indicatif::{ProgressBar, ProgressStyle};

use super::settings::Settings;

/// Times every operator of a step on the run's device, with the run's model and micro-batch, on random tokens. Prints
/// time, share, what was moved and multiplied per second, and both against ceilings measured in the same call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer profile --config configs/tiny.yaml
  trainer profile --config configs/gdn-300m.yaml --device cuda --set batch.device_micro_batch_size=32
  trainer profile --config configs/gdn-300m.yaml --trace step.json    (open in chrome://tracing)")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Whole steps that are timed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    steps: u16,
    /// Also write a Chrome trace of one step's operators.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let composed = args.settings.load()?;
    let spinner = if args.json {
        ProgressBar::hidden()
    } else {
        ProgressBar::new_spinner()
    };
    spinner.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let steps = usize::from(args.steps);
    let report = profile::profile(&composed.config, steps, args.trace.as_deref(), &mut |what| {
        spinner.set_message(what.to_owned());
    })?;
    spinner.finish_and_clear();
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        super::print(&report.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
