//! Collator `tokens`: the tokens and nothing else.
//!
//! For consumers that look at data rather than train on it. There are no labels, so whoever needs them shifts.
//! Memory: nothing beside the tokens.

use super::{Collator, LabelShift, Outputs, RowOut};

/// See the file head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokensOnly;

impl Collator for TokensOnly {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn label_shift(&self) -> LabelShift {
        LabelShift::InModel
    }

    fn outputs(&self) -> Outputs {
        Outputs::default()
    }

    fn collate_row(&self, _row: &mut RowOut<'_>) {}
}
