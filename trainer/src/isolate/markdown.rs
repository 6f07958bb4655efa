//! The report as Markdown, for an issue or a pull request.

use std::fmt::Write as _;

use super::factors::Part;
use super::report::Report;
use super::text::{effect_heads, effect_rows, heads, variance_rows};

/// The report.
pub fn report(report: &Report) -> String {
    let mut out = format!("**{}**\n", escape(&report.sentence));
    if !report.factors.is_empty() {
        let mut columns = vec!["share of the variance".to_owned()];
        columns.extend(heads(report));
        columns.push("by chance".to_owned());
        out.push_str("\n### Variance between the runs\n\n");
        table(&mut out, &columns, &variance_rows(report));
        out.push_str("\n### Differences\n\n");
        table(&mut out, &effect_heads(report), &effect_rows(report));
        let _ = writeln!(out, "\n{}", escape(&report.method));
    }
    for response in report.responses.iter().filter(|r| r.sentences.len() > 1) {
        out.push('\n');
        for line in &response.sentences {
            let _ = writeln!(out, "- {}", escape(line));
        }
    }
    for line in report.confounding.iter().chain(&report.notes) {
        let _ = writeln!(out, "\n{}", escape(line));
    }
    if !report.factors.is_empty() {
        out.push_str("\n### Hashes moved\n\n");
        let mut columns = vec!["factor".to_owned(), "levels".to_owned()];
        columns.extend(Part::ALL.iter().map(|p| p.name().to_owned()));
        let rows: Vec<Vec<String>> = report
            .proof
            .factors
            .iter()
            .map(|turned| {
                let mut row = vec![turned.factor.clone(), turned.levels.to_string()];
                row.extend(turned.distinct.iter().map(|(_, n)| n.to_string()));
                row
            })
            .collect();
        table(&mut out, &columns, &rows);
        for turned in &report.proof.factors {
            for line in turned.along.iter().chain(&turned.notes) {
                let _ = writeln!(out, "\n{}: {}", turned.factor, escape(line));
            }
        }
    }
    for order in &report.orders {
        let _ = writeln!(
            out,
            "\n### Order {} against {}\n\n{}. {}",
            escape(&order.b),
            escape(&order.a),
            escape(&order.headline),
            escape(&order.explanation.join(" "))
        );
    }
    out.push_str("\n### Runs\n\n");
    let mut columns = vec!["run".to_owned()];
    columns.extend(report.responses.iter().map(|r| r.name.clone()));
    columns.push("order hash".to_owned());
    columns.push("init hash".to_owned());
    let rows: Vec<Vec<String>> = report
        .runs
        .iter()
        .enumerate()
        .map(|(i, run)| {
            let mut row = vec![run.name.clone()];
            row.extend(report.responses.iter().map(|r| format!("{:.6}", r.values[i])));
            row.push(short(run.hashes.of(Part::Order)));
            row.push(short(run.hashes.of(Part::Init)));
            row
        })
        .collect();
    table(&mut out, &columns, &rows);
    out
}

/// The start of a hash, enough to tell it from others on sight.
pub(super) fn short(hash: &str) -> String {
    hash.chars().take(10).collect()
}

fn table(out: &mut String, heads: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|c| escape(c)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(heads));
    out.push_str(&format!("|{}\n", "---|".repeat(heads.len())));
    rows.iter().for_each(|row| out.push_str(&line(row)));
}

/// What Markdown would take for markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
