//! What a collator adds to a row: labels, loss mask, position ids and document boundaries.
//!
//! The pipeline reads the sample straight into the batch buffer (the one copy there is) and then hands the row to the
//! collator, which derives everything else from it while it is in cache.

use std::fmt;

/// Which arrays a collator fills beside the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// `labels`, i32, (rows, T).
    pub labels: bool,
    /// `loss_mask`, f32, (rows, T).
    pub loss_mask: bool,
    /// `position_ids`, i32, (rows, T).
    pub position_ids: bool,
    /// `cu_seqlens`, i32, per rank: starts of documents in the micro-batch flattened to one sequence, then its length.
    pub cu_seqlens: bool,
}

impl Outputs {
    /// Everything either side asks for.
    pub fn union(self, other: Outputs) -> Outputs {
        Outputs {
            labels: self.labels || other.labels,
            loss_mask: self.loss_mask || other.loss_mask,
            position_ids: self.position_ids || other.position_ids,
            cu_seqlens: self.cu_seqlens || other.cu_seqlens,
        }
    }
}

/// One row of a batch, as a collator sees it.
#[derive(Debug)]
pub struct RowOut<'a> {
    /// The T tokens of the row: the sample's first tokens, then `pad_token`.
    pub tokens: &'a mut [i32],
    /// Tokens of the sample beyond T (`sample_tokens(T) - T` of them, fewer when the sample is short).
    pub extra: &'a [i32],
    /// Tokens of the row that come from the sample; the rest is padding. 0 for a row past the end of the epoch.
    pub len: usize,
    /// Value of padding tokens.
    pub pad_token: i32,
    /// (T), where asked for.
    pub labels: Option<&'a mut [i32]>,
    /// (T), where asked for.
    pub loss_mask: Option<&'a mut [f32]>,
    /// (T), where asked for.
    pub position_ids: Option<&'a mut [i32]>,
    /// Where documents start in this row, where asked for.
    pub documents: Option<DocumentStarts<'a>>,
}

/// Takes the offsets at which documents start within a row.
///
/// Every row starts a document of its own whether or not 0 is pushed, as a row never continues the one before it.
#[derive(Debug)]
pub struct DocumentStarts<'a> {
    cu_seqlens: &'a mut [i32],
    count: &'a mut usize,
    base: i32,
    row_tokens: i32,
}

impl<'a> DocumentStarts<'a> {
    /// Boundaries of a row that starts at token `base` of the flattened micro-batch.
    pub(crate) fn new(
        cu_seqlens: &'a mut [i32],
        count: &'a mut usize,
        base: i32,
        row_tokens: i32,
    ) -> DocumentStarts<'a> {
        cu_seqlens[*count] = base;
        *count += 1;
        DocumentStarts { cu_seqlens, count, base, row_tokens }
    }

    /// A document starts at token `offset` of the row. Offsets that do not advance, and the end of the row, are not
    /// boundaries and are left out.
    pub fn push(&mut self, offset: usize) {
        let Ok(offset) = i32::try_from(offset) else { return };
        let start = self.base + offset;
        if offset < self.row_tokens && start > self.cu_seqlens[*self.count - 1] {
            self.cu_seqlens[*self.count] = start;
            *self.count += 1;
        }
    }

    /// Starts in this row so far, as offsets within the row; the first is 0.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let first = self.cu_seqlens[..*self.count].partition_point(|&s| s < self.base);
        self.cu_seqlens[first..*self.count].iter().map(|&s| usize::try_from(s - self.base).unwrap_or(0))
    }
}

/// Turns the tokens of one sample into what a model consumes. Called by many threads at once, a row at a time; must be
/// a pure function of the row, or worker counts could change the stream.
pub trait RowCollator: Send + Sync + fmt::Debug {
    /// Tokens to read of each sample for rows of `seq_length`: T, or T + 1 where labels come from the sample itself.
    fn sample_tokens(&self, seq_length: usize) -> usize {
        seq_length
    }

    /// Arrays this collator fills.
    fn outputs(&self) -> Outputs;

    /// Fills the arrays of one row. Also called with `len == 0` for the rows that pad a short batch to its fixed shape.
    fn collate_row(&self, row: &mut RowOut<'_>);
}

/// Tokens only.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokensOnly;

impl RowCollator for TokensOnly {
    fn outputs(&self) -> Outputs {
        Outputs::default()
    }

    fn collate_row(&self, _row: &mut RowOut<'_>) {}
}
