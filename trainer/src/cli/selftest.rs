//! `trainer selftest`.

use std::process::ExitCode;

use crate::run::selftest::{self, Report};
use indicatif::{ProgressBar, ProgressStyle};

/// Proves on this machine that a run's bits depend on its settings alone: threads, loader workers, resuming and the
/// split of a global batch change nothing. Takes less than a minute; exit code 1 when it fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer selftest
  trainer selftest --device cuda
  trainer selftest --json")]
pub(super) struct Args {
    /// Where: auto, cpu, cuda or cuda:N. On CUDA also a layer of gdn-300m 1000 times, and beside a second stream of load.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = test(&args.device, args.json)?;
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        let wide = report.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for check in &report.checks {
            let verdict = if check.same { "same bits" } else { "DIFFERS" };
            out.push_str(&format!("{:wide$}  {verdict}  {}\n", check.name, check.detail));
        }
        let passed = if report.passed() { "passed" } else { "FAILED" };
        out.push_str(&format!("self-test {passed} in {:.1} s\n", report.seconds));
        super::print(&out)?;
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Runs the self-test and keeps its result for manifests.
pub(super) fn test(device: &str, quiet: bool) -> anyhow::Result<Report> {
    let bar = if quiet {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(selftest::MOST_CHECKS)
    };
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}")?);
    let report = selftest::run(device, &mut |name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    selftest::record(&report)?;
    Ok(report)
}
