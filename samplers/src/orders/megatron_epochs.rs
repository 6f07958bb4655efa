//! How many epochs a GPT dataset lays out, how many samples come of them, and whether the last one is kept apart.
//!
//! Reproduces Megatron-Core 0.19.2: `GPTDataset._get_num_epochs`, the `separate_final_epoch` rule of
//! `_build_document_sample_shuffle_indices`, and the sample count of `build_sample_idx`.
//!
//! Bias: see [`super::megatron_index`]. Memory: none.

use super::megatron_index::GptIndexError;

/// What decides the indices, besides the sequence lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptIndexSpec {
    /// Tokens of one sample, without the extra one.
    pub sequence_length: u64,
    /// Draw one token more than `sequence_length`, shared with the next sample, so that labels need no padding
    /// (`add_extra_token_to_sequence`).
    pub add_extra_token: bool,
    /// Seed of the numpy `RandomState`, 0 to 2^32 - 1.
    pub random_seed: u64,
    /// Samples wanted at least; `None` is one epoch.
    pub num_samples: Option<u64>,
    /// Drop the tokens after the last whole sample. Only the valid split may keep them
    /// (`drop_last_partial_validation_sequence`).
    pub drop_last_partial_sequence: bool,
}

/// Which rule was applied to the epochs; printed by reports and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRule {
    /// Epochs laid out.
    pub num_epochs: u64,
    /// Tokens of one epoch.
    pub tokens_per_epoch: u64,
    /// With more than one epoch: is the last one shuffled on its own?
    pub separate_final_epoch: Option<bool>,
    /// Samples before the last epoch where it is kept apart.
    pub samples_sans_final_epoch: Option<u64>,
}

impl EpochRule {
    /// Applies Megatron's rule to a split of `tokens_per_epoch` tokens in `num_sequences` sequences.
    ///
    /// # Errors
    /// [`GptIndexError`] where Megatron asserts or never returns.
    pub fn new(
        tokens_per_epoch: u64,
        num_sequences: u64,
        spec: &GptIndexSpec,
    ) -> Result<Self, GptIndexError> {
        if spec.sequence_length == 0 || spec.sequence_length >= i32::MAX as u64 {
            return Err(GptIndexError::SequenceLength(spec.sequence_length));
        }
        let extra = u64::from(spec.add_extra_token);
        let rule = |num_epochs| EpochRule {
            num_epochs,
            tokens_per_epoch,
            separate_final_epoch: None,
            samples_sans_final_epoch: None,
        };
        let Some(num_samples) = spec.num_samples else {
            return Ok(rule(1));
        };
        let too_many = |epochs| GptIndexError::TooManyEpochs {
            num_samples,
            sequence_length: spec.sequence_length,
            epochs,
            tokens_per_epoch,
        };
        let requested = num_samples
            .checked_mul(spec.sequence_length)
            .and_then(|t| t.checked_add(extra))
            .filter(|&t| t <= i64::MAX as u64)
            .ok_or_else(|| too_many(u64::MAX))?;
        if tokens_per_epoch == 0 && requested > 0 {
            return Err(GptIndexError::NoTokens {
                num_samples,
                num_sequences,
            });
        }
        let num_epochs = requested.div_ceil(tokens_per_epoch.max(1)).max(1);
        if num_epochs > i32::MAX as u64
            || num_epochs
                .checked_mul(tokens_per_epoch)
                .is_none_or(|t| t > i64::MAX as u64)
        {
            return Err(too_many(num_epochs));
        }
        if num_epochs == 1 {
            return Ok(rule(1));
        }
        // All three fit i64: tokens of all epochs do.
        let whole_samples =
            |tokens: u64| (tokens as i64 - extra as i64).div_euclid(spec.sequence_length as i64);
        let sans_final = whole_samples((num_epochs - 1) * tokens_per_epoch);
        let from_final_epoch = num_samples as i64 - sans_final;
        let per_epoch = whole_samples(tokens_per_epoch);
        if from_final_epoch < 0 || from_final_epoch > per_epoch + 1 {
            return Err(GptIndexError::FinalEpoch {
                from_final_epoch,
                per_epoch,
            });
        }
        let separate = from_final_epoch < (0.80 * per_epoch as f64) as i64;
        Ok(EpochRule {
            separate_final_epoch: Some(separate),
            samples_sans_final_epoch: separate.then_some(sans_final as u64),
            ..rule(num_epochs)
        })
    }

    /// Samples that come out: more than were asked for, all that the epochs hold.
    ///
    /// Where the last partial sequence is kept, the number goes through a 32-bit float, as in the original, and may
    /// be off by some samples either way above 2^24 tokens.
    ///
    /// # Errors
    /// [`GptIndexError::Negative`] for an empty split at sequence length 1, where the original writes out of bounds.
    pub fn num_samples(&self, spec: &GptIndexSpec) -> Result<u64, GptIndexError> {
        let tokens = (self.num_epochs * self.tokens_per_epoch) as i64 - i64::from(spec.add_extra_token);
        let samples = if spec.drop_last_partial_sequence {
            tokens / spec.sequence_length as i64
        } else {
            (tokens as f32 / spec.sequence_length as f32).ceil() as i64
        };
        u64::try_from(samples)
            .map_err(|_| GptIndexError::Negative("a split without tokens has a negative number of samples"))
    }
}
