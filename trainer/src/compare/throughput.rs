//! How fast a run was.

use serde::Serialize;

use super::curve::{Curve, Point};
use super::summary;

/// Rates of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// Seconds a step: the median over the records after the first steps, else the mean of the whole run.
    pub step_s: Option<f64>,
    /// Whether the step time is the mean of the whole run.
    pub step_s_is_mean_of_run: bool,
    /// Tokens per second on one device: the median over those records, else from the step time.
    pub tokens_per_s: Option<f64>,
    /// 10^12 operations per second on one device: the median over those records.
    pub tflops_per_s: Option<f64>,
    /// Seconds of the whole run, where the log sums up.
    pub run_s: Option<f64>,
    /// Records the medians are over.
    pub records: usize,
}

/// Medians over the records behind step `skip`; over all where there is none behind it.
pub fn throughput(curve: &Curve, skip: u64) -> Throughput {
    let later: Vec<&Point> = curve.points.iter().filter(|p| p.step > skip).collect();
    let used = if later.is_empty() {
        curve.points.iter().collect()
    } else {
        later
    };
    let median = |value: &dyn Fn(&Point) -> Option<f64>| {
        let values: Vec<f64> = used
            .iter()
            .filter_map(|p| value(p))
            .filter(|v| v.is_finite())
            .collect();
        summary::median(&values)
    };
    let of_run = curve
        .whole_run
        .filter(|(_, steps)| *steps > 0)
        .map(|(seconds, steps)| seconds / steps as f64);
    let by_record = median(&|p| p.step_s);
    let step_s = by_record.or(of_run);
    let tokens_per_step = curve.tokens_per_step.map(|tokens| tokens as f64).or_else(|| {
        let (first, last) = (curve.points.first()?, curve.points.last()?);
        let tokens = last.tokens?.checked_sub(first.tokens?)?;
        (last.step > first.step).then(|| tokens as f64 / (last.step - first.step) as f64)
    });
    let from_step = match (tokens_per_step, curve.devices.filter(|n| *n > 0), step_s) {
        (Some(tokens), Some(devices), Some(step_s)) if step_s > 0.0 => Some(tokens / step_s / devices as f64),
        _ => None,
    };
    Throughput {
        step_s,
        step_s_is_mean_of_run: by_record.is_none() && of_run.is_some(),
        tokens_per_s: median(&|p| p.tokens_per_s).or(from_step),
        tflops_per_s: median(&|p| p.tflops_per_s),
        run_s: curve.whole_run.map(|(seconds, _)| seconds),
        records: used.len(),
    }
}
