//! Curves over steps, with bands around them, as inline SVG.

use std::fmt::Write as _;

use super::svg::{escape, number, open, text};

/// Points drawn of a line at most: further ones are thinned out, their extremes kept.
const DRAWN: usize = 1600;

/// A line; it breaks where a value is not finite.
pub struct Line<'a> {
    /// Its name in the legend; without one it is not in the legend.
    pub name: &'a str,
    /// A CSS colour.
    pub colour: &'a str,
    /// Whether it is dashed.
    pub dashed: bool,
    /// Points, `x` ascending.
    pub points: Vec<(f64, f64)>,
}

/// A band: for each `x` the lowest and the highest value.
pub struct Band<'a> {
    /// A CSS colour.
    pub colour: &'a str,
    /// `x` ascending, low, high.
    pub points: Vec<(f64, f64, f64)>,
}

/// What a chart shows around its lines.
pub struct Frame<'a> {
    /// What the chart is, for those who cannot see it.
    pub label: &'a str,
    /// Below the horizontal axis.
    pub x_label: &'a str,
    /// Behind each number of the vertical axis.
    pub unit: &'a str,
    /// Shares of the values left out at both ends of the vertical axis, so that outliers do not flatten the rest.
    pub cut: f64,
}

const WIDTH: f64 = 744.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

/// The chart; empty where no value is finite.
pub fn lines(frame: &Frame<'_>, bands: &[Band<'_>], all: &[Line<'_>]) -> String {
    let xs = all
        .iter()
        .flat_map(|line| line.points.iter().map(|p| p.0))
        .chain(bands.iter().flat_map(|band| band.points.iter().map(|p| p.0)));
    let mut ys: Vec<f64> = all
        .iter()
        .flat_map(|line| line.points.iter().map(|p| p.1))
        .chain(
            bands
                .iter()
                .flat_map(|band| band.points.iter().flat_map(|p| [p.1, p.2])),
        )
        .filter(|y| y.is_finite())
        .collect();
    ys.sort_by(f64::total_cmp);
    let (x_low, x_high) = xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    let cut = (ys.len() as f64 * frame.cut) as usize;
    let (Some(&y_low), Some(&y_high)) = (ys.get(cut), ys.get(ys.len().saturating_sub(1 + cut))) else {
        return String::new();
    };
    let margin = ((y_high - y_low) * 0.04)
        .max(y_high.abs().max(y_low.abs()) * 1e-6)
        .max(1e-12);
    let (y_low, y_high) = (y_low - margin, y_high + margin);
    let x_of = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / (x_high - x_low).max(1e-9);
    let y_of = |y: f64| {
        let share = ((y - y_low) / (y_high - y_low)).clamp(-0.02, 1.02);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share)
    };
    let mut svg = open(WIDTH, HEIGHT, frame.label);
    let (y_ticks, decimals) = ticks(y_low, y_high);
    for tick in y_ticks {
        let y = y_of(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" class=\"rule\"/>",
            WIDTH - RIGHT
        );
        let words = format!("{tick:.decimals$}{}", frame.unit);
        text(&mut svg, LEFT - 6.0, y + 4.0, "end", "tick", &words);
    }
    for tick in ticks(x_low, x_high).0 {
        text(
            &mut svg,
            x_of(tick),
            HEIGHT - BOTTOM + 16.0,
            "middle",
            "tick",
            &number(tick),
        );
    }
    text(
        &mut svg,
        LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        HEIGHT - 6.0,
        "middle",
        "axis",
        frame.x_label,
    );
    for band in bands {
        let upper = band.points.iter().map(|p| (p.0, p.2));
        let lower = band.points.iter().rev().map(|p| (p.0, p.1));
        let corners: Vec<String> = upper
            .chain(lower)
            .filter(|(_, y)| y.is_finite())
            .map(|(x, y)| format!("{:.1},{:.1}", x_of(x), y_of(y)))
            .collect();
        let _ = writeln!(
            svg,
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.22\" stroke=\"none\"/>",
            corners.join(" "),
            band.colour
        );
    }
    let mut legend = LEFT;
    for line in all {
        let dash = if line.dashed {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        for piece in pieces(&line.points) {
            let points: Vec<String> = piece
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" stroke-linejoin=\"round\"{dash}/>",
                points.join(" "),
                line.colour
            );
        }
        if !line.name.is_empty() {
            let _ = writeln!(
                svg,
                "<rect x=\"{legend:.1}\" y=\"8\" width=\"14\" height=\"4\" fill=\"{}\"/>",
                line.colour
            );
            text(&mut svg, legend + 19.0, 14.0, "start", "legend", line.name);
            legend += 34.0 + 6.8 * line.name.chars().count() as f64;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Stretches of finite values, thinned out.
fn pieces(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    points
        .split(|(_, y)| !y.is_finite())
        .filter(|piece| !piece.is_empty())
        .map(|piece| {
            // A lone point is drawn as a short line.
            if let [(x, y)] = piece {
                return vec![(*x, *y), (*x, *y)];
            }
            thinned(piece)
        })
        .collect()
}

/// Of each stretch the lowest and the highest point, in their order.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= DRAWN {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(DRAWN + 2);
    for chunk in points.chunks(points.len().div_ceil(DRAWN / 2)) {
        let by = |other: bool| {
            let extreme = chunk.iter().enumerate().max_by(|(_, x), (_, y)| {
                let order = x.1.total_cmp(&y.1);
                if other { order.reverse() } else { order }
            });
            extreme.map(|(i, _)| i)
        };
        if let (Some(low), Some(high)) = (by(true), by(false)) {
            kept.push(chunk[low.min(high)]);
            if low != high {
                kept.push(chunk[low.max(high)]);
            }
        }
    }
    kept
}

/// Round numbers from `low` to `high`, about six of them, and the decimals they need.
pub(super) fn ticks(low: f64, high: f64) -> (Vec<f64>, usize) {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return (vec![low], 0);
    }
    let rough = span / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
    let first = (low / step).ceil();
    let count = ((high / step).floor() - first).clamp(0.0, 20.0) as u32;
    let all = (0..=count)
        .map(|i| {
            let tick = (first + f64::from(i)) * step;
            // No minus before zero.
            if tick.abs() < step * 1e-6 { 0.0 } else { tick }
        })
        .collect();
    (all, decimals)
}

/// The start of a page with the report's style, up to and with its heading.
pub fn begin_page(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{title}</title><style>{}</style></head>\n\
         <body><main>\n<h1>{title}</h1>\n",
        super::html::STYLE
    )
}

/// The end of a page.
pub fn end_page(page: &mut String) {
    let _ = write!(
        page,
        "<p class=\"dim\">Written by Ceteris {}; nothing on this page is loaded from elsewhere.</p>\n</main></body></html>\n",
        env!("CARGO_PKG_VERSION")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(2.96, 12.3), (vec![4.0, 6.0, 8.0, 10.0, 12.0], 0));
        assert_eq!(ticks(-0.21, 0.23), (vec![-0.2, -0.1, 0.0, 0.1, 0.2], 1));
        assert_eq!(ticks(3.0, 3.0).0, [3.0]);
        assert_eq!(ticks(f64::NEG_INFINITY, 1.0).0.len(), 1);
    }

    #[test]
    fn lines_break_where_a_value_is_none() {
        let found = pieces(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 2.0)]);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        let frame = Frame {
            label: "<x>",
            x_label: "step",
            unit: "",
            cut: 0.0,
        };
        let nothing = Line {
            name: "a",
            colour: "#000",
            dashed: false,
            points: vec![(1.0, f64::NAN)],
        };
        assert_eq!(lines(&frame, &[], &[nothing]), "");
    }

    #[test]
    fn thinning_keeps_the_extremes() {
        let points: Vec<(f64, f64)> = (0..100_000)
            .map(|i| (f64::from(i), if i == 77_777 { 9.0 } else { f64::from(i % 2) }))
            .collect();
        let kept = thinned(&points);
        assert!(kept.len() <= DRAWN + 2);
        assert!(kept.contains(&(77_777.0, 9.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
