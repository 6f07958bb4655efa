//! `trainer compare`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use ceteris_loader::atomic;

use crate::compare::align::Axis;
use crate::compare::comparison::{self, Comparison, Options, Run};
use crate::compare::curve::{self, Curve, LogKind, ReadOptions};
use crate::compare::gap::WindowSpec;
use crate::compare::table::Digits;
use crate::compare::{html, json, text};

/// Holds the loss curves of several runs against each other.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer compare runs/a runs/b
  trainer compare fla=train.log megatron=primus.log --loss-divisor 8 --at 1,100,1000
  trainer compare runs/a runs/b --repeat A=runs/a2 --repeat A=runs/a3 --html compare.html
  trainer compare baseline.csv runs/new --smooth 20 --tolerance 0.01 --tolerance-from 200 --json -
  trainer compare fla=train.log b=b.log --align tokens --tokens-per-step fla=2097152 --tokens-per-step b=524288

KEY is a log's letter (A, B, ...) or its name. See docs/compare.md.")]
pub(super) struct Args {
    /// Logs or run folders, two or more; NAME=PATH names one.
    #[arg(value_name = "LOG", required = true, num_args = 2..=26)]
    logs: Vec<String>,
    /// A further run of the same settings as log KEY; any number. Repeats span the run-to-run noise band.
    #[arg(long, value_name = "KEY=PATH")]
    repeat: Vec<String>,
    /// What wrote log KEY, where its content does not tell: metrics, hf-console, hf-state, megatron, csv.
    #[arg(long, value_name = "KEY=KIND")]
    format_of: Vec<String>,
    /// What logged losses are divided by: the ranks they were summed over. A bare number is for all HF logs.
    #[arg(long, value_name = "[KEY=]X")]
    loss_divisor: Vec<String>,
    /// Tokens of one step on all devices together, where the log does not tell.
    #[arg(long, value_name = "[KEY=]N")]
    tokens_per_step: Vec<String>,
    /// Devices of a run: tokens per second are given per device.
    #[arg(long, value_name = "[KEY=]N")]
    devices: Vec<String>,
    /// Steps between the records of an HF console log that has no progress bar.
    #[arg(long, value_name = "[KEY=]N")]
    logging_steps: Vec<String>,
    /// What makes two records the same place.
    #[arg(long, value_enum, default_value = "steps")]
    align: Align,
    /// Average denser logs over the interval of the sparsest.
    #[arg(long)]
    average: bool,
    /// Take the mean of the last N records for every loss: that of one step jumps with its batch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    smooth: u32,
    /// Places (steps or tokens) of the table of losses [default: about a dozen round ones].
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    at: Vec<u64>,
    /// Average over windows of N places' length, or over one from FROM to TO [default: quarters].
    #[arg(long, value_name = "N|FROM..TO", value_delimiter = ',')]
    window: Vec<Window>,
    /// Last step of warm-up [default: where the learning rate peaks, else a tenth of the run].
    #[arg(long, value_name = "STEP")]
    warmup_steps: Option<u64>,
    /// Relative gap below which it counts as closed [default: that of --tolerance, else 0.01].
    #[arg(long, value_name = "X", value_parser = share)]
    tolerance_warmup: Option<f64>,
    /// Largest relative gap that is allowed: a larger one ends with exit code 1.
    #[arg(long, value_name = "X", value_parser = share)]
    tolerance: Option<f64>,
    /// First place (step or tokens) held against --tolerance.
    #[arg(long, value_name = "STEP", requires = "tolerance", default_value_t = 0)]
    tolerance_from: u64,
    /// Steps at the start that throughput leaves out.
    #[arg(long, value_name = "N", default_value_t = 10)]
    skip_steps: u64,
    /// Decimals of losses [default: as many as the log gives, four at most].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=12))]
    digits: Option<u8>,
    /// Decimals of differences in percent.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=12))]
    delta_digits: u8,
    /// Write the JSON report to a file; - is stdout, in place of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a page with the curves: one file, nothing loaded from elsewhere.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Align {
    /// The same optimizer step.
    Steps,
    /// As many tokens consumed; losses between two records are interpolated.
    Tokens,
}

/// `100` or `3700..4700`.
#[derive(Clone, Copy, Debug)]
struct Window(WindowSpec);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |part: &str| {
            part.parse::<u64>()
                .map_err(|_| format!("{part:?} is no whole number; write 100 or 3700..4700"))
        };
        match text.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (whole(from)?, whole(to)?);
                if from > to {
                    return Err(format!("{from} lies behind {to}"));
                }
                Ok(Window(WindowSpec::Range(from, to)))
            }
            None => match whole(text)? {
                0 => Err("a window of 0 holds nothing".to_owned()),
                length => Ok(Window(WindowSpec::Every(length))),
            },
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("a number from 0 on is needed; 0.01 is 1 %".to_owned()),
    }
}

/// A log as the command line names it.
struct Log {
    key: String,
    name: Option<String>,
    path: PathBuf,
}

impl Log {
    fn is(&self, key: &str) -> bool {
        self.key == key || self.name.as_deref() == Some(key)
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let logs = logs(&args.logs)?;
    let runs = read(args, &logs)?;
    let options = Options {
        axis: match args.align {
            Align::Steps => Axis::Steps,
            Align::Tokens => Axis::Tokens,
        },
        at: args.at.clone(),
        windows: args.window.iter().map(|window| window.0).collect(),
        tolerance: args.tolerance,
        tolerance_from: args.tolerance_from,
        warmup_tolerance: args.tolerance_warmup.or(args.tolerance).unwrap_or(0.01),
        warmup_steps: args.warmup_steps,
        skip_steps: args.skip_steps,
        average: args.average,
        smooth: args.smooth as usize,
    };
    let found = comparison::compare(runs, &options)?;
    let digits = Digits {
        loss: args.digits,
        percent: args.delta_digits,
    };
    write(args, &found, digits)?;
    Ok(if found.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn write(args: &Args, found: &Comparison, digits: Digits) -> anyhow::Result<()> {
    let mut on_screen = text::text(found, digits);
    if let Some(path) = &args.html {
        save(path, &html::page(found, digits))?;
    }
    if let Some(path) = &args.markdown {
        save(path, &text::markdown(found, digits))?;
    }
    if let Some(path) = &args.json {
        let report = format!("{}\n", serde_json::to_string_pretty(&json::report(found))?);
        if path == Path::new("-") {
            on_screen = report;
        } else {
            save(path, &report)?;
        }
    }
    super::print(&on_screen)
}

fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    atomic::write(path, text.as_bytes()).with_context(|| format!("{}: cannot be written", path.display()))
}

/// `NAME=PATH` or `PATH`; a file whose own name has an equals sign is taken as it is.
fn logs(given: &[String]) -> anyhow::Result<Vec<Log>> {
    let mut logs: Vec<Log> = Vec::new();
    for (key, given) in ('A'..='Z').zip(given) {
        let (name, path) = match given.split_once('=') {
            Some((name, path)) if !name.is_empty() && !Path::new(given).exists() => {
                (Some(name.to_owned()), path)
            }
            _ => (None, given.as_str()),
        };
        if let Some(name) = &name
            && let Some(other) = logs.iter().find(|log| log.is(name))
        {
            bail!("two logs are called {name}: {} and {path}", other.path.display());
        }
        logs.push(Log {
            key: key.to_string(),
            name,
            path: PathBuf::from(path),
        });
    }
    // A name that is the letter of another log would mean either.
    for log in &logs {
        if let Some(other) = logs
            .iter()
            .find(|other| other.key != log.key && log.name.as_ref() == Some(&other.key))
        {
            bail!(
                "the name {} of log {} is the letter of another log",
                other.key,
                log.key
            );
        }
    }
    Ok(logs)
}

/// Which log a key means.
fn find(logs: &[Log], key: &str, flag: &str) -> anyhow::Result<usize> {
    logs.iter().position(|log| log.is(key)).with_context(|| {
        let known: Vec<&str> = logs
            .iter()
            .flat_map(|log| std::iter::once(log.key.as_str()).chain(log.name.as_deref()))
            .collect();
        format!("{flag}: no log is called {key:?}; there are {}", known.join(", "))
    })
}

/// Values by log; a bare one is for all that have none of their own.
fn by_log<T: FromStr + Clone>(
    given: &[String],
    logs: &[Log],
    flag: &str,
) -> anyhow::Result<(BTreeMap<usize, T>, Option<T>)> {
    let mut own = BTreeMap::new();
    let mut bare = None;
    for text in given {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (Some(key), value),
            None => (None, text.as_str()),
        };
        let value = value
            .parse::<T>()
            .ok()
            .with_context(|| format!("{flag} {text}: {value:?} is no number"))?;
        let twice = match key {
            Some(key) => own.insert(find(logs, key, flag)?, value).is_some(),
            None => bare.replace(value).is_some(),
        };
        if twice {
            bail!("{flag} is given twice for the same log: {text}");
        }
    }
    Ok((own, bare))
}

fn kinds(given: &[String], logs: &[Log]) -> anyhow::Result<BTreeMap<usize, LogKind>> {
    let mut kinds = BTreeMap::new();
    for text in given {
        let (key, name) = text
            .split_once('=')
            .with_context(|| format!("--format-of {text}: write KEY=KIND, as in B=megatron"))?;
        let kind = LogKind::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .with_context(|| {
                let known: Vec<&str> = LogKind::ALL.iter().map(|(known, _)| *known).collect();
                format!("--format-of {text}: {name:?} is none of {}", known.join(", "))
            })?;
        kinds.insert(find(logs, key, "--format-of")?, kind.1);
    }
    Ok(kinds)
}

fn read(args: &Args, logs: &[Log]) -> anyhow::Result<Vec<Run>> {
    let kinds = kinds(&args.format_of, logs)?;
    let (divisors, divisor) = by_log::<f64>(&args.loss_divisor, logs, "--loss-divisor")?;
    let (tokens, all_tokens) = by_log::<u64>(&args.tokens_per_step, logs, "--tokens-per-step")?;
    let (devices, all_devices) = by_log::<u64>(&args.devices, logs, "--devices")?;
    let (every, all_every) = by_log::<u64>(&args.logging_steps, logs, "--logging-steps")?;
    let counts = tokens
        .values()
        .chain(&all_tokens)
        .chain(devices.values())
        .chain(&all_devices);
    if counts.chain(every.values()).chain(&all_every).any(|n| *n == 0) {
        bail!("--tokens-per-step, --devices and --logging-steps count from 1");
    }
    let mut repeats: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for text in &args.repeat {
        let (key, path) = text
            .split_once('=')
            .with_context(|| format!("--repeat {text}: write KEY=PATH, as in A=runs/a2"))?;
        repeats
            .entry(find(logs, key, "--repeat")?)
            .or_default()
            .push(path);
    }
    let mut runs = Vec::new();
    for (i, log) in logs.iter().enumerate() {
        let own = divisors.get(&i).copied();
        let options = ReadOptions {
            name: log.name.clone(),
            kind: kinds.get(&i).copied(),
            loss_divisor: own.or(divisor).unwrap_or(1.0),
            divides_hf_only: own.is_none(),
            logging_steps: every.get(&i).copied().or(all_every),
            tokens_per_step: tokens.get(&i).copied().or(all_tokens),
            devices: devices.get(&i).copied().or(all_devices),
        };
        let curve = curve::read(&log.path, &options)?;
        let repeats: Vec<Curve> = repeats
            .get(&i)
            .into_iter()
            .flatten()
            .map(|path| curve::read(Path::new(path), &options))
            .collect::<Result<_, _>>()?;
        runs.push(Run {
            key: log.key.clone(),
            curve,
            repeats,
        });
    }
    if divisor.is_some() && !runs.iter().any(|run| run.curve.kind.is_hf()) {
        bail!(
            "--loss-divisor without a log's name is for HF logs, and none of these is one: write --loss-divisor A=8"
        );
    }
    // Two runs of one name would share a heading.
    let names: Vec<String> = runs.iter().map(|run| run.curve.name.clone()).collect();
    for (i, run) in runs.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == names[i]).count() > 1 {
            run.curve.name = format!("{} {}", run.key, names[i]);
        }
    }
    Ok(runs)
}
