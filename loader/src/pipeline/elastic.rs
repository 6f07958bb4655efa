//! Resuming under another layout of ranks, micro-batch and accumulation.
//!
//! Orders deal one list per epoch, and a full global batch takes the same run of that list under every factorisation of
//! the same global batch. So a position in the list (`deal index`) means the same under all of them, and a state is
//! translated through it. What may differ is which rank gets which sample, and the last step of an epoch, where layouts
//! pad and drop differently. Another global batch cuts the list at other places; it needs the user's consent, and then
//! resumes at the last step boundary of the new layout that leaves nothing out.

use std::fmt;
use std::ops::Range;

use ceteris_samplers::{Epoch, Geometry, Order};

use super::state::{LoaderState, StateError, layout};
use crate::source::Source;

/// Rows listed in a report.
const LISTED: u64 = 16;

/// What resuming under another layout means for the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElasticReport {
    /// Layout of the state.
    pub saved: Geometry,
    /// Layout now.
    pub now: Geometry,
    /// Epoch the run goes on in.
    pub epoch: u64,
    /// Deal indices of that epoch that are consumed a second time.
    pub repeated: Range<u64>,
    /// Deal indices that were ahead in the state's epoch and are not consumed, as the new layout ends the epoch before
    /// them.
    pub skipped: Range<u64>,
    /// The first rows of the stored table consumed a second time.
    pub repeated_rows: Vec<u64>,
    /// Places the new layout fills by repeating the start of an epoch, each epoch.
    pub padded: u64,
    /// Samples of an epoch the new layout leaves out, each epoch.
    pub dropped: u64,
}

impl fmt::Display for ElasticReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "resumed under another layout: {} before, {} now. ",
            layout(self.saved),
            layout(self.now)
        )?;
        if self.saved.global_batch_size() == self.now.global_batch_size() {
            write!(
                f,
                "Every full global batch holds the same samples as before, on other ranks; "
            )?;
        } else {
            write!(f, "Global batches are cut at other places of the same order; ")?;
        }
        write!(
            f,
            "the last step of an epoch is this layout's: it repeats {} and leaves out {} samples. ",
            self.padded, self.dropped
        )?;
        let count = |range: &Range<u64>| range.end - range.start;
        if self.repeated.is_empty() {
            write!(f, "No sample repeats; ")?;
        } else {
            let rows: Vec<String> = self.repeated_rows.iter().map(ToString::to_string).collect();
            let more = if count(&self.repeated) > rows.len() as u64 {
                ", …"
            } else {
                ""
            };
            write!(
                f,
                "{} samples of epoch {} repeat (deal indices {} to {}: rows {}{more}); ",
                count(&self.repeated),
                self.epoch,
                self.repeated.start,
                self.repeated.end - 1,
                rows.join(", ")
            )?;
        }
        if self.skipped.is_empty() {
            write!(f, "none is skipped")
        } else {
            write!(
                f,
                "{} at the end of epoch {} are skipped (deal indices {} to {}), as this layout ends the epoch before them",
                count(&self.skipped),
                self.epoch - 1,
                self.skipped.start,
                self.skipped.end - 1
            )
        }
    }
}

/// Where to go on.
#[derive(Clone, Debug)]
pub(crate) struct Seek {
    /// Epoch and micro-step within it.
    pub next: (u64, u64),
    /// Counters of the run there.
    pub global_micro_step: u64,
    pub global_step: u64,
    /// `None` when the layout is the state's.
    pub report: Option<ElasticReport>,
}

/// Finds where `state` goes on in `order`, whose layout may be another one.
///
/// # Errors
/// [`StateError::Position`], [`StateError::NotElastic`], [`StateError::GlobalBatch`] or [`StateError::Unaligned`].
pub(crate) fn seek(
    state: &LoaderState,
    order: &dyn Order,
    allow_other_batch: bool,
) -> Result<Seek, StateError> {
    let (saved, now) = (state.geometry, order.geometry());
    let (micro_steps, steps) = (order.micro_steps_per_epoch(), order.steps_per_epoch());
    if saved == now {
        if state.micro_step > 0 && state.micro_step >= micro_steps {
            return Err(StateError::Position {
                epoch: state.epoch,
                micro_step: state.micro_step,
                micro_steps,
            });
        }
        let global = state
            .epoch
            .checked_mul(micro_steps)
            .and_then(|n| n.checked_add(state.micro_step));
        if global != Some(state.global_micro_step) {
            return Err(StateError::Counters {
                epoch: state.epoch,
                micro_step: state.micro_step,
                micro_steps,
                global: state.global_micro_step,
            });
        }
        return Ok(Seek {
            next: (state.epoch, state.micro_step),
            global_micro_step: state.global_micro_step,
            global_step: state.global_step,
            report: None,
        });
    }
    if !order.is_elastic() {
        return Err(StateError::NotElastic {
            order: order.spec().name().to_owned(),
            saved: layout(saved),
            now: layout(now),
        });
    }
    let index = order.epoch(state.epoch).map_err(|e| StateError::Order {
        epoch: state.epoch,
        reason: e.to_string(),
    })?;
    let end = deal_end(&*index, now);
    let whole = (end + order.num_dropped()).saturating_sub(order.num_padded());
    // Micro-steps before the last one of an epoch are full, and a state never stands behind the last one.
    let consumed = state
        .micro_step
        .checked_mul(saved.samples_per_micro_step())
        .filter(|&k| k <= whole.max(end).saturating_add(saved.samples_per_micro_step()))
        .ok_or(StateError::Position {
            epoch: state.epoch,
            micro_step: state.micro_step,
            micro_steps,
        })?;
    let (old, new) = (saved.global_batch_size(), now.global_batch_size());
    let per_micro_step = now.samples_per_micro_step();
    let start = if old == new {
        if !consumed.is_multiple_of(per_micro_step) {
            return Err(StateError::Unaligned {
                consumed,
                now: layout(now),
            });
        }
        consumed / per_micro_step
    } else {
        if !allow_other_batch {
            return Err(StateError::GlobalBatch { saved: old, now: new });
        }
        consumed / new * now.gradient_accumulation_steps
    };
    let (next, repeated, skipped) = if start >= micro_steps {
        ((state.epoch + 1, 0), 0..0, consumed.min(whole)..whole)
    } else {
        ((state.epoch, start), start * per_micro_step..consumed, 0..0)
    };
    let report = ElasticReport {
        saved,
        now,
        epoch: next.0,
        repeated,
        skipped,
        repeated_rows: Vec::new(),
        padded: order.num_padded(),
        dropped: order.num_dropped(),
    };
    Ok(Seek {
        next,
        global_micro_step: next.0 * micro_steps + next.1,
        global_step: next.0 * steps + next.1 / now.gradient_accumulation_steps,
        report: Some(report),
    })
}

/// Entries of an epoch's deal, padding included: deal indices are below it.
pub(crate) fn deal_end(index: &dyn Epoch, geometry: Geometry) -> u64 {
    let (mut from, mut to) = (
        0,
        index
            .micro_steps()
            .saturating_mul(geometry.samples_per_micro_step()),
    );
    while from < to {
        let middle = from + (to - from) / 2;
        if index.place_of(middle).is_some() {
            from = middle + 1
        } else {
            to = middle
        }
    }
    from
}

impl ElasticReport {
    /// Looks up the rows consumed a second time.
    pub(crate) fn name_rows(&mut self, index: &dyn Epoch, source: &dyn Source) {
        let last = self.repeated.end.min(self.repeated.start.saturating_add(LISTED));
        self.repeated_rows = (self.repeated.start..last)
            .filter_map(|k| index.place_of(k))
            .filter_map(|place| index.sample(place))
            .map(|sample| source.stored_row(sample))
            .collect();
    }
}
