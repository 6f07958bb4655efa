//! Several datasets as one: the rows of the first, then those of the second, and so on, as `datasets.concatenate_datasets`
//! numbers them (and `interleave_datasets`, which permutes that list). Consumption is counted by dataset.
//!
//! Memory: the parts' own, and their starts.

use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::SampleId;

use super::{GROUP, Source, SourceError};

/// See the file head.
#[derive(Debug)]
pub struct ConcatSource {
    parts: Vec<(String, Arc<dyn Source>)>,
    /// First sample of each part, then the number of samples.
    starts: Vec<u64>,
}

impl ConcatSource {
    /// Puts named datasets one after the other.
    ///
    /// # Errors
    /// [`SourceError::Options`] for no dataset, a name given twice, or more samples than 64 bits count.
    pub fn new(parts: Vec<(String, Arc<dyn Source>)>) -> Result<ConcatSource, SourceError> {
        if parts.is_empty() {
            return Err(SourceError::Options(
                "no dataset was given to concatenate".to_owned(),
            ));
        }
        for (i, (name, _)) in parts.iter().enumerate() {
            if parts[..i].iter().any(|(other, _)| other == name) {
                return Err(SourceError::Options(format!("two datasets are named \"{name}\"")));
            }
        }
        let mut starts = vec![0u64];
        for (name, part) in &parts {
            let end = starts[starts.len() - 1]
                .checked_add(part.num_samples())
                .ok_or_else(|| {
                    SourceError::Options(format!(
                        "the samples up to \"{name}\" cannot be counted in 64 bits"
                    ))
                })?;
            starts.push(end);
        }
        Ok(ConcatSource { parts, starts })
    }

    /// Samples of each part.
    pub fn lengths(&self) -> Vec<u64> {
        self.starts.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// The part a sample lies in, and its id there.
    fn locate(&self, id: SampleId) -> Result<(usize, SampleId), SourceError> {
        // Empty parts share their start with the next one: the last start not above `id` is the one.
        let part = self.starts.partition_point(|&start| start <= id) - 1;
        if part >= self.parts.len() {
            return Err(SourceError::OutOfRange {
                id,
                num_samples: self.num_samples(),
            });
        }
        Ok((part, id - self.starts[part]))
    }

    /// The source a sample lies in, and its id there.
    fn at(&self, id: SampleId) -> Result<(&dyn Source, SampleId), SourceError> {
        self.locate(id).map(|(part, id)| (&*self.parts[part].1, id))
    }
}

impl Source for ConcatSource {
    fn num_samples(&self) -> u64 {
        self.starts[self.parts.len()]
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        let (source, id) = self.at(id)?;
        source.sample_len(id)
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let (source, id) = self.at(id)?;
        source.read(id, out)
    }

    /// A group of samples of one part.
    fn read_group(&self, mut ids: [SampleId; GROUP], out: [&mut [i32]; GROUP]) -> bool {
        let Ok((part, _)) = self.locate(ids[0]) else {
            return false;
        };
        for id in &mut ids {
            match self.locate(*id) {
                Ok((other, within)) if other == part => *id = within,
                _ => return false,
            }
        }
        self.parts[part].1.read_group(ids, out)
    }

    fn read_soon(&self, id: SampleId) {
        if let Ok((source, id)) = self.at(id) {
            source.read_soon(id);
        }
    }

    fn will_need(&self, ids: &[SampleId]) {
        for &id in ids {
            if let Ok((source, id)) = self.at(id) {
                source.will_need(&[id]);
            }
        }
    }

    fn file_of(&self, id: SampleId) -> Option<PathBuf> {
        let (source, id) = self.at(id).ok()?;
        source.file_of(id)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.parts.iter().flat_map(|(_, source)| source.files()).collect()
    }

    /// Row of the concatenation of the stored tables, as far as the parts before hold all their rows.
    fn stored_row(&self, id: SampleId) -> u64 {
        match self.locate(id) {
            Ok((part, id)) => self.starts[part] + self.parts[part].1.stored_row(id),
            Err(_) => id,
        }
    }

    fn part_names(&self) -> Vec<String> {
        self.parts.iter().map(|(name, _)| name.clone()).collect()
    }

    fn part_of(&self, id: SampleId) -> usize {
        self.locate(id).map_or(0, |(part, _)| part)
    }

    fn document_starts(&self, id: SampleId, starts: &mut Vec<usize>) -> Result<(), SourceError> {
        let (source, id) = self.at(id)?;
        source.document_starts(id, starts)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.parts
            .iter()
            .try_for_each(|(_, source)| source.check_unchanged())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` samples of one token each, which is `base` plus the sample's id.
    #[derive(Debug)]
    struct Count(u64, i32);

    impl Source for Count {
        fn num_samples(&self) -> u64 {
            self.0
        }

        fn sample_len(&self, _id: SampleId) -> Result<usize, SourceError> {
            Ok(1)
        }

        fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
            out[0] = self.1 + id as i32;
            Ok(1)
        }

        fn file_of(&self, _id: SampleId) -> Option<PathBuf> {
            Some(self.1.to_string().into())
        }

        fn files(&self) -> Vec<PathBuf> {
            vec![self.1.to_string().into()]
        }
    }

    fn parts(lengths: &[(u64, i32)]) -> Vec<(String, Arc<dyn Source>)> {
        let source = |&(n, base): &(u64, i32)| Arc::new(Count(n, base)) as Arc<dyn Source>;
        lengths
            .iter()
            .map(|part| (part.1.to_string(), source(part)))
            .collect()
    }

    #[test]
    fn rows_follow_one_another_and_empty_parts_hold_none() {
        let all = ConcatSource::new(parts(&[(3, 0), (0, 10), (2, 20), (0, 30)])).unwrap();
        assert_eq!((all.num_samples(), all.lengths()), (5, vec![3, 0, 2, 0]));
        let mut token = [0];
        let tokens: Vec<i32> = (0..5)
            .map(|id| all.read(id, &mut token).map(|_| token[0]).unwrap())
            .collect();
        assert_eq!(tokens, [0, 1, 2, 20, 21]);
        let of: Vec<usize> = (0..5).map(|id| all.part_of(id)).collect();
        assert_eq!(of, [0, 0, 0, 2, 2]);
        assert_eq!(all.file_of(3), Some("20".into()));
        assert!(matches!(
            all.read(5, &mut token),
            Err(SourceError::OutOfRange {
                id: 5,
                num_samples: 5
            })
        ));
        assert_eq!(all.stored_row(4), 4);
    }

    #[test]
    fn no_dataset_and_equal_names_are_refused() {
        assert!(ConcatSource::new(Vec::new()).is_err());
        let error = ConcatSource::new(parts(&[(1, 5), (1, 5)])).unwrap_err();
        assert!(error.to_string().contains("\"5\""), "{error}");
        assert!(ConcatSource::new(parts(&[(u64::MAX, 1), (1, 2)])).is_err());
    }
}
