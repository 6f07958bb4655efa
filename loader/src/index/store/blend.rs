//! Cached draws of blends.

use std::fs;

use ceteris_samplers::orders::blend::{BlendError, BlendIndex, Shares};

use super::super::npy::ElementType;
use super::hash::blend_hash;
use super::lock::Lock;
use super::record::{BlendRecord, FORMAT, short_hash};
use super::{Outcome, Store, StoreError};
use crate::source::SourceError;

impl Store {
    /// The draws of a blend: from the cache, or built and kept. Shares decide them alone, so nothing can be stale.
    ///
    /// # Errors
    /// As [`Shares::build`], writes that fail, and [`StoreError::NoRebuild`].
    pub fn blend<E: From<StoreError> + From<BlendError>>(
        &self,
        shares: &Shares,
    ) -> Result<(BlendIndex, Outcome), E> {
        let (weights, lengths) = match shares {
            Shares::Weighted { weights, .. } => (Some(weights.clone()), None),
            Shares::Exhaustive { lengths } => (None, Some(lengths.clone())),
        };
        let size = shares.size();
        let base = format!("ceteris-blend-{}", short_hash(&(&weights, &lengths, size), ""));
        let read = || -> Result<Option<BlendIndex>, String> {
            let Some(mut record) = self.read_json::<BlendRecord>(&base)? else {
                return Ok(None);
            };
            let fits = record.format == FORMAT
                && (&record.weights, &record.lengths, record.size) == (&weights, &lengths, size)
                && record.counts.len() == shares.num_datasets();
            if !fits {
                return Err("the record belongs to another blend".to_owned());
            }
            let (blend, renewed) = self.open_blend(&mut record)?;
            if renewed {
                // A cache that cannot be written to is still good for reading.
                let _ = self.write_record(&base, &record);
            }
            Ok(Some(blend))
        };
        let why = match read() {
            Ok(Some(blend)) => return Ok((blend, Outcome::Hit)),
            Ok(None) => None,
            Err(reason) => Some(reason),
        };
        if self.no_rebuild {
            let reason = why.unwrap_or_else(|| "there is none".to_owned());
            return Err(StoreError::NoRebuild {
                record: self.path(&format!("{base}.json")),
                reason,
            }
            .into());
        }
        fs::create_dir_all(&self.folder)
            .map_err(|e| StoreError::from(SourceError::io(&self.folder, "create the folder", e)))?;
        let lock = Lock::take(self.path(&format!("{base}.lock")));
        if lock.waited
            && let Ok(Some(blend)) = read()
        {
            return Ok((blend, Outcome::Hit));
        }
        let blend = shares.build()?;
        let keep = || -> Result<(), SourceError> {
            let dataset_index =
                self.keep_array(&base, "dataset_index", ElementType::I16, blend.dataset_index())?;
            let dataset_sample_index =
                self.keep_indices(&base, "dataset_sample_index", blend.dataset_sample_index())?;
            let counts = blend.counts().to_vec();
            let (weights, lengths) = (weights.clone(), lengths.clone());
            self.write_record(
                &base,
                &BlendRecord {
                    format: FORMAT,
                    weights,
                    lengths,
                    size,
                    counts,
                    dataset_index,
                    dataset_sample_index,
                    index_hash: blend_hash(&blend),
                },
            )
        };
        keep().map_err(StoreError::from)?;
        drop(lock);
        let outcome = why.map_or(Outcome::Built, |reason| Outcome::Rebuilt { reason });
        Ok((read().ok().flatten().unwrap_or(blend), outcome))
    }
}
