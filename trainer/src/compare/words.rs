//! What a comparison says, in sentences: the same in the terminal, in Markdown and on the page.

use super::align::Axis;
use super::comparison::{Against, Comparison, Run};
use super::gap::{self, Gate, WarmupBy, Window};
use super::noise::Noise;
use super::table::{Digits, Table, heading};

/// `step 100` or `100 tokens`.
fn place(axis: Axis, at: u64) -> String {
    match axis {
        Axis::Steps => format!("step {at}"),
        Axis::Tokens => format!("{at} tokens"),
    }
}

/// One run in a line: its letter, name, what wrote the log, how much there is.
pub fn run(run: &Run) -> String {
    let curve = &run.curve;
    let (first, last) = match (curve.points.first(), curve.points.last()) {
        (Some(first), Some(last)) => (first.step, last.step),
        _ => (0, 0),
    };
    let mut text = format!(
        "{}: {} ({}, {}): {} records, steps {first} to {last}",
        run.key,
        curve.name,
        curve.origin.display(),
        curve.kind.name(),
        curve.points.len()
    );
    if curve.loss_divisor != 1.0 {
        text.push_str(&format!("; losses divided by {}", curve.loss_divisor));
    }
    if !run.repeats.is_empty() {
        text.push_str(&format!("; {} repeats", run.repeats.len()));
    }
    text
}

/// What a reader should know of the logs and of how they were held together.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut all = Vec::new();
    for run in &comparison.runs {
        all.extend(run.curve.notes.iter().map(|note| format!("{}: {note}", run.key)));
        for (i, repeat) in run.repeats.iter().enumerate() {
            let of = |note: &String| format!("{}, repeat {}: {note}", run.key, i + 1);
            all.extend(repeat.notes.iter().map(of));
        }
    }
    for (run, rates) in comparison.runs.iter().zip(&comparison.throughput) {
        if rates.step_s_is_mean_of_run {
            all.push(format!("{}: the step time is the mean of the whole run", run.key));
        }
    }
    all.extend(comparison.notes.iter().cloned());
    all
}

/// Sentences on one run against the first.
pub fn sentences(comparison: &Comparison, against: &Against, digits: Digits) -> Vec<String> {
    let axis = comparison.axis;
    let (a, b) = (heading(comparison, 0), heading(comparison, against.run));
    let mut all = Vec::new();
    all.push(match &against.crossover {
        None => no_crossover(against, a, b),
        Some(cross) => format!(
            "First crossover at {}: {b} {} {a}{}.",
            place(axis, cross.first_at),
            if cross.b_falls_below {
                "falls below"
            } else {
                "rises above"
            },
            match cross.count {
                1 => String::new(),
                n => format!(" ({n} crossovers in all)"),
            }
        ),
    });
    if let Some(warmup) = &against.warmup {
        let by = match warmup.found_by {
            WarmupBy::Given => "as given",
            WarmupBy::LearningRate => "where the learning rate peaks",
            WarmupBy::Tenth => "taken as a tenth of the run",
        };
        all.push(format!(
            "Warm-up (to {}, {by}): the gap is widest at {}, {} %. {}",
            place(axis, warmup.ends_at),
            place(axis, warmup.widest_at),
            digits.percent(warmup.widest_delta_percent),
            match warmup.closed_from {
                Some(at) => format!(
                    "From {} on it stays within {} %.",
                    place(axis, at),
                    percent_of(warmup.tolerance)
                ),
                None => format!(
                    "It does not come to stay within {} %.",
                    percent_of(warmup.tolerance)
                ),
            }
        ));
    }
    all.extend(against.noise.as_ref().map(|noise| noise_sentence(noise, a, b)));
    all.extend(
        against
            .gate
            .as_ref()
            .map(|gate| gate_sentence(gate, axis, a, b, digits)),
    );
    all
}

fn no_crossover(against: &Against, a: &str, b: &str) -> String {
    let finite = || against.pairs.iter().filter(|pair| pair.is_finite());
    if finite().all(|pair| pair.a.value == pair.b.value) {
        return format!("{b} is exactly {a} at every place: no crossover.");
    }
    match finite().find(|pair| pair.relative().abs() >= gap::EQUAL) {
        None => format!("No crossover: {b} and {a} differ by less than 0.005 % at every place."),
        Some(pair) => format!(
            "No crossover: {b} lies {} {a} wherever they differ by 0.005 % or more.",
            if pair.relative() < 0.0 { "below" } else { "above" }
        ),
    }
}

fn noise_sentence(noise: &Noise, a: &str, b: &str) -> String {
    let most =
        |side: &dyn Fn(&super::noise::Bands) -> usize| noise.places.iter().map(side).max().unwrap_or(0);
    let (runs_a, runs_b) = (most(&|bands| bands.a.runs), most(&|bands| bands.b.runs));
    let mut text = format!(
        "Run-to-run noise ({runs_a} of {a}, {runs_b} of {b}): the gap lies inside the band of repeats at {:.0} % of the places; \
         runs that differ by chance alone would at {:.0} %: {}.",
        100.0 * noise.share_inside(),
        100.0 * noise.inside_by_chance,
        if noise.gap_is_inside() {
            "the gap is no larger than the noise"
        } else {
            "the gap is larger than the noise"
        }
    );
    if let Some(ratio) = noise.gap_over_std {
        text.push_str(&format!(
            " Half of the places have a gap of more than {ratio:.2} standard deviations."
        ));
    }
    text
}

fn gate_sentence(gate: &Gate, axis: Axis, a: &str, b: &str, digits: Digits) -> String {
    let checked = format!(
        "{} places from {} to {}",
        gate.places,
        place(axis, gate.from),
        place(axis, gate.to)
    );
    match gate.exceeded {
        None => format!(
            "Within tolerance: {b} stays within {} % of {a} at all {checked}{}.",
            percent_of(gate.tolerance),
            gate.widest.map_or_else(String::new, |(at, delta)| format!(
                " (widest: {} %, {})",
                digits.percent(delta),
                place(axis, at)
            ))
        ),
        Some((at, delta)) => format!(
            "TOLERANCE EXCEEDED: {b} first leaves {} % of {a} at {} ({}); beyond it at {} of {checked}.",
            percent_of(gate.tolerance),
            place(axis, at),
            if delta.is_finite() {
                format!("{} %", digits.percent(delta))
            } else {
                "a loss is not a finite number".to_owned()
            },
            gate.places_beyond
        ),
    }
}

/// 0.01 is 1 %.
fn percent_of(share: f64) -> String {
    let text = format!("{:.6}", 100.0 * share);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Averages of one run against the first.
pub fn windows(comparison: &Comparison, against: &Against, digits: Digits) -> Table {
    let decimals = usize::from(digits.loss.unwrap_or(4));
    let row = |window: &Window| {
        vec![
            format!("{} to {}", window.from, window.to),
            window.places.to_string(),
            format!("{:.decimals$}", window.a),
            format!("{:.decimals$}", window.b),
            digits.percent(window.delta_percent),
            format!(
                "{:.1$}",
                window.mean_abs_delta_percent,
                usize::from(digits.percent)
            ),
        ]
    };
    Table {
        head: [
            "Average over",
            "places",
            &format!("{} loss", heading(comparison, 0)),
            &format!("{} loss", heading(comparison, against.run)),
            "Δ %",
            "mean abs Δ %",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: against.windows.iter().map(row).collect(),
    }
}
