//! `trainer train`.

use std::process::ExitCode;

use crate::run::train::{Outcome, TrainOptions, train};
use crate::run::{self, selftest};
use ceteris_loader::pipeline::StopSignal;

use super::settings::Settings;

/// Trains, or goes on from the newest checkpoint of the run's folder.
///
/// The run's folder (output_dir) gets config.resolved.yaml, manifest.json, metrics.jsonl, checkpoints and TensorBoard
/// files. SIGTERM and SIGINT save a checkpoint after the step in progress and end the run with exit code 1; the same
/// command goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer train --config configs/tiny.yaml
  trainer train --config configs/tiny.yaml --set order=hf-trainer --set output_dir=runs/hf
  trainer train --config configs/gdn-300m.yaml --set data.cache_dir=/data/fineweb-edu")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Run the self-test first, so that its result is in the run's manifest.
    #[arg(long)]
    selftest: bool,
    /// Show nothing but errors.
    #[arg(long, short)]
    quiet: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let composed = args.settings.load()?;
    if args.selftest && !super::selftest::test(&composed.config.train.device, args.quiet)?.passed() {
        anyhow::bail!(
            "the self-test failed: runs are not reproducible on this machine; see trainer selftest"
        );
    }
    let mut notes = composed.notes.clone();
    notes.extend(given(&composed));
    let options = TrainOptions {
        stop: Some(StopSignal::install()?),
        quiet: args.quiet,
        notes,
        ..TrainOptions::default()
    };
    let outcome = train(&composed.config, &options)?;
    if args.json {
        super::print(&format!("{}\n", json(&outcome)))?;
    } else if !args.quiet {
        eprint!("{}", text(&outcome));
    }
    Ok(if outcome.stopped.is_some() {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// Settings that somebody gave, with their origin; the whole table is in the run's folder and in `config show`.
fn given(composed: &crate::config::Composed) -> Vec<String> {
    composed
        .table()
        .lines()
        .filter(|line| !line.ends_with("  default"))
        .map(str::to_owned)
        .collect()
}

fn text(outcome: &Outcome) -> String {
    let folder = outcome.folder.display();
    let mut out = match outcome.stopped {
        Some(0) => format!("stopped after step {} of {}\n", outcome.step, outcome.steps),
        Some(signal) => format!(
            "stopped by signal {signal} after step {} of {}\n",
            outcome.step, outcome.steps
        ),
        None => format!("done: {} steps\n", outcome.step),
    };
    if let Some(loss) = outcome.loss {
        out.push_str(&format!("loss {loss:.4}"));
        if let Some(eval) = outcome.eval_loss {
            out.push_str(&format!(", eval_loss {eval:.4}"));
        }
        out.push('\n');
    }
    out.push_str(&format!("metrics      {folder}/metrics.jsonl\n"));
    out.push_str(&format!("settings     {folder}/config.resolved.yaml\n"));
    out.push_str(&format!("manifest     {folder}/manifest.json\n"));
    if let Some(path) = &outcome.checkpoint {
        out.push_str(&format!("checkpoint   {}\n", path.display()));
    }
    if outcome.stopped.is_some() {
        out.push_str("the same command goes on from there\n");
    }
    if selftest::recorded().is_none() {
        out.push_str("not proven reproducible on this machine yet: trainer selftest\n");
    }
    out
}

fn json(outcome: &Outcome) -> serde_json::Value {
    serde_json::json!({
        "step": outcome.step,
        "steps": outcome.steps,
        "loss": outcome.loss,
        "eval_loss": outcome.eval_loss,
        "stopped": outcome.stopped,
        "checkpoint": outcome.checkpoint,
        "output_dir": outcome.folder,
        "metrics": run::folder::RunFolder::new(&outcome.folder).metrics(),
    })
}
