//! Tables: a header with a step and a loss column, then a row a step; separated by commas, semicolons or tabs.

use std::path::Path;

use super::Collected;
use super::lines::Pieces;
use super::number::Logged;
use crate::compare::curve::Point;
use crate::compare::log_error::LogError;

const STEP: &[&str] = &[
    "step",
    "iteration",
    "iter",
    "global_step",
    "_step",
    "current_steps",
    "train/global_step",
];
const LOSS: &[&str] = &["loss", "lm_loss", "train_loss", "training_loss", "train/loss"];
const TOKENS: &[&str] = &["tokens", "num_tokens", "consumed_tokens", "num_input_tokens_seen"];
const GRAD_NORM: &[&str] = &["grad_norm", "gradient_norm", "train/grad_norm"];
const LR: &[&str] = &["lr", "learning_rate", "train/learning_rate"];
const TOKENS_PER_S: &[&str] = &["tokens_per_s", "tokens_per_second", "tokens/s/gpu", "tps"];
const TFLOPS: &[&str] = &["tflops_per_s", "tflop/s/gpu", "tflops"];
const STEP_S: &[&str] = &["step_s", "step_time", "step_time_s", "seconds"];
const STEP_MS: &[&str] = &["step_ms", "step_time_ms", "iteration_time_ms"];

/// Whether a line is the header of such a table.
pub(super) fn is_header(text: &str) -> bool {
    let cells = normalised(&split(text, separator(text)));
    column(&cells, STEP).is_some() && loss_column(&cells).is_some()
}

fn separator(header: &str) -> char {
    [',', '\t', ';']
        .into_iter()
        .max_by_key(|c| (header.matches(*c).count(), *c == ','))
        .unwrap_or(',')
}

fn normalised(cells: &[String]) -> Vec<String> {
    cells
        .iter()
        .map(|cell| {
            cell.trim()
                .trim_start_matches('\u{feff}')
                .to_lowercase()
                .replace([' ', '-'], "_")
        })
        .collect()
}

fn column(cells: &[String], names: &[&str]) -> Option<usize> {
    names
        .iter()
        .find_map(|name| cells.iter().position(|cell| cell == name))
}

/// The loss: by its name, or the only column whose name ends in it (`run_7_-_train/loss`).
fn loss_column(cells: &[String]) -> Option<usize> {
    column(cells, LOSS).or_else(|| {
        let mut ending = cells
            .iter()
            .enumerate()
            .filter(|(_, cell)| cell.ends_with("loss") && !cell.contains("eval") && !cell.contains("val_"))
            .map(|(i, _)| i);
        ending.next().filter(|_| ending.next().is_none())
    })
}

/// Cells of a row; quotes hold separators, and two of them inside stand for one.
fn split(row: &str, separator: char) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = row.chars().peekable();
    while let Some(c) = chars.next() {
        let cell = cells.last_mut();
        match (c, cell) {
            ('"', Some(cell)) if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            ('"', _) => quoted = !quoted,
            (c, _) if c == separator && !quoted => cells.push(String::new()),
            (c, Some(cell)) => cell.push(c),
            (_, None) => {}
        }
    }
    cells
}

/// Reads rows.
pub(super) fn read(path: &Path) -> Result<Collected, LogError> {
    let mut pieces = Pieces::open(path)?;
    let mut all = Collected::default();
    let header = loop {
        match pieces.next()? {
            Some(piece) if piece.text.trim_start().starts_with('#') => {}
            Some(piece) => break piece.text,
            None => return Ok(all),
        }
    };
    let separator = separator(&header);
    let names = split(&header, separator);
    let cells = normalised(&names);
    let (Some(step), Some(loss)) = (column(&cells, STEP), loss_column(&cells)) else {
        return Err(LogError::File {
            path: path.to_owned(),
            problem: format!(
                "the header lacks a {} column; found: {}",
                if column(&cells, STEP).is_none() {
                    "step (or iteration)"
                } else {
                    "loss"
                },
                names
                    .iter()
                    .map(|name| name.trim())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        });
    };
    let others =
        [TOKENS, GRAD_NORM, LR, TOKENS_PER_S, TFLOPS, STEP_S, STEP_MS].map(|names| column(&cells, names));
    let mut empty = 0_u64;
    while let Some(piece) = pieces.next()? {
        if piece.text.trim_start().starts_with('#') {
            continue;
        }
        let row = split(&piece.text, separator);
        let wrong = |at: usize, problem: String| LogError::Line {
            path: path.to_owned(),
            line: piece.line,
            field: names.get(at).map_or(String::new(), |name| name.trim().to_owned()),
            problem,
        };
        let cell = |at: usize| -> Result<&str, LogError> {
            row.get(at).map(|cell| cell.trim()).ok_or_else(|| {
                wrong(
                    at,
                    format!("the row has {} of {} columns", row.len(), names.len()),
                )
            })
        };
        let number = |at: usize| -> Result<Option<Logged>, LogError> {
            match cell(at)? {
                "" => Ok(None),
                text => Logged::parse(text)
                    .map(Some)
                    .ok_or_else(|| wrong(at, format!("not a number: {text:?}"))),
            }
        };
        let count = |at: usize| -> Result<Option<u64>, LogError> {
            match number(at)?.map(|n| n.value) {
                None => Ok(None),
                Some(value) if value >= 0.0 && value.fract() == 0.0 && value < 9e15 => Ok(Some(value as u64)),
                Some(value) => Err(wrong(at, format!("not a whole number: {value}"))),
            }
        };
        let Some(logged) = number(loss)? else {
            empty += 1;
            continue;
        };
        let other = |which: usize| -> Result<Option<f64>, LogError> {
            match others[which] {
                Some(at) => Ok(number(at)?.map(|n| n.value)),
                None => Ok(None),
            }
        };
        let point = Point {
            step: count(step)?.ok_or_else(|| wrong(step, "is missing".to_owned()))?,
            tokens: match others[0] {
                Some(at) => count(at)?,
                None => None,
            },
            grad_norm: other(1)?,
            lr: other(2)?,
            tokens_per_s: other(3)?,
            tflops_per_s: other(4)?,
            step_s: match other(5)? {
                Some(seconds) => Some(seconds),
                None => other(6)?.map(|ms| ms / 1000.0),
            },
            ..Point::default()
        };
        all.push(piece.line, point, logged);
    }
    if empty > 0 {
        all.notes.push(format!("{empty} rows without a loss: left out"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        for header in [
            "step,loss",
            "Iteration;LM loss",
            "_step\ttrain/loss",
            "Step,\"run, 7 - train/loss\",\"run, 7 - eval/loss\"",
            "\u{feff}step,loss",
        ] {
            assert!(is_header(header), "{header}");
        }
        for other in ["step,accuracy", "loss,time", "a_loss,b_loss,step", ""] {
            assert!(!is_header(other), "{other}");
        }
    }

    #[test]
    fn quotes_hold_separators() {
        assert_eq!(split("a,\"b,\"\"c\"\"\",", ','), ["a", "b,\"c\"", ""]);
    }
}
