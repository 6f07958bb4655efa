//! The page: one file, drawings inline, nothing loaded from anywhere.

use std::fmt::Write as _;

use ceteris_loader::report::chart::{self, Band, Frame, Line};
use ceteris_loader::report::intervals::{IntervalRow, intervals};
use ceteris_loader::report::svg::{Series, escape, shares};

use super::effects::Effects;
use super::factors::Part;
use super::markdown::short;
use super::report::{Report, Response};
use super::sentence::signed;
use super::text::{effect_heads, effect_rows, heads, variance_rows};

/// Colours of lines, in turn.
const COLOURS: [&str; 8] = [
    "#1f4e8c", "#d0782a", "#2e7d4f", "#c05746", "#7a5195", "#8c6d31", "#3a9ea5", "#6b7785",
];
/// Points of a curve, at most.
const POINTS: usize = 600;
/// Levels of a factor that get a curve each, at most.
const LEVELS: usize = 8;

/// The page.
pub fn page(report: &Report) -> String {
    let mut page = chart::begin_page("What explains the difference in loss");
    verdict(&mut page, report);
    if !report.factors.is_empty() {
        variance(&mut page, report);
        effects(&mut page, report);
        curves(&mut page, report);
    }
    proof(&mut page, report);
    for order in &report.orders {
        let _ = writeln!(
            page,
            "<h1>Order: {} (B) against {} (A)</h1>{}",
            escape(&order.b),
            escape(&order.a),
            order.html
        );
    }
    runs(&mut page, report);
    chart::end_page(&mut page);
    page
}

fn verdict(page: &mut String, report: &Report) {
    let bad = report.null_check.as_ref().is_some_and(|c| !c.exact) || report.proof.flagged().next().is_some();
    let badge = match (&report.null_check, bad) {
        (_, true) => ("other", "not to be trusted as it stands"),
        (Some(_), false) => (
            "same",
            "isolated: each factor moved its own hash alone; repeating a run gave the same bits",
        ),
        (None, false) => (
            "near",
            "isolated: each factor moved its own hash alone; no run was repeated",
        ),
    };
    let _ = writeln!(
        page,
        "<section><p><span class=\"badge {}\">{}</span></p><p><b>{}</b></p>",
        badge.0,
        badge.1,
        escape(&report.sentence)
    );
    if let Some(last) = report.last() {
        for line in last.sentences.iter().skip(1) {
            let _ = writeln!(page, "<p>{}</p>", escape(line));
        }
    }
    for line in report.confounding.iter().chain(&report.notes) {
        let _ = writeln!(page, "<p>{}</p>", escape(line));
    }
    let factors: Vec<String> = report
        .factors
        .iter()
        .map(|f| format!("<code>{}={}</code>", escape(&f.key), escape(&f.levels.join(","))))
        .collect();
    let _ = writeln!(
        page,
        "<p class=\"dim\">{} runs of {} steps{}</p></section>",
        report.runs.len(),
        report.steps,
        if factors.is_empty() {
            String::new()
        } else {
            format!("; varied: {}", factors.join(" "))
        }
    );
}

fn table(page: &mut String, heads: &[String], rows: &[Vec<String>]) {
    page.push_str("<div class=\"scroll\"><table class=\"num\"><tr>");
    for head in heads {
        let _ = write!(page, "<th>{}</th>", escape(head));
    }
    page.push_str("</tr>");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>");
}

fn variance(page: &mut String, report: &Report) {
    let names: Vec<&str> = report.responses.first().map_or(Vec::new(), |r| {
        r.variance.iter().map(|s| s.name.as_str()).collect()
    });
    let series: Vec<Series<'_>> = names
        .iter()
        .enumerate()
        .take(COLOURS.len())
        .map(|(i, name)| Series {
            name,
            colour: COLOURS[i],
            points: report
                .variance_over_steps
                .iter()
                .map(|m| (m.step as f64, m.shares[i]))
                .collect(),
        })
        .collect();
    // The legend has room for one row.
    let (mut shown, mut wide) = (0, 0.0);
    for one in &series {
        wide += 34.0 + 6.6 * one.name.chars().count() as f64;
        if wide > 652.0 {
            break;
        }
        shown += 1;
    }
    let _ = write!(
        page,
        "<section><h2>Where the variance between the runs lies</h2>{}",
        shares(
            "Shares of the variance over steps",
            "step",
            report.steps as f64,
            &series[..shown.max(1)]
        )
    );
    let mut columns = vec!["share of the variance".to_owned()];
    columns.extend(heads(report));
    columns.push("by chance".to_owned());
    table(page, &columns, &variance_rows(report));
    page.push_str(
        "<p class=\"dim\">By chance: the share that an effect of nothing has in the mean, from its degrees of freedom.</p></section>\n",
    );
}

fn effects(page: &mut String, report: &Report) {
    let Some(last) = report.last() else { return };
    let rows: Vec<IntervalRow<'_>> = last
        .effects
        .iter()
        .chain(&last.interactions)
        .map(|effect| IntervalRow {
            name: &effect.name,
            value: effect.of.difference,
            interval: effect.of.interval,
            spread: effect.of.spread,
            strong: effect.of.shown,
            text: if effect.of.exactly_zero {
                "exactly 0".to_owned()
            } else if effect.of.interval.is_none() {
                format!("{} (no replicates)", signed(effect.of.difference))
            } else if effect.of.shown {
                format!("{} shown", signed(effect.of.difference))
            } else {
                "no effect shown".to_owned()
            },
        })
        .collect();
    let _ = write!(
        page,
        "<section><h2>Differences at step {}</h2>{}<p class=\"dim\">Dot: mean difference in loss; whiskers: {:.0} % interval; pale \
         bar: spread of the differences over the seeds. Grey: not shown.</p>",
        last.step.unwrap_or(report.steps),
        intervals("Differences with intervals", "difference in loss", &rows),
        report.confidence * 100.0
    );
    page.push_str("<details><summary>At all chosen steps</summary>");
    table(page, &effect_heads(report), &effect_rows(report));
    let _ = writeln!(
        page,
        "</details><p class=\"dim\">{}</p></section>",
        escape(&report.method)
    );
}

/// A name, and over `x` the lower end, the middle and the upper end.
type Banded = (String, Vec<(f64, f64, f64, f64)>);

/// Lines with bands; `zero` draws a line at 0.
fn drawing(label: &str, all: &[Banded], zero: bool) -> String {
    let bands: Vec<Band<'_>> = all
        .iter()
        .zip(COLOURS)
        .filter(|((_, points), _)| points.iter().any(|p| p.1 < p.3))
        .map(|((_, points), colour)| Band {
            colour,
            points: points.iter().map(|p| (p.0, p.1, p.3)).collect(),
        })
        .collect();
    let mut lines: Vec<Line<'_>> = all
        .iter()
        .zip(COLOURS)
        .map(|((name, points), colour)| Line {
            name,
            colour,
            dashed: false,
            points: points.iter().map(|p| (p.0, p.2)).collect(),
        })
        .collect();
    if let (true, Some((first, last))) = (zero, ends(all)) {
        lines.push(Line {
            name: "",
            colour: "#5a6b7b",
            dashed: true,
            points: vec![(first, 0.0), (last, 0.0)],
        });
    }
    let frame = Frame {
        label,
        x_label: "step",
        unit: "",
        cut: 0.0,
    };
    chart::lines(&frame, &bands, &lines)
}

/// First and last `x`.
fn ends(all: &[Banded]) -> Option<(f64, f64)> {
    let (_, points) = all.first()?;
    Some((points.first()?.0, points.last()?.0))
}

/// Steps that are drawn.
fn drawn(steps: u64) -> Vec<usize> {
    let steps = steps as usize;
    let every = steps.div_ceil(POINTS).max(1);
    (0..steps)
        .filter(|i| i.is_multiple_of(every) || *i + 1 == steps)
        .collect()
}

fn curves(page: &mut String, report: &Report) {
    let at = drawn(report.steps);
    let effects = Effects::new(&report.design, &report.seeds, report.confidence);
    for (which, factor) in report.factors.iter().enumerate() {
        let lines: Vec<Banded> = (0..factor.levels.len().min(LEVELS))
            .map(|level| {
                let own: Vec<&Vec<f64>> = report
                    .runs
                    .iter()
                    .filter(|r| r.levels[which] == level)
                    .map(|r| &r.losses)
                    .collect();
                let points = at
                    .iter()
                    .map(|&i| {
                        let mean = own.iter().map(|l| l[i]).sum::<f64>() / own.len().max(1) as f64;
                        let low = own.iter().map(|l| l[i]).fold(f64::INFINITY, f64::min);
                        let high = own.iter().map(|l| l[i]).fold(f64::NEG_INFINITY, f64::max);
                        (i as f64 + 1.0, low, mean, high)
                    })
                    .collect();
                (format!("{} ({} runs)", factor.levels[level], own.len()), points)
            })
            .collect();
        let _ = write!(
            page,
            "<section><h2>{}</h2>{}<p class=\"dim\">Mean loss of each level; band: smallest and largest loss of its runs.</p>",
            escape(&factor.key),
            drawing(&format!("Loss by {}", factor.key), &lines, false)
        );
        differences(page, report, which, &at, &effects);
        page.push_str("</section>\n");
    }
}

/// Each level against the first one, over the steps.
fn differences(page: &mut String, report: &Report, which: usize, at: &[usize], effects: &Effects<'_>) {
    let factor = &report.factors[which];
    let mut lines: Vec<Banded> = (1..factor.levels.len().min(LEVELS))
        .map(|level| {
            (
                format!("{} against {}", factor.levels[level], factor.levels[0]),
                Vec::new(),
            )
        })
        .collect();
    let mut bounded = false;
    for &i in at {
        let response: Vec<f64> = report.runs.iter().map(|r| r.losses[i]).collect();
        let found = effects.main(&response);
        for effect in found
            .iter()
            .filter(|e| e.factors == [which] && e.levels[0] < LEVELS)
        {
            let (low, high) = effect.interval.unwrap_or((effect.difference, effect.difference));
            bounded |= effect.interval.is_some();
            if let Some((_, points)) = lines.get_mut(effect.levels[0] - 1) {
                points.push((i as f64 + 1.0, low, effect.difference, high));
            }
        }
    }
    // A band far wider than the differences would hide them.
    let largest = lines
        .iter()
        .flat_map(|(_, p)| p)
        .map(|p| p.2.abs())
        .fold(0.0, f64::max);
    let limit = 4.0 * largest;
    for point in lines.iter_mut().flat_map(|(_, p)| p) {
        (point.1, point.3) = (point.1.max(-limit), point.3.min(limit));
    }
    let _ = write!(
        page,
        "{}<p class=\"dim\">Difference in loss{}.</p>",
        drawing(&format!("Differences by {}", factor.key), &lines, true),
        if bounded {
            format!(
                "; band: {:.0} % interval, cut off at four times the largest difference",
                report.confidence * 100.0
            )
        } else {
            ", without interval: no other seed is varied".to_owned()
        }
    );
}

fn proof(page: &mut String, report: &Report) {
    if report.factors.is_empty() {
        return;
    }
    page.push_str("<section><h2>Hashes moved by each factor</h2>");
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
    table(page, &columns, &rows);
    page.push_str(
        "<p class=\"dim\">Different hashes of each part of a run as the factor turns, the others at their first levels; 1 is a part \
         that stood still.</p>",
    );
    for turned in &report.proof.factors {
        for line in turned.along.iter().chain(&turned.notes) {
            let _ = writeln!(page, "<p>{}: {}</p>", escape(&turned.factor), escape(line));
        }
    }
    if let Some(check) = &report.null_check {
        let _ = writeln!(
            page,
            "<p>Null check: <code>{}</code> run twice, {} steps: {}.</p>",
            escape(&check.run),
            check.steps,
            match check.first_difference {
                None => "difference exactly 0".to_owned(),
                Some(step) => format!(
                    "differs from step {step} on, by up to {:e}",
                    check.largest_difference
                ),
            }
        );
    }
    page.push_str("</section>\n");
}

fn runs(page: &mut String, report: &Report) {
    page.push_str("<section><h2>Runs</h2>");
    let name = |r: &Response| r.step.map_or("area".to_owned(), |s| format!("step {s}"));
    let mut columns = vec!["run".to_owned()];
    columns.extend(report.responses.iter().map(name));
    columns.extend(["order".to_owned(), "init".to_owned(), "model".to_owned()]);
    let rows: Vec<Vec<String>> = report
        .runs
        .iter()
        .enumerate()
        .map(|(i, run)| {
            let mut row = vec![run.name.clone()];
            row.extend(report.responses.iter().map(|r| format!("{:.4}", r.values[i])));
            row.extend([Part::Order, Part::Init, Part::Model].map(|p| short(run.hashes.of(p))));
            row
        })
        .collect();
    table(page, &columns, &rows);
    page.push_str("<details><summary>All hashes of all runs</summary><pre>");
    for run in &report.runs {
        let _ = writeln!(
            page,
            "{}  ({}, {})",
            escape(&run.name),
            escape(&run.device),
            escape(&run.folder.display().to_string())
        );
        for part in Part::ALL {
            let _ = writeln!(page, "  {:9}  {}", part.name(), escape(run.hashes.of(part)));
        }
    }
    page.push_str("</pre></details><details><summary>Settings of the first run</summary><pre>");
    page.push_str(&escape(
        &serde_json::to_string_pretty(&report.settings).unwrap_or_default(),
    ));
    page.push_str("</pre></details>");
    page.push_str("</section>\n");
}
