//! The JSON report of a comparison; `docs/compare.md` says what each key holds.

use serde_json::{Value, json};

use super::align::{Loss, Pair};
use super::comparison::{Against, Comparison, Run};
use super::throughput::Throughput;
use super::words;

/// Version of the report; it moves with every key that changes its meaning.
pub const REPORT_VERSION: u32 = 1;

/// The report. Losses that are not finite are null.
pub fn report(comparison: &Comparison) -> Value {
    let runs: Vec<Value> = comparison
        .runs
        .iter()
        .zip(&comparison.throughput)
        .map(|(run, rates)| side(run, rates))
        .collect();
    let table: Vec<Value> = comparison
        .table
        .iter()
        .map(|row| {
            let a = row.losses.first().copied().flatten();
            let losses: Vec<Option<f64>> = row.losses.iter().map(|loss| loss.map(|l| l.value)).collect();
            let deltas: Vec<Option<f64>> = row.losses.iter().skip(1).map(|loss| delta(a, *loss)).collect();
            json!({ "at": row.at, "losses": losses, "delta_percent": deltas })
        })
        .collect();
    let against: Vec<Value> = comparison
        .against
        .iter()
        .map(|one| one_against(comparison, one))
        .collect();
    json!({
        "ceteris_compare": REPORT_VERSION,
        "ceteris": env!("CARGO_PKG_VERSION"),
        "passed": comparison.passed(),
        "align": comparison.axis,
        "skip_steps": comparison.skip_steps,
        "runs": runs,
        "table": table,
        "against": against,
        "notes": words::notes(comparison),
    })
}

fn delta(a: Option<Loss>, b: Option<Loss>) -> Option<f64> {
    let (a, b) = (a?.value, b?.value);
    Some(100.0 * (b - a) / a)
}

fn side(run: &Run, rates: &Throughput) -> Value {
    let curve = &run.curve;
    json!({
        "key": run.key,
        "name": curve.name,
        "origin": curve.origin.display().to_string(),
        "kind": curve.kind,
        "loss_divisor": curve.loss_divisor,
        "records": curve.points.len(),
        "first_step": curve.points.first().map(|p| p.step),
        "last_step": curve.points.last().map(|p| p.step),
        "tokens_per_step": curve.tokens_per_step,
        "devices": curve.devices,
        "repeats": run.repeats.iter().map(|r| r.origin.display().to_string()).collect::<Vec<_>>(),
        "throughput": rates,
    })
}

fn one_against(comparison: &Comparison, against: &Against) -> Value {
    let noise = against.noise.as_ref().map(|noise| {
        json!({
            "inside": noise.inside,
            "share_inside": noise.share_inside(),
            "share_inside_by_chance": noise.inside_by_chance,
            "gap_is_inside": noise.gap_is_inside(),
            "gap_over_std": noise.gap_over_std,
            "places": noise.places,
        })
    });
    let gate = against.gate.as_ref().map(|gate| {
        let at =
            |found: Option<(u64, f64)>| found.map(|(at, delta)| json!({ "at": at, "delta_percent": delta }));
        json!({
            "tolerance": gate.tolerance,
            "from": gate.from,
            "to": gate.to,
            "places": gate.places,
            "passed": gate.exceeded.is_none(),
            "exceeded": at(gate.exceeded),
            "places_beyond": gate.places_beyond,
            "widest": at(gate.widest),
        })
    });
    let series: Vec<Value> = against
        .pairs
        .iter()
        .map(|pair: &Pair| {
            json!({
                "at": pair.at,
                "a": pair.a.value,
                "b": pair.b.value,
                "delta_percent": 100.0 * pair.relative(),
            })
        })
        .collect();
    json!({
        "run": comparison.runs.get(against.run).map(|run| run.key.as_str()),
        "places": against.pairs.len(),
        "crossover": against.crossover,
        "windows": against.windows,
        "warmup": against.warmup,
        "noise": noise,
        "tolerance": gate,
        "series": series,
    })
}
