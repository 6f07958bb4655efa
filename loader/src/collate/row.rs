//! One row of a batch, as collators see it: they work in place, on the arrays of the batch the sample was read into,
//! so that there is one copy from the dataset and the rest is derived while the row is in cache.

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

    /// What both sides name.
    pub fn intersection(self, other: Outputs) -> Outputs {
        Outputs {
            labels: self.labels && other.labels,
            loss_mask: self.loss_mask && other.loss_mask,
            position_ids: self.position_ids && other.position_ids,
            cu_seqlens: self.cu_seqlens && other.cu_seqlens,
        }
    }

    /// Everything.
    pub const ALL: Outputs = Outputs {
        labels: true,
        loss_mask: true,
        position_ids: true,
        cu_seqlens: true,
    };
}

/// One row of a batch, as a collator sees it.
#[derive(Debug)]
pub struct RowOut<'a> {
    /// The T tokens of the row: the sample's first tokens, then `pad_token`.
    pub tokens: &'a mut [i32],
    /// Tokens of the sample beyond T (`width(T) - T` of them, fewer when the sample is short).
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

impl RowOut<'_> {
    /// Sets all positions to 0, 1, 2, ….
    pub fn count_positions(&mut self) {
        if let Some(position_ids) = self.position_ids.as_deref_mut() {
            position_ids
                .iter_mut()
                .zip(0..)
                .for_each(|(slot, position)| *slot = position);
        }
    }
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
        DocumentStarts {
            cu_seqlens,
            count,
            base,
            row_tokens,
        }
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
        self.cu_seqlens[first..*self.count]
            .iter()
            .map(|&s| usize::try_from(s - self.base).unwrap_or(0))
    }
}
