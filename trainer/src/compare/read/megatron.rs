//! Lines of Megatron-LM and of what is built on it (Megatron-DeepSpeed, Primus):
//! ` iteration       10/    1000 | consumed samples: … | elapsed time per iteration (ms): 1431.6 | … | lm loss: 1.19E+01 | …`.
//!
//! A line may start with anything (ranks, times, colours). Where a field gives this iteration and a mean
//! (`1431.6/1434.0`, `615.5 (avg 615.5)`), the first counts. Sequence length and number of ranks are taken from the argument
//! dump when the log has it.

use std::path::Path;

use super::Collected;
use super::lines::Pieces;
use super::number::Logged;
use crate::compare::curve::Point;
use crate::compare::log_error::LogError;

/// Names of the fields that are read, the preferred first.
const LOSS: [&str; 2] = ["lm loss", "loss"];
const MILLISECONDS: [&str; 1] = ["elapsed time per iteration (ms)"];
const TFLOPS: [&str; 3] = [
    "throughput per GPU (TFLOP/s/GPU)",
    "compute per GPU (TFLOP/s/GPU)",
    "TFLOPs",
];
const TOKENS_PER_S: [&str; 2] = ["tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean"];

/// The number of a training iteration and its fields: `None` for any other line.
pub(super) fn iteration(text: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let (head, rest) = text.split_once('|')?;
    let (_, numbers) = head.rsplit_once("iteration")?;
    let (done, total) = numbers.split_once('/')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(done.trim()) || !digits(total.trim()) {
        return None;
    }
    let fields = rest
        .split('|')
        .filter_map(|field| field.split_once(": "))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    Some((done.trim(), fields))
}

/// Reads iterations.
pub(super) fn read(path: &Path) -> Result<Collected, LogError> {
    let mut pieces = Pieces::open(path)?;
    let mut all = Collected::default();
    let mut sequence: Option<u64> = None;
    let mut samples_of: Vec<(usize, u64)> = Vec::new();
    let mut batch: Option<u64> = None;
    let mut without_loss: Vec<u64> = Vec::new();
    while let Some(piece) = pieces.next()? {
        let Some((step, fields)) = iteration(&piece.text) else {
            argument(&piece.text, "seq_length", &mut sequence);
            argument(&piece.text, "world_size", &mut all.devices);
            continue;
        };
        let wrong = |field: &str, problem: String| LogError::Line {
            path: path.to_owned(),
            line: piece.line,
            field: field.to_owned(),
            problem,
        };
        let named = |names: &[&'static str]| {
            names.iter().find_map(|name| {
                fields
                    .iter()
                    .find(|(field, _)| field == name)
                    .map(|(_, v)| (*name, *v))
            })
        };
        let number = |names: &[&'static str]| -> Result<Option<Logged>, LogError> {
            named(names)
                .map(|(name, value)| {
                    Logged::parse(first_of(value))
                        .ok_or_else(|| wrong(name, format!("not a number: {value:?}")))
                })
                .transpose()
        };
        let count = |name: &'static str| -> Result<Option<u64>, LogError> {
            named(&[name])
                .map(|(name, value)| {
                    value
                        .parse::<u64>()
                        .map_err(|_| wrong(name, format!("not a whole number: {value:?}")))
                })
                .transpose()
        };
        let step = step
            .parse::<u64>()
            .map_err(|_| wrong("iteration", format!("not a step: {step:?}")))?;
        let Some(loss) = number(&LOSS)? else {
            // The line is cut off, or the iteration was skipped.
            if piece.unfinished {
                all.notes
                    .push(format!("line {}, the last, is not whole: left out", piece.line));
            } else {
                without_loss.push(step);
            }
            continue;
        };
        let value = |names: &[&'static str]| number(names).map(|n| n.map(|n| n.value));
        if let Some(samples) = count("consumed samples")? {
            samples_of.push((all.points.len(), samples));
        }
        batch = count("global batch size")?.or(batch);
        let point = Point {
            step,
            tokens: count("consumed tokens")?,
            grad_norm: value(&["grad norm"])?,
            lr: value(&["learning rate"])?,
            step_s: value(&MILLISECONDS)?.map(|ms| ms / 1000.0),
            tflops_per_s: value(&TFLOPS)?,
            tokens_per_s: value(&TOKENS_PER_S)?,
            ..Point::default()
        };
        all.push(piece.line, point, loss);
    }
    if let Some(sequence) = sequence {
        for (i, samples) in samples_of {
            if let Some((_, point, _)) = all.points.get_mut(i) {
                point.tokens = point.tokens.or_else(|| samples.checked_mul(sequence));
            }
        }
        all.tokens_per_step = batch.and_then(|batch| batch.checked_mul(sequence));
    }
    if let Some(first) = without_loss.first() {
        all.notes.push(format!(
            "{} iterations are logged without lm loss, first {first}: left out",
            without_loss.len()
        ));
    }
    Ok(all)
}

/// The value of this iteration: what stands before a mean.
fn first_of(value: &str) -> &str {
    let end = value.find(['/', '(']).unwrap_or(value.len());
    value[..end].trim()
}

/// A line of the argument dump: `  seq_length ...................................... 2048`.
fn argument(text: &str, name: &str, value: &mut Option<u64>) {
    let Some((before, rest)) = text.split_once(name) else {
        return;
    };
    // `decoder_seq_length` is another one.
    if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return;
    }
    let Some(rest) = rest.strip_prefix(' ') else {
        return;
    };
    let dots = rest.trim_start_matches('.');
    if dots.len() + 3 <= rest.len()
        && let Ok(number) = dots.trim().parse()
    {
        *value = Some(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_and_what_only_looks_like_them() {
        let (step, fields) = iteration(
            "[rank7][INFO] :  iteration       10/    1000 | consumed samples:   10240 | lm loss: 1.192253E+01 | loss scale: 1.0 |",
        )
        .unwrap_or_default();
        assert_eq!(step, "10");
        assert_eq!(fields[1], ("lm loss", "1.192253E+01"));
        for other in [
            " validation loss at iteration 100 | lm loss value: 2.9E+00 | lm loss PPL: 1.8E+01 |",
            "saving checkpoint at iteration 100 to x",
            "iteration x/y | lm loss: 1 |",
        ] {
            assert_eq!(iteration(other), None, "{other}");
        }
        assert_eq!(first_of("1431.6/1434.0"), "1431.6");
        assert_eq!(first_of("615.5 (avg 615.5)"), "615.5");
    }

    #[test]
    fn the_argument_dump_is_read() {
        let mut value = None;
        argument(
            "  seq_length ...................................... 2048",
            "seq_length",
            &mut value,
        );
        assert_eq!(value, Some(2048));
        let mut other = None;
        argument(
            "  decoder_seq_length .............................. 7",
            "seq_length",
            &mut other,
        );
        argument("seq_length is 7", "seq_length", &mut other);
        assert_eq!(other, None);
    }
}
