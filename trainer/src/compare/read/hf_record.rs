//! The fields of a record of the Hugging Face `Trainer` (and of FLA's callback on it), whichever way it was written.

use super::literal::Literal;
use super::number::Logged;
use crate::compare::curve::Point;

/// A record that holds a training loss.
#[derive(Debug)]
pub(super) struct Record {
    /// Step, where the record has it.
    pub step: Option<u64>,
    /// Loss as logged.
    pub loss: Logged,
    /// The rest; its step is 0.
    pub point: Point,
    /// Epochs done.
    pub epoch: Option<f64>,
    /// Seconds since the start of the process.
    pub runtime: Option<f64>,
    /// Tokens per second of all devices together, a mean since the start of the process.
    pub tokens_per_s_of_all: Option<f64>,
}

/// What a dict of the log is.
#[derive(Debug)]
pub(super) enum Found {
    /// A step.
    Step(Record),
    /// The sums at the end of training: seconds, and steps per second.
    End {
        /// Seconds.
        seconds: f64,
        /// Steps per second.
        steps_per_s: Option<f64>,
    },
    /// Evaluations and everything else.
    Other,
}

/// Looks at a dict.
///
/// # Errors
/// The field that is wrong, and how.
pub(super) fn look_at(dict: &Literal) -> Result<Found, (String, String)> {
    let number = |key: &str| -> Result<Option<Logged>, (String, String)> {
        match dict.get(key) {
            None | Some(Literal::Nothing) => Ok(None),
            Some(value) => match value.number() {
                Some(number) => Ok(Some(number)),
                None => Err((key.to_owned(), format!("not a number: {}", value.describe()))),
            },
        }
    };
    let real = |key: &str| number(key).map(|n| n.map(|n| n.value));
    let whole = |key: &str| -> Result<Option<u64>, (String, String)> {
        match real(key)? {
            None => Ok(None),
            // What a f64 counts exactly.
            Some(value) if value >= 0.0 && value.fract() == 0.0 && value < 9e15 => Ok(Some(value as u64)),
            Some(value) => Err((key.to_owned(), format!("not a count: {value}"))),
        }
    };
    let Some(loss) = number("loss")? else {
        return Ok(match (real("train_runtime")?, dict.get("train_loss")) {
            (Some(seconds), Some(_)) => Found::End {
                seconds,
                steps_per_s: real("train_steps_per_second")?,
            },
            _ => Found::Other,
        });
    };
    let step = match whole("step")? {
        Some(step) => Some(step),
        // FLA's trainer_log.jsonl.
        None => whole("current_steps")?,
    };
    let tokens = match whole("num_input_tokens_seen")? {
        Some(tokens) => Some(tokens),
        None => whole("num_tokens")?,
    };
    Ok(Found::Step(Record {
        step,
        loss,
        epoch: real("epoch")?,
        runtime: real("train_runtime")?,
        tokens_per_s_of_all: real("train_tokens_per_second")?,
        point: Point {
            tokens,
            grad_norm: real("grad_norm")?,
            lr: real("learning_rate")?,
            // FLA's callback: tokens over ranks and seconds since the start.
            tokens_per_s: real("throughput")?,
            ..Point::default()
        },
    }))
}
