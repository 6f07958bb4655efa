//! Collators: the tokens of a micro-batch to what a training step consumes.
//!
//! Stacks differ in where labels are shifted, and a label shifted twice trains the wrong target without an
//! error; each collator therefore says where its shift happens ([`LabelShift`]). One file a collator.

mod hf;
mod shim;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use hf::HfCollator;
pub use shim::{EodMask, ShimCollator};

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
    /// Targets, under the collator's [`LabelShift`].
    pub labels: Vec<i32>,
    /// 1.0 where `labels` counts in the loss, else 0.0.
    pub loss_mask: Vec<f32>,
    /// Position of each token in its row.
    pub position_ids: Vec<i32>,
}

impl Collated {
    /// Makes room for `rows × seq_length` and fills the rows from `valid_rows` on as padding.
    fn reset(&mut self, block: &TokenBlock<'_>, seq_length: usize, fill_token: i32, fill_label: i32) {
        let (rows, valid_rows) = (block.rows(), block.valid_rows);
        let len = rows * seq_length;
        let positions_stand = self.seq_length == seq_length && self.position_ids.len() == len;
        (self.rows, self.valid_rows, self.seq_length) = (rows, valid_rows, seq_length);
        self.tokens.resize(len, 0);
        self.labels.resize(len, 0);
        self.loss_mask.resize(len, 0.0);
        if !positions_stand {
            self.position_ids.clear();
            self.position_ids
                .extend((0..rows).flat_map(|_| 0..seq_length as i32));
        }
        let valid = valid_rows * seq_length;
        self.tokens[valid..].fill(fill_token);
        self.labels[valid..].fill(fill_label);
        self.loss_mask[valid..].fill(0.0);
    }
}

/// Turns tokens into inputs, labels, loss mask and position ids.
pub trait Collator: Send + Sync + fmt::Debug {
    /// Name used in specs and headers.
    fn name(&self) -> &'static str;
    /// Where labels are shifted.
    fn label_shift(&self) -> LabelShift;
    /// Tokens a source must deliver for each row of `seq_length`.
    fn width(&self, seq_length: usize) -> usize;
    /// Fills `out` from `block`; the rows past `valid_rows` get loss mask 0.
    ///
    /// # Errors
    /// [`CollateError`] when the block's shape is inconsistent.
    fn collate(&self, block: &TokenBlock<'_>, out: &mut Collated) -> Result<(), CollateError>;
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
