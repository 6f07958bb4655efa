//! The report on a terminal.

use std::fmt::Write as _;

use super::report::Report;
use super::sentence::{percent, signed};

/// Sentence, proof, variance and effects.
pub fn report(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n", wrapped(&report.sentence));
    out.push_str(&variance(report));
    out.push_str(&effects(report));
    for line in report.confounding.iter().chain(&report.notes) {
        let _ = writeln!(out, "{}", wrapped(line));
    }
    if !report.factors.is_empty() {
        let _ = write!(out, "\nhashes moved by each factor\n{}", report.proof.table());
    }
    for order in &report.orders {
        let _ = writeln!(out, "\norder {} against {}: {}", order.b, order.a, order.headline);
    }
    out
}

/// Columns of the tables: the chosen steps and the area.
pub(super) fn heads(report: &Report) -> Vec<String> {
    report
        .responses
        .iter()
        .map(|r| r.step.map_or("area".to_owned(), |s| format!("step {s}")))
        .collect()
}

/// Rows of the variance table: name, one share a response, the share by chance.
pub(super) fn variance_rows(report: &Report) -> Vec<Vec<String>> {
    let Some(first) = report.responses.first() else {
        return Vec::new();
    };
    first
        .variance
        .iter()
        .enumerate()
        .map(|(i, share)| {
            let mut row = vec![share.name.clone()];
            row.extend(report.responses.iter().map(|r| percent(r.variance[i].of.share)));
            row.push(percent(share.of.by_chance));
            row
        })
        .collect()
}

fn variance(report: &Report) -> String {
    if report.factors.is_empty() {
        return String::new();
    }
    let mut rows = vec![vec!["share of the variance".to_owned()]];
    rows[0].extend(heads(report));
    rows[0].push("by chance".to_owned());
    rows.extend(variance_rows(report));
    let mut mean = vec!["mean loss".to_owned()];
    mean.extend(report.responses.iter().map(|r| format!("{:.4}", r.mean)));
    let mut deviation = vec!["standard deviation over the runs".to_owned()];
    deviation.extend(
        report
            .responses
            .iter()
            .map(|r| r.standard_deviation.map_or(String::new(), |d| format!("{d:.4}"))),
    );
    rows.extend([mean, deviation]);
    table(&rows)
}

/// Rows of the effects table.
pub(super) fn effect_rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for response in &report.responses {
        let head = response.step.map_or("area".to_owned(), |s| format!("step {s}"));
        for effect in response.effects.iter().chain(&response.interactions) {
            let of = &effect.of;
            rows.push(vec![
                effect.name.clone(),
                head.clone(),
                signed(of.difference),
                of.interval.map_or("no replicates".to_owned(), |(low, high)| {
                    format!("{} to {}", signed(low), signed(high))
                }),
                of.spread.map_or(String::new(), |s| format!("{s:.4}")),
                of.replicates.to_string(),
                if of.exactly_zero {
                    "exactly 0"
                } else if of.shown {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
            ]);
        }
    }
    // Effect by effect, each over the steps.
    rows.sort_by_key(|row| {
        let first = &report.responses[0];
        let at = first
            .effects
            .iter()
            .chain(&first.interactions)
            .position(|e| e.name == row[0]);
        at.unwrap_or(usize::MAX)
    });
    rows
}

/// Heads of the effects table.
pub(super) fn effect_heads(report: &Report) -> Vec<String> {
    [
        "difference in loss".to_owned(),
        "at".to_owned(),
        "mean".to_owned(),
        format!("{:.0} % interval", report.confidence * 100.0),
        "spread".to_owned(),
        "pairs".to_owned(),
        "shown".to_owned(),
    ]
    .into()
}

fn effects(report: &Report) -> String {
    let rows = effect_rows(report);
    if rows.is_empty() {
        return String::new();
    }
    let mut all = vec![effect_heads(report)];
    let mut last = String::new();
    for mut row in rows {
        if row[0] == last {
            row[0].clear();
        } else {
            last.clone_from(&row[0]);
        }
        all.push(row);
    }
    format!("\n{}", table(&all))
}

/// Columns side by side: the first to the left, the others to the right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|t| t.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let line: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(c, text)| {
                let wide = widths[c];
                if c == 0 {
                    format!("{text:wide$}")
                } else {
                    format!("{text:>wide$}")
                }
            })
            .collect();
        let _ = writeln!(out, "{}", line.join("  ").trim_end());
    }
    out
}

/// Text broken between words.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 110;
    let (mut out, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        let long = word.chars().count();
        if length > 0 && length + 1 + long > WIDTH {
            out.push('\n');
            length = 0;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += long;
    }
    out
}
