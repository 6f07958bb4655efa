//! The few drawings a report needs, as inline SVG: lines over a stretch, bars, a map of counts, coloured cells.

use std::fmt::Write as _;

/// Text with what HTML and SVG take for markup written out.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A line of a chart; `y` goes from 0 to 1.
pub struct Series<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// A CSS colour.
    pub colour: &'a str,
    /// Points, `x` ascending.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

pub(super) fn open(width: f64, height: f64, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
        escape(words)
    );
}

/// Shares from 0 to 100 % over `x` from 0 to `end`.
pub fn shares(label: &str, x_label: &str, end: f64, series: &[Series<'_>]) -> String {
    let mut svg = open(WIDTH, HEIGHT, label);
    let x_of = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * (x / end.max(1e-9)).clamp(0.0, 1.0);
    let y_of = |y: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - y.clamp(0.0, 1.0));
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        let y = y_of(share);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" class=\"rule\"/>",
            WIDTH - RIGHT
        );
        text(
            &mut svg,
            LEFT - 6.0,
            y + 4.0,
            "end",
            "tick",
            &format!("{:.0} %", share * 100.0),
        );
    }
    for x in ticks(end) {
        text(
            &mut svg,
            x_of(x),
            HEIGHT - BOTTOM + 16.0,
            "middle",
            "tick",
            &number(x),
        );
    }
    text(
        &mut svg,
        LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
        HEIGHT - 6.0,
        "middle",
        "axis",
        x_label,
    );
    let mut legend = LEFT;
    for line in series {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>",
            points.join(" "),
            line.colour
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{legend:.1}\" y=\"8\" width=\"14\" height=\"4\" fill=\"{}\"/>",
            line.colour
        );
        text(&mut svg, legend + 19.0, 14.0, "start", "legend", line.name);
        legend += 34.0 + 6.6 * line.name.chars().count() as f64;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Round numbers from 0 to `end`, about six of them.
fn ticks(end: f64) -> Vec<f64> {
    if end <= 0.0 {
        return vec![0.0];
    }
    let rough = end / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
        .max(1.0);
    let count = (end / step).floor() as u32;
    (0..=count).map(|i| f64::from(i) * step).collect()
}

/// A number for an axis: 1500000 is 1.5M.
pub fn number(x: f64) -> String {
    let (value, unit) = match x {
        x if x >= 1e9 => (x / 1e9, "G"),
        x if x >= 1e6 => (x / 1e6, "M"),
        x if x >= 1e4 => (x / 1e3, "k"),
        x => (x, ""),
    };
    let text = format!("{value:.1}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Bars with a name below each.
pub fn bars(label: &str, x_label: &str, bars: &[(String, u64)]) -> String {
    let (height, total) = (220.0, bars.iter().map(|(_, n)| *n).sum::<u64>().max(1));
    let largest = bars.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1);
    let mut svg = open(WIDTH, height, label);
    let width = ((WIDTH - LEFT - RIGHT) / bars.len().max(1) as f64).min(72.0);
    for (i, (name, n)) in bars.iter().enumerate() {
        let tall = (height - TOP - BOTTOM) * *n as f64 / largest as f64;
        let x = LEFT + width * i as f64;
        let y = height - BOTTOM - tall;
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#4878a8\"><title>{}: {n}</title></rect>",
            x + width * 0.1,
            width * 0.8,
            escape(name)
        );
        if *n > 0 {
            let share = 100.0 * *n as f64 / total as f64;
            let words = if share < 0.5 {
                "<1 %".to_owned()
            } else {
                format!("{share:.0} %")
            };
            text(&mut svg, x + width / 2.0, y - 4.0, "middle", "tick", &words);
        }
        text(
            &mut svg,
            x + width / 2.0,
            height - BOTTOM + 16.0,
            "middle",
            "tick",
            name,
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

/// Counts as a map of shades, `counts[row][column]`, the first row at the bottom (or at the top). Shades follow the
/// square root, so that thin spreads show beside dense lines.
pub fn map(
    label: &str,
    axes: (&str, &str),
    counts: &[u64],
    columns: usize,
    first_row_on_top: bool,
) -> String {
    let columns = columns.max(1);
    let rows = counts.len() / columns;
    let cell = (420.0 / rows.max(columns).max(1) as f64).clamp(4.0, 40.0);
    let (left, top) = (46.0, 8.0);
    let (width, height) = (
        left + cell * columns as f64 + 8.0,
        top + cell * rows as f64 + 40.0,
    );
    let largest = counts.iter().max().copied().unwrap_or(0).max(1) as f64;
    let mut svg = open(width, height, label);
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" class=\"frame\"/>",
        cell * columns as f64,
        cell * rows as f64
    );
    // Rows and columns that stand for something countable are numbered.
    if rows.max(columns) <= 16 {
        for column in 0..columns {
            let x = left + cell * (column as f64 + 0.5);
            text(
                &mut svg,
                x,
                top + cell * rows as f64 + 13.0,
                "middle",
                "tick",
                &column.to_string(),
            );
        }
        for row in 0..rows {
            let shown = if first_row_on_top { row } else { rows - 1 - row };
            let y = top + cell * (row as f64 + 0.5) + 4.0;
            text(&mut svg, left - 4.0, y, "end", "tick", &shown.to_string());
        }
    }
    for (i, &n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
        let (row, column) = (i / columns, i % columns);
        let row = if first_row_on_top { row } else { rows - 1 - row };
        let shade = (n as f64 / largest).sqrt();
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" fill=\"#1f4e8c\" fill-opacity=\"{shade:.3}\"><title>{n}</title></rect>",
            left + cell * column as f64,
            top + cell * row as f64
        );
    }
    text(
        &mut svg,
        left + cell * columns as f64 / 2.0,
        height - 10.0,
        "middle",
        "axis",
        axes.0,
    );
    let y = top + cell * rows as f64 / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"18\" y=\"{y:.1}\" text-anchor=\"middle\" class=\"axis\" transform=\"rotate(-90 18 {y:.1})\">{}</text>",
        escape(axes.1)
    );
    svg.push_str("</svg>\n");
    svg
}

/// A coloured cell of [`cells`].
pub struct Cell {
    /// Row, from the top.
    pub row: usize,
    /// Column.
    pub column: usize,
    /// A CSS colour.
    pub colour: &'static str,
    /// What hovering shows.
    pub title: String,
}

/// Cells in labelled rows; `gaps` are columns before which a gap is left.
pub fn cells(label: &str, rows: &[String], columns: usize, gap_every: usize, all: &[Cell]) -> String {
    let gaps = columns.checked_div(gap_every).unwrap_or(0);
    let cell = (640.0 / (columns.max(1) as f64 + gaps as f64 * 0.4)).clamp(3.0, 22.0);
    let (left, top) = (76.0, 8.0);
    let x_of = |column: usize| {
        left + cell * (column as f64 + 0.4 * column.checked_div(gap_every).unwrap_or(0) as f64)
    };
    let (width, height) = (x_of(columns) + 8.0, top + (cell + 3.0) * rows.len() as f64 + 8.0);
    let mut svg = open(width, height, label);
    for (i, name) in rows.iter().enumerate() {
        let y = top + (cell + 3.0) * i as f64 + cell / 2.0 + 4.0;
        text(&mut svg, left - 8.0, y, "end", "tick", name);
    }
    for one in all {
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{cell:.1}\" fill=\"{}\"><title>{}</title></rect>",
            x_of(one.column),
            top + (cell + 3.0) * one.row as f64,
            cell - 1.0,
            one.colour,
            escape(&one.title)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_written_out() {
        assert_eq!(
            escape("<a href='x'>&\"</a>"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;&lt;/a&gt;"
        );
        let svg = bars("x<y", "n", &[("<0>".to_owned(), 3)]);
        assert!(!svg.contains("<0>") && svg.contains("&lt;0&gt;"));
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(83.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(ticks(0.0), [0.0]);
        assert_eq!(
            [0.0, 20.0, 15_000.0, 1.5e6, 2e9].map(number),
            ["0", "20", "15k", "1.5M", "2G"]
        );
    }
}
