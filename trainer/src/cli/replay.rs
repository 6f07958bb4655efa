//! `trainer replay`.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use ceteris_loader::pipeline::StopSignal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::replay::score::{Score, score};
use crate::replay::sides::Sides;
use crate::replay::switched::{Ended, Replayed, replay};
use crate::run::train::TrainOptions;

/// Repeats a run with another order, everything else as it was.
///
/// The whole run, or from a step on: weights, moments and learning rates are handed over as they are, and the data goes on
/// where a run with the other order would stand by then. --score instead holds the state after a step against the next
/// batches of both orders, without training: how much of a difference in loss is the batch.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer replay --from runs/a --with order=runs/b
  trainer replay --from runs/a --with order=hf-trainer --until 100 --output runs/a-then-hf
  trainer replay --from runs/a --with order=runs/b --score 50 --steps 20

Exit codes: 0 done, 1 stopped, 2 error.")]
pub(super) struct Args {
    /// Folder of the run.
    #[arg(long, value_name = "RUN")]
    from: PathBuf,
    /// order=RUN takes the order and data seed of another run's folder; order=NAME or order={name: NAME, …} an order with
    /// the run's own data seed.
    #[arg(long, value_name = "order=…")]
    with: String,
    /// Keep the run's own order up to and including this step, then take the other.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "since")]
    until: Option<u64>,
    /// Take the other order from this step on, the run's own before it.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    since: Option<u64>,
    /// Folder of the new run; default: the run's name with what is changed.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Score the state after this step (0: the initial weights) on the next batches of both orders.
    #[arg(long, value_name = "STEP", conflicts_with_all = ["until", "since", "output"])]
    score: Option<u64>,
    /// Batches to score.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..), requires = "score")]
    steps: u64,
    /// Device that computes, in place of the run's.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Write JSON to standard output.
    #[arg(long)]
    json: bool,
    /// Show nothing but errors and the result.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sides = Sides::open(&args.from, &args.with, args.device.as_deref())?;
    let say = |text: &str| {
        if !args.quiet {
            eprintln!("{text}");
        }
    };
    sides.notes.iter().for_each(|n| say(n));
    if let Some(step) = args.score {
        let bar = bar(args.steps, args.quiet);
        let scored = score(&sides, step, args.steps, &mut |done| bar.set_position(done));
        bar.finish_and_clear();
        let scored = scored?;
        super::print(&if args.json {
            format!("{}\n", serde_json::to_string_pretty(&scored)?)
        } else {
            score_text(&scored)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let own_steps = args.until.or(args.since.map(|s| s - 1)).unwrap_or(0);
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| default_output(&sides, own_steps));
    let options = TrainOptions {
        stop: Some(StopSignal::install()?),
        quiet: args.quiet,
        ..TrainOptions::default()
    };
    match replay(&sides, own_steps, &output, &options, &say)? {
        Ended::Stopped(_) => {
            eprintln!("stopped; the same command goes on");
            Ok(ExitCode::from(1))
        }
        Ended::Done(replayed) => {
            super::print(&if args.json {
                format!("{}\n", serde_json::to_string_pretty(&replayed)?)
            } else {
                replay_text(&replayed)
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn default_output(sides: &Sides, own_steps: u64) -> PathBuf {
    let name = sides
        .from
        .file_name()
        .map_or("run".into(), |n| n.to_string_lossy());
    let order = sides.data_b.order.spec().name();
    let from = if own_steps > 0 {
        format!("-after-{own_steps}")
    } else {
        String::new()
    };
    let seed = if sides.a.seeds.data == sides.b.seeds.data {
        String::new()
    } else {
        format!("-{}", sides.b.seeds.data)
    };
    sides
        .from
        .with_file_name(format!("{name}-with-{order}{seed}{from}"))
}

fn bar(steps: u64, quiet: bool) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() && !quiet {
        ProgressDrawTarget::stderr_with_hz(8)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(steps), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} batches scored  {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Some of `count` things: all of few, else about a dozen with both ends.
fn some(count: usize) -> Vec<usize> {
    let every = count.div_ceil(12).max(1);
    (0..count)
        .filter(|i| i.is_multiple_of(every) || i + 1 == count)
        .collect()
}

fn replay_text(replayed: &Replayed) -> String {
    let recipe = &replayed.recipe;
    let mut out = format!(
        "run      {}: {}\nreplay   {}: ",
        recipe.from.display(),
        recipe.order_a,
        replayed.folder.display()
    );
    let _ = match recipe.own_steps {
        0 => writeln!(out, "{}", recipe.order_b),
        own => writeln!(out, "the same up to step {own}, then {}", recipe.order_b),
    };
    let _ = writeln!(
        out,
        "\n{:>8}  {:>10}  {:>10}  {:>10}",
        "step", "run", "replay", "difference"
    );
    for i in some(replayed.losses.len()) {
        let pair = &replayed.losses[i];
        let _ = writeln!(
            out,
            "{:>8}  {:>10.4}  {:>10.4}  {:>+10.4}",
            pair.step, pair.run, pair.replay, pair.difference
        );
    }
    let _ = match replayed.first_difference {
        None => writeln!(out, "\nevery loss is the same: the difference is exactly 0"),
        Some(step) => writeln!(
            out,
            "\nfirst other loss at step {step}; mean difference over the steps in the other order {:+.4}",
            replayed.mean_difference
        ),
    };
    if let Some(other) = &replayed.other_run {
        let _ = writeln!(
            out,
            "against {}: {}, losses differ by {}",
            other.folder.display(),
            if other.same_batches {
                "the same batches at every step"
            } else {
                "other batches"
            },
            if other.largest_difference == 0.0 {
                "exactly 0".to_owned()
            } else {
                format!("at most {:.4}", other.largest_difference)
            }
        );
    }
    out
}

fn score_text(score: &Score) -> String {
    let mut out = format!(
        "state after step {}, on the next batches of both orders\n\n{:>8}  {:>12}  {:>12}  {:>10}\n",
        score.step, "step", "run's batch", "other batch", "difference"
    );
    for batch in &score.batches {
        let _ = writeln!(
            out,
            "{:>8}  {:>12.4}  {:>12.4}  {:>+10.4}",
            batch.step, batch.batch_a, batch.batch_b, batch.difference
        );
    }
    let _ = write!(out, "\nmean difference {:+.4}", score.mean_difference);
    if let Some(deviation) = score.standard_deviation {
        let _ = write!(
            out,
            ", standard deviation {deviation:.4} over {} batches",
            score.batches.len()
        );
    }
    out.push('\n');
    if let Some(split) = &score.split {
        let _ = writeln!(
            out,
            "step {}: the other run's loss less this run's is {:+.4} = {:+.4} (its batch, same weights) {:+.4} (its weights, same \
             batch)",
            split.step, split.difference, split.batch, split.state
        );
    }
    match score.as_recorded {
        Some(true) => out.push_str("the run's batch gives the loss that the run recorded, bit for bit\n"),
        Some(false) => out.push_str(
            "NOTE: the run's batch gives another loss than the run recorded: another device or version computed it\n",
        ),
        None => {}
    }
    out
}
