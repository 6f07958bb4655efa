//! Fingerprints of a dataset's samples, on demand or all of them.
//!
//! Memory: 16 bytes a sample once all are asked for; before that, about 40 for each one looked at.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ceteris_samplers::SampleId;
use rayon::prelude::*;

use crate::fingerprint::Fingerprint;
use crate::source::{Source, SourceError};

/// Samples that one parallel task hashes.
const TASK: u64 = 256;

/// Reads a sample as it is hashed: its first `seq_length` tokens, or all of them.
///
/// # Errors
/// As [`Source::read`].
pub fn read_sample(
    source: &dyn Source,
    id: SampleId,
    seq_length: Option<usize>,
    buffer: &mut Vec<i32>,
) -> Result<(), SourceError> {
    let length = source.sample_len(id)?.min(seq_length.unwrap_or(usize::MAX));
    buffer.resize(length, 0);
    let read = source.read(id, buffer)?;
    buffer.truncate(read);
    Ok(())
}

/// Digests of every sample, in parallel; `done` hears how many more there are.
///
/// # Errors
/// What is wrong with the first sample that cannot be read.
pub fn all(
    source: &dyn Source,
    seq_length: Option<usize>,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Fingerprint>, SourceError> {
    let samples = source.num_samples();
    let tasks: Vec<Result<Vec<Fingerprint>, SourceError>> = (0..samples.div_ceil(TASK))
        .into_par_iter()
        .map(|task| {
            let (mut buffer, from) = (Vec::new(), task * TASK);
            let to = (from + TASK).min(samples);
            let mut digests = Vec::with_capacity((to - from) as usize);
            for id in from..to {
                read_sample(source, id, seq_length, &mut buffer)?;
                digests.push(Fingerprint::of_sample(&buffer));
            }
            done(to - from);
            Ok(digests)
        })
        .collect();
    let mut digests = Vec::with_capacity(samples as usize);
    for task in tasks {
        digests.extend(task?);
    }
    Ok(digests)
}

/// Digests by sample id.
#[derive(Debug)]
pub struct Digests {
    source: Arc<dyn Source>,
    seq_length: Option<usize>,
    all: Option<Vec<Fingerprint>>,
    some: Mutex<HashMap<SampleId, Fingerprint>>,
}

impl Digests {
    /// Digests of a source, computed when asked for.
    pub fn lazy(source: Arc<dyn Source>, seq_length: Option<usize>) -> Self {
        Self {
            source,
            seq_length,
            all: None,
            some: Mutex::default(),
        }
    }

    /// Computes all of them now.
    ///
    /// # Errors
    /// As [`all`].
    pub fn complete(&mut self, done: &(dyn Fn(u64) + Sync)) -> Result<(), SourceError> {
        if self.all.is_none() {
            self.all = Some(all(&*self.source, self.seq_length, done)?);
        }
        Ok(())
    }

    /// The samples these are digests of.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Tokens of a sample that are hashed, `None` for all.
    pub fn seq_length(&self) -> Option<usize> {
        self.seq_length
    }

    /// All digests by sample id, once [`Digests::complete`] was called.
    pub fn as_slice(&self) -> Option<&[Fingerprint]> {
        self.all.as_deref()
    }

    /// The digest of one sample.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn get(&self, id: SampleId) -> Result<Fingerprint, SourceError> {
        if let Some(all) = &self.all {
            let at = usize::try_from(id).ok().and_then(|at| all.get(at));
            return at.copied().ok_or(SourceError::OutOfRange {
                id,
                num_samples: self.source.num_samples(),
            });
        }
        if let Some(known) = self.lock().get(&id) {
            return Ok(*known);
        }
        let mut buffer = Vec::new();
        read_sample(&*self.source, id, self.seq_length, &mut buffer)?;
        let digest = Fingerprint::of_sample(&buffer);
        self.lock().insert(id, digest);
        Ok(digest)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SampleId, Fingerprint>> {
        // An entry is complete or absent, also where another thread panicked.
        self.some.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
