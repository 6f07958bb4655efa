//! Held-out rows, read one after the other for evaluation.

use ceteris_loader::collate::{Collated, Collator, HfCollator, TokenBlock};
use ceteris_loader::source::Source;

use super::global_batch::{IGNORE, push_targets};
use super::{DataError, Documents, ModelInput};

/// Reads rows `0..rows` into the inputs of device micro-batches.
pub struct HeldOut<'a> {
    source: &'a dyn Source,
    rows: u64,
    next: u64,
    seq_length: usize,
    documents: Documents,
    collator: HfCollator,
    counted: u64,
    row: Vec<i32>,
    collated: Collated,
}

impl<'a> HeldOut<'a> {
    /// Starts at row 0. Padding is `pad`, and counts nothing.
    pub fn new(
        source: &'a dyn Source,
        rows: u64,
        seq_length: usize,
        documents: Documents,
        pad: Option<i32>,
    ) -> Self {
        HeldOut {
            source,
            rows,
            next: 0,
            seq_length,
            documents,
            collator: HfCollator { pad_token_id: pad },
            counted: 0,
            row: vec![0; seq_length],
            collated: Collated::default(),
        }
    }

    /// Targets counted so far.
    pub fn counted_tokens(&self) -> u64 {
        self.counted
    }

    /// Fills the next micro-batch of `rows` rows, zeros that count nothing past the end; false when none are left.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn fill(&mut self, rows: usize, input: &mut ModelInput) -> Result<bool, DataError> {
        if self.next >= self.rows {
            return Ok(false);
        }
        let t = self.seq_length;
        input.clear();
        for slot in 0..rows {
            if self.next >= self.rows {
                input.push_empty_row(slot, t);
                continue;
            }
            let pad = self.collator.pad_token_id.unwrap_or(0);
            let read = self.source.read(self.next, &mut self.row)?;
            self.row[read..].fill(pad);
            let block = TokenBlock {
                tokens: &self.row,
                width: t,
                valid_rows: 1,
            };
            self.collator
                .collate(&block, &mut self.collated)
                .map_err(ceteris_loader::pipeline::LoaderError::from)?;
            // Without a pad id, what lies behind a short row must not count either.
            self.collated.labels[read..].fill(IGNORE);
            let before = input.targets.len();
            push_targets(&self.collated.labels, None, true, &mut input.targets);
            self.counted += input.targets[before..].iter().filter(|t| **t != IGNORE).count() as u64;
            input.push_row(slot, self.next, &self.row, self.documents)?;
            self.next += 1;
        }
        input.close(rows, t, self.documents);
        Ok(true)
    }
}
