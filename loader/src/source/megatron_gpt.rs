//! Samples of Megatron GPT datasets: stretches of `seq_length` tokens that cut across stored sequences.
//!
//! Reproduces `GPTDataset._query_document_sample_shuffle_indices` of Megatron-Core 0.19.2 over one dataset or a
//! blend; a sample id is an entry of the sample indices ([`MegatronDataset`]). With the extra token a sample is read
//! as `seq_length + 1` tokens, the last of which the next sample starts with. The last sample of a valid split that
//! keeps its partial sequence is short here; the collator fills it up.
//!
//! Memory: none but the maps and the indices.

use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::SampleId;
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_index::{GptIndexError, Part};

use super::megatron::IndexedDataset;
use super::megatron_idx::TokenType;
use super::{DocumentSpan, Source, SourceError};

/// Random access to the samples of a Megatron run.
#[derive(Debug)]
pub struct GptSource {
    data: Vec<Arc<IndexedDataset>>,
    dataset: Arc<MegatronDataset>,
    seq_length: usize,
    add_extra_token: bool,
}

impl GptSource {
    /// Puts the stored sequences (`data`, one per part) and their indices together.
    ///
    /// # Errors
    /// Another number of datasets than indices, floating point tokens (the original refuses them too), or lengths
    /// this machine cannot address.
    pub fn new(
        data: Vec<Arc<IndexedDataset>>,
        dataset: Arc<MegatronDataset>,
        seq_length: u64,
        add_extra_token: bool,
    ) -> Result<Self, SourceError> {
        if data.len() != dataset.parts().len() {
            return Err(SourceError::Options(format!(
                "{} datasets with {} indices",
                data.len(),
                dataset.parts().len()
            )));
        }
        for part in &data {
            if let t @ (TokenType::F32 | TokenType::F64) = part.index().token_type() {
                return Err(SourceError::Options(format!(
                    "{}.bin holds {} values; Megatron's GPT dataset takes integer tokens only",
                    part.prefix().display(),
                    t.name()
                )));
            }
        }
        let seq_length = usize::try_from(seq_length)
            .map_err(|_| SourceError::Options(format!("a sequence length of {seq_length} is too large")))?;
        Ok(GptSource {
            data,
            dataset,
            seq_length,
            add_extra_token,
        })
    }

    /// The datasets and the blend over them.
    pub fn dataset(&self) -> &Arc<MegatronDataset> {
        &self.dataset
    }

    /// The stored sequences of each part.
    pub fn data(&self) -> &[Arc<IndexedDataset>] {
        &self.data
    }

    /// Tokens of a whole sample: the sequence length, and one more with the extra token.
    pub fn width(&self) -> usize {
        self.seq_length + usize::from(self.add_extra_token)
    }

    fn inconsistent(&self, part: usize, error: &GptIndexError) -> SourceError {
        SourceError::corrupt(self.data[part].index().path(), error.to_string())
    }

    /// The part that holds a sample, and the stretches of its sequences that make it up, padding left out.
    ///
    /// # Errors
    /// An id past the end, and indices that do not fit the data.
    pub fn stretches(&self, id: SampleId) -> Result<(usize, Vec<Part>), SourceError> {
        let (part, entry) = self.dataset.part_of(id).ok_or(SourceError::OutOfRange {
            id,
            num_samples: self.dataset.num_ids(),
        })?;
        let parts = self.dataset.parts()[part]
            .parts(entry, self.add_extra_token)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| self.inconsistent(part, &e))?;
        Ok((part, parts))
    }

    /// Tokens of a stretch.
    fn length_of(&self, part: usize, stretch: &Part) -> Result<u64, SourceError> {
        let length = u64::from(self.data[part].index().sequence(stretch.sequence)?.length);
        let inconsistent = || {
            self.inconsistent(
                part,
                &GptIndexError::Inconsistent(format!(
                    "tokens from {} on of sequence {} are asked for, which has {length}",
                    stretch.offset, stretch.sequence
                )),
            )
        };
        let there = length.checked_sub(stretch.offset).ok_or_else(inconsistent)?;
        match stretch.length {
            Some(asked) if asked > there => Err(inconsistent()),
            Some(asked) => Ok(asked),
            None => Ok(there),
        }
    }
}

impl Source for GptSource {
    fn num_samples(&self) -> u64 {
        self.dataset.num_ids()
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        let (part, stretches) = self.stretches(id)?;
        let mut length = 0u64;
        for stretch in &stretches {
            length = length.saturating_add(self.length_of(part, stretch)?);
        }
        Ok(usize::try_from(length).unwrap_or(usize::MAX).min(self.width()))
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let wanted = out.len().min(self.width());
        let (part, entry) = self.dataset.part_of(id).ok_or(SourceError::OutOfRange {
            id,
            num_samples: self.dataset.num_ids(),
        })?;
        let stretches = self.dataset.parts()[part]
            .parts(entry, self.add_extra_token)
            .map_err(|e| self.inconsistent(part, &e))?;
        let mut written = 0;
        for stretch in stretches {
            if written == wanted {
                break;
            }
            let stretch = stretch.map_err(|e| self.inconsistent(part, &e))?;
            let length = self.length_of(part, &stretch)?;
            // A length in a file is untrusted: only as much as is still missing is read.
            let take = usize::try_from(length)
                .unwrap_or(usize::MAX)
                .min(wanted - written);
            self.data[part].read_tokens(
                stretch.sequence,
                stretch.offset,
                &mut out[written..written + take],
            )?;
            written += take;
        }
        Ok(written)
    }

    fn will_need(&self, ids: &[SampleId]) {
        for &id in ids {
            let Ok((part, stretches)) = self.stretches(id) else {
                continue;
            };
            let data = &self.data[part];
            let size = data.index().token_type().size();
            for stretch in stretches {
                let (Ok(sequence), Ok(length)) = (
                    data.index().sequence(stretch.sequence),
                    self.length_of(part, &stretch),
                ) else {
                    continue;
                };
                data.bin().will_need(
                    sequence.pointer.saturating_add(stretch.offset * size),
                    length * size,
                );
            }
        }
    }

    fn file_of(&self, id: SampleId) -> Option<PathBuf> {
        let (part, _) = self.dataset.part_of(id)?;
        self.data[part].file_of(0)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.data.iter().flat_map(|data| data.files()).collect()
    }

    /// The prefixes of a blend's datasets.
    fn part_names(&self) -> Vec<String> {
        match &self.data[..] {
            [_] => Vec::new(),
            parts => parts
                .iter()
                .map(|data| data.prefix().display().to_string())
                .collect(),
        }
    }

    fn part_of(&self, id: SampleId) -> usize {
        self.dataset.part_of(id).map_or(0, |(part, _)| part)
    }

    /// Every stored sequence is a document, as for Megatron's own document index.
    fn document_starts(&self, id: SampleId, starts: &mut Vec<usize>) -> Result<(), SourceError> {
        let (part, stretches) = self.stretches(id)?;
        let mut at = 0u64;
        for stretch in &stretches {
            starts.push(usize::try_from(at).unwrap_or(usize::MAX));
            at = at.saturating_add(self.length_of(part, stretch)?);
        }
        Ok(())
    }

    fn document_spans(&self, id: SampleId, spans: &mut Vec<DocumentSpan>) -> Result<bool, SourceError> {
        let (part, stretches) = self.stretches(id)?;
        let data = &self.data[part];
        let mut at = 0u64;
        // The extra token belongs to the next sample as well; a sample is its `seq_length` input tokens.
        let width = self.seq_length as u64;
        for stretch in &stretches {
            let length = self.length_of(part, stretch)?.min(width.saturating_sub(at));
            if length == 0 {
                continue;
            }
            spans.push(DocumentSpan {
                part,
                document: data.document_of(stretch.sequence)?,
                sequence: stretch.sequence,
                start: stretch.offset,
                end: stretch.offset.saturating_add(length),
                sequence_len: data.index().sequence(stretch.sequence)?.length.into(),
                at,
            });
            at = at.saturating_add(length);
        }
        Ok(true)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.data.iter().try_for_each(|data| data.check_unchanged())
    }
}
