//! Global batches: all rows of an optimizer step, in deal position order.
//!
//! The ranks of a run are virtual: one device computes what all of them would. Rows are put into the order of their
//! position in the epoch's dealt list and cut into the device's own micro-batches, so that the sum of gradients runs over
//! the same sequences in the same order for every factorisation of the global batch into ranks, micro-batches and
//! accumulation. Memory: the tokens and targets of one global batch.

use std::time::Duration;

use ceteris_loader::fingerprint::{RunFingerprint, StepFingerprint};
use ceteris_loader::pipeline::{Loader, LoaderState};
use ceteris_samplers::SampleId;

use super::DataError;

/// Label of a position that does not count.
pub const IGNORE: i32 = ceteris_loader::collate::IGNORE_INDEX;

/// How rows are cut into documents that see nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Documents {
    /// A row is one document.
    Rows,
    /// This id starts a document.
    Bos {
        /// The id.
        id: i32,
        /// Most documents of a row.
        limit: usize,
    },
    /// This id ends a document.
    Eos {
        /// The id.
        id: i32,
        /// Most documents of a row.
        limit: usize,
    },
}

impl Documents {
    /// Most documents of a row.
    pub fn per_row(self) -> usize {
        match self {
            Documents::Rows => 1,
            Documents::Bos { limit, .. } | Documents::Eos { limit, .. } => limit,
        }
    }

    /// Offsets at which documents start, 0 first.
    fn starts(self, tokens: &[i32]) -> Vec<usize> {
        let marked = |id: i32, behind: usize| {
            let found = tokens
                .iter()
                .enumerate()
                .filter(move |(_, t)| **t == id)
                .map(move |(at, _)| at + behind);
            std::iter::once(0)
                .chain(found.filter(|&at| at > 0 && at < tokens.len()))
                .collect()
        };
        match self {
            Documents::Rows => vec![0],
            Documents::Bos { id, .. } => marked(id, 0),
            Documents::Eos { id, .. } => marked(id, 1),
        }
    }
}

/// What the plan's inputs hold for one device micro-batch. Buffers are reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInput {
    /// `rows x T` token ids.
    pub tokens: Vec<i32>,
    /// `rows x T` targets, [`IGNORE`] where nothing is counted.
    pub targets: Vec<i32>,
    /// Ascending row offsets of documents; unused entries repeat the end.
    pub cu_seqlens: Vec<i32>,
}

/// All rows of one optimizer step.
#[derive(Clone, Debug)]
pub struct GlobalBatch {
    /// Optimizer step since the start of the run.
    pub global_step: u64,
    /// Epoch.
    pub epoch: u64,
    /// Digests of the samples consumed.
    pub fingerprint: StepFingerprint,
    /// Time waited for the loader.
    pub wait: Duration,
    seq_length: usize,
    documents: Documents,
    /// Position in the dealt list and index in the arrays, by position.
    order: Vec<(u64, usize)>,
    samples: Vec<SampleId>,
    tokens: Vec<i32>,
    targets: Vec<i32>,
    counted: u64,
}

impl GlobalBatch {
    /// Rows that hold a sample.
    pub fn rows(&self) -> usize {
        self.order.len()
    }

    /// Tokens of all rows.
    pub fn tokens(&self) -> u64 {
        (self.rows() * self.seq_length) as u64
    }

    /// Positions that count in the loss.
    pub fn counted_tokens(&self) -> u64 {
        self.counted
    }

    /// Rows of the stored table, in deal position order.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = SampleId> + '_ {
        self.order.iter().map(|&(_, at)| self.samples[at])
    }

    /// Pairs of input and target of one row that count in the loss.
    pub fn pairs(&self, row: usize) -> impl Iterator<Item = (i32, i32)> + '_ {
        let at = self.order[row].1 * self.seq_length;
        let range = at..at + self.seq_length;
        self.tokens[range.clone()]
            .iter()
            .zip(&self.targets[range])
            .filter(|(_, target)| **target != IGNORE)
            .map(|(token, target)| (*token, *target))
    }

    /// Device micro-batches of `rows` rows.
    pub fn micro_batches(&self, rows: usize) -> usize {
        self.rows().div_ceil(rows)
    }

    /// Fills the inputs of device micro-batch `index` of `rows` rows; rows past the end are zeros that count nothing.
    ///
    /// # Errors
    /// [`DataError::Documents`].
    pub fn fill(&self, index: usize, rows: usize, input: &mut ModelInput) -> Result<(), DataError> {
        let t = self.seq_length;
        input.clear();
        for slot in 0..rows {
            let Some(&(_, at)) = self.order.get(index * rows + slot) else {
                input.push_empty_row(slot, t);
                continue;
            };
            let range = at * t..(at + 1) * t;
            input.targets.extend_from_slice(&self.targets[range.clone()]);
            input.push_row(slot, self.samples[at], &self.tokens[range], self.documents)?;
        }
        input.close(rows, t, self.documents);
        Ok(())
    }
}

impl ModelInput {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.targets.clear();
        self.cu_seqlens.clear();
    }

    /// A row of zeros that counts nothing.
    pub(super) fn push_empty_row(&mut self, slot: usize, t: usize) {
        self.tokens.resize(self.tokens.len() + t, 0);
        self.targets.resize(self.targets.len() + t, IGNORE);
        self.cu_seqlens.push((slot * t) as i32);
    }

    /// Tokens and documents of a row whose targets are there already.
    pub(super) fn push_row(
        &mut self,
        slot: usize,
        row: SampleId,
        tokens: &[i32],
        documents: Documents,
    ) -> Result<(), DataError> {
        self.tokens.extend_from_slice(tokens);
        let starts = documents.starts(tokens);
        if starts.len() > documents.per_row() {
            return Err(DataError::Documents {
                row,
                found: starts.len(),
                limit: documents.per_row(),
            });
        }
        let first = slot * tokens.len();
        self.cu_seqlens.extend(starts.iter().map(|s| (first + s) as i32));
        Ok(())
    }

    /// Ends the list of documents; unused entries repeat the end.
    pub(super) fn close(&mut self, rows: usize, t: usize, documents: Documents) {
        self.cu_seqlens
            .resize(rows * documents.per_row() + 1, (rows * t) as i32);
    }
}

/// Reads global batches from a loader of all ranks.
#[derive(Debug)]
pub struct GlobalBatches {
    loader: Loader,
    documents: Documents,
    shifts_in_model: bool,
    digests: RunFingerprint,
    state: LoaderState,
}

impl GlobalBatches {
    pub(super) fn new(
        mut loader: Loader,
        documents: Documents,
        shifts_in_model: bool,
    ) -> Result<Self, DataError> {
        Ok(GlobalBatches {
            state: loader.state()?,
            loader,
            documents,
            shifts_in_model,
            digests: RunFingerprint::new(),
        })
    }

    /// Where the run stands after the last whole global batch taken.
    pub fn state(&self) -> &LoaderState {
        &self.state
    }

    /// The next global batch; `None` after the last one.
    ///
    /// # Errors
    /// [`DataError::Loader`].
    pub fn next_batch(&mut self) -> Result<Option<GlobalBatch>, DataError> {
        let t = self.loader.shape().seq_length;
        let mut out: Option<GlobalBatch> = None;
        while let Some(batch) = self.loader.next_batch()? {
            let step = batch.step();
            let global = out.get_or_insert_with(|| GlobalBatch {
                global_step: step.global_step,
                epoch: step.epoch,
                fingerprint: StepFingerprint {
                    epoch: step.epoch,
                    step: step.step,
                    fingerprint: Default::default(),
                    set: Default::default(),
                    samples: 0,
                },
                wait: Duration::ZERO,
                seq_length: t,
                documents: self.documents,
                order: Vec::new(),
                samples: Vec::new(),
                tokens: Vec::new(),
                targets: Vec::new(),
                counted: 0,
            });
            global.wait += batch.metrics().wait;
            for part in batch.micro_batches() {
                let labels = part.labels.unwrap_or(part.tokens);
                for slot in 0..part.valid_rows {
                    let range = slot * t..(slot + 1) * t;
                    global.order.push((part.deal_indices[slot], global.samples.len()));
                    global.samples.push(part.rows[slot]);
                    global.tokens.extend_from_slice(&part.tokens[range.clone()]);
                    let before = global.targets.len();
                    push_targets(
                        &labels[range.clone()],
                        part.loss_mask.map(|mask| &mask[range]),
                        self.shifts_in_model,
                        &mut global.targets,
                    );
                    global.counted +=
                        global.targets[before..].iter().filter(|t| **t != IGNORE).count() as u64;
                    if let Some(digests) = part.fingerprints {
                        self.digests
                            .push(step.epoch, step.step, part.deal_indices[slot], digests[slot]);
                    }
                }
            }
            if step.closes_step {
                break;
            }
        }
        if let Some(global) = &mut out {
            global.order.sort_unstable();
            if let Some(digest) = self.digests.close_step() {
                global.fingerprint = digest;
            }
            self.state = self.loader.state()?;
        }
        Ok(out)
    }
}

/// Targets of one row. A model that shifts predicts the next label at each position and nothing at the last one.
pub(super) fn push_targets(labels: &[i32], mask: Option<&[f32]>, shifts_in_model: bool, out: &mut Vec<i32>) {
    if shifts_in_model {
        out.extend_from_slice(&labels[1..]);
        out.push(IGNORE);
        return;
    }
    match mask {
        None => out.extend_from_slice(labels),
        Some(mask) => out.extend(
            labels
                .iter()
                .zip(mask)
                .map(|(&label, &m)| if m > 0.0 { label } else { IGNORE }),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_shifts_predicts_the_next_label() {
        let mut out = Vec::new();
        push_targets(&[5, 6, -100, 8], None, true, &mut out);
        assert_eq!(out, [6, -100, 8, -100]);
        out.clear();
        push_targets(&[6, 7, 0], Some(&[1.0, 1.0, 0.0]), false, &mut out);
        assert_eq!(out, [6, 7, -100]);
    }

    #[test]
    fn documents_start_at_markers() {
        let tokens = [1, 7, 1, 1, 7, 2];
        assert_eq!(Documents::Rows.starts(&tokens), [0]);
        assert_eq!(Documents::Bos { id: 1, limit: 9 }.starts(&tokens), [0, 2, 3]);
        assert_eq!(Documents::Eos { id: 7, limit: 9 }.starts(&tokens), [0, 2, 5]);
        assert_eq!(Documents::Eos { id: 2, limit: 9 }.starts(&tokens), [0]);
    }
}
