//! A batch: one micro-step of the ranks asked for, in one reusable buffer of fixed shape.
//!
//! Shapes: `ranks × micro_batch_size` rows of `seq_length` tokens, rank by rank in the order asked for. Rows past the
//! end of an epoch are padding (`valid_rows` counts the real ones, which come first), so a consumer of fixed shapes
//! needs no special case.

use std::ops::Deref;

use ceteris_samplers::SampleId;

use super::buffer::{AllocationError, BUFFER_ALIGN, BufferAllocator, BufferMemory};
use super::metrics::BatchMetrics;
use super::ring::Lanes;
use crate::collate::{DocumentStarts, Outputs, RowOut};
use crate::fingerprint::Fingerprint;
use crate::source::GROUP;

/// Shape of every batch of a loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Ranks in the batch, in this order.
    pub ranks: Vec<u64>,
    /// Rows of one rank.
    pub micro_batch_size: usize,
    /// Tokens of a row, T.
    pub seq_length: usize,
    /// Tokens read beyond T (collators that take labels from the sample itself).
    pub extra_tokens: usize,
    /// Arrays beside the tokens.
    pub outputs: Outputs,
    /// Whether rows carry their fingerprints.
    pub fingerprints: bool,
    /// Whether rows carry their positions.
    pub positions: bool,
}

impl BatchShape {
    /// Rows over all ranks of the batch.
    pub fn rows(&self) -> usize {
        self.ranks.len() * self.micro_batch_size
    }

    /// Tokens over all rows.
    pub fn tokens(&self) -> usize {
        self.rows() * self.seq_length
    }

    /// Entries of `cu_seqlens` a rank can need: a document per token, and the end.
    fn cu_seqlens_per_rank(&self) -> usize {
        self.micro_batch_size * self.seq_length + 1
    }
}

/// Where the arrays lie in a buffer's memory, in bytes; every array starts on [`BUFFER_ALIGN`].
#[derive(Clone, Copy, Debug)]
struct Sections {
    tokens: usize,
    labels: usize,
    loss_mask: usize,
    position_ids: usize,
    cu_seqlens: usize,
    total: usize,
}

impl Sections {
    fn of(shape: &BatchShape) -> Option<Sections> {
        let mut at = 0usize;
        let mut take = |present: bool, words: usize| -> Option<usize> {
            let start = at;
            if present {
                let bytes = words.checked_mul(4)?.checked_next_multiple_of(BUFFER_ALIGN)?;
                at = at.checked_add(bytes)?;
            }
            Some(start)
        };
        let tokens_all = shape
            .ranks
            .len()
            .checked_mul(shape.micro_batch_size)?
            .checked_mul(shape.seq_length)?;
        let tokens = take(true, tokens_all.checked_add(shape.extra_tokens)?)?;
        let labels = take(shape.outputs.labels, tokens_all)?;
        let loss_mask = take(shape.outputs.loss_mask, tokens_all)?;
        let position_ids = take(shape.outputs.position_ids, tokens_all)?;
        let cu_words = shape.cu_seqlens_per_rank().checked_mul(shape.ranks.len())?;
        let cu_seqlens = take(shape.outputs.cu_seqlens, cu_words)?;
        // Offsets of documents are i32.
        i32::try_from(shape.cu_seqlens_per_rank()).ok()?;
        Some(Sections {
            tokens,
            labels,
            loss_mask,
            position_ids,
            cu_seqlens,
            total: at,
        })
    }
}

/// Counters of a batch; `micro_step` and `step` restart at each epoch, the global ones do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStep {
    /// Epoch of the run.
    pub epoch: u64,
    /// Micro-step within the epoch.
    pub micro_step: u64,
    /// Optimizer step within the epoch.
    pub step: u64,
    /// Micro-step since the start of the run.
    pub global_micro_step: u64,
    /// Optimizer step since the start of the run.
    pub global_step: u64,
    /// First micro-step (within the epoch) of this batch's optimizer step.
    pub step_start: u64,
    /// Micro-steps of this batch's optimizer step: `gradient_accumulation_steps`, fewer where an epoch end closes it.
    pub micro_steps_in_step: u64,
    /// The optimizer steps after this micro-step.
    pub closes_step: bool,
    /// The last micro-step of its epoch.
    pub closes_epoch: bool,
}

/// One buffer of the ring: tokens, what collators derive from them, and where each row comes from.
#[derive(Debug)]
pub struct BatchBuffer {
    memory: Box<dyn BufferMemory>,
    sections: Sections,
    shape: std::sync::Arc<BatchShape>,
    /// Filled by the worker.
    pub(crate) step: BatchStep,
    pub(crate) rows: Vec<SampleId>,
    pub(crate) positions: Vec<u64>,
    pub(crate) deal_indices: Vec<u64>,
    pub(crate) padding: Vec<bool>,
    pub(crate) lens: Vec<u32>,
    pub(crate) fingerprints: Vec<Fingerprint>,
    pub(crate) valid_rows: Vec<usize>,
    pub(crate) documents: Vec<usize>,
    /// Samples the micro-step consumes over *all* ranks of the run, by part of the dataset.
    pub(crate) consumed: Vec<u64>,
    pub(crate) metrics: BatchMetrics,
}

impl BatchBuffer {
    /// Takes a buffer of `shape` from `allocator`; the only allocation of its life.
    ///
    /// # Errors
    /// [`AllocationError`] when the memory cannot be had or the shape's size overflows.
    pub(crate) fn new(
        shape: std::sync::Arc<BatchShape>,
        parts: usize,
        allocator: &dyn BufferAllocator,
    ) -> Result<BatchBuffer, AllocationError> {
        let sections = Sections::of(&shape).ok_or_else(|| AllocationError {
            bytes: usize::MAX,
            kind: allocator.kind(),
            reason: format!("a batch of {shape:?} does not fit the address space or 32-bit offsets"),
        })?;
        let memory = allocator.allocate(sections.total)?;
        if memory.len() < sections.total || !(memory.pointer().as_ptr() as usize).is_multiple_of(BUFFER_ALIGN)
        {
            return Err(AllocationError {
                bytes: sections.total,
                kind: allocator.kind(),
                reason: format!(
                    "the allocator returned {} bytes, or not aligned to {BUFFER_ALIGN}",
                    memory.len()
                ),
            });
        }
        let (rows, ranks) = (shape.rows(), shape.ranks.len());
        Ok(BatchBuffer {
            memory,
            sections,
            step: BatchStep::default(),
            rows: vec![0; rows],
            positions: vec![0; if shape.positions { rows } else { 0 }],
            deal_indices: vec![0; rows],
            padding: vec![false; rows],
            lens: vec![0; rows],
            fingerprints: vec![Fingerprint::of_sample(&[]); if shape.fingerprints { rows } else { 0 }],
            valid_rows: vec![0; ranks],
            documents: vec![0; ranks],
            consumed: vec![0; parts],
            metrics: BatchMetrics::default(),
            shape,
        })
    }

    /// Bytes of the region that holds the arrays.
    pub fn bytes(&self) -> usize {
        self.sections.total
    }

    fn words<T: Word>(&self, start: usize, len: usize) -> &[T] {
        debug_assert!(start + len * 4 <= self.memory.len());
        // SAFETY: `Sections::of` laid `len` 4-byte words at `start` inside the region, which is aligned, initialised
        // and owned by `self`; T is i32 or f32, for which every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.memory.pointer().as_ptr().add(start).cast::<T>(), len) }
    }

    /// # Safety
    /// No other reference into `start..start + len * 4` may live as long as the returned one.
    #[allow(
        clippy::mut_from_ref,
        reason = "sections are disjoint; the caller splits one exclusive borrow"
    )]
    unsafe fn words_mut<T: Word>(&self, start: usize, len: usize) -> &mut [T] {
        debug_assert!(start + len * 4 <= self.memory.len());
        // SAFETY: as in `words`; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer().as_ptr().add(start).cast::<T>(), len) }
    }

    /// Room for the sample of `row`: T tokens, and the extra ones, which lie where the next row will be written.
    pub(crate) fn sample_mut(&mut self, row: usize) -> &mut [i32] {
        let t = self.shape.seq_length;
        debug_assert!(row < self.shape.rows());
        // SAFETY: `&mut self` is exclusive; the tokens section has `extra_tokens` words behind its last row.
        unsafe { self.words_mut(self.sections.tokens + row * t * 4, t + self.shape.extra_tokens) }
    }

    /// Room for the samples of [`GROUP`] rows from `row` on, T tokens each.
    pub(crate) fn group_mut(&mut self, row: usize) -> [&mut [i32]; GROUP] {
        let t = self.shape.seq_length;
        assert!(row + GROUP <= self.shape.rows(), "a group within the batch");
        let this = &*self;
        // SAFETY: `&mut self` is exclusive; the rows lie within the tokens section and do not overlap.
        std::array::from_fn(|i| unsafe { this.words_mut(this.sections.tokens + (row + i) * t * 4, t) })
    }

    /// The arrays of `row` for a collator. `extra` is what `sample_mut` held beyond T.
    pub(crate) fn row_out<'a>(&'a mut self, row: usize, extra: &'a [i32], pad_token: i32) -> RowOut<'a> {
        let (t, outputs, s) = (self.shape.seq_length, self.shape.outputs, self.sections);
        let (rank, slot) = (
            row / self.shape.micro_batch_size,
            row % self.shape.micro_batch_size,
        );
        let at = |section: usize| section + row * t * 4;
        let per_rank = self.shape.cu_seqlens_per_rank();
        let len = self.lens[row] as usize;
        let count: *mut usize = &raw mut self.documents[rank];
        // SAFETY: `&'a mut self` is exclusive for 'a and every slice lies in a section of its own (`Sections::of`);
        // `count` points into `documents`, which nothing else of `RowOut` refers to.
        unsafe {
            RowOut {
                tokens: self.words_mut(at(s.tokens), t),
                extra,
                len,
                pad_token,
                labels: outputs.labels.then(|| self.words_mut(at(s.labels), t)),
                loss_mask: outputs.loss_mask.then(|| self.words_mut(at(s.loss_mask), t)),
                position_ids: outputs
                    .position_ids
                    .then(|| self.words_mut(at(s.position_ids), t)),
                documents: outputs.cu_seqlens.then(|| {
                    DocumentStarts::new(
                        self.words_mut(s.cu_seqlens + rank * per_rank * 4, per_rank),
                        &mut *count,
                        // `Sections::of` checked that micro_batch_size * T fits an i32.
                        (slot * t) as i32,
                        t as i32,
                    )
                }),
            }
        }
    }

    /// Ends the `cu_seqlens` of the rank at `index` with the length of its flattened micro-batch.
    pub(crate) fn close_documents(&mut self, index: usize) {
        if self.shape.outputs.cu_seqlens {
            let per_rank = self.shape.cu_seqlens_per_rank();
            let count = self.documents[index];
            // SAFETY: `&mut self` is exclusive.
            let all: &mut [i32] =
                unsafe { self.words_mut(self.sections.cu_seqlens + index * per_rank * 4, per_rank) };
            all[count] = (per_rank - 1) as i32;
            self.documents[index] = count + 1;
        }
    }

    /// Shape of the batch.
    pub fn shape(&self) -> &BatchShape {
        &self.shape
    }

    /// Counters.
    pub fn step(&self) -> BatchStep {
        self.step
    }

    /// Time waited for, bytes copied, ring occupancy.
    pub fn metrics(&self) -> BatchMetrics {
        self.metrics
    }

    /// Tokens of all rows, (ranks · micro_batch_size, T).
    pub fn tokens(&self) -> &[i32] {
        self.words(self.sections.tokens, self.shape.tokens())
    }

    /// The part of `rank`, `None` when the batch does not hold it.
    pub fn rank(&self, rank: u64) -> Option<MicroBatch<'_>> {
        let index = self.shape.ranks.iter().position(|&r| r == rank)?;
        Some(self.micro_batch(index))
    }

    /// Every rank's part, in the order the ranks were asked for.
    pub fn micro_batches(&self) -> impl ExactSizeIterator<Item = MicroBatch<'_>> {
        (0..self.shape.ranks.len()).map(|index| self.micro_batch(index))
    }

    fn micro_batch(&self, index: usize) -> MicroBatch<'_> {
        let (b, t, outputs, s) = (
            self.shape.micro_batch_size,
            self.shape.seq_length,
            self.shape.outputs,
            self.sections,
        );
        let rows = index * b..(index + 1) * b;
        let (words, offset) = (b * t, index * b * t * 4);
        let per_rank = self.shape.cu_seqlens_per_rank();
        MicroBatch {
            rank: self.shape.ranks[index],
            seq_length: t,
            valid_rows: self.valid_rows[index],
            tokens: self.words(s.tokens + offset, words),
            labels: outputs.labels.then(|| self.words(s.labels + offset, words)),
            loss_mask: outputs.loss_mask.then(|| self.words(s.loss_mask + offset, words)),
            position_ids: outputs
                .position_ids
                .then(|| self.words(s.position_ids + offset, words)),
            cu_seqlens: outputs
                .cu_seqlens
                .then(|| self.words(s.cu_seqlens + index * per_rank * 4, self.documents[index])),
            rows: &self.rows[rows.clone()],
            positions: self.shape.positions.then(|| &self.positions[rows.clone()]),
            deal_indices: &self.deal_indices[rows.clone()],
            padding: &self.padding[rows.clone()],
            lens: &self.lens[rows.clone()],
            fingerprints: self.shape.fingerprints.then(|| &self.fingerprints[rows]),
        }
    }
}

/// 4-byte values of which every bit pattern is valid.
trait Word: Copy {}
impl Word for i32 {}
impl Word for f32 {}

/// One rank's part of a batch. Entries of rows at and after `valid_rows` mean nothing.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch<'a> {
    /// The rank.
    pub rank: u64,
    /// Tokens of a row.
    pub seq_length: usize,
    /// Rows that hold a sample; they come first.
    pub valid_rows: usize,
    /// (micro_batch_size, T).
    pub tokens: &'a [i32],
    /// (micro_batch_size, T), where the collator makes them.
    pub labels: Option<&'a [i32]>,
    /// (micro_batch_size, T), where the collator makes it.
    pub loss_mask: Option<&'a [f32]>,
    /// (micro_batch_size, T), where the collator or a document rule makes them.
    pub position_ids: Option<&'a [i32]>,
    /// Starts of documents in the flattened micro-batch and its length, where asked for.
    pub cu_seqlens: Option<&'a [i32]>,
    /// Rows of the stored table.
    pub rows: &'a [SampleId],
    /// Indices after the order's own dataset shuffle, where asked for.
    pub positions: Option<&'a [u64]>,
    /// Positions in the epoch's dealt list.
    pub deal_indices: &'a [u64],
    /// The row repeats a sample of its epoch, because the order pads its end.
    pub padding: &'a [bool],
    /// Tokens of each row that come from its sample.
    pub lens: &'a [u32],
    /// Fingerprints of the rows' samples, where asked for.
    pub fingerprints: Option<&'a [Fingerprint]>,
}

impl<'a> MicroBatch<'a> {
    /// Tokens of row `slot` that come from its sample.
    pub fn sample(&self, slot: usize) -> &'a [i32] {
        let start = slot * self.seq_length;
        &self.tokens[start..start + self.lens[slot] as usize]
    }
}

/// A batch on loan; dropping it gives its buffer back to the loader.
#[derive(Debug)]
pub struct Batch {
    /// Always present until drop.
    buffer: Option<Box<BatchBuffer>>,
    lanes: std::sync::Arc<Lanes>,
}

impl Batch {
    pub(crate) fn new(buffer: Box<BatchBuffer>, lanes: std::sync::Arc<Lanes>) -> Batch {
        Batch {
            buffer: Some(buffer),
            lanes,
        }
    }
}

impl Deref for Batch {
    type Target = BatchBuffer;

    fn deref(&self) -> &BatchBuffer {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("the buffer is taken in drop only"),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.lanes.give_back(buffer);
        }
    }
}
