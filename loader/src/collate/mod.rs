//! Collators: the tokens of a micro-batch to what a training step consumes.
//!
//! Stacks differ in where labels are shifted, and a label shifted twice trains the wrong target without an
//! error; each collator therefore says where its shift happens ([`LabelShift`]). One file a collator.

mod hf;
mod megatron;
mod row;
mod shim;
mod tokens_only;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use hf::HfCollator;
pub use megatron::MegatronCollator;
pub use row::{DocumentStarts, Outputs, RowOut};
pub use shim::{EodMask, ShimCollator};
pub use tokens_only::TokensOnly;

/// The label that torch's cross entropy ignores (its default `ignore_index`).
pub const IGNORE_INDEX: i32 = -100;

/// Tokens of one micro-batch: `rows` rows of `width` tokens, row-major, as a source filled them.
#[derive(Clone, Copy, Debug)]
pub struct TokenBlock<'a> {
    /// `rows × width` token ids; the content of rows from `valid_rows` on does not matter.
    pub tokens: &'a [i32],
    /// Tokens stored for each row (`seq_length`, or `seq_length + 1` where the stack shifts inside the dataset).
    pub width: usize,
    /// Rows that hold a sample; the others fill up the last micro-batch of an epoch.
    pub valid_rows: usize,
}

impl TokenBlock<'_> {
    /// Number of rows, valid or not.
    pub fn rows(&self) -> usize {
        self.tokens.len().checked_div(self.width).unwrap_or(0)
    }

    fn check(&self) -> Result<(), CollateError> {
        if self.width == 0 || !self.tokens.len().is_multiple_of(self.width) || self.valid_rows > self.rows() {
            return Err(CollateError::Shape {
                tokens: self.tokens.len(),
                width: self.width,
                valid_rows: self.valid_rows,
            });
        }
        Ok(())
    }
}

/// Where labels are shifted by one token against the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelShift {
    /// `labels[i]` is the target of `tokens[i]`: the model must not shift again.
    InData,
    /// `labels[i]` is `tokens[i]`: the model shifts inside its loss.
    InModel,
}

/// A micro-batch as a training step consumes it; every block is `rows × seq_length`, row-major. Buffers are
/// reused from call to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collated {
    /// Number of rows, valid or not.
    pub rows: usize,
    /// Rows that hold a sample.
    pub valid_rows: usize,
    /// Tokens of a row.
    pub seq_length: usize,
    /// Model inputs.
    pub tokens: Vec<i32>,
    /// Targets, under the collator's [`LabelShift`]. Like the other arrays, empty when the collator makes none.
    pub labels: Vec<i32>,
    /// 1.0 where `labels` counts in the loss, else 0.0.
    pub loss_mask: Vec<f32>,
    /// Position of each token in its row or document.
    pub position_ids: Vec<i32>,
    /// Starts of documents in all rows laid end to end, then `rows * seq_length`.
    pub cu_seqlens: Vec<i32>,
}

impl Collated {
    /// Makes room for the arrays that `outputs` names.
    fn reset(&mut self, block: &TokenBlock<'_>, seq_length: usize, outputs: Outputs) {
        let len = block.rows() * seq_length;
        (self.rows, self.valid_rows, self.seq_length) = (block.rows(), block.valid_rows, seq_length);
        let of = |present: bool, len: usize| if present { len } else { 0 };
        self.tokens.resize(len, 0);
        self.labels.resize(of(outputs.labels, len), 0);
        self.loss_mask.resize(of(outputs.loss_mask, len), 0.0);
        self.position_ids.resize(of(outputs.position_ids, len), 0);
        self.cu_seqlens.resize(of(outputs.cu_seqlens, len + 1), 0);
    }
}

/// Turns the tokens of one sample into what a model consumes. Called by many threads at once, a row at a time; a pure
/// function of the row, or worker counts could change the stream.
pub trait Collator: Send + Sync + fmt::Debug {
    /// Name used in specs and headers.
    fn name(&self) -> &'static str;

    /// Where labels are shifted.
    fn label_shift(&self) -> LabelShift;

    /// Tokens a source must deliver for each row of `seq_length`: that many, or more where labels come from the
    /// sample itself.
    fn width(&self, seq_length: usize) -> usize {
        seq_length
    }

    /// Arrays this collator can fill beside the tokens.
    fn outputs(&self) -> Outputs;

    /// Checks the options against each other and against the row length.
    ///
    /// # Errors
    /// [`CollateError`] naming what does not fit.
    fn check(&self, _seq_length: usize) -> Result<(), CollateError> {
        Ok(())
    }

    /// Fills the arrays of one row that are there. Also called, with `len == 0`, for the rows that fill a short batch up
    /// to its fixed shape: they get loss mask 0.
    fn collate_row(&self, row: &mut RowOut<'_>);

    /// Collates a whole micro-batch into `out`, outside a loader.
    ///
    /// # Errors
    /// [`CollateError`] when the block's shape is inconsistent or the options do not fit it.
    fn collate(&self, block: &TokenBlock<'_>, out: &mut Collated) -> Result<(), CollateError> {
        block.check()?;
        // Widths are T or T plus a constant of the collator.
        let beyond = self.width(1).saturating_sub(1);
        let shape = || CollateError::Shape {
            tokens: block.tokens.len(),
            width: block.width,
            valid_rows: block.valid_rows,
        };
        let t = block
            .width
            .checked_sub(beyond)
            .filter(|&t| t > 0)
            .ok_or_else(shape)?;
        if i32::try_from(block.rows() * t).is_err() {
            return Err(shape());
        }
        self.check(t)?;
        out.reset(block, t, self.outputs());
        let mut documents = 0;
        for (i, stored) in block.tokens.chunks_exact(block.width).enumerate() {
            let at = i * t..(i + 1) * t;
            let valid = i < block.valid_rows;
            let tokens = &mut out.tokens[at.clone()];
            if valid {
                tokens.copy_from_slice(&stored[..t]);
            } else {
                tokens.fill(0);
            }
            let cu_seqlens = (!out.cu_seqlens.is_empty()).then_some(&mut out.cu_seqlens[..]);
            self.collate_row(&mut RowOut {
                tokens,
                extra: if valid { &stored[t..] } else { &[] },
                len: if valid { t } else { 0 },
                pad_token: 0,
                labels: out.labels.get_mut(at.clone()),
                loss_mask: out.loss_mask.get_mut(at.clone()),
                position_ids: out.position_ids.get_mut(at.clone()),
                documents: cu_seqlens
                    .map(|all| DocumentStarts::new(all, &mut documents, at.start as i32, t as i32)),
            });
        }
        if let Some(end) = out.cu_seqlens.get_mut(documents) {
            *end = (block.rows() * t) as i32;
            out.cu_seqlens.truncate(documents + 1);
        }
        Ok(())
    }
}

/// Why a micro-batch cannot be collated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollateError {
    /// The block is not `rows × width` with `valid_rows <= rows`.
    #[error("a block of {tokens} tokens with {valid_rows} valid rows does not divide into rows of {width}")]
    Shape {
        /// Tokens in the block.
        tokens: usize,
        /// Tokens a row.
        width: usize,
        /// Rows said to be valid.
        valid_rows: usize,
    },
    /// The options do not fit each other or the rows.
    #[error("collator `{collator}`: {reason}")]
    Options {
        /// The collator.
        collator: &'static str,
        /// What does not fit.
        reason: String,
    },
}

/// Refuses a collator and a model that would both shift the labels, or that would both leave them unshifted.
///
/// # Errors
/// A sentence naming both sides.
pub fn check_label_shift(collator: &dyn Collator, model_shifts: bool) -> Result<(), String> {
    match (collator.label_shift(), model_shifts) {
        (LabelShift::InData, true) => Err(format!(
            "labels would be shifted twice: collator `{}` shifts them in the data and the model shifts again",
            collator.name()
        )),
        (LabelShift::InModel, false) => Err(format!(
            "labels would not be shifted at all: collator `{}` leaves that to the model, which does not",
            collator.name()
        )),
        _ => Ok(()),
    }
}
