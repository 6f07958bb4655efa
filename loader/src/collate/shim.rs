//! Collator `shim`: the form in which the FLA-order dataset shim feeds Megatron.
//!
//! Reproduces `FLAOrderGPTDataset.__getitem__` of Primus at 2ad08a96 (`tools/hybrid/fla_order_dataset.py`):
//! the first `seq_length` tokens of the row; labels are the tokens rolled by one with the pad id in the last
//! place; the loss mask is 1 except in the last place; with `eod_mask_loss` it is also 0 wherever an *input*
//! token is the end-of-document id. Megatron-Core's `GPTDataset` differs: it reads one token more and so has a
//! real last label.
//! Bias: the last token of every row is never a target and the first never predicted, 1 of `seq_length` targets
//! is lost. The shim computes its loss mask once, from the first item it serves, and hands out that mask for
//! every later item: under `eod_mask_loss` all rows are masked where the *first* row had its ends. See
//! [`EodMask`] for both that behaviour and the intended one.
//! Memory: labels, loss mask and position ids beside the tokens, where asked for.

use super::{CollateError, Collator, LabelShift, Outputs, RowOut};

/// How end-of-document tokens are left out of the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EodMask {
    /// They count (`eod_mask_loss=False`, the shim's default).
    Off,
    /// Each row is masked where it holds the id itself: what the option says.
    PerRow {
        /// The end-of-document id.
        eod_token_id: i32,
    },
    /// Every row is masked where one given row holds the id: what the shim does with `eod_mask_loss=True`, the
    /// given row being the first one that its process served.
    FirstRowServed {
        /// The end-of-document id.
        eod_token_id: i32,
        /// The first row served, at least `seq_length` tokens.
        row: Vec<i32>,
    },
}

/// See the file head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimCollator {
    /// The label of the last token of every row, and the filling of missing rows.
    pub pad_token_id: i32,
    /// How end-of-document tokens are masked.
    pub eod_mask: EodMask,
}

impl Collator for ShimCollator {
    fn name(&self) -> &'static str {
        "shim"
    }

    fn label_shift(&self) -> LabelShift {
        LabelShift::InData
    }

    fn outputs(&self) -> Outputs {
        Outputs {
            labels: true,
            loss_mask: true,
            position_ids: true,
            cu_seqlens: false,
        }
    }

    fn check(&self, seq_length: usize) -> Result<(), CollateError> {
        match &self.eod_mask {
            EodMask::FirstRowServed { row, .. } if row.len() < seq_length => Err(CollateError::Options {
                collator: self.name(),
                reason: format!(
                    "the first row served has {} tokens, rows have {seq_length}",
                    row.len()
                ),
            }),
            _ => Ok(()),
        }
    }

    fn collate_row(&self, row: &mut RowOut<'_>) {
        row.tokens[row.len..].fill(self.pad_token_id);
        let tokens = &row.tokens[..row.len];
        if let Some(labels) = row.labels.as_deref_mut() {
            labels.fill(self.pad_token_id);
            if let Some(targets) = tokens.get(1..) {
                labels[..targets.len()].copy_from_slice(targets);
            }
        }
        if let Some(loss_mask) = row.loss_mask.as_deref_mut() {
            let valid = &mut loss_mask[..row.len];
            match &self.eod_mask {
                EodMask::Off => valid.fill(1.0),
                EodMask::PerRow { eod_token_id } => mask_ends(valid, tokens, *eod_token_id),
                EodMask::FirstRowServed { eod_token_id, row } => mask_ends(valid, row, *eod_token_id),
            }
            // The last token has no target.
            loss_mask[row.len.saturating_sub(1)..].fill(0.0);
        }
        row.count_positions();
    }
}

fn mask_ends(loss_mask: &mut [f32], row: &[i32], eod_token_id: i32) {
    for (mask, &token) in loss_mask.iter_mut().zip(row) {
        *mask = if token == eod_token_id { 0.0 } else { 1.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collate::{Collated, HfCollator, TokenBlock, check_label_shift};

    fn collate(eod_mask: EodMask) -> Collated {
        let block = TokenBlock {
            tokens: &[5, 2, 7, 2, 9, 8, 1, 1, 1],
            width: 3,
            valid_rows: 2,
        };
        let mut out = Collated::default();
        ShimCollator {
            pad_token_id: 0,
            eod_mask,
        }
        .collate(&block, &mut out)
        .expect("collates");
        out
    }

    #[test]
    fn labels_roll_and_the_last_place_is_masked() {
        let out = collate(EodMask::Off);
        assert_eq!(out.tokens, [5, 2, 7, 2, 9, 8, 0, 0, 0]);
        assert_eq!(out.labels, [2, 7, 0, 9, 8, 0, 0, 0, 0]);
        assert_eq!(out.loss_mask, [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(out.position_ids, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn ends_are_masked_per_row_or_as_the_first_row_had_them() {
        let per_row = collate(EodMask::PerRow { eod_token_id: 2 });
        assert_eq!(per_row.loss_mask, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        let first = collate(EodMask::FirstRowServed {
            eod_token_id: 2,
            row: vec![5, 2, 7],
        });
        assert_eq!(first.loss_mask, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let short = ShimCollator {
            pad_token_id: 0,
            eod_mask: EodMask::FirstRowServed {
                eod_token_id: 2,
                row: vec![5, 2],
            },
        };
        let block = TokenBlock {
            tokens: &[5, 2, 7],
            width: 3,
            valid_rows: 1,
        };
        assert!(short.collate(&block, &mut Collated::default()).is_err());
    }

    #[test]
    fn a_second_shift_is_refused() {
        let shim = ShimCollator {
            pad_token_id: 0,
            eod_mask: EodMask::Off,
        };
        assert!(check_label_shift(&shim, true).is_err_and(|e| e.contains("twice")));
        assert!(check_label_shift(&shim, false).is_ok());
        let hf = HfCollator { pad_token_id: None };
        assert!(check_label_shift(&hf, true).is_ok());
        assert!(check_label_shift(&hf, false).is_err_and(|e| e.contains("not be shifted")));
    }

    /// Buffers are reused: a smaller block after a larger one leaves nothing behind.
    #[test]
    fn reused_buffers_hold_only_the_new_block() {
        let shim = ShimCollator {
            pad_token_id: 0,
            eod_mask: EodMask::Off,
        };
        let mut out = Collated::default();
        let large = TokenBlock {
            tokens: &[9; 12],
            width: 4,
            valid_rows: 3,
        };
        shim.collate(&large, &mut out).expect("collates");
        let small = TokenBlock {
            tokens: &[3, 4, 5, 6],
            width: 2,
            valid_rows: 1,
        };
        shim.collate(&small, &mut out).expect("collates");
        let mut fresh = Collated::default();
        shim.collate(&small, &mut fresh).expect("collates");
        assert_eq!(out, fresh);
        let wide = TokenBlock {
            tokens: &[3, 4, 5, 6],
            width: 4,
            valid_rows: 1,
        };
        shim.collate(&wide, &mut out).expect("collates");
        assert_eq!(out.position_ids, [0, 1, 2, 3]);
    }
}
