//! A comparison as text for the terminal and as Markdown.

use super::comparison::Comparison;
use super::table::{self, Digits, Table, heading};
use super::words;

/// For the terminal.
pub fn text(comparison: &Comparison, digits: Digits) -> String {
    let mut out = String::new();
    for run in &comparison.runs {
        out.push_str(&format!("{}\n", words::run(run)));
    }
    body(&mut out, comparison, digits, "");
    out
}

/// As a Markdown document.
pub fn markdown(comparison: &Comparison, digits: Digits) -> String {
    let mut out = format!("## {}\n\n", title(comparison));
    for run in &comparison.runs {
        out.push_str(&format!("- {}\n", words::run(run)));
    }
    body(&mut out, comparison, digits, "- ");
    out
}

/// `fla against primus`.
pub(super) fn title(comparison: &Comparison) -> String {
    let names: Vec<&str> = (0..comparison.runs.len())
        .map(|run| heading(comparison, run))
        .collect();
    format!("Loss curves: {}", names.join(", "))
}

fn body(out: &mut String, comparison: &Comparison, digits: Digits, bullet: &str) {
    let table = |out: &mut String, table: &Table| out.push_str(&format!("\n{}", table.render()));
    if let Some(rates) = table::throughput(comparison, digits) {
        table(out, &rates);
    }
    table(out, &table::losses(comparison, digits));
    for against in &comparison.against {
        table(out, &words::windows(comparison, against, digits));
        out.push('\n');
        for sentence in words::sentences(comparison, against, digits) {
            out.push_str(&format!("{bullet}{sentence}\n"));
        }
    }
    let notes = words::notes(comparison);
    if !notes.is_empty() {
        out.push('\n');
        for note in notes {
            out.push_str(&format!("{bullet}note: {note}\n"));
        }
    }
}
