//! Assembles micro-steps: order → source → buffer → collator.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ceteris_samplers::{Epoch, Place, SampleId};

use super::batch::{BatchBuffer, BatchShape, BatchStep};
use super::documents::DocumentRule;
use super::epochs::{EpochWindow, Located};
use super::error::{LoaderError, SampleAt, StepAt, panic_message};
use super::page_in::{Ahead, DiskReads};
use super::ring::{Done, Job, WorkerEnd};
use crate::collate::Collator;
use crate::fingerprint::Fingerprint;
use crate::source::{AHEAD, GROUP, Source, SourceError};

/// What a worker is doing, for messages about stalls and panics. Written by it, read by others at any time.
#[derive(Debug)]
pub(crate) struct Status {
    epoch: AtomicU64,
    micro_step: AtomicU64,
    global_micro_step: AtomicU64,
    /// `NONE`: no micro-step in work.
    sample: AtomicU64,
    rank: AtomicU64,
    slot: AtomicU64,
}

const NONE: u64 = u64::MAX;

impl Status {
    pub(crate) fn new() -> Status {
        let zero = AtomicU64::default;
        Status {
            epoch: zero(),
            micro_step: zero(),
            global_micro_step: zero(),
            sample: AtomicU64::new(NONE),
            rank: zero(),
            slot: zero(),
        }
    }

    fn begin(&self, step: &BatchStep) {
        self.sample.store(NONE, Ordering::Relaxed);
        self.epoch.store(step.epoch, Ordering::Relaxed);
        self.micro_step.store(step.micro_step, Ordering::Relaxed);
        self.global_micro_step
            .store(step.global_micro_step, Ordering::Relaxed);
    }

    fn sample(&self, sample: SampleId, rank: u64, slot: u64) {
        self.rank.store(rank, Ordering::Relaxed);
        self.slot.store(slot, Ordering::Relaxed);
        self.sample.store(sample, Ordering::Relaxed);
    }

    fn end(&self) {
        self.sample.store(NONE, Ordering::Relaxed);
    }

    pub(crate) fn at(&self) -> StepAt {
        StepAt {
            epoch: self.epoch.load(Ordering::Relaxed),
            micro_step: self.micro_step.load(Ordering::Relaxed),
            global_micro_step: self.global_micro_step.load(Ordering::Relaxed),
        }
    }

    /// The sample in work, with its file.
    pub(crate) fn sample_at(&self, source: &dyn Source) -> Option<Box<SampleAt>> {
        let sample = self.sample.load(Ordering::Relaxed);
        (sample != NONE).then(|| {
            Box::new(SampleAt {
                sample,
                rank: self.rank.load(Ordering::Relaxed),
                slot: self.slot.load(Ordering::Relaxed),
                file: source.file_of(sample),
            })
        })
    }
}

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Assembler {
    pub source: Arc<dyn Source>,
    pub window: EpochWindow,
    pub shape: Arc<BatchShape>,
    /// Ranks of the run, which may be more than the batch holds.
    pub world_size: u64,
    pub collator: Arc<dyn Collator>,
    pub documents: Option<DocumentRule>,
    pub pad_token: i32,
    /// Parts of the dataset that consumption is counted by.
    pub parts: usize,
    pub workers: u64,
    pub page_in_micro_steps: u64,
}

/// What one worker keeps between micro-steps.
#[derive(Debug)]
pub(crate) struct Scratch {
    extra: Vec<i32>,
    starts: Vec<usize>,
    /// Sample of each row of the micro-step in work.
    samples: Vec<Option<SampleId>>,
    ahead: Ahead,
}

impl Assembler {
    pub(crate) fn scratch(&self, mode: super::options::PageIn) -> Scratch {
        Scratch {
            extra: Vec::with_capacity(self.shape.extra_tokens),
            starts: Vec::with_capacity(if self.documents.is_some() {
                self.shape.seq_length + 1
            } else {
                0
            }),
            samples: Vec::with_capacity(self.shape.rows()),
            ahead: Ahead::new(mode, self.shape.rows()),
        }
    }

    /// Body of a worker thread.
    pub(crate) fn run(&self, worker: usize, end: &WorkerEnd, status: &Status, mut scratch: Scratch) {
        while let Ok(Job::Assemble(seq, buffer)) = end.jobs.recv() {
            let done = self.job(worker, seq, buffer, status, &mut scratch, false);
            let last = !matches!(done, Done::Ready(..));
            if end.done.send(done).is_err() || last {
                break;
            }
        }
    }

    /// Does one job; a panic of the source, the order or the collator becomes an error. With `build`, missing epochs are
    /// built in this thread.
    pub(crate) fn job(
        &self,
        worker: usize,
        seq: u64,
        mut buffer: Box<BatchBuffer>,
        status: &Status,
        scratch: &mut Scratch,
        build: bool,
    ) -> Done {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.assemble(seq, &mut buffer, status, scratch, build)
        }));
        let done = match outcome {
            Ok(Ok(true)) => Done::Ready(seq, buffer),
            Ok(Ok(false)) => Done::End(seq),
            Ok(Err(error)) => Done::Failed(seq, Instant::now(), Box::new(error)),
            Err(payload) => {
                // The sample is looked up with care: the source has just panicked.
                let sample = catch_unwind(AssertUnwindSafe(|| status.sample_at(&*self.source)))
                    .ok()
                    .flatten();
                let message = panic_message(payload.as_ref());
                let error = LoaderError::WorkerPanic {
                    at: status.at(),
                    worker,
                    sample,
                    message,
                };
                Done::Failed(seq, Instant::now(), Box::new(error))
            }
        };
        status.end();
        done
    }

    /// Fills `buffer` with micro-step `seq`; false past the end of the run.
    fn assemble(
        &self,
        seq: u64,
        buffer: &mut BatchBuffer,
        status: &Status,
        scratch: &mut Scratch,
        build: bool,
    ) -> Result<bool, LoaderError> {
        let Some(located) = self.window.locate(seq, build)? else {
            return Ok(false);
        };
        status.begin(&located.step);
        let before = DiskReads::now();
        if scratch.ahead.active() {
            self.hint(seq, &located, scratch);
        }
        let start = Instant::now();
        self.fill(&located, buffer, status, scratch)?;
        buffer.metrics.assemble = start.elapsed();
        buffer.metrics.disk = DiskReads::now() != before;
        scratch.ahead.learn(buffer.metrics.disk);
        self.window.assembled(seq);
        Ok(true)
    }

    /// Asks for the pages of this worker's coming micro-steps, and of this one, which otherwise would be read row by row.
    fn hint(&self, seq: u64, located: &Located, scratch: &mut Scratch) {
        let slots = self.shape.micro_batch_size as u64;
        for ahead in 0..=self.page_in_micro_steps {
            let next = if ahead == 0 {
                Some(located.clone())
            } else {
                self.window.peek(seq + ahead * self.workers.max(1))
            };
            let Some(next) = next else { break };
            scratch.ahead.hint(
                &*self.source,
                &*next.index,
                next.step.micro_step,
                &self.shape.ranks,
                slots,
            );
        }
    }

    fn fill(
        &self,
        located: &Located,
        buffer: &mut BatchBuffer,
        status: &Status,
        scratch: &mut Scratch,
    ) -> Result<(), LoaderError> {
        let (index, step) = (&*located.index, located.step);
        let at = StepAt {
            epoch: step.epoch,
            micro_step: step.micro_step,
            global_micro_step: step.global_micro_step,
        };
        let b = self.shape.micro_batch_size;
        buffer.step = step;
        buffer.documents.fill(0);
        self.look_up(index, at, &mut scratch.samples)?;
        // Rows come in groups from memory; a read that may wait for the disk is one row's, so that messages name it.
        let grouped = self.shape.extra_tokens == 0 && !scratch.ahead.active();
        let mut grouped_until = 0;
        let mut bytes = 0;
        for (group, &rank) in self.shape.ranks.iter().enumerate() {
            let mut valid = 0;
            for slot in 0..b {
                let row = group * b + slot;
                let place = Place {
                    micro_step: step.micro_step,
                    rank,
                    slot: slot as u64,
                };
                let sample = scratch.samples[row];
                if let Some(sample) = sample {
                    if valid != slot {
                        return Err(LoaderError::Gap {
                            at,
                            rank,
                            slot: slot as u64,
                        });
                    }
                    valid += 1;
                    status.sample(sample, rank, slot as u64);
                    buffer.rows[row] = self.source.stored_row(sample);
                    if self.shape.positions {
                        buffer.positions[row] = index.position(place).unwrap_or(sample);
                    }
                    buffer.deal_indices[row] = index.deal_index(place).unwrap_or(0);
                    buffer.padding[row] = index.is_padding(place);
                }
                if grouped && row >= grouped_until && self.group(row, buffer, &scratch.samples) {
                    grouped_until = row + GROUP;
                }
                self.row(row, sample, row < grouped_until, buffer, scratch)
                    .map_err(|source| LoaderError::Read {
                        at,
                        sample: Box::new(SampleAt {
                            sample: sample.unwrap_or(0),
                            rank,
                            slot: slot as u64,
                            file: sample.and_then(|id| self.source.file_of(id)),
                        }),
                        source: Box::new(source),
                    })?;
                bytes += u64::from(buffer.lens[row]) * 4;
            }
            buffer.valid_rows[group] = valid;
            buffer.close_documents(group);
        }
        buffer.metrics.bytes = bytes;
        self.count(index, step.micro_step, &mut buffer.consumed);
        Ok(())
    }

    /// Finds the samples of all rows of a micro-step.
    fn look_up(
        &self,
        index: &dyn Epoch,
        at: StepAt,
        samples: &mut Vec<Option<SampleId>>,
    ) -> Result<(), LoaderError> {
        samples.clear();
        for &rank in &self.shape.ranks {
            for slot in 0..self.shape.micro_batch_size as u64 {
                let place = Place {
                    micro_step: at.micro_step,
                    rank,
                    slot,
                };
                samples.push(
                    index
                        .checked_sample(place)
                        .map_err(|error| LoaderError::Damaged {
                            at,
                            why: error.to_string(),
                        })?,
                );
            }
        }
        Ok(())
    }

    /// Reads the rows from `row` on side by side, if the source can; false leaves them to be read one by one.
    fn group(&self, row: usize, buffer: &mut BatchBuffer, samples: &[Option<SampleId>]) -> bool {
        let coming = match row {
            0 => GROUP,
            _ => row + AHEAD,
        };
        let coming = samples.iter().take(row + AHEAD + GROUP).skip(coming);
        coming.flatten().for_each(|&id| self.source.read_soon(id));
        let Some(&[Some(a), Some(b), Some(c), Some(d)]) = samples[row..].first_chunk::<GROUP>() else {
            return false;
        };
        self.source.read_group([a, b, c, d], buffer.group_mut(row))
    }

    /// Reads and collates one row; `None` is a row past the end of the epoch. With `read`, its T tokens are there already.
    fn row(
        &self,
        row: usize,
        sample: Option<SampleId>,
        read: bool,
        buffer: &mut BatchBuffer,
        scratch: &mut Scratch,
    ) -> Result<(), SourceError> {
        let t = self.shape.seq_length;
        let out = buffer.sample_mut(row);
        let read = match sample {
            Some(_) if read => t,
            Some(id) => self.source.read(id, out)?.min(out.len()),
            None => 0,
        };
        let len = read.min(t);
        out[len..t].fill(self.pad_token);
        scratch.extra.clear();
        scratch.extra.extend_from_slice(&out[len.max(t)..read.max(t)]);
        let fingerprint = self
            .shape
            .fingerprints
            .then(|| Fingerprint::of_sample(&out[..len]));
        if let Some(fingerprint) = fingerprint {
            buffer.fingerprints[row] = fingerprint;
        }
        buffer.lens[row] = len as u32;
        let Scratch { extra, starts, .. } = scratch;
        let mut out = buffer.row_out(row, extra, self.pad_token);
        match &self.documents {
            // A rule has the last word on boundaries, whatever the collator thinks of them.
            Some(rule) => {
                let documents = out.documents.take();
                self.collator.collate_row(&mut out);
                out.documents = documents;
                rule.mark(&mut out, &*self.source, sample, starts)
            }
            None => {
                self.collator.collate_row(&mut out);
                Ok(())
            }
        }
    }

    /// Counts the samples a micro-step consumes over all ranks of the run, by part.
    fn count(&self, index: &dyn Epoch, micro_step: u64, consumed: &mut [u64]) {
        consumed.fill(0);
        let slots = self.shape.micro_batch_size as u64;
        for rank in 0..self.world_size {
            if let [only] = consumed {
                let has = |slot| {
                    index
                        .deal_index(Place {
                            micro_step,
                            rank,
                            slot,
                        })
                        .is_some()
                };
                // Valid slots come first, so a last one that is filled means all are.
                *only += if has(slots - 1) {
                    slots
                } else {
                    (0..slots).take_while(|&slot| has(slot)).count() as u64
                };
            } else {
                let samples = (0..slots).map_while(|slot| {
                    index.sample(Place {
                        micro_step,
                        rank,
                        slot,
                    })
                });
                for sample in samples {
                    let part = self.source.part_of(sample).min(self.parts - 1);
                    consumed[part] += 1;
                }
            }
        }
    }
}
