//! What a command says before and after its data: which data, which order, what an epoch is. As text for
//! reading and as JSON with the same content.

use std::fmt::Write as _;
use std::sync::Arc;

use ceteris_samplers::{Epoch, Order};
use serde_json::{Value, json};

use super::failure::Failure;
use super::order_args::OrderChoice;
use super::plan::Plan;
pub use crate::report::words::{count, grouped as group};

/// Ids written out in text before "and n more".
const SHOWN: usize = 16;
/// Columns of a label, and of the text beside it.
const LABEL: usize = 12;
const WIDTH: usize = 100;

/// Labelled lines, aligned, and the same as JSON.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    lines: Vec<(&'static str, String)>,
    json: serde_json::Map<String, Value>,
}

impl Sheet {
    /// Adds one line of text; an empty label continues the line before.
    pub fn line(&mut self, label: &'static str, text: impl Into<String>) {
        self.lines.push((label, text.into()));
    }

    /// Adds one JSON entry.
    pub fn entry(&mut self, key: &str, value: impl Into<Value>) {
        self.json.insert(key.to_string(), value.into());
    }

    /// The lines as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (label, line) in &self.lines {
            let mut label = *label;
            for line in wrap(line, WIDTH) {
                let _ = writeln!(text, "{label:<LABEL$} {line}");
                label = "";
            }
        }
        text
    }

    /// The entries as a JSON object.
    pub fn json(&self) -> Value {
        Value::Object(self.json.clone())
    }
}

/// Writes order, layout and epochs into a sheet.
///
/// # Errors
/// A failure when the first epoch cannot be built.
pub fn describe_order(
    sheet: &mut Sheet,
    choice: &OrderChoice,
    order: &dyn Order,
    plan: &Plan,
) -> Result<(), Failure> {
    let (spec, entry) = (order.spec(), order.spec().entry());
    sheet.line("order", spec.to_string());
    sheet.line("", entry.summary);
    sheet.line("source", entry.source);
    sheet.line("for whom", entry.for_whom);
    sheet.entry("order", serde_json::to_value(spec)?);
    let seeds: Vec<String> = spec
        .seeds()
        .iter()
        .map(|(what, seed)| format!("{what} {seed}"))
        .collect();
    if !seeds.is_empty() {
        sheet.line("seeds", seeds.join(", "));
    }
    let layout = order.geometry();
    let mut text = format!(
        "{} x micro-batch {} x accumulation {} = {} a step",
        count(layout.world_size, "rank"),
        layout.micro_batch_size,
        layout.gradient_accumulation_steps,
        count(layout.global_batch_size(), "sample")
    );
    if layout != choice.geometry {
        let _ = write!(
            text,
            " (micro-batch {} is split over the ranks)",
            choice.geometry.micro_batch_size
        );
    }
    sheet.line("layout", text);
    sheet.entry("world_size", layout.world_size);
    sheet.entry("micro_batch_size", layout.micro_batch_size);
    sheet.entry("gradient_accumulation_steps", layout.gradient_accumulation_steps);
    sheet.entry("global_batch_size", layout.global_batch_size());

    sheet.line(
        "epoch",
        format!(
            "{}, {}",
            count(order.steps_per_epoch(), "step"),
            count(order.micro_steps_per_epoch(), "micro-step")
        ),
    );
    sheet.entry("steps_per_epoch", order.steps_per_epoch());
    sheet.entry("micro_steps_per_epoch", order.micro_steps_per_epoch());
    let first = plan.first.0;
    let ends = EpochEnds::of(&order.epoch(first)?);
    for line in ends.lines() {
        sheet.line("", line);
    }
    sheet.entry("epoch", first);
    sheet.entry("num_padded", order.num_padded());
    sheet.entry("num_dropped", order.num_dropped());
    Ok(())
}

/// What the end of an epoch repeats or leaves out.
#[derive(Clone, Debug)]
pub struct EpochEnds {
    epoch: u64,
    padded: Vec<(u64, u64)>,
    dropped: Vec<u64>,
}

impl EpochEnds {
    /// Reads them off an epoch.
    pub fn of(index: &Arc<dyn Epoch>) -> Self {
        let padded = index.padded();
        // Padding lies at the end of the deal: walk back from there for the rows.
        let mut rows = Vec::with_capacity(padded.len());
        let mut end = deal_len(index);
        while rows.len() < padded.len() && end > 0 {
            end -= 1;
            let row = index.place_of(end).and_then(|place| index.sample(place));
            rows.push(row.unwrap_or(u64::MAX));
        }
        rows.reverse();
        Self {
            epoch: index.epoch(),
            padded: padded.into_iter().zip(rows).collect(),
            dropped: index.dropped(),
        }
    }

    /// Sentences for reading.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.padded.is_empty() && self.dropped.is_empty() {
            lines.push(format!(
                "epoch {}: no sample is repeated, none is dropped",
                self.epoch
            ));
        }
        if !self.padded.is_empty() {
            let positions: Vec<u64> = self.padded.iter().map(|(position, _)| *position).collect();
            let rows: Vec<u64> = self.padded.iter().map(|(_, row)| *row).collect();
            lines.push(format!(
                "epoch {}: {} padded at its end by samples it already had: positions {}; rows {}",
                self.epoch,
                group(positions.len() as u64),
                some_of(&positions),
                some_of(&rows)
            ));
        }
        if !self.dropped.is_empty() {
            lines.push(format!(
                "epoch {}: {} dropped at its end: positions {}",
                self.epoch,
                group(self.dropped.len() as u64),
                some_of(&self.dropped)
            ));
        }
        lines
    }

    /// Sentences on the epochs after the first, which the header has: those that repeat or drop something, the first
    /// few of them.
    pub fn lines_of_later(all: &[Self]) -> Vec<String> {
        let later = all
            .iter()
            .skip(1)
            .filter(|ends| !ends.padded.is_empty() || !ends.dropped.is_empty());
        let mut lines: Vec<String> = later.clone().take(SHOWN / 2).flat_map(Self::lines).collect();
        let more = later.count().saturating_sub(SHOWN / 2);
        if more > 0 {
            lines.push(format!("and likewise {}", count(more as u64, "more epoch")));
        }
        lines
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        json!({
            "epoch": self.epoch,
            "padded_positions": self.padded.iter().map(|(position, _)| *position).collect::<Vec<u64>>(),
            "padded_rows": self.padded.iter().map(|(_, row)| *row).collect::<Vec<u64>>(),
            "dropped_positions": self.dropped,
        })
    }
}

/// Deal indices of an epoch: the first one that no place has.
fn deal_len(index: &Arc<dyn Epoch>) -> u64 {
    let (mut low, mut high) = (0u64, 1u64);
    while index.place_of(high - 1).is_some() {
        low = high;
        high = high.saturating_mul(2);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if index.place_of(middle).is_some() {
            low = middle + 1
        } else {
            high = middle
        }
    }
    low
}

/// Breaks a sentence between words into lines of at most `width` characters (longer only where a word is).
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
        }
        used += len;
    }
    lines
}

/// The first few of a list, and how many more there are.
pub fn some_of(values: &[u64]) -> String {
    let shown: Vec<String> = values.iter().take(SHOWN).map(u64::to_string).collect();
    let more = values.len().saturating_sub(SHOWN);
    if more == 0 {
        shown.join(", ")
    } else {
        format!("{} and {} more", shown.join(", "), group(more as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists_are_readable() {
        assert_eq!(
            [0, 999, 1000, 1234567].map(group),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(some_of(&[]), "");
        assert_eq!(some_of(&[3, 1]), "3, 1");
        let long: Vec<u64> = (0..2016).collect();
        assert!(some_of(&long).ends_with("14, 15 and 2,000 more"));
    }

    #[test]
    fn sentences_break_between_words() {
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable a b", 4), ["unbreakable", "a b"]);
        assert_eq!([count(1, "step"), count(2000, "step")], ["1 step", "2,000 steps"]);
    }

    #[test]
    fn lines_are_aligned() {
        let mut sheet = Sheet::default();
        sheet.line("order", "fla");
        sheet.line("", "more");
        sheet.entry("samples", 3);
        assert_eq!(sheet.text(), "order        fla\n             more\n");
        assert_eq!(sheet.json(), json!({"samples": 3}));
    }
}
