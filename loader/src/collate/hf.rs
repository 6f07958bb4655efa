//! Collator `hf`: labels are the input ids, padding becomes -100, the model shifts inside its loss.
//!
//! Reproduces `transformers.DataCollatorForLanguageModeling(mlm=False)` (5.24.0), and the collator of FLA's
//! legacy training script, which copies `input_ids` and overwrites every label equal to the pad id.
//! Bias: with a pad id that also occurs as a real token (pad = eos is common) those real tokens are ignored in
//! the loss too, exactly as there.
//! Memory: labels, loss mask and position ids beside the tokens, where asked for.

use super::{Collator, IGNORE_INDEX, LabelShift, Outputs, RowOut};

/// See the file head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HfCollator {
    /// The tokenizer's pad id; without one no label is overwritten.
    pub pad_token_id: Option<i32>,
}

impl Collator for HfCollator {
    fn name(&self) -> &'static str {
        "hf"
    }

    fn label_shift(&self) -> LabelShift {
        LabelShift::InModel
    }

    fn outputs(&self) -> Outputs {
        Outputs {
            labels: true,
            loss_mask: true,
            position_ids: true,
            cu_seqlens: false,
        }
    }

    fn collate_row(&self, row: &mut RowOut<'_>) {
        row.tokens[row.len..].fill(self.pad_token_id.unwrap_or(row.pad_token));
        let counts = |token: i32| Some(token) != self.pad_token_id;
        if let Some(labels) = row.labels.as_deref_mut() {
            for (label, &token) in labels.iter_mut().zip(&row.tokens[..row.len]) {
                *label = if counts(token) { token } else { IGNORE_INDEX };
            }
            labels[row.len..].fill(IGNORE_INDEX);
        }
        if let Some(loss_mask) = row.loss_mask.as_deref_mut() {
            for (mask, &token) in loss_mask.iter_mut().zip(&row.tokens[..row.len]) {
                *mask = f32::from(u8::from(counts(token)));
            }
            loss_mask[row.len..].fill(0.0);
        }
        row.count_positions();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collate::{Collated, TokenBlock};

    #[test]
    fn labels_are_the_inputs_and_padding_is_ignored() {
        let block = TokenBlock {
            tokens: &[5, 0, 7, 8, 9, 0, 1, 1, 1],
            width: 3,
            valid_rows: 2,
        };
        let mut out = Collated::default();
        HfCollator {
            pad_token_id: Some(0),
        }
        .collate(&block, &mut out)
        .expect("collates");
        assert_eq!(out.tokens, [5, 0, 7, 8, 9, 0, 0, 0, 0]);
        assert_eq!(out.labels, [5, -100, 7, 8, 9, -100, -100, -100, -100]);
        assert_eq!(out.loss_mask, [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(out.position_ids, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        HfCollator { pad_token_id: None }
            .collate(&block, &mut out)
            .expect("collates");
        assert_eq!(out.labels, [5, 0, 7, 8, 9, 0, -100, -100, -100]);
    }

    #[test]
    fn a_block_of_the_wrong_shape_is_refused() {
        let hf = HfCollator { pad_token_id: None };
        let mut out = Collated::default();
        for (len, width, valid_rows) in [(7, 3, 1), (6, 0, 0), (6, 3, 3)] {
            let tokens = vec![1; len];
            let block = TokenBlock {
                tokens: &tokens,
                width,
                valid_rows,
            };
            assert!(
                hf.collate(&block, &mut out).is_err(),
                "{len} {width} {valid_rows}"
            );
        }
    }
}
