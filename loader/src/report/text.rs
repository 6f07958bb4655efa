//! The text report of a comparison.

use std::fmt::Write as _;

use super::words::{self, count, grouped, percent, place};
use crate::diff::outcome::{About, Comparison};
use crate::diff::tokens::TokenDifference;

const LABEL: usize = 12;
const WIDTH: usize = 108;
/// Documents listed in text; JSON lists up to 1000.
const DOCUMENTS: usize = 20;

/// The report.
pub fn report(comparison: &Comparison) -> String {
    let mut text = Lines::default();
    let Comparison {
        a, b, stats, first, ..
    } = comparison;
    text.add("A", &about(a));
    text.add("B", &about(b));
    text.add("verdict", &words::headline(comparison));
    for sentence in words::explanation(comparison) {
        text.add("", &sentence);
    }
    if let Some(first) = first {
        let at = match (&first.a, &first.b) {
            (Some(at), _) => place(at),
            (None, Some(at)) => format!("{} (A has no sample there)", place(at)),
            (None, None) => String::new(),
        };
        text.add("first", &at);
        if let (Some(sample_a), Some(sample_b)) = (first.sample_a, first.sample_b) {
            text.add(
                "",
                &format!("A has sample {sample_a} there, B has sample {sample_b}"),
            );
        } else if first.b.is_none() {
            text.add("", "B has no sample there");
        }
        if let Some(at) = &first.sample_a_in_b {
            text.add("", &format!("B consumes A's sample at {}", place(at)));
        }
        if let Some(difference) = &first.tokens {
            text.add("", &words::tokens(difference));
            decoded(&mut text, difference);
        }
    }
    if !comparison.class.is_equal() {
        counts(&mut text, comparison);
    }
    for (i, document) in comparison.documents.iter().take(DOCUMENTS).enumerate() {
        text.add(
            if i == 0 { "documents" } else { "" },
            &format!(
                "document {}{}: {}",
                document.a,
                if document.a == document.b {
                    String::new()
                } else {
                    format!(" (B: {})", document.b)
                },
                words::tokens(&document.difference)
            ),
        );
        decoded(&mut text, &document.difference);
    }
    let shown = comparison.documents.len().min(DOCUMENTS) as u64;
    if comparison.documents_different > shown {
        text.add(
            "",
            &format!("and {} more", grouped(comparison.documents_different - shown)),
        );
    }
    let _ = stats;
    text.0
}

fn decoded(text: &mut Lines, difference: &TokenDifference) {
    if let (Some(a), Some(b)) = (&difference.text_a, &difference.text_b) {
        text.add("", &format!("A reads {a:?}, B reads {b:?}"));
    }
}

fn about(side: &About) -> String {
    let mut words = side.label.clone();
    let _ = write!(
        words,
        ": {} in {}, {} x micro-batch {} ({} a step)",
        count(side.samples, "sample"),
        count(side.steps, "step"),
        count(side.world_size, "rank"),
        side.micro_batch_size,
        side.global_batch_size
    );
    if let Some(order) = &side.order {
        let order = order.to_string();
        if order != side.label {
            let _ = write!(words, "; {order}");
        }
    }
    words
}

fn counts(text: &mut Lines, comparison: &Comparison) {
    let stats = &comparison.stats;
    text.add(
        "overlap",
        &format!(
            "{} different samples in A, {} in B, {} in both",
            grouped(stats.a.distinct),
            grouped(stats.b.distinct),
            grouped(stats.common)
        ),
    );
    text.add(
        "",
        &format!(
            "of those in both: {} at the same place, {} in the same step, {} on the same rank",
            percent(stats.same_place, stats.common),
            percent(stats.same_step, stats.common),
            percent(stats.same_rank, stats.common)
        ),
    );
    if comparison.step_sets.comparable {
        text.add(
            "",
            &format!(
                "{} of {} consume the same samples",
                grouped(comparison.step_sets.equal),
                count(comparison.step_sets.steps, "step")
            ),
        );
    }
    let shown: Vec<String> = [1, 2, 5, 9]
        .iter()
        .filter_map(|tenth| {
            let at = stats.overlap.len() * tenth / 10;
            let bin = stats.overlap.get(at.saturating_sub(1))?;
            Some(format!(
                "{} after {} %",
                percent(bin.seen_so_far, bin.samples_so_far),
                tenth * 10
            ))
        })
        .collect();
    text.add(
        "seen so far",
        &format!(
            "of A's samples up to a point, B has seen by then: {}",
            shown.join(", ")
        ),
    );
    for (name, repeats) in [("A", &stats.a), ("B", &stats.b)] {
        if repeats.repeated > 0 || repeats.not_in_the_other > 0 {
            text.add(
                "repeats",
                &format!(
                    "{name} repeats {}; {} of its different samples never come in the other",
                    count(repeats.repeated, "sample"),
                    grouped(repeats.not_in_the_other)
                ),
            );
        }
    }
    for (name, mix) in [("A", &comparison.mix_a), ("B", &comparison.mix_b)] {
        let Some(mix) = mix else { continue };
        let shares: Vec<String> = mix
            .datasets
            .iter()
            .enumerate()
            .map(|(which, dataset)| {
                let taken = mix.samples.iter().map(|counts| counts[which]).sum();
                let all = mix.samples.iter().flatten().sum();
                format!("{dataset} {}", percent(taken, all))
            })
            .collect();
        text.add("mix", &format!("{name} takes {}", shares.join(", ")));
    }
    if let Some(moved) = &stats.displacement {
        text.add(
            "displacement",
            &format!(
                "mean {:.1} samples, median {}, 90 % up to {}, 99 % up to {}, largest {}",
                moved.mean,
                grouped(moved.quantiles[0]),
                grouped(moved.quantiles[1]),
                grouped(moved.quantiles[2]),
                grouped(moved.max)
            ),
        );
    }
    if let Some(correlation) = &stats.correlation {
        let with_error = |value: f64, error: f64| {
            if correlation.exact {
                format!("{value:.4}")
            } else {
                format!("{value:.4} ± {error:.4}")
            }
        };
        text.add(
            "correlation",
            &format!(
                "Kendall's tau {}, Spearman's rho {} ({} samples, 1 is the same order, 0 unrelated)",
                with_error(
                    correlation.kendall_tau.value,
                    correlation.kendall_tau.standard_error
                ),
                with_error(
                    correlation.spearman_rho.value,
                    correlation.spearman_rho.standard_error
                ),
                grouped(correlation.samples)
            ),
        );
    }
}

/// Labelled lines, broken between words.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, line: &str) {
        let mut label = label;
        let mut current = String::new();
        for word in line.split(' ') {
            if !current.is_empty() && current.chars().count() + 1 + word.chars().count() > WIDTH {
                let _ = writeln!(self.0, "{label:<LABEL$} {current}");
                label = "";
                current.clear();
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
        }
        let _ = writeln!(self.0, "{label:<LABEL$} {current}");
    }
}
