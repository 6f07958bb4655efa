//! Collator `megatron`: what Megatron-Core's `GPTDataset` hands to the model.
//!
//! Reproduces `GPTDataset.__getitem__` and `_get_ltor_masks_and_position_ids` of Megatron-Core 0.19.2:
//! - with the extra token, `tokens` and `labels` are the first and the last `seq_length` of `seq_length + 1` tokens;
//!   without it, labels are the tokens rolled by one with padding in the last place;
//! - the loss mask is 0 where the *label* is padding and, with `eod_mask_loss`, where the *token* is the
//!   end-of-document id; afterwards pad ids become token 0 in both;
//! - `reset_position_ids` starts counting anew behind each end of document; `reset_attention_mask` lets no token see
//!   past its document, which here is a list of document bounds (`cu_seqlens`) instead of a `T x T` mask.
//!
//! Bias: with a pad id that also occurs as a real token, those tokens become token 0 and leave the loss, as there.
//! While none of the three options is on, the original keeps the loss mask of the first sample a process serves, pad
//! positions included, and starts every later sample's mask from it ([`MegatronCollator::first_served`]).
//! Memory: labels, loss mask, position ids and document bounds beside the tokens, where asked for.

use super::{CollateError, Collator, LabelShift, Outputs, RowOut};

/// See the file head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MegatronCollator {
    /// Samples hold `seq_length + 1` tokens (`add_extra_token_to_sequence`, on in Megatron unless asked otherwise).
    pub add_extra_token: bool,
    /// End-of-document id of the tokenizer. Needed by the three options below.
    pub eod_token_id: Option<i32>,
    /// Pad id; `None` where the tokenizer has none, or where it is an id of another special token (then Megatron
    /// pads with -1, which no real token is).
    pub pad_token_id: Option<i32>,
    /// Leave end-of-document tokens out of the loss.
    pub eod_mask_loss: bool,
    /// Restart positions behind each end of document.
    pub reset_position_ids: bool,
    /// Cut attention behind each end of document.
    pub reset_attention_mask: bool,
    /// The first sample the emulated process served, as stored (`seq_length` tokens, one more with the extra token,
    /// fewer when it is a partial last one). `None` masks each row by its own labels only, which is the same unless
    /// that sample has padding among its labels.
    pub first_served: Option<Vec<i32>>,
}

impl MegatronCollator {
    /// The label of token `j` in a sample, `None` for padding.
    fn label(&self, tokens: &[i32], extra: &[i32], j: usize) -> Option<i32> {
        let next = match tokens.get(j + 1) {
            Some(&token) => Some(token),
            // The sample ends here. Its next token is the extra one, if this is the end of a whole sample.
            None if self.add_extra_token && j + 1 == tokens.len() => extra.first().copied(),
            None => None,
        };
        next.filter(|_| next != self.pad_token_id)
    }

    /// The sample whose pad labels stay in every loss mask: the original caches a mask only while none of the options
    /// makes masks differ from row to row.
    fn sticky(&self) -> Option<&[i32]> {
        let cached = !(self.eod_mask_loss || self.reset_position_ids || self.reset_attention_mask);
        self.first_served.as_deref().filter(|_| cached)
    }

    fn is_eod(&self, token: i32) -> bool {
        self.eod_token_id == Some(token)
    }
}

impl Collator for MegatronCollator {
    fn name(&self) -> &'static str {
        "megatron"
    }

    fn label_shift(&self) -> LabelShift {
        LabelShift::InData
    }

    fn width(&self, seq_length: usize) -> usize {
        seq_length + usize::from(self.add_extra_token)
    }

    fn outputs(&self) -> Outputs {
        Outputs {
            cu_seqlens: self.reset_attention_mask,
            ..Outputs::ALL
        }
    }

    fn check(&self, _seq_length: usize) -> Result<(), CollateError> {
        let refuse = |reason: String| {
            Err(CollateError::Options {
                collator: self.name(),
                reason,
            })
        };
        let wants_eod = [
            (self.eod_mask_loss, "eod_mask_loss"),
            (self.reset_position_ids, "reset_position_ids"),
            (self.reset_attention_mask, "reset_attention_mask"),
        ];
        if self.eod_token_id.is_none()
            && let Some((_, option)) = wants_eod.iter().find(|(on, _)| *on)
        {
            return refuse(format!("{option} needs the end-of-document id (eod_token_id)"));
        }
        match self.pad_token_id {
            Some(id) if Some(id) == self.eod_token_id => refuse(format!(
                "pad_token_id and eod_token_id are both {id}: Megatron then pads with -1 and masks nothing; leave \
                 pad_token_id out for that"
            )),
            _ => Ok(()),
        }
    }

    fn collate_row(&self, row: &mut RowOut<'_>) {
        let (t, len) = (row.tokens.len(), row.len);
        let sample = &row.tokens[..len];
        if let Some(labels) = row.labels.as_deref_mut() {
            for (j, slot) in labels.iter_mut().enumerate() {
                *slot = self.label(sample, row.extra, j).unwrap_or(0);
            }
        }
        if let Some(loss_mask) = row.loss_mask.as_deref_mut() {
            for (j, slot) in loss_mask.iter_mut().enumerate() {
                let masked = self.label(sample, row.extra, j).is_none()
                    || (self.eod_mask_loss && self.is_eod(sample[j]));
                *slot = if masked { 0.0 } else { 1.0 };
            }
            if let Some(first) = self.sticky() {
                let (first, extra) = first.split_at(first.len().min(t));
                for (j, slot) in loss_mask.iter_mut().enumerate() {
                    if self.label(first, extra, j).is_none() {
                        *slot = 0.0;
                    }
                }
            }
        }
        if self.reset_position_ids {
            if let Some(position_ids) = row.position_ids.as_deref_mut() {
                let mut position = 0;
                for (j, slot) in position_ids.iter_mut().enumerate() {
                    *slot = position;
                    position = if j < len && self.is_eod(row.tokens[j]) {
                        0
                    } else {
                        position + 1
                    };
                }
            }
        } else {
            row.count_positions();
        }
        if self.reset_attention_mask
            && let Some(documents) = row.documents.as_mut()
        {
            for (j, &token) in row.tokens[..len].iter().enumerate() {
                if self.is_eod(token) {
                    documents.push(j + 1);
                }
            }
        }
        row.tokens[len..].fill(0);
        if let Some(pad) = self.pad_token_id {
            for token in row.tokens.iter_mut().filter(|token| **token == pad) {
                *token = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collate::{Collated, TokenBlock};

    const EOD: i32 = 9;

    fn collate(collator: &MegatronCollator, tokens: &[i32], width: usize, valid_rows: usize) -> Collated {
        let mut out = Collated::default();
        collator
            .collate(
                &TokenBlock {
                    tokens,
                    width,
                    valid_rows,
                },
                &mut out,
            )
            .unwrap();
        out
    }

    #[test]
    fn the_extra_token_is_the_last_label() {
        let collator = MegatronCollator {
            add_extra_token: true,
            ..Default::default()
        };
        let out = collate(&collator, &[1, 2, 3, 4, 5, 6, 7, 8], 4, 1);
        assert_eq!((out.seq_length, out.rows, out.valid_rows), (3, 2, 1));
        assert_eq!(out.tokens, [1, 2, 3, 0, 0, 0]);
        assert_eq!(out.labels, [2, 3, 4, 0, 0, 0]);
        assert_eq!(out.loss_mask, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(out.position_ids, [0, 1, 2, 0, 1, 2]);
        assert!(out.cu_seqlens.is_empty());
    }

    #[test]
    fn without_it_the_last_label_is_padding() {
        let out = collate(&MegatronCollator::default(), &[1, 2, 3], 3, 1);
        assert_eq!(out.labels, [2, 3, 0]);
        assert_eq!(out.loss_mask, [1.0, 1.0, 0.0]);
    }

    #[test]
    fn documents_end_behind_their_last_token() {
        let collator = MegatronCollator {
            eod_token_id: Some(EOD),
            eod_mask_loss: true,
            reset_position_ids: true,
            reset_attention_mask: true,
            ..Default::default()
        };
        let out = collate(&collator, &[1, EOD, EOD, 4, 5, 6, 7, EOD, 1, 1, 1, 1], 4, 2);
        assert_eq!(out.cu_seqlens, [0, 2, 3, 4, 8, 12]);
        assert_eq!(out.position_ids, [0, 1, 0, 0, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(out.loss_mask[..8], [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn pads_become_token_zero_and_leave_the_loss() {
        let collator = MegatronCollator {
            add_extra_token: true,
            pad_token_id: Some(7),
            ..Default::default()
        };
        let out = collate(&collator, &[1, 7, 3, 7], 4, 1);
        assert_eq!(out.tokens, [1, 0, 3]);
        assert_eq!(out.labels, [0, 3, 0]);
        assert_eq!(out.loss_mask, [0.0, 1.0, 0.0]);
    }

    #[test]
    fn a_partial_sample_is_padded() {
        let collator = MegatronCollator {
            add_extra_token: true,
            ..Default::default()
        };
        let (mut tokens, mut labels, mut loss_mask) = ([5, 6, 99, 99], [0; 4], [0.0; 4]);
        collator.collate_row(&mut RowOut {
            tokens: &mut tokens,
            extra: &[],
            len: 2,
            pad_token: 99,
            labels: Some(&mut labels),
            loss_mask: Some(&mut loss_mask),
            position_ids: None,
            documents: None,
        });
        assert_eq!(
            (tokens, labels, loss_mask),
            ([5, 6, 0, 0], [6, 0, 0, 0], [1.0, 0.0, 0.0, 0.0])
        );
    }

    #[test]
    fn the_first_sample_served_leaves_its_pads_in_every_mask() {
        let collator = MegatronCollator {
            add_extra_token: true,
            pad_token_id: Some(7),
            first_served: Some(vec![1, 2, 7, 7]),
            ..Default::default()
        };
        assert_eq!(collate(&collator, &[1, 2, 3, 4], 4, 1).loss_mask, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn options_that_lack_an_id_are_refused() {
        let collator = MegatronCollator {
            eod_mask_loss: true,
            ..Default::default()
        };
        assert!(
            collator
                .check(4)
                .unwrap_err()
                .to_string()
                .contains("eod_mask_loss")
        );
        let collator = MegatronCollator {
            eod_token_id: Some(2),
            pad_token_id: Some(2),
            ..Default::default()
        };
        assert!(collator.check(4).is_err());
    }
}
