//! `loader verify`: whether a run consumed the order claimed, and if not, which one it did.

use std::collections::HashSet;
use std::fmt::Write as _;

use rayon::prelude::*;
use serde_json::{Value, json};

use super::agreement::{Alignment, EpochRule, Matched, Replay, compare};
use super::candidates::seed_of;
use super::digests::{Digests, read_sample};
use super::log::RunLog;
use super::search::{Found, Outcome};
use crate::fingerprint::Fingerprint;
use crate::source::SourceError;

/// Version of the JSON report.
pub const REPORT_VERSION: u32 = 1;

/// What is known of the log's samples, whatever the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Samples logged.
    pub samples: u64,
    /// Those that are samples of the dataset.
    pub known: u64,
    /// Another cut of the dataset's samples that holds more of them, in words, and how many.
    pub other_cut: Option<(String, u64)>,
}

/// The whole verdict.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The claim: its order as built, and how far the log agrees.
    pub claimed: Found,
    /// What the search found, where the claim does not hold.
    pub outcome: Option<Outcome>,
    /// Whose samples these are, where no order was found.
    pub presence: Option<Presence>,
    /// Micro-batches that the log has no line of, between its first and its last micro-step.
    pub lines_missing: u64,
    /// Micro-batches and ranks of the log, for the text.
    pub about: String,
}

impl Verification {
    /// Holds the log against the claimed order.
    ///
    /// # Errors
    /// Samples that cannot be read.
    pub fn of_claim(log: &RunLog, replay: &Replay) -> Result<Self, SourceError> {
        let matched = compare(log, replay, Alignment::SAME)?;
        let ranks = if log.ranks.len() as u64 == log.world_size {
            format!("all {}", count(log.world_size, "rank", "ranks"))
        } else {
            format!("{} of {} ranks", log.ranks.len(), log.world_size)
        };
        Ok(Self {
            claimed: Found {
                spec: replay.order.spec().clone(),
                alignment: Alignment::SAME,
                matched,
            },
            outcome: None,
            presence: None,
            lines_missing: log.lines_missing(),
            about: format!(
                "{}: {} micro-batches of {ranks}, {} samples{}",
                log.path.display(),
                log.batches.len(),
                log.num_samples(),
                if log.has_samples() {
                    ""
                } else {
                    " (one fingerprint a micro-batch: samples cannot be told apart)"
                }
            ),
        })
    }

    /// The run consumed what was claimed.
    pub fn holds(&self) -> bool {
        self.claimed.matched.is_whole()
    }

    /// The order the run had, when it is known.
    pub fn found(&self) -> Option<&Found> {
        if self.holds() {
            return Some(&self.claimed);
        }
        self.outcome.as_ref().and_then(|outcome| outcome.found.as_ref())
    }

    /// One word for programs: `verified`, `other_order`, `unknown_order` or `other_data`.
    pub fn verdict(&self) -> &'static str {
        match (self.holds(), self.found(), &self.presence) {
            (true, ..) => "verified",
            (false, Some(_), _) => "other_order",
            (false, None, Some(presence)) if presence.known == 0 => "other_data",
            (false, None, _) => "unknown_order",
        }
    }

    /// For reading.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, line: &str| {
            let _ = writeln!(text, "{label:<12} {line}");
        };
        line("log", &self.about);
        line("claimed", &self.claimed.spec.to_string());
        let matched = &self.claimed.matched;
        if self.holds() {
            line(
                "verified",
                &format!(
                    "yes: every one of its {} micro-batches is the one this order has there ({} samples)",
                    matched.micro_batches, matched.samples
                ),
            );
            if self.lines_missing > 0 {
                line(
                    "",
                    &format!(
                        "verified where it has lines: {} in between {} none",
                        count(self.lines_missing, "micro-batch", "micro-batches"),
                        if self.lines_missing == 1 { "has" } else { "have" }
                    ),
                );
            }
            return text;
        }
        line("verified", &format!("no: {}", agreement_in_words(matched)));
        if let Some(outcome) = &self.outcome {
            match (&outcome.found, &outcome.best) {
                (Some(found), _) => {
                    line("found", &format!("the run consumed {}", found.spec));
                    if let Some(words) = found.alignment.in_words() {
                        line("", &words);
                    }
                    for same in &outcome.same_as {
                        line("", &same_in_words(same));
                    }
                    line(
                        "",
                        &format!(
                            "all {} micro-batches ({} samples) agree",
                            found.matched.micro_batches, found.matched.samples
                        ),
                    );
                }
                (None, best) => {
                    line(
                        "found",
                        &format!("no order: {} orders and seeds were tried", outcome.tried),
                    );
                    if let Some(best) = best {
                        line(
                            "",
                            &format!("nearest is {best}: {}", agreement_in_words(&best.matched)),
                        );
                    }
                }
            }
        }
        if let Some(presence) = &self.presence {
            line(
                "samples",
                &format!(
                    "{} of the {} logged are samples of this dataset{}",
                    presence.known,
                    presence.samples,
                    if presence.known == 0 {
                        ": the run read other data, or cut it otherwise"
                    } else if presence.known == presence.samples {
                        ": the data is the same, the order is not among those tried"
                    } else {
                        ""
                    }
                ),
            );
            if let Some((words, known)) = &presence.other_cut {
                line("", &format!("{known} are if {words}"));
            }
        }
        text
    }

    /// For programs; `docs/provenance.md` says what each key holds.
    pub fn json(&self) -> Value {
        let found = |found: &Found| {
            json!({
                "order": found.spec,
                "alignment": found.alignment.json(),
                "agreement": found.matched.json(),
            })
        };
        json!({
            "ceteris_verify": REPORT_VERSION,
            "verdict": self.verdict(),
            "lines_missing": self.lines_missing,
            "claimed": found(&self.claimed),
            "found": self.found().map(found),
            "same_as": self.outcome.iter().flat_map(|o| &o.same_as).map(found).collect::<Vec<_>>(),
            "nearest": self.outcome.as_ref().and_then(|o| o.best.as_ref()).filter(|_| self.found().is_none()).map(found),
            "tried": self.outcome.as_ref().map(|o| o.tried),
            "samples_known": self.presence.as_ref().map(|p| p.known),
            "other_cut": self.presence.as_ref().and_then(|p| p.other_cut.as_ref()).map(|(words, known)| json!({
                "if": words,
                "samples_known": known,
            })),
        })
    }
}

fn count(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// Another name of the order found.
fn same_in_words(same: &Found) -> String {
    let seed = seed_of(&same.spec).and_then(|seed| serde_json::to_value(seed).ok());
    let seed = seed.map_or(String::new(), |seed| format!(" seed {seed}"));
    match same.alignment.epochs {
        EpochRule::Offset(by) if by > 0 => format!("the same as{seed} from epoch {by} on"),
        EpochRule::Offset(by) => format!(
            "the same as{seed} with epochs counted {} lower",
            by.unsigned_abs()
        ),
        EpochRule::Fixed(epoch) => format!("the same as{seed} with every epoch as epoch {epoch}"),
    }
}

fn agreement_in_words(matched: &Matched) -> String {
    let mut words = format!(
        "{} of {} micro-batches agree",
        matched.micro_batches_matched, matched.micro_batches
    );
    let Some(first) = &matched.first else {
        return words;
    };
    let _ = write!(words, "; the first that does not is epoch {}", first.epoch);
    if let Some(step) = first.step {
        let _ = write!(words, " step {step}");
    }
    let _ = write!(words, " micro_step {} rank {}", first.micro_step, first.rank);
    match (first.slot, first.logged_rows) {
        (_, Some(logged)) if logged != first.expected_rows => {
            let _ = write!(
                words,
                ", which has {logged} samples where the order has {}",
                first.expected_rows
            );
        }
        (Some(slot), _) => {
            let _ = write!(words, " slot {slot}");
            if let Some(row) = first.expected_row {
                let _ = write!(words, ", where the order has row {row}");
            }
        }
        _ => {}
    }
    words
}

/// A part of a sample.
type Cut = fn(&[i32]) -> &[i32];

/// Looks for the log's samples in the whole dataset, as it is and cut otherwise. `None` where the log has no
/// fingerprint of single samples.
///
/// # Errors
/// Samples that cannot be read.
pub fn presence(log: &RunLog, digests: &Digests) -> Result<Option<Presence>, SourceError> {
    if !log.has_samples() {
        return Ok(None);
    }
    let logged: HashSet<Fingerprint> = log
        .batches
        .iter()
        .flat_map(|b| b.samples.iter().flatten().copied())
        .collect();
    let source = digests.source();
    // For each cut, which of the logged fingerprints it gives. A set of a set: a sample counts once.
    let cuts: [(&str, Cut); 4] = [
        ("it is as it is", |t| t),
        ("the last token of each sample is left out", |t| {
            &t[..t.len().saturating_sub(1)]
        }),
        ("the first token of each sample is left out", |t| {
            &t[t.len().min(1)..]
        }),
        ("the first and the last token of each sample are left out", |t| {
            &t[t.len().min(1)..t.len().saturating_sub(1).max(t.len().min(1))]
        }),
    ];
    const TASK: u64 = 1024;
    let samples = source.num_samples();
    let parts: Vec<Result<[HashSet<Fingerprint>; 4], SourceError>> = (0..samples.div_ceil(TASK))
        .into_par_iter()
        .map(|task| {
            let (mut seen, mut buffer): ([HashSet<Fingerprint>; 4], _) = Default::default();
            for id in task * TASK..((task + 1) * TASK).min(samples) {
                read_sample(&**source, id, digests.seq_length(), &mut buffer)?;
                for ((_, cut), seen) in cuts.iter().zip(&mut seen) {
                    let digest = Fingerprint::of_sample(cut(&buffer));
                    if logged.contains(&digest) {
                        seen.insert(digest);
                    }
                }
            }
            Ok(seen)
        })
        .collect();
    let mut known: [HashSet<Fingerprint>; 4] = Default::default();
    for part in parts {
        for (all, part) in known.iter_mut().zip(part?) {
            all.extend(part);
        }
    }
    let count = |set: &HashSet<Fingerprint>| {
        let samples = log.batches.iter().flat_map(|b| b.samples.iter().flatten());
        samples.filter(|digest| set.contains(digest)).count() as u64
    };
    let plain = count(&known[0]);
    let other_cut = cuts
        .iter()
        .zip(&known)
        .skip(1)
        .map(|((words, _), set)| ((*words).to_string(), count(set)))
        .find(|(_, others)| *others > plain);
    Ok(Some(Presence {
        samples: log.num_samples(),
        known: plain,
        other_cut,
    }))
}
