//! Which program wrote a log, by what stands in it.

use std::path::Path;

use super::lines::Pieces;
use super::{csv, hf_console, megatron};
use crate::compare::curve::LogKind;
use crate::compare::log_error::LogError;

/// Reads until a line tells.
pub(super) fn kind(path: &Path) -> Result<LogKind, LogError> {
    let mut pieces = Pieces::open(path)?;
    let mut first: Option<String> = None;
    let mut second: Option<String> = None;
    while let Some(piece) = pieces.next()? {
        let text = piece.text.trim();
        if first.is_none() {
            // A document of one object starts with its brace, on a line of its own or with all the rest behind it.
            if text == "{" || (text.starts_with('{') && text.contains("\"log_history\"")) {
                return Ok(LogKind::HfState);
            }
            if is_metrics(text) {
                return Ok(LogKind::Metrics);
            }
            if text.starts_with('#') {
                continue;
            }
            if csv::is_header(text) {
                return Ok(LogKind::Csv);
            }
            first = Some(text.to_owned());
        } else if second.is_none() {
            second = Some(text.to_owned());
        }
        if megatron::iteration(&piece.text).is_some() {
            return Ok(LogKind::Megatron);
        }
        if hf_console::is_record(&piece.text) {
            return Ok(LogKind::HfConsole);
        }
    }
    // A table whose header has other names: its reader says which.
    if let (Some(header), Some(row)) = (&first, &second)
        && [',', ';', '\t'].iter().any(|c| {
            header.contains(*c)
                && header.matches(*c).count() == row.matches(*c).count()
                && row.split(*c).any(|cell| cell.trim().parse::<f64>().is_ok())
        })
    {
        return Ok(LogKind::Csv);
    }
    let names: Vec<&str> = LogKind::ALL.iter().map(|(name, _)| *name).collect();
    Err(LogError::File {
        path: path.to_owned(),
        problem: match first {
            None => "is empty".to_owned(),
            Some(_) => format!(
                "no loss found as any known program logs it ({}); a CSV file with a header of step and loss works for all \
                 others",
                names.join(", ")
            ),
        },
    })
}

/// A line of our own metrics; the step's name tells it from FLA's `trainer_log.jsonl`.
fn is_metrics(text: &str) -> bool {
    text.starts_with('{')
        && serde_json::from_str::<serde_json::Value>(text).is_ok_and(|line| {
            line.get("step").is_some() && (line.get("loss").is_some() || line.get("eval_loss").is_some())
        })
}
