//! How the orders that are varied differ: each level of `order` against its first one.

use ceteris_loader::diff::compare::compare;
use ceteris_loader::diff::outcome::Comparison;
use ceteris_loader::diff::side::{Part, Side};
use ceteris_loader::report::{html, words};
use serde::Serialize;

use super::IsolateError;
use super::factors::{Base, Factor};
use super::hashes::Hasher;
use crate::data::TrainData;

/// Levels of an order that are compared with the first one, at most.
const MOST: usize = 6;

/// Two orders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderDiff {
    /// The first level.
    pub a: String,
    /// Another level.
    pub b: String,
    /// The kind of difference in a few words.
    pub headline: String,
    /// What it means, sentence by sentence.
    pub explanation: Vec<String>,
    /// Drawings and tables for a page.
    #[serde(skip)]
    pub html: String,
}

/// The micro-steps of the first `steps` optimizer steps.
///
/// # Errors
/// [`IsolateError::Data`].
pub fn parts(data: &TrainData, steps: u64) -> Result<Vec<Part>, IsolateError> {
    let (last, within) = data.place_of_step(steps)?;
    let whole = data.order.micro_steps_per_epoch();
    let mut parts: Vec<Part> = (0..last)
        .map(|epoch| Part {
            epoch,
            micro_steps: 0..whole,
        })
        .collect();
    if within > 0 {
        parts.push(Part {
            epoch: last,
            micro_steps: 0..within,
        });
    }
    Ok(parts)
}

/// Compares two orders over the same rows, over the steps of a run.
///
/// # Errors
/// [`IsolateError::Orders`].
pub fn compared(
    a: (&str, &TrainData),
    b: (&str, &TrainData),
    steps: u64,
) -> Result<Comparison, IsolateError> {
    let side = |(name, data): (&str, &TrainData)| -> Result<Side, IsolateError> {
        let parts = parts(data, steps)?;
        Side::of_order(
            name.to_owned(),
            &*data.order,
            None,
            data.fingerprint.clone(),
            (&parts, None),
            &|_| {},
        )
        .map_err(|e| IsolateError::Orders(e.to_string()))
    };
    compare(side(a)?, side(b)?, &|_, _| {}).map_err(|e| IsolateError::Orders(e.to_string()))
}

/// Each other level of `order` against the first one, everything else at its first level.
///
/// # Errors
/// [`IsolateError`].
pub fn differences(
    base: &Base<'_>,
    factors: &[Factor],
    hasher: &mut Hasher,
) -> Result<Vec<OrderDiff>, IsolateError> {
    let Some(which) = factors
        .iter()
        .position(|f| f.key == "order" || f.key.starts_with("order."))
    else {
        return Ok(Vec::new());
    };
    let factor = &factors[which];
    let mut open = |level: usize| -> Result<(TrainData, u64), IsolateError> {
        let mut levels = vec![0; factors.len()];
        levels[which] = level;
        let config = base.cell(factors, &levels)?.config;
        let data = hasher.data(&config, &mut |_| {})?;
        let steps = data.steps(&config);
        Ok((data, steps))
    };
    let (first, steps) = open(0)?;
    let mut out = Vec::new();
    for level in 1..factor.levels.len().min(MOST) {
        let (other, _) = open(level)?;
        let (a, b) = (&factor.levels[0], &factor.levels[level]);
        let comparison = compared((a, &first), (b, &other), steps)?;
        out.push(OrderDiff {
            a: a.clone(),
            b: b.clone(),
            headline: words::headline(&comparison),
            explanation: words::explanation(&comparison),
            html: html::sections(&comparison),
        });
    }
    Ok(out)
}
