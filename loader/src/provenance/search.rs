//! Which order did a run have? Candidates of named orders, seeds and epochs, held against the log of the run.
//!
//! A candidate is screened by the first micro-batch of the log, at every micro-step where it could start; only one that
//! passes is compared as a whole. Cost: one epoch's permutation a seed and order, a few look-ups each. Memory: that
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
    /// The first order, in the sequence of the search, that explains the whole log.
    pub found: Option<Found>,
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
    let result = candidates
        .par_iter()
        .enumerate()
        .find_map_first(|(number, candidate)| {
            let tried = try_candidate(log, candidate, claimed_seed, open);
            done();
            match tried {
                Err(error) => Some(Err(error)),
                Ok(None) => None,
                Ok(Some(found)) if found.matched.is_whole() => Some(Ok(found)),
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
    Ok(Outcome {
        found: result.transpose()?,
        best: best.map(|(_, found)| found),
        tried: candidates.len() as u64,
    })
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
