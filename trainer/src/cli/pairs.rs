//! `trainer pairs`.

use std::process::ExitCode;

use crate::data::TrainData;

use super::settings::Settings;

/// Prints which target each input token of a step is trained on: where labels are shifted, and what is masked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer pairs --config configs/tiny.yaml
  trainer pairs --config configs/tiny.yaml --step 17 --rows 2 --tokens 16")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Optimizer step, from 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// Rows of the global batch to show.
    #[arg(long, default_value_t = 4)]
    rows: usize,
    /// Pairs of each row to show.
    #[arg(long, default_value_t = 12)]
    tokens: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings.load()?.config;
    let data = TrainData::open(&config, &mut |notice| eprintln!("{notice}"))?;
    let steps = data.steps(&config);
    anyhow::ensure!(
        args.step <= steps,
        "--step {}: the run has {steps} steps",
        args.step
    );
    let mut batches = data.batches(&config, None, None)?;
    let mut batch = batches.next_batch()?;
    for _ in 1..args.step {
        batch = batches.next_batch()?;
    }
    let batch = batch.ok_or_else(|| anyhow::anyhow!("the data ends before step {}", args.step))?;
    let mut out = String::new();
    for (row, sample) in batch.samples().enumerate().take(args.rows) {
        let pairs: Vec<(i32, i32)> = batch.pairs(row).collect();
        let shown: Vec<String> = pairs
            .iter()
            .take(args.tokens)
            .map(|(a, b)| format!("{a}->{b}"))
            .collect();
        out.push_str(&format!(
            "row {sample}: {} pairs: {}\n",
            pairs.len(),
            shown.join(" ")
        ));
    }
    super::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
