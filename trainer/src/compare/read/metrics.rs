//! `metrics.jsonl` of a run: one object a line, one line a step or evaluation.

use std::path::Path;

use serde_json::{Map, Value};

use super::number::Logged;
use super::{Collected, lines::Pieces};
use crate::compare::curve::Point;
use crate::compare::log_error::LogError;

/// Reads steps; evaluations are left out.
pub(super) fn read(path: &Path) -> Result<Collected, LogError> {
    let mut pieces = Pieces::open(path)?;
    let mut all = Collected::default();
    while let Some(piece) = pieces.next()? {
        let wrong = |field: &str, problem: String| LogError::Line {
            path: path.to_owned(),
            line: piece.line,
            field: field.to_owned(),
            problem,
        };
        let object = match serde_json::from_str::<Value>(&piece.text) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(wrong("line", "not a JSON object".to_owned())),
            // A run that goes on, or was killed, leaves half a line.
            Err(_) if piece.unfinished => {
                all.notes
                    .push(format!("line {}, the last, is not whole: left out", piece.line));
                break;
            }
            Err(e) => return Err(wrong("line", format!("not JSON: {e}"))),
        };
        if object.contains_key("eval_loss") && !object.contains_key("loss") {
            continue;
        }
        let step = whole(&object, "step")
            .map_err(|problem| wrong("step", problem))?
            .ok_or_else(|| wrong("step", "is missing".to_owned()))?;
        let real = |field: &str| real(&object, field).map_err(|problem| wrong(field, problem));
        let loss = match object.get("loss") {
            None => return Err(wrong("loss", "is missing".to_owned())),
            // JSON has no NaN: it is written as null.
            Some(Value::Null) => f64::NAN,
            Some(_) => real("loss")?.unwrap_or(f64::NAN),
        };
        let point = Point {
            step,
            tokens: whole(&object, "tokens").map_err(|problem| wrong("tokens", problem))?,
            grad_norm: real("grad_norm")?,
            lr: real("lr")?,
            tokens_per_s: real("tokens_per_s")?,
            tflops_per_s: real("tflops_per_s")?,
            step_s: real("step_s")?,
            batch_fingerprint: object
                .get("batch_fingerprint")
                .and_then(Value::as_str)
                .map(str::to_owned),
            ..Point::default()
        };
        all.push(piece.line, point, Logged::exact(loss));
    }
    Ok(all)
}

fn whole(object: &Map<String, Value>, field: &str) -> Result<Option<u64>, String> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| format!("not a whole number: {value}")),
    }
}

fn real(object: &Map<String, Value>, field: &str) -> Result<Option<f64>, String> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_f64()
            .map(Some)
            .ok_or_else(|| format!("not a number: {value}")),
    }
}
