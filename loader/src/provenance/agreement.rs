//! A log held against an order, line by line.

use std::sync::Arc;

use ceteris_samplers::{Epoch, Order, Place};
use serde_json::{Value, json};

use super::digests::Digests;
use super::log::{LoggedBatch, RunLog};
use crate::fingerprint::Fingerprint;
use crate::source::SourceError;

/// An order over a source, ready to be asked.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The order.
    pub order: Arc<dyn Order>,
    /// Digests of the samples it permutes.
    pub digests: Arc<Digests>,
}

/// How epochs of the log and of the order go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochRule {
    /// The log's epoch plus this.
    Offset(i64),
    /// Always this one.
    Fixed(u64),
}

/// Where the log's micro-batches lie in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Which epoch.
    pub epochs: EpochRule,
    /// Added to the micro-steps of the log's first epoch (or of all, where the log names none).
    pub micro_steps: i64,
}

impl Alignment {
    /// Epochs and micro-steps as logged.
    pub const SAME: Self = Self {
        epochs: EpochRule::Offset(0),
        micro_steps: 0,
    };

    /// Epochs are those logged.
    pub fn as_logged(&self) -> bool {
        self.epochs == EpochRule::Offset(0)
    }

    /// How far epochs are moved; one epoch for all comes last.
    pub(super) fn distance(&self) -> u64 {
        match self.epochs {
            EpochRule::Offset(by) => by.unsigned_abs(),
            EpochRule::Fixed(_) => u64::MAX,
        }
    }

    /// What the alignment means, `None` for the plain one.
    pub fn in_words(&self) -> Option<String> {
        let mut words = Vec::new();
        match self.epochs {
            EpochRule::Offset(0) => {}
            EpochRule::Offset(by) => words.push(format!(
                "its epoch e is epoch e {} {} of the order",
                if by < 0 { "-" } else { "+" },
                by.unsigned_abs()
            )),
            EpochRule::Fixed(epoch) => words.push(format!("every epoch of it is epoch {epoch} of the order")),
        }
        match self.micro_steps {
            0 => {}
            by if by > 0 => words.push(format!("it starts {by} micro-steps into the order")),
            by => words.push(format!(
                "it starts {} micro-steps before the order",
                by.unsigned_abs()
            )),
        }
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The alignment for programs.
    pub fn json(&self) -> Value {
        let (offset, fixed) = match self.epochs {
            EpochRule::Offset(by) => (json!(by), Value::Null),
            EpochRule::Fixed(epoch) => (Value::Null, json!(epoch)),
        };
        json!({"epoch_offset": offset, "fixed_epoch": fixed, "micro_step_offset": self.micro_steps})
    }

    /// Epoch and micro-step of the order for a line of the log.
    pub(super) fn locate(
        &self,
        order: &dyn Order,
        batch: &LoggedBatch,
        first_epoch: Option<u64>,
    ) -> Option<(u64, u64)> {
        let moved = |micro_step: u64| micro_step.checked_add_signed(self.micro_steps);
        let (epoch, micro_step) = match batch.epoch {
            Some(epoch) if Some(epoch) == first_epoch => (epoch, moved(batch.micro_step)?),
            Some(epoch) => (epoch, batch.micro_step),
            None => order.locate(moved(batch.micro_step)?).ok()?,
        };
        let epoch = match self.epochs {
            EpochRule::Offset(by) => epoch.checked_add_signed(by)?,
            EpochRule::Fixed(epoch) => epoch,
        };
        Some((epoch, micro_step))
    }
}

/// The first line of a log that an order does not explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Epoch as logged, or of the order where the log names none.
    pub epoch: u64,
    /// Micro-step as logged.
    pub micro_step: u64,
    /// Optimizer step within the order's epoch, where the order has the micro-step.
    pub step: Option<u64>,
    /// The rank.
    pub rank: u64,
    /// The first slot that differs, where the log tells samples apart.
    pub slot: Option<u64>,
    /// The row that the order has there.
    pub expected_row: Option<u64>,
    /// Samples the order has in this micro-batch.
    pub expected_rows: u64,
    /// Samples the log has.
    pub logged_rows: Option<u64>,
}

/// How far a log and an order agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// Micro-batches of the log.
    pub micro_batches: u64,
    /// Those that agree.
    pub micro_batches_matched: u64,
    /// Samples of the log, as far as its lines tell.
    pub samples: u64,
    /// Those that agree.
    pub samples_matched: u64,
    /// The first line that does not.
    pub first: Option<Mismatch>,
}

impl Matched {
    /// Everything logged is what the order has.
    pub fn is_whole(&self) -> bool {
        self.first.is_none()
    }

    /// The agreement for programs.
    pub fn json(&self) -> Value {
        json!({
            "micro_batches": self.micro_batches,
            "micro_batches_matched": self.micro_batches_matched,
            "samples": self.samples,
            "samples_matched": self.samples_matched,
            "first_mismatch": self.first.as_ref().map(|m| json!({
                "epoch": m.epoch,
                "micro_step": m.micro_step,
                "step": m.step,
                "rank": m.rank,
                "slot": m.slot,
                "expected_row": m.expected_row,
                "expected_rows": m.expected_rows,
                "logged_rows": m.logged_rows,
            })),
        })
    }
}

/// Epochs of an order, the last one kept.
pub(super) struct Epochs<'a> {
    order: &'a dyn Order,
    /// `None` for an epoch that the order does not have.
    last: Option<(u64, Built)>,
}

pub(super) type Built = Option<Arc<dyn Epoch>>;

impl<'a> Epochs<'a> {
    pub(super) fn new(order: &'a dyn Order) -> Self {
        Self { order, last: None }
    }

    /// `None` for an epoch that the order does not have.
    pub(super) fn get(&mut self, epoch: u64) -> Built {
        if self.last.as_ref().is_none_or(|(last, _)| *last != epoch) {
            self.last = Some((epoch, self.order.epoch(epoch).ok()));
        }
        self.last.as_ref().and_then(|(_, index)| index.clone())
    }
}

/// Rows that a place of the order holds, slot by slot.
pub(super) fn rows_of(
    index: &dyn Epoch,
    micro_step: u64,
    rank: u64,
    micro_batch_size: u64,
    rows: &mut Vec<u64>,
) {
    rows.clear();
    let place = |slot| Place {
        micro_step,
        rank,
        slot,
    };
    rows.extend((0..micro_batch_size).map_while(|slot| index.sample(place(slot))));
}

/// Compares a line with the rows an order has there. Returns the samples that agree and, unless all do, the first slot
/// that differs (`None` where the line has one digest only).
pub(super) fn agreement(
    batch: &LoggedBatch,
    rows: &[u64],
    digests: &Digests,
) -> Result<(u64, Option<Option<u64>>), SourceError> {
    let expected = rows
        .iter()
        .map(|&row| digests.get(row))
        .collect::<Result<Vec<Fingerprint>, _>>()?;
    let Some(samples) = &batch.samples else {
        let same = match (batch.fingerprint, &batch.ids) {
            (Some(fingerprint), _) => fingerprint == Fingerprint::combine(expected),
            (None, Some(ids)) => ids == rows,
            (None, None) => false,
        };
        return Ok(if same {
            (rows.len() as u64, None)
        } else {
            (0, Some(None))
        });
    };
    let same = samples.iter().zip(&expected).filter(|(a, b)| a == b).count() as u64;
    let differs = samples.iter().zip(&expected).position(|(a, b)| a != b);
    let shorter = samples.len().min(expected.len());
    let differs = differs.or((samples.len() != expected.len()).then_some(shorter));
    Ok((same, differs.map(|slot| Some(slot as u64))))
}

/// Holds a whole log against an order.
///
/// # Errors
/// Samples that cannot be read.
pub fn compare(log: &RunLog, replay: &Replay, alignment: Alignment) -> Result<Matched, SourceError> {
    let order = &*replay.order;
    let mut epochs = Epochs::new(order);
    let mut matched = Matched {
        micro_batches: log.batches.len() as u64,
        micro_batches_matched: 0,
        samples: 0,
        samples_matched: 0,
        first: None,
    };
    let first_epoch = log.batches.first().and_then(|b| b.epoch);
    let (micro_batch_size, mut rows) = (order.geometry().micro_batch_size, Vec::new());
    for batch in &log.batches {
        let place = alignment.locate(order, batch, first_epoch);
        let index = place.and_then(|(epoch, _)| epochs.get(epoch));
        rows.clear();
        if let (Some(index), Some((_, micro_step))) = (&index, place) {
            rows_of(&**index, micro_step, batch.rank, micro_batch_size, &mut rows);
        }
        matched.samples += batch.rows().unwrap_or(rows.len()) as u64;
        let (same, differs) = agreement(batch, &rows, &replay.digests)?;
        matched.samples_matched += same;
        let Some(slot) = differs else {
            matched.micro_batches_matched += 1;
            continue;
        };
        if matched.first.is_none() {
            let step = index.zip(place).and_then(|(index, (_, micro_step))| {
                (micro_step < index.micro_steps()).then(|| index.step_of(micro_step))
            });
            matched.first = Some(Mismatch {
                epoch: batch.epoch.or(place.map(|(epoch, _)| epoch)).unwrap_or(0),
                micro_step: batch.micro_step,
                step,
                rank: batch.rank,
                slot,
                expected_row: slot
                    .and_then(|slot| rows.get(usize::try_from(slot).ok()?).copied())
                    .filter(|_| slot.is_some()),
                expected_rows: rows.len() as u64,
                logged_rows: batch.rows().map(|rows| rows as u64),
            });
        }
    }
    Ok(matched)
}
