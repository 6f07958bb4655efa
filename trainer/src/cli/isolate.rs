//! `trainer isolate`.

use std::io::IsTerminal;
use std::process::ExitCode;

use ceteris_loader::pipeline::StopSignal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::isolate::execute::ExecuteOptions;
use crate::isolate::factors::{Base, Factor};
use crate::isolate::plan::{Ended, JSON, MARKDOWN, PAGE, Plan, Request, plan};
use crate::isolate::text;

use super::settings::Settings;

/// Runs a design of factors and says how much of the difference in loss each of them explains.
///
/// Every combination of the values is a run, in a folder of its own below output_dir. Before anything is trained, hashes
/// prove that each factor moves its own part of a run alone; a factor that moves another part's hash is refused. One run
/// is repeated and must give the same bits. Intervals come from the seeds that are varied. A stopped command goes on
/// where it was; finished runs are not run again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer isolate --config configs/isolate-tiny.yaml --vary order=fla,megatron --vary seeds.data=1,2 --vary seeds.init=1,2
  trainer isolate --config configs/tiny.yaml --set output_dir=runs/lr --vary optimizer.lr=1e-3,3e-3 --vary seeds.init=1..5
  trainer isolate --config run.yaml --vary order=fla,megatron,hf-trainer --vary seeds.data=1..3 --plan
  trainer isolate --config run.yaml --vary order=fla,megatron --vary seeds.init=1..4 --devices cuda:0,cuda:1

docs/isolate.md says what the numbers mean. Exit codes: 0 done, 1 stopped, flagged or not reproducible, 2 error.")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// A settings key and its values: KEY=a,b,c or KEY=1..3. The first value is what the others are held against. May be
    /// repeated.
    #[arg(long = "vary", value_name = "KEY=VALUES")]
    vary: Vec<String>,
    /// Most runs; what a part of all combinations cannot tell apart is said.
    #[arg(long, value_name = "N")]
    budget: Option<usize>,
    /// Steps at which losses are compared; default: quarters of the run.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    at: Vec<u64>,
    /// Confidence of the intervals.
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// Devices that run at once, a process each: cuda:0,cuda:1.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<String>,
    /// Do not repeat a run.
    #[arg(long)]
    no_null_check: bool,
    /// Show the runs and the hashes that each factor moves; train nothing.
    #[arg(long)]
    plan: bool,
    /// Write JSON to standard output.
    #[arg(long)]
    json: bool,
    /// Show nothing but errors and the result.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let environment = |name: &str| std::env::var(name).ok();
    let factors = args
        .vary
        .iter()
        .map(|v| Factor::parse(v))
        .collect::<Result<Vec<_>, _>>()?;
    for device in &args.devices {
        device.parse::<crate::device::DeviceSetting>()?;
    }
    let request = Request {
        base: Base {
            config: args.settings.config.clone(),
            sets: args.settings.sets(),
            environment: &environment,
        },
        factors: factors.clone(),
        budget: args.budget,
        null_check: !args.no_null_check,
        confidence: args.confidence,
        at: args.at.clone(),
    };
    let mut told: Vec<String> = Vec::new();
    let bar = bar(args.quiet);
    let planned = plan(
        request,
        &mut |notice| {
            if !told.iter().any(|t| t == notice) {
                told.push(notice.to_owned());
            }
        },
        &mut |done, of| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        },
    );
    bar.finish_and_clear();
    let planned = planned?;
    if !args.quiet {
        told.iter().for_each(|t| eprintln!("{t}"));
    }
    if args.plan {
        return show(&planned, &factors, args.json);
    }
    if !args.quiet {
        eprint!("{}", lines(&planned, &factors));
    }
    let folder = planned.folder.clone();
    let options = ExecuteOptions {
        stop: Some(StopSignal::install()?),
        devices: args.devices.clone(),
        quiet: args.quiet,
    };
    let report = match planned.run(&options)? {
        Ended::Stopped(signal) => {
            let by = if signal == 0 {
                String::new()
            } else {
                format!(" by signal {signal}")
            };
            eprintln!("stopped{by}; the same command goes on");
            return Ok(ExitCode::from(1));
        }
        Ended::Done(report) => report,
    };
    if args.json {
        super::print(&report.to_json()?)?;
    } else {
        let mut out = text::report(&report);
        let width = PAGE.len().max(JSON.len());
        for (name, what) in [(PAGE, "page"), (MARKDOWN, "Markdown"), (JSON, "all numbers")] {
            out.push_str(&format!(
                "{}{:pad$}  {what}\n",
                folder.join(name).display(),
                "",
                pad = width - name.len()
            ));
        }
        super::print(&out)?;
    }
    let trusted = report.null_check.as_ref().is_none_or(|c| c.exact);
    Ok(if trusted {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn bar(quiet: bool) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() && !quiet {
        ProgressDrawTarget::stderr_with_hz(8)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} runs hashed  {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// What will be run, and what each factor moves.
fn lines(plan: &Plan<'_>, factors: &[Factor]) -> String {
    let names: Vec<&str> = factors.iter().map(|f| f.key.as_str()).collect();
    let again = if plan.repetition.is_some() {
        " and one repeated"
    } else {
        ""
    };
    let of: usize = plan.design.sizes.iter().product();
    let mut out = format!("{} runs of {of} combinations{again}\n", plan.runs.len());
    out.push_str(&plan.proof.table());
    for line in plan.design.confounding_in_words(&names) {
        out.push_str(&format!("{line}\n"));
    }
    out
}

/// The plan alone; exit code 1 where a factor moves nothing.
fn show(plan: &Plan<'_>, factors: &[Factor], json: bool) -> anyhow::Result<ExitCode> {
    let flagged = plan.proof.flagged().next().is_some();
    if json {
        let runs: Vec<serde_json::Value> = plan
            .runs
            .iter()
            .zip(&plan.design.cells)
            .map(|(run, levels)| {
                serde_json::json!({
                    "name": run.name,
                    "levels": levels,
                    "folder": run.config.output_dir,
                    "steps": run.steps,
                    "hashes": run.hashes,
                })
            })
            .collect();
        let value = serde_json::json!({
            "ceteris_isolate_plan": 1,
            "factors": factors,
            "design": plan.design,
            "proof": {"factors": plan.proof.factors, "distinct": plan.proof.distinct},
            "runs": runs,
            "flagged": flagged,
        });
        super::print(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
    } else {
        let mut out = lines(plan, factors);
        for run in &plan.runs {
            out.push_str(&format!(
                "{}  {} steps\n",
                run.config.output_dir.display(),
                run.steps
            ));
        }
        super::print(&out)?;
    }
    Ok(if flagged {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}
