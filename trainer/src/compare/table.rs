//! The two tables of a comparison, as text: rows of `|`-separated cells, aligned, which is Markdown as well.

use super::align::{Axis, Loss};
use super::comparison::Comparison;
use super::rows::Row;

/// How numbers are printed.
#[derive(Clone, Copy, Debug)]
pub struct Digits {
    /// Decimals of losses; as many as the log gives, four at most, where `None`.
    pub loss: Option<u8>,
    /// Decimals of percentages.
    pub percent: u8,
}

impl Default for Digits {
    fn default() -> Self {
        Digits {
            loss: None,
            percent: 2,
        }
    }
}

impl Digits {
    /// A loss.
    pub fn loss(self, loss: Loss) -> String {
        let decimals = usize::from(self.loss.unwrap_or(loss.decimals));
        if loss.value.is_finite() {
            format!("{:.decimals$}", loss.value)
        } else {
            format!("{}", loss.value)
        }
    }

    /// A difference in percent, with its sign.
    pub fn percent(self, value: f64) -> String {
        let decimals = usize::from(self.percent);
        if value.is_finite() {
            format!("{value:+.decimals$}")
        } else {
            "–".to_owned()
        }
    }
}

/// A table of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Headings.
    pub head: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Rows with `|` between cells, the first column to the left, numbers to the right.
    pub fn render(&self) -> String {
        let cells =
            |row: &[String]| -> Vec<String> { row.iter().map(|cell| cell.replace('|', "\\|")).collect() };
        let head = cells(&self.head);
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| cells(row)).collect();
        let width = |column: usize| {
            std::iter::once(&head)
                .chain(&rows)
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(3)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |row: &[String]| {
            let cells: Vec<String> = widths
                .iter()
                .enumerate()
                .map(|(i, &width)| {
                    let cell = row.get(i).map_or("", String::as_str);
                    if i == 0 {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = line(&head);
        let rules: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(i, width)| {
                if i == 0 {
                    "-".repeat(*width)
                } else {
                    format!("{}:", "-".repeat(width - 1))
                }
            })
            .collect();
        out.push_str(&line(&rules));
        for row in &rows {
            out.push_str(&line(row));
        }
        out
    }
}

/// What a run is called in a heading.
pub fn heading(comparison: &Comparison, run: usize) -> &str {
    comparison.runs.get(run).map_or("", |run| run.curve.name.as_str())
}

/// Losses at chosen places.
pub fn losses(comparison: &Comparison, digits: Digits) -> Table {
    let mut head = vec![match comparison.axis {
        Axis::Steps => "Iteration".to_owned(),
        Axis::Tokens => "Tokens".to_owned(),
    }];
    for run in 0..comparison.runs.len() {
        head.push(format!("{} loss", heading(comparison, run)));
        if run > 0 {
            head.push("Δ %".to_owned());
        }
    }
    let rows = comparison.table.iter().map(|row| cells(row, digits)).collect();
    Table { head, rows }
}

fn cells(row: &Row, digits: Digits) -> Vec<String> {
    let none = || "–".to_owned();
    let a = row.losses.first().copied().flatten();
    let mut cells = vec![row.at.to_string()];
    for (run, loss) in row.losses.iter().enumerate() {
        cells.push(loss.map_or_else(none, |loss| digits.loss(loss)));
        if run > 0 {
            cells.push(match (a, loss) {
                (Some(a), Some(b)) => digits.percent(100.0 * (b.value - a.value) / a.value),
                _ => none(),
            });
        }
    }
    cells
}

/// Rates side by side; rows that no log knows are left out.
pub fn throughput(comparison: &Comparison, digits: Digits) -> Option<Table> {
    let mut head = vec!["Throughput".to_owned()];
    for run in 0..comparison.runs.len() {
        head.push(heading(comparison, run).to_owned());
        if run > 0 {
            head.push("Δ %".to_owned());
        }
    }
    let rates = &comparison.throughput;
    let mut rows = Vec::new();
    let mut row = |name: &str, values: Vec<Option<f64>>, print: &dyn Fn(f64) -> String| {
        if values.iter().all(Option::is_none) {
            return;
        }
        let mut cells = vec![name.to_owned()];
        for (run, value) in values.iter().enumerate() {
            cells.push(value.map_or_else(|| "–".to_owned(), print));
            if run > 0 {
                cells.push(match (values[0], value) {
                    (Some(a), Some(b)) => digits.percent(100.0 * (b - a) / a),
                    _ => "–".to_owned(),
                });
            }
        }
        rows.push(cells);
    };
    row(
        "Step time (ms)",
        rates.iter().map(|r| r.step_s.map(|s| s * 1000.0)).collect(),
        &|ms| format!("{ms:.1}"),
    );
    row(
        "Tokens/s per device",
        rates.iter().map(|r| r.tokens_per_s).collect(),
        &|rate| {
            if rate >= 1000.0 {
                ceteris_loader::report::words::grouped(rate.round() as u64)
            } else {
                format!("{rate:.1}")
            }
        },
    );
    row(
        "TFLOP/s per device",
        rates.iter().map(|r| r.tflops_per_s).collect(),
        &|rate| {
            if rate >= 1.0 {
                format!("{rate:.1}")
            } else {
                format!("{rate:.4}")
            }
        },
    );
    row("Whole run", rates.iter().map(|r| r.run_s).collect(), &clock);
    (!rows.is_empty()).then_some(Table { head, rows })
}

/// `1h 53m 42s`.
fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let (hours, minutes, seconds_left) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds:.1}s"),
        (0, _) => format!("{minutes}m {seconds_left:02}s"),
        _ => format!("{hours}h {minutes:02}m {seconds_left:02}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let digits = Digits::default();
        let loss = |value, decimals| digits.loss(Loss { value, decimals });
        assert_eq!(loss(11.92253, 4), "11.9225");
        assert_eq!(loss(8.3, 2), "8.30");
        assert_eq!(loss(f64::NAN, 4), "NaN");
        assert_eq!(digits.percent(-0.0017), "-0.00");
        assert_eq!(digits.percent(28.512), "+28.51");
        assert_eq!(digits.percent(f64::NAN), "–");
        assert_eq!(clock(6840.0), "1h 54m 00s");
        assert_eq!(clock(75.4), "1m 15s");
        assert_eq!(clock(2.25), "2.2s");
    }

    #[test]
    fn tables_are_markdown() {
        let table = Table {
            head: vec!["Iteration".to_owned(), "a|b loss".to_owned()],
            rows: vec![vec!["1".to_owned(), "3.1".to_owned()]],
        };
        assert_eq!(
            table.render(),
            "| Iteration | a\\|b loss |\n| --------- | --------: |\n| 1         |       3.1 |\n"
        );
    }
}
