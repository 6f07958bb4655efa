//! The page of a comparison: one file, drawings inline, nothing loaded from anywhere.

use std::fmt::Write as _;

use ceteris_loader::report::chart::{self, Band, Frame, Line};
use ceteris_loader::report::svg::escape;

use super::align::Axis;
use super::comparison::{Against, Comparison};
use super::curve::Curve;
use super::noise;
use super::table::{self, Digits, Table, heading};
use super::{text, words};

/// Colours of the runs, in turn.
const COLOURS: [&str; 8] = [
    "#1f4e8c", "#d0782a", "#2e7d4f", "#c05746", "#7a5195", "#8c6d31", "#3a9ea5", "#6b7785",
];

fn colour(run: usize) -> &'static str {
    COLOURS[run % COLOURS.len()]
}

/// The page.
pub fn page(comparison: &Comparison, digits: Digits) -> String {
    let mut page = chart::begin_page(&text::title(comparison));
    verdict(&mut page, comparison, digits);
    losses(&mut page, comparison);
    gaps(&mut page, comparison);
    page.push_str("<section><h2>Losses</h2>");
    table_html(&mut page, &table::losses(comparison, digits));
    page.push_str("</section>\n");
    if let Some(rates) = table::throughput(comparison, digits) {
        page.push_str("<section><h2>Throughput</h2>");
        table_html(&mut page, &rates);
        let _ = writeln!(
            page,
            "<p class=\"dim\">Medians over the records after step {}.</p></section>",
            comparison.skip_steps
        );
    }
    page.push_str("<section><h2>Averages</h2>");
    for against in &comparison.against {
        table_html(&mut page, &words::windows(comparison, against, digits));
    }
    page.push_str("</section>\n");
    let notes = words::notes(comparison);
    if !notes.is_empty() {
        page.push_str("<section><h2>Notes</h2>");
        for note in notes {
            let _ = writeln!(page, "<p>{}</p>", escape(&note));
        }
        page.push_str("</section>\n");
    }
    chart::end_page(&mut page);
    page
}

fn verdict(page: &mut String, comparison: &Comparison, digits: Digits) {
    page.push_str("<section>");
    if comparison.against.iter().any(|against| against.gate.is_some()) {
        let (class, words) = if comparison.passed() {
            ("same", "within tolerance")
        } else {
            ("other", "tolerance exceeded")
        };
        let _ = writeln!(page, "<p><span class=\"badge {class}\">{words}</span></p>");
    }
    for run in &comparison.runs {
        let _ = writeln!(page, "<p class=\"dim\">{}</p>", escape(&words::run(run)));
    }
    for against in &comparison.against {
        for sentence in words::sentences(comparison, against, digits) {
            let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
        }
    }
    page.push_str("</section>\n");
}

fn table_html(page: &mut String, table: &Table) {
    let row = |page: &mut String, cells: &[String], tag: &str| {
        page.push_str("<tr>");
        for cell in cells {
            let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
        }
        page.push_str("</tr>\n");
    };
    page.push_str("<table>");
    row(page, &table.head, "th");
    for cells in &table.rows {
        row(page, cells, "td");
    }
    page.push_str("</table>\n");
}

fn x_label(axis: Axis) -> &'static str {
    match axis {
        Axis::Steps => "step",
        Axis::Tokens => "tokens",
    }
}

/// Where the later part of the run starts, which has a drawing of its own: the warm-up's loss would flatten it.
fn later(comparison: &Comparison) -> Option<u64> {
    let against = comparison.against.first()?;
    let (first, last) = (against.pairs.first()?.at, against.pairs.last()?.at);
    let tenth = first + (last - first) / 10;
    let from = against.warmup.map_or(tenth, |warmup| warmup.ends_at.max(tenth));
    let places = against.pairs.iter().filter(|pair| pair.at >= from).count();
    (places >= 4 && places < against.pairs.len()).then_some(from)
}

fn losses(page: &mut String, comparison: &Comparison) {
    let chart = |from: u64, label: &str| {
        let mut lines = Vec::new();
        let mut bands = Vec::new();
        for (i, run) in comparison.runs.iter().enumerate() {
            lines.push(Line {
                name: heading(comparison, i),
                colour: colour(i),
                dashed: false,
                points: points(&run.curve, comparison.axis, from),
            });
            if !run.repeats.is_empty() {
                bands.push(Band {
                    colour: colour(i),
                    points: points(&run.curve, comparison.axis, from)
                        .iter()
                        .filter_map(|&(x, _)| {
                            let band = noise::band(&run.curve, &run.repeats, comparison.axis, x as u64)?;
                            Some((x, band.min, band.max))
                        })
                        .collect(),
                });
            }
        }
        let frame = Frame {
            label,
            x_label: x_label(comparison.axis),
            unit: "",
            cut: 0.0,
        };
        chart::lines(&frame, &bands, &lines)
    };
    let _ = write!(page, "<section><h2>Loss</h2>{}", chart(0, "Loss of each run"));
    if comparison.runs.iter().any(|run| !run.repeats.is_empty()) {
        page.push_str(
            "<p class=\"dim\">Shaded: from the lowest to the highest of a run and its repeats.</p>",
        );
    }
    if let Some(from) = later(comparison) {
        let _ = write!(
            page,
            "</section>\n<section><h2>Loss from {} {from} on</h2>{}",
            x_label(comparison.axis),
            chart(from, "Loss of each run after warm-up")
        );
    }
    page.push_str("</section>\n");
}

fn points(curve: &Curve, axis: Axis, from: u64) -> Vec<(f64, f64)> {
    curve
        .points
        .iter()
        .filter_map(|p| Some((axis.of(p)?, p.loss)))
        .filter(|(at, _)| *at >= from)
        .map(|(at, loss)| (at as f64, loss))
        .collect()
}

fn gaps(page: &mut String, comparison: &Comparison) {
    let a = heading(comparison, 0);
    let chart = |from: u64, label: &str| {
        let of = |against: &Against| -> Vec<(f64, f64)> {
            against
                .pairs
                .iter()
                .filter(|pair| pair.at >= from)
                .map(|pair| (pair.at as f64, 100.0 * pair.relative()))
                .collect()
        };
        let names: Vec<String> = comparison
            .against
            .iter()
            .map(|against| format!("{} against {a}", heading(comparison, against.run)))
            .collect();
        let mut lines: Vec<Line<'_>> = comparison
            .against
            .iter()
            .zip(&names)
            .map(|(against, name)| Line {
                name,
                colour: colour(against.run),
                dashed: false,
                points: of(against),
            })
            .collect();
        let ends = lines.iter().flat_map(|line| line.points.iter().map(|p| p.0));
        let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        let mut level = |value: f64, colour: &'static str| {
            lines.push(Line {
                name: "",
                colour,
                dashed: true,
                points: vec![(low, value), (high, value)],
            });
        };
        level(0.0, "#6b7785");
        if let Some(gate) = comparison.against.iter().find_map(|against| against.gate) {
            level(100.0 * gate.tolerance, "#b3382c");
            level(-100.0 * gate.tolerance, "#b3382c");
        }
        let frame = Frame {
            label,
            x_label: x_label(comparison.axis),
            unit: " %",
            cut: 0.0,
        };
        chart::lines(&frame, &[], &lines)
    };
    let _ = write!(
        page,
        "<section><h2>Gap, in percent of {}</h2>{}",
        escape(a),
        chart(0, "Gap")
    );
    if let Some(from) = later(comparison) {
        let _ = write!(
            page,
            "</section>\n<section><h2>Gap from {} {from} on</h2>{}",
            x_label(comparison.axis),
            chart(from, "Gap after warm-up")
        );
    }
    page.push_str("</section>\n");
}
