//! What a Megatron run trains on: one GPT dataset, or a blend of several.
//!
//! Reproduces the look-up of Megatron-Core 0.19.2: `BlendedDataset.__getitem__` picks a dataset and one of its
//! samples, `GPTDataset.__getitem__` goes through that dataset's shuffle index. A sample id counts sample-index
//! entries over all datasets, in the order of the blend: entry `e` of dataset `d` is `first_id(d) + e`. So the same
//! stretch of tokens has one id, wherever the shuffles put it.
//!
//! Memory: that of the indices, shared.

use std::path::Path;
use std::sync::Arc;

use crate::place::SampleId;

use super::blend::BlendIndex;
use super::megatron_index::{GptIndex, GptIndexError};

/// GPT datasets and the blend over them.
#[derive(Clone, Debug)]
pub struct MegatronDataset {
    parts: Vec<Arc<GptIndex>>,
    /// Id of each part's entry 0, and one past the last id.
    first_ids: Vec<SampleId>,
    blend: Option<Arc<BlendIndex>>,
}

impl MegatronDataset {
    /// A single dataset, without a blend.
    pub fn single(index: Arc<GptIndex>) -> Self {
        let len = index.len();
        MegatronDataset {
            parts: vec![index],
            first_ids: vec![0, len],
            blend: None,
        }
    }

    /// Datasets under a blend that asks none of them for more than it has ([`BlendIndex::check`]).
    ///
    /// # Errors
    /// [`GptIndexError::Inconsistent`] when the blend is over another number of datasets or asks for too much.
    pub fn blended(parts: Vec<Arc<GptIndex>>, blend: Arc<BlendIndex>) -> Result<Self, GptIndexError> {
        let bad = |why: String| Err(GptIndexError::Inconsistent(why));
        if parts.len() != blend.counts().len() {
            return bad(format!(
                "a blend of {} datasets over {}",
                blend.counts().len(),
                parts.len()
            ));
        }
        let mut first_ids = vec![0];
        let mut next: SampleId = 0;
        for (i, (part, &drawn)) in parts.iter().zip(blend.counts()).enumerate() {
            if drawn > part.len() {
                return bad(format!(
                    "the blend draws {drawn} samples from dataset {i}, which has {}",
                    part.len()
                ));
            }
            next += part.len();
            first_ids.push(next);
        }
        Ok(MegatronDataset {
            parts,
            first_ids,
            blend: Some(blend),
        })
    }

    /// Samples a run can consume: the blend's draws, or all samples of the single dataset.
    pub fn len(&self) -> u64 {
        match (&self.blend, self.parts.first()) {
            (Some(blend), _) => blend.len(),
            (None, Some(part)) => part.len(),
            (None, None) => 0,
        }
    }

    /// True when there is nothing to consume.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of sample ids: the samples of all parts, drawn or not.
    pub fn num_ids(&self) -> u64 {
        self.first_ids.last().copied().unwrap_or(0)
    }

    /// The datasets.
    pub fn parts(&self) -> &[Arc<GptIndex>] {
        &self.parts
    }

    /// The blend, `None` for a single dataset without one.
    pub fn blend(&self) -> Option<&Arc<BlendIndex>> {
        self.blend.as_ref()
    }

    /// The dataset an id belongs to, and the entry of its sample index; `None` past the last id.
    pub fn part_of(&self, id: SampleId) -> Option<(usize, u64)> {
        if id >= self.num_ids() {
            return None;
        }
        // Parts may be empty: the last one that starts at or before the id is the one that holds it.
        let part = self
            .first_ids
            .partition_point(|&first| first <= id)
            .checked_sub(1)?;
        Some((part, id - self.first_ids[part]))
    }

    /// Dataset and sample of it that position `i` of the run consumes, before that dataset's own shuffle.
    pub fn draw(&self, i: u64) -> Option<(usize, u64)> {
        match &self.blend {
            Some(blend) => blend.get(i),
            None => (i < self.len()).then_some((0, i)),
        }
    }

    /// Id that position `i` of the run consumes, `None` past the end.
    pub fn sample_id(&self, i: u64) -> Option<SampleId> {
        let (part, sample) = self.draw(i)?;
        let entry = self.parts.get(part)?.shuffle_index.get(sample)?;
        let first = self.first_ids.get(part)?;
        (first + entry < *self.first_ids.get(part + 1)?).then_some(first + entry)
    }

    /// Why a position inside the run has no id: an index that lies in a file was damaged since it was opened. Names the
    /// file, the entry and what to do; `None` where there is nothing wrong.
    pub fn fault(&self, i: u64) -> Option<String> {
        if i >= self.len() || self.sample_id(i).is_some() {
            return None;
        }
        let says = |file: Option<&Path>, what: &str, entry: u64, value: Option<String>| {
            let place = file.map_or_else(|| format!("the {what}"), |file| file.display().to_string());
            let value = value.map_or_else(|| "cannot be read".to_owned(), |value| format!("is {value}"));
            Some(format!(
                "{place}: entry {entry} {value}: the file is damaged; delete it, so that the index is built anew"
            ))
        };
        let drawn = self.draw(i);
        let Some((part, sample, index)) =
            drawn.and_then(|(part, sample)| Some((part, sample, self.parts.get(part)?)))
        else {
            let value = drawn.map(|(part, _)| format!("dataset {part} of a blend of {}", self.parts.len()));
            let file = self.blend.as_ref().and_then(|blend| blend.dataset_index().file());
            return says(file, "dataset index of the blend", i, value);
        };
        if sample >= index.len() {
            let file = self
                .blend
                .as_ref()
                .and_then(|blend| blend.dataset_sample_index().file());
            let value = format!("sample {sample} of dataset {part}, which has {}", index.len());
            return says(file, "dataset sample index of the blend", i, Some(value));
        }
        let value = index
            .shuffle_index
            .get(sample)
            .map(|entry| format!("{entry}, where the dataset has {} samples", index.len()));
        says(index.shuffle_index.file(), "shuffle index", sample, value)
    }
}
