//! Holding curves against each other, by step or by tokens.

use serde::Serialize;

use super::curve::{Curve, Point};
use super::summary;

/// What makes two points of two runs the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// The optimizer step.
    Steps,
    /// Tokens consumed; between two points of a curve the loss is interpolated linearly.
    Tokens,
}

impl Axis {
    /// Where a point lies.
    pub fn of(self, point: &Point) -> Option<u64> {
        match self {
            Axis::Steps => Some(point.step),
            Axis::Tokens => point.tokens,
        }
    }
}

/// A loss at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The loss.
    pub value: f64,
    /// Decimals that the log gives.
    pub decimals: u8,
}

/// Both losses of a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The place: a step or a number of tokens.
    pub at: u64,
    /// Loss of A.
    pub a: Loss,
    /// Loss of B.
    pub b: Loss,
}

impl Pair {
    /// (B − A) / A.
    pub fn relative(&self) -> f64 {
        (self.b.value - self.a.value) / self.a.value
    }

    /// Whether both losses are numbers.
    pub fn is_finite(&self) -> bool {
        self.a.value.is_finite() && self.b.value.is_finite()
    }
}

/// The loss of a curve at a place: of the point that lies there; by tokens also between two points.
pub fn loss_at(curve: &Curve, axis: Axis, at: u64) -> Option<Loss> {
    let place = |point: &Point| axis.of(point);
    let next = curve.points.partition_point(|p| place(p).is_some_and(|x| x < at));
    let point = curve.points.get(next)?;
    let x = place(point)?;
    if x == at {
        return Some(Loss {
            value: point.loss,
            decimals: point.loss_decimals,
        });
    }
    if axis == Axis::Steps {
        return None;
    }
    let before = curve.points.get(next.checked_sub(1)?)?;
    let x0 = place(before)?;
    let share = (at - x0) as f64 / (x - x0) as f64;
    Some(Loss {
        value: before.loss + share * (point.loss - before.loss),
        decimals: before.loss_decimals.min(point.loss_decimals),
    })
}

/// All places of A where B has a loss.
pub fn align(a: &Curve, b: &Curve, axis: Axis) -> Vec<Pair> {
    a.points
        .iter()
        .filter_map(|point| {
            let at = axis.of(point)?;
            Some(Pair {
                at,
                a: Loss {
                    value: point.loss,
                    decimals: point.loss_decimals,
                },
                b: loss_at(b, axis, at)?,
            })
        })
        .collect()
}

/// Steps between two records, the median; `None` of a single one.
pub fn interval(curve: &Curve) -> Option<f64> {
    let gaps: Vec<f64> = curve
        .points
        .windows(2)
        .map(|pair| (pair[1].step - pair[0].step) as f64)
        .collect();
    summary::median(&gaps)
}

/// The curve as a log with records at `steps` would show it: each loss the mean since the record before.
pub fn averaged(curve: &Curve, steps: &[u64]) -> Curve {
    let mut points = Vec::with_capacity(steps.len());
    let first_gap = match steps {
        [first, second, ..] => second - first,
        _ => u64::MAX,
    };
    let mut after = steps.first().map_or(0, |first| first.saturating_sub(first_gap));
    for &step in steps {
        let from = curve.points.partition_point(|p| p.step <= after && after > 0);
        let to = curve.points.partition_point(|p| p.step <= step);
        let of = &curve.points[from..to.max(from)];
        let losses: Vec<f64> = of.iter().map(|p| p.loss).collect();
        if let (Some(loss), Some(last)) = (summary::mean(&losses), of.last()) {
            points.push(Point {
                step,
                loss,
                ..last.clone()
            });
        }
        after = step;
    }
    Curve {
        points,
        ..curve.clone()
    }
}

/// The curve with each loss the mean of the last `records` ones: a step's batch makes its loss jump.
pub fn smoothed(curve: &Curve, records: usize) -> Curve {
    let records = records.max(1);
    let points = curve
        .points
        .iter()
        .enumerate()
        .map(|(i, point)| {
            let last = &curve.points[(i + 1).saturating_sub(records)..=i];
            let losses: Vec<f64> = last.iter().map(|p| p.loss).collect();
            Point {
                loss: summary::mean(&losses).unwrap_or(f64::NAN),
                ..point.clone()
            }
        })
        .collect();
    Curve {
        points,
        ..curve.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::curve::LogKind;

    pub(crate) fn curve(points: &[(u64, f64)]) -> Curve {
        Curve {
            name: "a".to_owned(),
            origin: "a".into(),
            kind: LogKind::Csv,
            points: points
                .iter()
                .map(|&(step, loss)| Point {
                    step,
                    tokens: Some(step * 10),
                    loss,
                    ..Point::default()
                })
                .collect(),
            whole_run: None,
            loss_divisor: 1.0,
            tokens_per_step: None,
            devices: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn steps_meet_exactly_and_tokens_between_points() {
        let a = curve(&[(1, 4.0), (2, 3.0), (4, 2.0)]);
        assert_eq!(loss_at(&a, Axis::Steps, 2).map(|l| l.value), Some(3.0));
        assert_eq!(loss_at(&a, Axis::Steps, 3), None);
        assert_eq!(loss_at(&a, Axis::Tokens, 30).map(|l| l.value), Some(2.5));
        assert_eq!(loss_at(&a, Axis::Tokens, 10).map(|l| l.value), Some(4.0));
        // Nothing is made up beyond the ends.
        assert_eq!(loss_at(&a, Axis::Tokens, 9), None);
        assert_eq!(loss_at(&a, Axis::Tokens, 41), None);
        let b = curve(&[(2, 3.3), (3, 1.0)]);
        let pairs = align(&a, &b, Axis::Steps);
        assert_eq!(pairs.len(), 1);
        assert!((pairs[0].relative() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn smoothing_looks_back() {
        let every = curve(&[(1, 4.0), (2, 2.0), (3, 3.0), (9, f64::NAN)]);
        let found: Vec<f64> = smoothed(&every, 2).points.iter().map(|p| p.loss).collect();
        assert_eq!(found[..3], [4.0, 3.0, 2.5]);
        assert!(found[3].is_nan());
        assert_eq!(smoothed(&every, usize::MAX).points[2].loss, 3.0);
    }

    #[test]
    fn means_are_those_of_a_coarser_log() {
        let every: Vec<(u64, f64)> = (1..=6).map(|s| (s, s as f64)).collect();
        let losses = |steps: &[u64]| -> Vec<f64> {
            averaged(&curve(&every), steps)
                .points
                .iter()
                .map(|p| p.loss)
                .collect()
        };
        assert_eq!(losses(&[2, 4, 6]), [1.5, 3.5, 5.5]);
        // A log that starts with step 1 on its own.
        assert_eq!(losses(&[1, 3, 6]), [1.0, 2.5, 5.0]);
    }
}
