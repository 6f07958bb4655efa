//! Which order did a run have? Candidates of named orders, seeds and epochs, held against the log of the run.
//!
//! A candidate is screened by the first micro-batch of the log, at every micro-step where it could start; only one that
//! passes is compared as a whole. Some laws depend on the sum of seed and epoch only, so that seed 10 from epoch 1 on is
//! seed 11 from epoch 0 on: epochs as logged come before epochs moved, and what says the same is named. Cost: one epoch's permutation a seed and order, a few look-ups each. Memory: that
//! permutation for each thread.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use ceteris_samplers::{OrderSpec, Seed};
use rayon::prelude::*;
use serde_json::Value;

use super::agreement::{Alignment, EpochRule, Epochs, Matched, Replay, agreement, compare, rows_of};
use super::candidates::{Candidate, Template, candidates, row_templates, seed_of};
use super::log::RunLog;
use crate::source::SourceError;

/// Micro-steps a log may start away from where it says, when the digests are not all known.
const NEAR: u64 = 64;

/// What is searched.
#[derive(Clone, Debug)]
pub struct SearchSpace {
    /// The order claimed, searched first.
    pub claimed: OrderSpec,
    /// Seeds, the most likely first.
    pub seeds: Vec<Seed>,
    /// Ranks of the run.
    pub world_size: u64,
    /// Also other orders than the claimed one.
    pub other_orders: bool,
}

/// An order that explains the log, or the part of it that one explains best.
#[derive(Clone, Debug)]
pub struct Found {
    /// The order.
    pub spec: OrderSpec,
    /// How the log lies in it.
    pub alignment: Alignment,
    /// How far it goes.
    pub matched: Matched,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)?;
        match self.alignment.in_words() {
            Some(words) => write!(f, " ({words})"),
            None => Ok(()),
        }
    }
}

/// What a search came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The order that explains the whole log: one with the epochs as logged if there is one (the first in the sequence of
    /// the search), else the one whose epochs are moved least, of the claimed order, with the smallest seed.
    pub found: Option<Found>,
    /// The seeds beside it that give the same samples from another epoch on.
    pub same_as: Vec<Found>,
    /// Otherwise the one that explains most of it, if any passed the screening.
    pub best: Option<Found>,
    /// Orders and seeds tried.
    pub tried: u64,
}

/// Searches. `open` builds an order over its source; one that cannot be built is no candidate. `done` hears of each
/// candidate tried, `planned` of their number beforehand.
///
/// # Errors
/// Samples that cannot be read.
pub fn search(
    log: &RunLog,
    space: &SearchSpace,
    open: &(dyn Fn(&OrderSpec) -> Option<Replay> + Sync),
    planned: &dyn Fn(u64),
    done: &(dyn Fn() + Sync),
) -> Result<Outcome, SourceError> {
    let claimed_seed = seed_of(&space.claimed);
    let mut templates = vec![Template::of_claim(&space.claimed)];
    if space.other_orders {
        templates.extend(row_templates(space.world_size));
    }
    let candidates = candidates(&templates, &space.seeds, claimed_seed);
    planned(candidates.len() as u64);
    let best: Mutex<Option<(usize, Found)>> = Mutex::new(None);
    let moved: Mutex<Option<(Rank, Found)>> = Mutex::new(None);
    let result = candidates
        .par_iter()
        .enumerate()
        .find_map_first(|(number, candidate)| {
            let tried = try_candidate(log, candidate, claimed_seed, open);
            done();
            match tried {
                Err(error) => Some(Err(error)),
                Ok(None) => None,
                Ok(Some(found)) if found.matched.is_whole() && found.alignment.as_logged() => {
                    Some(Ok((number, found)))
                }
                Ok(Some(found)) if found.matched.is_whole() => {
                    let claimed = std::ptr::eq(candidate.template, &raw const templates[0]);
                    let rank = (found.alignment.distance(), !claimed, candidate.seed, number);
                    let mut moved = moved.lock().unwrap_or_else(PoisonError::into_inner);
                    if moved.as_ref().is_none_or(|(other, _)| rank < *other) {
                        *moved = Some((rank, found));
                    }
                    None
                }
                Ok(Some(found)) => {
                    let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
                    let better = best.as_ref().is_none_or(|(other, old)| {
                        let (a, b) = (found.matched.samples_matched, old.matched.samples_matched);
                        a > b || (a == b && number < *other)
                    });
                    if better {
                        *best = Some((number, found));
                    }
                    None
                }
            }
        });
    let best = best.into_inner().unwrap_or_else(PoisonError::into_inner);
    let moved = moved.into_inner().unwrap_or_else(PoisonError::into_inner);
    let found = match result.transpose()? {
        Some(found) => Some(found),
        None => moved.map(|((.., number), found)| (number, found)),
    };
    let mut same_as = Vec::new();
    if let Some((number, found)) = &found {
        let candidate = &candidates[*number];
        for seed in neighbours(candidate.seed) {
            let beside = Candidate {
                template: candidate.template,
                seed: Some(seed),
            };
            let tried = try_candidate(log, &beside, claimed_seed, open)?;
            same_as.extend(tried.filter(|same| same.matched.is_whole() && same.alignment != found.alignment));
        }
    }
    Ok(Outcome {
        found: found.map(|(_, found)| found),
        same_as,
        best: best.map(|(_, found)| found),
        tried: candidates.len() as u64,
    })
}

/// What comes first among orders that explain a log with its epochs moved: how far, the claimed order, the seed, the
/// place in the search.
type Rank = (u64, bool, Option<Seed>, usize);

/// The seeds one below and one above.
fn neighbours(seed: Option<Seed>) -> Vec<Seed> {
    let number: Option<u64> = seed
        .and_then(|seed| serde_json::to_value(seed).ok())
        .and_then(|value| value.as_u64());
    let Some(number) = number else {
        return Vec::new();
    };
    let both = [number.checked_sub(1), number.checked_add(1)];
    both.into_iter().flatten().map(Seed::from).collect()
}

fn try_candidate(
    log: &RunLog,
    candidate: &Candidate<'_>,
    claimed_seed: Option<Seed>,
    open: &(dyn Fn(&OrderSpec) -> Option<Replay> + Sync),
) -> Result<Option<Found>, SourceError> {
    let Template { tails, .. } = candidate.template;
    let spec = |tail: &[(String, Value)]| candidate.template.spec(candidate.seed, claimed_seed, tail);
    let Some(replay) = tails
        .first()
        .and_then(|tail| spec(tail))
        .and_then(|spec| open(&spec))
    else {
        return Ok(None);
    };
    let mut best: Option<Found> = None;
    for alignment in alignments(log, &replay)? {
        for (which, tail) in tails.iter().enumerate() {
            let replay = match which {
                0 => Some(replay.clone()),
                _ => spec(tail).and_then(|spec| open(&spec)),
            };
            let Some(replay) = replay else { continue };
            let matched = compare(log, &replay, alignment)?;
            let found = Found {
                spec: replay.order.spec().clone(),
                alignment,
                matched,
            };
            if found.matched.is_whole() {
                return Ok(Some(found));
            }
            if best
                .as_ref()
                .is_none_or(|old| found.matched.samples_matched > old.matched.samples_matched)
            {
                best = Some(found);
            }
        }
    }
    Ok(best)
}

/// Alignments under which the log's first micro-batch is one of the order's.
fn alignments(log: &RunLog, replay: &Replay) -> Result<Vec<Alignment>, SourceError> {
    let order = &*replay.order;
    let first_epoch = log.batches.first().and_then(|b| b.epoch);
    let Some(batch) = log.batches.iter().find(|b| b.rows() != Some(0)) else {
        return Ok(vec![Alignment::SAME]);
    };
    let (micro_batch_size, mut rows) = (order.geometry().micro_batch_size, Vec::new());
    let mut epochs = Epochs::new(order);
    let mut passed = Vec::new();
    for rule in [
        EpochRule::Offset(0),
        EpochRule::Offset(1),
        EpochRule::Offset(-1),
        EpochRule::Fixed(0),
    ] {
        let plain = Alignment {
            epochs: rule,
            micro_steps: 0,
        };
        let Some((epoch, micro_step)) = plain.locate(order, batch, first_epoch) else {
            continue;
        };
        let Some(index) = epochs.get(epoch) else { continue };
        let all = 0..index.micro_steps();
        let range = match replay.digests.as_slice() {
            Some(_) => all,
            None => micro_step.saturating_sub(NEAR)..micro_step.saturating_add(NEAR).min(index.micro_steps()),
        };
        // The plain alignment first, then the nearest.
        let mut starts: Vec<u64> = range.collect();
        starts.sort_by_key(|start| start.abs_diff(micro_step));
        for start in starts {
            rows_of(&*index, start, batch.rank, 1, &mut rows);
            if let (Some(samples), Some(&row)) = (&batch.samples, rows.first())
                && samples.first() != Some(&replay.digests.get(row)?)
            {
                continue;
            }
            rows_of(&*index, start, batch.rank, micro_batch_size, &mut rows);
            if let (_, None) = agreement(batch, &rows, &replay.digests)? {
                passed.push(Alignment {
                    epochs: rule,
                    micro_steps: start as i64 - micro_step as i64,
                });
                break;
            }
        }
    }
    // A fixed epoch says the same as an offset where the log has one epoch only.
    let several = log.batches.last().and_then(|b| b.epoch) != first_epoch || first_epoch.is_none();
    let offset_explains = passed.iter().any(|a| matches!(a.epochs, EpochRule::Offset(_)));
    if !several && offset_explains {
        passed.retain(|a| matches!(a.epochs, EpochRule::Offset(_)));
    }
    Ok(passed)
}
