//! One side of a comparison: what was consumed, in which sequence, at which places.
//!
//! Memory: 4 bytes a sample for an order (16 more where tokens have to be compared), 16 for a log.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::{Epoch, Geometry, Order, OrderError, OrderSpec, Place, SampleId};

use super::layout::{Layout, Seat};
use super::lines::Lines;
use crate::fingerprint::Fingerprint;
use crate::provenance::log::RunLog;
use crate::provenance::mix::Mix;
use crate::source::{Source, SourceError};

/// What a sequence of samples is made of.
#[derive(Clone, Debug)]
pub enum Samples {
    /// Ids of a source's samples, or of a dataset that is not there.
    Ids(Vec<u32>),
    /// Digests of samples.
    Digests(Vec<Fingerprint>),
    /// Digests of whole micro-batches: each counts as one sample.
    MicroBatches(Vec<Fingerprint>),
}

/// One side.
#[derive(Clone, Debug)]
pub struct Side {
    /// What reports call it.
    pub label: String,
    /// The order, where it is one.
    pub spec: Option<OrderSpec>,
    /// What the ids name: equal for two sides whose ids mean the same samples.
    pub identity: Option<String>,
    /// Samples that ids are of, where that is known: all are below.
    pub num_samples: Option<u64>,
    /// Tokens of the samples, where they are there.
    pub source: Option<Arc<dyn Source>>,
    /// Tokens of a sample that count, `None` for all.
    pub seq_length: Option<usize>,
    /// What was consumed.
    pub samples: Samples,
    /// Where.
    pub layout: Layout,
    /// The seats of a micro-step are known, but not the sequence in which the sampler dealt them (a log).
    pub law_unknown: bool,
    /// Samples are documents of their own, in stored sequence.
    pub stored: bool,
    /// The datasets it is a mix of, where it is one.
    pub mix: Option<Mix>,
    /// Samples of a micro-batch, where micro-batches are all that is known (and where a log tells).
    pub rows: Option<u64>,
}

/// Why a side cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// An epoch cannot be built.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Samples cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// More samples than a comparison can number.
    #[error("{0} samples are more than a comparison can hold (2^32 - 2): compare fewer epochs or steps")]
    TooMany(u64),
    /// A log whose lines hold different things.
    #[error("{0}")]
    Log(String),
}

/// A part of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The epoch.
    pub epoch: u64,
    /// Its micro-steps.
    pub micro_steps: Range<u64>,
}

/// Places that parts of an order hold at most, all ranks together.
pub fn planned(parts: &[Part], geometry: Geometry) -> u64 {
    let micro_steps = parts.iter().fold(0u64, |sum, part| {
        sum.saturating_add(part.micro_steps.end.saturating_sub(part.micro_steps.start))
    });
    micro_steps.saturating_mul(geometry.samples_per_micro_step())
}

/// Ids of an order with their places, part by part, all or those a log has lines of; `done` hears how many samples more were listed.
///
/// # Errors
/// [`SideError`] for an epoch that cannot be built, or too many samples.
pub fn list_order(
    order: &dyn Order,
    parts: &[Part],
    lines: Option<&Lines>,
    done: &(dyn Fn(u64) + Sync),
) -> Result<(Vec<u32>, Layout), SideError> {
    let (mut ids, mut layout) = (Vec::new(), Layout::default());
    let geometry = order.geometry();
    let planned = planned(parts, geometry);
    let too_many = order.num_samples().max(planned);
    if too_many >= u64::from(u32::MAX) {
        return Err(SideError::TooMany(too_many));
    }
    ids.reserve_exact(planned as usize);
    let mut seats = Vec::new();
    for part in parts {
        let index = order.epoch(part.epoch)?;
        let Some(mut k) = first_deal_index(&*index, part.micro_steps.start, geometry.world_size) else {
            continue;
        };
        let mut open: Option<u64> = None;
        let start = (part.micro_steps.start, index.step_of(part.micro_steps.start));
        if layout
            .epochs()
            .last()
            .is_some_and(|mark| mark.epoch == part.epoch)
        {
            layout.jump(start.0, start.1);
        } else {
            layout.begin_epoch(part.epoch, start.0, start.1);
        }
        let mut counted = 0;
        loop {
            let place = index
                .place_of(k)
                .filter(|place| place.micro_step < part.micro_steps.end);
            let micro_step = place.map(|place| place.micro_step);
            if open != micro_step {
                if let Some(before) = open {
                    layout.push_micro_step(&seats);
                    seats.clear();
                    if micro_step.is_none_or(|next| index.step_of(next) != index.step_of(before)) {
                        layout.close_step();
                    }
                }
                open = micro_step;
                if counted >= 1 << 20 {
                    done(counted);
                    counted = 0;
                }
            }
            let Some(place) = place else { break };
            if lines.is_none_or(|lines| lines.contain(part.epoch, place.micro_step, place.rank))
                && let Some(id) = index.sample(place)
            {
                ids.push(id as u32);
                seats.push(Seat {
                    rank: place.rank as u32,
                    slot: place.slot as u32,
                });
            }
            k += 1;
            counted += 1;
        }
        done(counted);
    }
    layout.close_step();
    Ok((ids, layout))
}

/// The first deal index of a micro-step.
fn first_deal_index(index: &dyn Epoch, micro_step: u64, world_size: u64) -> Option<u64> {
    let place = |rank| Place {
        micro_step,
        rank,
        slot: 0,
    };
    (0..world_size)
        .filter_map(|rank| index.deal_index(place(rank)))
        .min()
}

impl Side {
    /// An order over a source, or over a dataset that is not there.
    ///
    /// # Errors
    /// As [`list_order`].
    pub fn of_order(
        label: String,
        order: &dyn Order,
        source: Option<(Arc<dyn Source>, Option<usize>)>,
        identity: String,
        (parts, lines): (&[Part], Option<&Lines>),
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, SideError> {
        let (ids, layout) = list_order(order, parts, lines, done)?;
        let (source, seq_length) = match source {
            Some((source, seq_length)) => (Some(source), seq_length),
            None => (None, None),
        };
        let num_samples = source
            .as_ref()
            .map_or(order.num_samples(), |source| source.num_samples());
        let mix = Mix::of(source.as_deref(), Some(order.spec()), order.num_samples()).filter(Mix::is_mix);
        Ok(Self {
            label,
            spec: Some(order.spec().clone()),
            identity: Some(identity),
            num_samples: Some(num_samples),
            source,
            seq_length,
            samples: Samples::Ids(ids),
            layout,
            law_unknown: false,
            stored: false,
            mix,
            rows: None,
        })
    }

    /// A source's samples in stored sequence, one a step unless a layout is given.
    ///
    /// # Errors
    /// [`SideError::TooMany`].
    pub fn of_stored(
        label: String,
        source: Arc<dyn Source>,
        seq_length: Option<usize>,
        identity: String,
        seats: &[Seat],
    ) -> Result<Self, SideError> {
        let samples = source.num_samples();
        if samples >= u64::from(u32::MAX) {
            return Err(SideError::TooMany(samples));
        }
        let one = [Seat { rank: 0, slot: 0 }];
        let seats = if seats.is_empty() { &one[..] } else { seats };
        let mut layout = Layout::default();
        layout.begin_epoch(0, 0, 0);
        let mut left = samples as usize;
        while left > 0 {
            let now = left.min(seats.len());
            layout.push_micro_step(&seats[..now]);
            layout.close_step();
            left -= now;
        }
        Ok(Self {
            label,
            spec: None,
            identity: Some(identity),
            num_samples: Some(samples),
            source: Some(source),
            seq_length,
            samples: Samples::Ids((0..samples as u32).collect()),
            layout,
            law_unknown: seats.len() > 1,
            stored: true,
            mix: None,
            rows: None,
        })
    }

    /// A log of a run. Steps are `gradient_accumulation_steps` micro-steps, closed at the end of an epoch.
    ///
    /// # Errors
    /// [`SideError::Log`] when some lines hold samples and others only digests of micro-batches.
    pub fn of_log(label: String, log: RunLog, gradient_accumulation_steps: u64) -> Result<Self, SideError> {
        let mut layout = Layout::default();
        let (mut digests, mut whole, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows: Vec<Vec<i32>> = Vec::new();
        let samples = log.has_samples();
        let ids_only = log
            .batches
            .iter()
            .all(|b| b.fingerprint.is_none() && b.ids.is_some());
        if !samples && !ids_only && log.batches.iter().any(|b| b.fingerprint.is_none()) {
            return Err(SideError::Log(format!(
                "{}: some lines hold fingerprints and others only ids: they cannot be compared with one another",
                log.path.display()
            )));
        }
        let accumulation = gradient_accumulation_steps.max(1);
        let (mut seats, mut open): (Vec<Seat>, Option<(Option<u64>, u64)>) = (Vec::new(), None);
        let mut epoch = None;
        let path = log.path.clone();
        let rows_logged = log.micro_batch_size();
        for (number, batch) in log.batches.into_iter().enumerate() {
            let key = (batch.epoch, batch.micro_step);
            if open != Some(key) {
                if let Some((_, micro_step)) = open {
                    layout.push_micro_step(&seats);
                    seats.clear();
                    if (micro_step + 1) % accumulation == 0 {
                        layout.close_step();
                    }
                }
                if number == 0 || epoch != batch.epoch {
                    layout.begin_epoch(
                        batch.epoch.unwrap_or(0),
                        batch.micro_step,
                        batch.micro_step / accumulation,
                    );
                    epoch = batch.epoch;
                } else if let Some((_, before)) = open
                    && batch.micro_step > before + 1
                {
                    layout.jump(batch.micro_step, batch.micro_step / accumulation);
                }
                open = Some(key);
            }
            let count = if samples || ids_only {
                batch.rows().unwrap_or(0)
            } else {
                1
            };
            let seat = |slot| Seat {
                rank: batch.rank as u32,
                slot: slot as u32,
            };
            seats.extend((0..count).map(seat));
            if samples {
                digests.extend(batch.samples.unwrap_or_default());
            } else if ids_only {
                for id in batch.ids.unwrap_or_default() {
                    ids.push(u32::try_from(id).map_err(|_| SideError::TooMany(id))?);
                }
            } else {
                whole.extend(batch.fingerprint);
            }
            rows.extend(batch.tokens.unwrap_or_default());
        }
        layout.push_micro_step(&seats);
        layout.close_step();
        let with_tokens = samples && !rows.is_empty() && rows.len() == digests.len();
        let source: Option<Arc<dyn Source>> =
            with_tokens.then(|| Arc::new(TokenRows { path, rows }) as Arc<dyn Source>);
        Ok(Self {
            label,
            spec: None,
            identity: ids_only.then(|| "ids".to_owned()),
            num_samples: None,
            source,
            seq_length: None,
            samples: if with_tokens {
                Samples::Ids((0..digests.len() as u32).collect())
            } else if samples {
                Samples::Digests(digests)
            } else if ids_only {
                Samples::Ids(ids)
            } else {
                Samples::MicroBatches(whole)
            },
            layout,
            law_unknown: true,
            stored: false,
            mix: None,
            rows: rows_logged,
        })
    }

    /// The sample of the source at a place of the stream.
    pub fn source_id(&self, index: usize) -> Option<SampleId> {
        match &self.samples {
            Samples::Ids(ids) => ids.get(index).map(|id| u64::from(*id)),
            Samples::Digests(_) | Samples::MicroBatches(_) => None,
        }
    }

    /// Tokens of the sample at a place of the stream; `None` where they are not there.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn tokens(&self, index: usize, buffer: &mut Vec<i32>) -> Result<Option<()>, SourceError> {
        let (Some(source), Some(id)) = (&self.source, self.source_id(index)) else {
            return Ok(None);
        };
        crate::provenance::digests::read_sample(&**source, id, self.seq_length, buffer)?;
        Ok(Some(()))
    }
}

/// Rows of tokens in memory.
#[derive(Debug)]
pub struct TokenRows {
    /// Where they come from.
    pub path: PathBuf,
    /// The rows.
    pub rows: Vec<Vec<i32>>,
}

impl TokenRows {
    fn row(&self, id: SampleId) -> Result<&Vec<i32>, SourceError> {
        let row = usize::try_from(id).ok().and_then(|at| self.rows.get(at));
        row.ok_or(SourceError::OutOfRange {
            id,
            num_samples: self.rows.len() as u64,
        })
    }
}

impl Source for TokenRows {
    fn num_samples(&self) -> u64 {
        self.rows.len() as u64
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        Ok(self.row(id)?.len())
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let row = self.row(id)?;
        let n = row.len().min(out.len());
        out[..n].copy_from_slice(&row[..n]);
        Ok(n)
    }

    fn file_of(&self, _id: SampleId) -> Option<PathBuf> {
        Some(self.path.clone())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}
