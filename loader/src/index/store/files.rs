//! Reading and writing the files of a cache: records and arrays.

use std::{fs, io};

use ceteris_samplers::orders::blend::BlendIndex;
use ceteris_samplers::orders::index_array::{Indices, SharedArray};
use ceteris_samplers::orders::megatron_epochs::EpochRule;
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use serde::Serialize;

use super::super::megatron_cache::write_array;
use super::super::npy::{Element, ElementType, NpyFile};
use super::Store;
use super::hash::{blend_hash, index_hash};
use super::record::{ArrayRecord, BlendRecord, FORMAT, Record, Stamp};
use crate::atomic;
use crate::source::SourceError;

impl Store {
    pub(super) fn read_record(&self, base: &str) -> Result<Option<Record>, String> {
        let record: Option<Record> = self.read_json(base)?;
        match record {
            Some(record) if record.format != FORMAT => {
                Err(format!("the record has format {}, not {FORMAT}", record.format))
            }
            record => Ok(record),
        }
    }

    pub(super) fn read_json<T: serde::de::DeserializeOwned>(&self, base: &str) -> Result<Option<T>, String> {
        // Records are small; what is larger was not written here.
        const LARGEST: u64 = 16 << 20;
        let path = self.path(&format!("{base}.json"));
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > LARGEST => return Err(format!("{} is no record", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let text = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| format!("{} is damaged: {e}", path.display()))
    }

    pub(super) fn write_record(&self, base: &str, record: &impl Serialize) -> Result<(), SourceError> {
        let path = self.path(&format!("{base}.json"));
        let mut text = serde_json::to_vec_pretty(record).unwrap_or_default();
        text.push(b'\n');
        atomic::write(&path, &text).map_err(|e| SourceError::io(path, "write", e))
    }

    /// Maps an array that a record names. Its size must be the one it was written with; what it holds is known only where
    /// its stamp is the recorded one.
    fn array<T: Element>(&self, record: &ArrayRecord) -> Result<SharedArray<T>, String> {
        if record.file.contains('/') {
            return Err(format!(
                "the record names a file outside its folder: {}",
                record.file
            ));
        }
        let path = self.path(&record.file);
        let file = NpyFile::open(&path).map_err(|e| e.to_string())?;
        let bytes = Stamp::of(&path).map_err(|e| e.to_string())?.len;
        if bytes != record.stamp.len || file.len() != record.entries {
            return Err(format!(
                "{} has another size than the record says",
                path.display()
            ));
        }
        file.array()
            .ok_or_else(|| format!("{} holds another type than the record says", path.display()))
    }

    /// Takes over the stamps of arrays as they are now; true when one is another than recorded, and the values have to be
    /// compared with the record's hash.
    pub(super) fn renew_stamps(&self, arrays: &mut [&mut ArrayRecord]) -> Result<bool, String> {
        let mut other = false;
        for array in arrays {
            let now = Stamp::of(&self.path(&array.file)).map_err(|e| e.to_string())?;
            other |= now != array.stamp;
            array.stamp = now;
        }
        Ok(other)
    }

    fn indices(&self, record: &ArrayRecord) -> Result<Indices, String> {
        Ok(if record.wide {
            Indices::Wide(self.array(record)?)
        } else {
            Indices::Narrow(self.array(record)?)
        })
    }

    /// Maps the arrays of a record. Where a file has another stamp than recorded, all values are compared with the
    /// recorded hash, and the record gets the new stamps: the second value says so.
    pub(super) fn open(&self, record: &mut Record) -> Result<(GptIndex, bool), String> {
        // Stamps before values: a file that changes in between is found changed at the next start.
        let other = self.renew_stamps(&mut [
            &mut record.document_index,
            &mut record.sample_index,
            &mut record.shuffle_index,
        ])?;
        let sample_index = if record.sample_index.wide {
            SampleIndex::Wide(self.array(&record.sample_index)?)
        } else {
            SampleIndex::Narrow(self.array(&record.sample_index)?)
        };
        let shuffle_index = self.indices(&record.shuffle_index)?;
        if shuffle_index.len().checked_add(1) != Some(sample_index.len()) {
            return Err("the sample index and the shuffle index differ in length".to_owned());
        }
        let index = GptIndex {
            rule: EpochRule {
                num_epochs: record.rule.num_epochs,
                tokens_per_epoch: record.rule.tokens_per_epoch,
                separate_final_epoch: record.rule.separate_final_epoch,
                samples_sans_final_epoch: record.rule.samples_sans_final_epoch,
            },
            document_index: self.array(&record.document_index)?,
            sample_index,
            shuffle_index,
        };
        if other && index_hash(&index) != record.index_hash {
            return Err(format!(
                "the values in {} and the arrays beside it are not those that were written",
                self.path(&record.shuffle_index.file).display()
            ));
        }
        Ok((index, other))
    }

    /// Maps the arrays of a blend, as [`Store::open`] does those of a dataset.
    pub(super) fn open_blend(&self, record: &mut BlendRecord) -> Result<(BlendIndex, bool), String> {
        let other = self.renew_stamps(&mut [&mut record.dataset_index, &mut record.dataset_sample_index])?;
        let datasets = self.array(&record.dataset_index)?;
        let samples = self.indices(&record.dataset_sample_index)?;
        let blend = BlendIndex::from_parts(datasets, samples, record.counts.clone())
            .filter(|blend| blend.len() == record.size)
            .ok_or_else(|| "the arrays differ in length".to_owned())?;
        if other && blend_hash(&blend) != record.index_hash {
            return Err(format!(
                "the values in {} and the array beside it are not those that were written",
                self.path(&record.dataset_index.file).display()
            ));
        }
        Ok((blend, other))
    }

    pub(super) fn keep_array<T: Element>(
        &self,
        base: &str,
        what: &str,
        element: ElementType,
        array: &SharedArray<T>,
    ) -> Result<ArrayRecord, SourceError> {
        let file = format!("{base}-{what}.npy");
        let path = self.path(&file);
        write_array(&path, element, &**array)?;
        let stamp = Stamp::of(&path)?;
        Ok(ArrayRecord {
            file,
            entries: array.len(),
            wide: element == ElementType::I64,
            stamp,
        })
    }

    pub(super) fn keep_indices(
        &self,
        base: &str,
        what: &str,
        indices: &Indices,
    ) -> Result<ArrayRecord, SourceError> {
        match indices {
            Indices::Narrow(v) => self.keep_array(base, what, ElementType::U32, v),
            Indices::Wide(v) => self.keep_array(base, what, ElementType::I64, v),
        }
    }
}
