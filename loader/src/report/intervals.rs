//! Values with intervals, as inline SVG.

use std::fmt::Write as _;

use super::chart::ticks;
use super::svg::{open, text};

/// A value with an interval.
pub struct IntervalRow<'a> {
    /// Its name, left of it.
    pub name: &'a str,
    /// The value.
    pub value: f64,
    /// Ends of the interval.
    pub interval: Option<(f64, f64)>,
    /// Half-width of the spread, drawn as a pale bar.
    pub spread: Option<f64>,
    /// Draw it in full colour.
    pub strong: bool,
    /// Text behind it.
    pub text: String,
}

const WIDTH: f64 = 744.0;
const LEFT: f64 = 232.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
const EACH: f64 = 30.0;

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
    );
}

/// Values with intervals, a row each, on one axis with a line at 0.
pub fn intervals(label: &str, x_label: &str, rows: &[IntervalRow<'_>]) -> String {
    let height = TOP + EACH * rows.len() as f64 + BOTTOM;
    let ends = rows.iter().flat_map(|r| {
        let (low, high) = r.interval.unwrap_or((r.value, r.value));
        let spread = r.spread.unwrap_or(0.0);
        [low, high, r.value - spread, r.value + spread]
    });
    let (low, high) = ends
        .filter(|v| v.is_finite())
        .fold((0.0f64, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    let margin = ((high - low) * 0.05).max(1e-9);
    let (low, high) = (low - margin, high + margin);
    let x_of = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * ((x - low) / (high - low)).clamp(0.0, 1.0);
    let mut svg = open(WIDTH, height, label);
    let (marks, decimals) = ticks(low, high);
    for tick in marks {
        line(&mut svg, (x_of(tick), TOP), (x_of(tick), height - BOTTOM), "rule");
        text(
            &mut svg,
            x_of(tick),
            height - BOTTOM + 16.0,
            "middle",
            "tick",
            &format!("{tick:.decimals$}"),
        );
    }
    line(&mut svg, (x_of(0.0), TOP), (x_of(0.0), height - BOTTOM), "zero");
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + EACH * (i as f64 + 0.5);
        let colour = if row.strong { "#1f4e8c" } else { "#9aa5b1" };
        if let Some(spread) = row.spread {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"3\" fill=\"{colour}\" fill-opacity=\"0.18\"/>",
                x_of(row.value - spread),
                y - 7.0,
                x_of(row.value + spread) - x_of(row.value - spread)
            );
        }
        if let Some((from, to)) = row.interval {
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {y:.1}H{:.1}M{:.1} {:.1}v10M{:.1} {:.1}v10\" stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"none\"/>",
                x_of(from),
                x_of(to),
                x_of(from),
                y - 5.0,
                x_of(to),
                y - 5.0
            );
        }
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\"/>",
            x_of(row.value)
        );
        text(
            &mut svg,
            LEFT - 10.0,
            y + 4.0,
            "end",
            "legend",
            &shortened(row.name, 34),
        );
        text(
            &mut svg,
            WIDTH - RIGHT + 10.0,
            y + 4.0,
            "start",
            "tick",
            &row.text,
        );
    }
    text(
        &mut svg,
        LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        height - 6.0,
        "middle",
        "axis",
        x_label,
    );
    svg.push_str("</svg>\n");
    svg
}

fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let kept: String = name.chars().take(most - 1).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_what_they_are_given() {
        let row = |name, interval| IntervalRow {
            name,
            value: 0.1,
            interval,
            spread: Some(0.05),
            strong: interval.is_some(),
            text: "no <effect>".into(),
        };
        let svg = intervals(
            "effects",
            "difference",
            &[row("order", Some((-0.1, 0.3))), row("lr", None)],
        );
        assert!(svg.contains("class=\"zero\"") && svg.contains(">order<") && svg.contains("&lt;effect&gt;"));
        assert_eq!(svg.matches("<path").count(), 1);
        assert!(!svg.contains("NaN"));
        assert_eq!(shortened("abcdef", 4), "abc…");
    }
}
