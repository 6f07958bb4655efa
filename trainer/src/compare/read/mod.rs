//! Readers of logs, one file a kind.

mod csv;
mod detect;
mod hf_console;
mod hf_record;
mod hf_state;
mod lines;
mod literal;
mod megatron;
mod metrics;
pub(super) mod number;

use std::path::{Path, PathBuf};

use self::number::{Logged, MOST_DECIMALS};
use super::curve::{Curve, LogKind, Point, ReadOptions};
use super::log_error::LogError;

/// What a reader found, in the order of the file.
#[derive(Debug, Default)]
struct Collected {
    /// Line (or number of the record), point without its loss, loss as logged.
    points: Vec<(u64, Point, Logged)>,
    /// Seconds of the whole run and its steps.
    whole_run: Option<(f64, u64)>,
    /// Whether the points' tokens per second are those of all devices together.
    rates_of_all_devices: bool,
    /// Devices, where the log tells.
    devices: Option<u64>,
    /// Tokens a step, where the log tells.
    tokens_per_step: Option<u64>,
    /// Remarks.
    notes: Vec<String>,
}

impl Collected {
    fn push(&mut self, line: u64, point: Point, loss: Logged) {
        self.points.push((line, point, loss));
    }
}

/// Reads the log at `path`: a file, or the folder of a run.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Curve, LogError> {
    if !(options.loss_divisor.is_finite() && options.loss_divisor > 0.0) {
        return Err(LogError::File {
            path: path.to_owned(),
            problem: format!("a loss divisor of {} makes no sense", options.loss_divisor),
        });
    }
    let file = file_of(path)?;
    let kind = match options.kind {
        Some(kind) => kind,
        None => detect::kind(&file)?,
    };
    let found = match kind {
        LogKind::Metrics => metrics::read(&file),
        LogKind::HfConsole => hf_console::read(&file, options),
        LogKind::HfState => hf_state::read(&file),
        LogKind::Megatron => megatron::read(&file),
        LogKind::Csv => csv::read(&file),
    }?;
    finish(path, file, kind, found, options)
}

/// The log in a folder.
fn file_of(path: &Path) -> Result<PathBuf, LogError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    ["metrics.jsonl", "trainer_state.json"]
        .into_iter()
        .map(|name| path.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| LogError::File {
            path: path.to_owned(),
            problem: "a folder without metrics.jsonl or trainer_state.json: give the log itself".to_owned(),
        })
}

/// Sorts, keeps the later of two records of a step, fills in what follows from the options.
fn finish(
    given: &Path,
    file: PathBuf,
    kind: LogKind,
    found: Collected,
    options: &ReadOptions,
) -> Result<Curve, LogError> {
    let Collected {
        points: mut rows,
        whole_run,
        rates_of_all_devices,
        devices,
        tokens_per_step,
        mut notes,
    } = found;
    if rows.is_empty() {
        return Err(LogError::File {
            path: file,
            problem: format!("no loss found in this {} log", kind.name()),
        });
    }
    let loss_divisor = if options.divides_hf_only && !kind.is_hf() {
        1.0
    } else {
        options.loss_divisor
    };
    let devices = options.devices.or(devices);
    let tokens_per_step = options.tokens_per_step.or(tokens_per_step);
    if rates_of_all_devices && devices.is_none() {
        notes
            .push("tokens per second are those of all devices together: --devices N divides them".to_owned());
    }
    let back = rows
        .windows(2)
        .filter(|pair| pair[1].1.step < pair[0].1.step)
        .count();
    // Stable: of one step's records the later in the file stays later.
    rows.sort_by_key(|(_, point, _)| point.step);
    let mut points: Vec<Point> = Vec::with_capacity(rows.len());
    let (mut repeated, mut first, mut last) = (0_u64, u64::MAX, 0);
    for (_, mut point, loss) in rows {
        let loss = loss.divided_by(loss_divisor);
        point.loss = loss.value;
        point.loss_decimals = loss.decimals.min(MOST_DECIMALS);
        if point.tokens.is_none() {
            point.tokens = tokens_per_step.and_then(|tokens| tokens.checked_mul(point.step));
        }
        if rates_of_all_devices && let Some(devices) = devices.filter(|n| *n > 0) {
            point.tokens_per_s = point.tokens_per_s.map(|rate| rate / devices as f64);
        }
        if let (None, Some(tokens), Some(devices), Some(step_s)) =
            (point.tokens_per_s, tokens_per_step, devices, point.step_s)
            && step_s > 0.0
            && devices > 0
        {
            point.tokens_per_s = Some(tokens as f64 / step_s / devices as f64);
        }
        match points.last_mut() {
            Some(before) if before.step == point.step => {
                // Ranks that all print the same line are no second run.
                if before.loss.to_bits() != point.loss.to_bits() {
                    repeated += 1;
                    first = first.min(point.step);
                    last = last.max(point.step);
                }
                *before = point;
            }
            _ => points.push(point),
        }
    }
    if repeated > 0 {
        notes.push(format!(
            "{repeated} steps ({first} to {last}) are logged more than once, as by a run that was resumed: the last record of \
             each counts"
        ));
    } else if back > 0 {
        notes.push(format!("steps go back {back} times in the file: sorted"));
    }
    let lost: Vec<u64> = points
        .iter()
        .filter(|p| !p.loss.is_finite())
        .map(|p| p.step)
        .collect();
    if let Some(step) = lost.first() {
        notes.push(format!(
            "the loss of {} logged steps is not a finite number, first at step {step}",
            lost.len()
        ));
    }
    let name = options.name.clone().unwrap_or_else(|| name_of(given));
    Ok(Curve {
        name,
        origin: file,
        kind,
        points,
        whole_run,
        loss_divisor,
        tokens_per_step,
        devices,
        notes,
    })
}

/// A run's name: that of its folder, or of its log.
fn name_of(given: &Path) -> String {
    let named = match given.file_name().and_then(|name| name.to_str()) {
        Some("metrics.jsonl" | "trainer_state.json") => given.parent().and_then(Path::file_name),
        _ if given.is_dir() => given.file_name(),
        _ => given.file_stem(),
    };
    named.map_or_else(
        || given.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}
