//! What the Hugging Face `Trainer` prints: one Python dict a record, between the states of a progress bar.
//!
//! Transformers 5 prints four significant digits as strings (`{'loss': '8.31', …}`), earlier versions numbers. Records
//! print no step. It is, in this order: `step` or `current_steps` of the record; the state of the bar that is redrawn right
//! after it; the record's number times `logging_steps`.

use std::path::Path;

use super::hf_record::{self, Found, Record};
use super::lines::Pieces;
use super::{Collected, literal};
use crate::compare::curve::ReadOptions;
use crate::compare::log_error::LogError;

/// A record with what stands around it.
struct Seen {
    line: u64,
    record: Record,
    /// Steps done and in all, by the first bar behind it.
    bar: Option<Bar>,
}

/// A state of a progress bar.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bar {
    done: u64,
    total: u64,
    seconds: f64,
}

/// Whether a piece holds a record with a loss.
pub(super) fn is_record(text: &str) -> bool {
    start(text).is_some_and(|dict| {
        literal::parse(dict)
            .is_ok_and(|(dict, _)| matches!(hf_record::look_at(&dict), Ok(Found::Step(_)) | Err(_)))
    })
}

/// Where a dict that may be a record starts.
fn start(text: &str) -> Option<&str> {
    let at = text.find("{'").or_else(|| text.find("{\""))?;
    let dict = &text[at..];
    ["loss", "train_runtime"]
        .iter()
        .any(|key| dict.contains(key))
        .then_some(dict)
}

/// Reads records.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Collected, LogError> {
    let mut pieces = Pieces::open(path)?;
    let mut all = Collected::default();
    let mut seen: Vec<Seen> = Vec::new();
    let mut end = None;
    while let Some(piece) = pieces.next()? {
        let wrong = |field: String, problem: String| LogError::Line {
            path: path.to_owned(),
            line: piece.line,
            field,
            problem,
        };
        let Some(dict) = start(&piece.text) else {
            if let (Some(bar), Some(last)) = (bar(&piece.text), seen.last_mut()) {
                last.bar.get_or_insert(bar);
            }
            continue;
        };
        let (parsed, taken) = match literal::parse(dict) {
            Ok(parsed) => parsed,
            Err(_) if piece.unfinished => {
                all.notes
                    .push(format!("line {}, the last, is not whole: left out", piece.line));
                break;
            }
            // Other programs print braces too.
            Err(_) if !dict.contains("'loss'") && !dict.contains("\"loss\"") => continue,
            Err(problem) => return Err(wrong("record".to_owned(), problem)),
        };
        match hf_record::look_at(&parsed).map_err(|(field, problem)| wrong(field, problem))? {
            Found::Step(record) => seen.push(Seen {
                line: piece.line,
                record,
                bar: bar(&dict[taken..]),
            }),
            Found::End { seconds, steps_per_s } => end = Some((seconds, steps_per_s)),
            Found::Other => {}
        }
    }
    let steps = steps_of(&seen, options, &mut all.notes);
    let bars = bars_are_steps(&seen);
    if let Some((seconds, rate)) = end {
        let total = seen.last().and_then(|one| one.bar).map(|bar| bar.total);
        let known: Vec<u64> = total.into_iter().chain(steps.last().copied()).collect();
        all.whole_run = sum_up(seconds, rate, &known);
    }
    let mut records = Vec::with_capacity(seen.len());
    for (one, step) in seen.into_iter().zip(steps) {
        let mut record = one.record;
        // The bar's clock counts whole seconds: where the log sums up the run, its mean is the better step time.
        if let (true, Some(bar), None, None) = (bars, one.bar, record.runtime, all.whole_run) {
            record.runtime = Some(bar.seconds);
        }
        records.push((one.line, step, record));
    }
    put(&mut all, records);
    Ok(all)
}

/// The step of each record.
fn steps_of(seen: &[Seen], options: &ReadOptions, notes: &mut Vec<String>) -> Vec<u64> {
    if seen.iter().all(|one| one.record.step.is_some()) {
        return seen.iter().filter_map(|one| one.record.step).collect();
    }
    if options.logging_steps.is_none() && bars_are_steps(seen) {
        notes.push("steps are those of the progress bar redrawn after each record".to_owned());
        return seen
            .iter()
            .filter_map(|one| one.bar.map(|bar| bar.done))
            .collect();
    }
    let every = options.logging_steps.unwrap_or(1).max(1);
    let first_too = every > 2 && starts_at_one(seen);
    let steps: Vec<u64> = (1..=seen.len() as u64)
        .map(|n| match (first_too, n) {
            (true, 1) => 1,
            (true, n) => (n - 1).saturating_mul(every),
            (false, n) => n.saturating_mul(every),
        })
        .collect();
    notes.push(match options.logging_steps {
        Some(_) if first_too => {
            format!("records are not numbered: taken for step 1 and every {every} steps, as their epochs tell")
        }
        Some(_) => format!("records are not numbered: taken for every {every} steps"),
        None => {
            "records are not numbered and no progress bar tells: one record taken for one step (--logging-steps N otherwise)"
                .to_owned()
        }
    });
    steps
}

/// With `logging_first_step` the first record's epoch is that of one step, far below half of the second's.
fn starts_at_one(seen: &[Seen]) -> bool {
    match seen {
        [first, second, ..] => match (first.record.epoch, second.record.epoch) {
            (Some(one), Some(two)) => two > 0.0 && one / two < 0.4,
            _ => false,
        },
        _ => false,
    }
}

/// Whether the bars behind the records count their steps: one bar, always ahead (a resumed run may step back).
fn bars_are_steps(seen: &[Seen]) -> bool {
    let bars: Option<Vec<Bar>> = seen.iter().map(|one| one.bar).collect();
    let Some(bars) = bars else { return false };
    !bars.is_empty()
        && bars
            .windows(2)
            .all(|pair| pair[0].total == pair[1].total && pair[0].done != pair[1].done)
        && bars.iter().all(|bar| bar.done > 0 && bar.done <= bar.total)
}

/// The state of a bar: `  5%|▌         | 5/100 [00:07<02:16,  1.43s/it]`; bars with a name are others'.
fn bar(text: &str) -> Option<Bar> {
    let (share, rest) = text.split_once('%')?;
    share.trim().parse::<u32>().ok().filter(|share| *share <= 100)?;
    let (_, counts) = rest.rsplit_once('|')?;
    let (counts, times) = counts.split_once('[')?;
    let (done, total) = counts.trim().split_once('/')?;
    let (elapsed, _) = times.split_once('<')?;
    Some(Bar {
        done: done.trim().parse().ok()?,
        total: total.trim().parse().ok()?,
        seconds: clock(elapsed)?,
    })
}

/// Seconds of `07:05`, `1:07:05` or `1 day, 1:07:05`.
fn clock(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once(", ") {
        Some((days, clock)) => (days.split(' ').next()?.parse::<f64>().ok()?, clock),
        None => (0.0, text),
    };
    clock
        .trim()
        .split(':')
        .try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
        .map(|seconds| days * 86400.0 + seconds)
}

/// The sums at the end of training: seconds and steps. The rate, printed with three decimals, gives the steps only about:
/// of the counts that `known` holds, the one that it can mean is taken. (Of a resumed run the sums are of its last process.)
pub(super) fn sum_up(seconds: f64, steps_per_s: Option<f64>, known: &[u64]) -> Option<(f64, u64)> {
    let about = steps_per_s? * seconds;
    if !(about.is_finite() && about >= 0.5) {
        return None;
    }
    let off = |steps: u64| (steps as f64 - about).abs();
    let steps = known
        .iter()
        .copied()
        .filter(|steps| off(*steps) <= 0.0005 * seconds + 1.0)
        .min_by(|x, y| off(*x).total_cmp(&off(*y)));
    Some((seconds, steps.unwrap_or(about.round() as u64)))
}

/// Adds records with their steps; step times come from the time that passed between two of them.
pub(super) fn put(all: &mut Collected, records: Vec<(u64, u64, Record)>) {
    let mut before: Option<(u64, f64)> = None;
    for (line, step, record) in records {
        let mut point = record.point;
        point.step = step;
        if let Some(runtime) = record.runtime {
            if let Some((then, at)) = before
                && step > then
                && runtime > at
            {
                point.step_s = Some((runtime - at) / (step - then) as f64);
            }
            before = Some((step, runtime));
        }
        if point.tokens_per_s.is_none() {
            point.tokens_per_s = record.tokens_per_s_of_all;
            all.rates_of_all_devices |= point.tokens_per_s.is_some();
        }
        all.push(line, point, record.loss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_bars() {
        assert_eq!(
            bar("  5%|▌         | 5/100 [00:07<02:16,  1.43s/it]"),
            Some(Bar {
                done: 5,
                total: 100,
                seconds: 7.0
            })
        );
        assert_eq!(
            bar("100%|██████████| 4768/4768 [1:54:00<00:00,  1.43s/it]").map(|bar| bar.seconds),
            Some(6840.0)
        );
        assert_eq!(bar("Map: 100%|██████████| 10/10 [00:01<00:00]"), None);
        assert_eq!(bar("5/100"), None);
        assert_eq!(clock("2 days, 1:00:01"), Some(2.0 * 86400.0 + 3601.0));
    }
}
