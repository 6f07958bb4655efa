//! Hugging Face datasets as a source: saved folders, split dictionaries, caches, plain Arrow files, Parquet.
//!
//! Samples are the rows of the stored table in the sequence `datasets.load_from_disk` (5.2.0) gives them,
//! after the indices table if one is named and without the rows that `on_ragged: drop` leaves out. Token
//! values are those stored, whatever the integer width. Opening reads metadata, batch headers and list
//! offsets; nothing is allocated in proportion to the tokens (an indices table or dropped rows cost 4 bytes
//! per sample). Reading a sample is one copy from the memory map.
//!
//! A file that shrinks or fails under the map is an error at the read that meets it, not SIGBUS (see
//! `sigbus`); the one page in which a shortened file now ends is what [`Source::check_unchanged`] is for.
//! Parquet and compressed Arrow cannot be mapped: they are decoded once into a cached Arrow folder (see
//! `decode`).

pub(crate) mod indices;
mod lengths;
mod rows;
mod tokens;

use std::path::{Path, PathBuf};

use ceteris_samplers::SampleId;
use rayon::prelude::*;

use indices::read_indices;
use rows::Rows;
use tokens::open_tokens;

use super::dirs::{DatasetKind, check_present, choose_split, survey};
use super::fingerprint::{DatasetFingerprint, FingerprintMode};
use super::options::SourceOptions;
use super::table::ArrowTable;
use super::{GROUP, Source, SourceError};

/// Told about work over whole files: what is done, how much of how much (bytes).
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Row lengths of a dataset, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RowLengths {
    /// Shortest row.
    pub min: u64,
    /// Longest row.
    pub max: u64,
    /// Tokens of all rows.
    pub total: u64,
}

/// What a scan of every token found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct TokenScan {
    /// Tokens read.
    pub tokens: u64,
    /// Largest token id, `None` without tokens.
    pub max_token: Option<i32>,
}

/// A Hugging Face dataset, opened.
#[derive(Debug)]
pub struct HfSource {
    table: ArrowTable,
    rows: Rows,
    kind: DatasetKind,
    root: PathBuf,
    split: Option<String>,
    /// The dataset's own files (not the decoded copies), then the indices table.
    files: Vec<PathBuf>,
    token_type: String,
    warnings: Vec<String>,
    options: SourceOptions,
    dropped: u64,
    /// Longest read: `seq_length` when rows are truncated.
    limit: usize,
    max_token: u32,
}

impl HfSource {
    /// Opens the dataset at `path`: a folder or a file of any kind listed in [`DatasetKind`].
    ///
    /// # Errors
    /// [`SourceError`] with the file, row, column or option at fault and what to do about it. Nothing is half
    /// opened.
    ///
    /// # Example
    /// ```no_run
    /// use ceteris_loader::source::{HfSource, Source, SourceOptions};
    ///
    /// let options = SourceOptions { seq_length: Some(128), ..SourceOptions::default() };
    /// let source = HfSource::open("runs/cache".as_ref(), &options)?;
    /// let mut tokens = [0i32; 128];
    /// source.read(0, &mut tokens)?;
    /// # Ok::<(), ceteris_loader::source::SourceError>(())
    /// ```
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, SourceError> {
        Self::open_with(path, options, &|_, _, _| {})
    }

    /// As [`Self::open`]; `progress` hears about the decoding of parquet or compressed files.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        path: &Path,
        options: &SourceOptions,
        progress: Progress<'_>,
    ) -> Result<Self, SourceError> {
        options.validate()?;
        let survey = survey(path)?;
        let split = choose_split(&survey, options.split.as_deref())?;
        check_present(split)?;
        let mut files: Vec<PathBuf> = split.shards.iter().map(|s| s.path.clone()).collect();
        let mut warnings = split.warnings.clone();
        let (opened, token_type) = open_tokens(survey.kind, split, options, progress, &mut warnings)?;
        let table = ArrowTable::new(opened)?;
        if table.num_rows() == 0 {
            return Err(SourceError::NotFound(format!(
                "{} holds no rows: its {} are empty",
                path.display(),
                if files.len() == 1 {
                    "one file".to_owned()
                } else {
                    format!("{} files", files.len())
                }
            )));
        }
        let rows = match &options.indices {
            None => Rows::All(table.num_rows()),
            Some(indices) => {
                let rows = read_indices(indices, table.num_rows())?;
                files.push(indices.clone());
                rows
            }
        };
        let mut source = Self {
            table,
            rows,
            kind: survey.kind,
            root: survey.root.clone(),
            split: split.name.clone(),
            files,
            token_type,
            warnings,
            options: options.clone(),
            dropped: 0,
            limit: if options.truncate {
                options.seq_length.unwrap_or(usize::MAX)
            } else {
                usize::MAX
            },
            max_token: options.max_token(),
        };
        source.apply_seq_length()?;
        Ok(source)
    }

    /// What the path was.
    pub fn kind(&self) -> DatasetKind {
        self.kind
    }

    /// The path opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The split read, where the layout has splits.
    pub fn split(&self) -> Option<&str> {
        self.split.as_deref()
    }

    /// Type of the token column as pyarrow prints it, for example `list<item: int32>`.
    pub fn token_type(&self) -> &str {
        &self.token_type
    }

    /// The options it was opened with.
    pub fn options(&self) -> &SourceOptions {
        &self.options
    }

    /// Things a user should hear about: strays, missing side files. For the caller to print.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Rows of the stored table, whatever the samples are made of.
    pub fn stored_rows(&self) -> u64 {
        self.table.num_rows()
    }

    /// Rows that `on_ragged: drop` left out.
    pub fn dropped_rows(&self) -> u64 {
        self.dropped
    }

    /// Record batches in the files.
    pub fn record_batches(&self) -> u64 {
        self.table.num_batches()
    }

    /// Lengths of the stored rows.
    pub fn row_lengths(&self) -> RowLengths {
        let l = self.table.lengths();
        RowLengths {
            min: l.min.min(l.max),
            max: l.max,
            total: l.total,
        }
    }

    /// Tokens of every sample when all have the same number: `seq_length`, else the rows' common length.
    pub fn sample_length(&self) -> Option<usize> {
        let l = self.row_lengths();
        self.options
            .seq_length
            .or_else(|| (l.min == l.max).then(|| usize::try_from(l.max).ok()).flatten())
    }

    /// Fingerprint of the dataset's files (and of the indices table, when one is applied).
    ///
    /// # Errors
    /// As [`DatasetFingerprint::compute`].
    pub fn fingerprint(
        &self,
        mode: FingerprintMode,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<DatasetFingerprint, SourceError> {
        DatasetFingerprint::compute(&self.files, mode, progress)
    }

    /// Reads every token, so that ids outside the vocabulary are found before anything is delivered.
    /// `progress` is told how many samples were read since it was last called.
    ///
    /// # Errors
    /// That of the first sample that cannot be read.
    pub fn scan(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<TokenScan, SourceError> {
        const CHUNK: u64 = 1024;
        let n = self.num_samples();
        let parts: Vec<Result<TokenScan, SourceError>> = (0..n.div_ceil(CHUNK))
            .into_par_iter()
            .map_init(Vec::new, |buffer: &mut Vec<i32>, chunk| {
                let mut scan = TokenScan {
                    tokens: 0,
                    max_token: None,
                };
                let ids = chunk * CHUNK..n.min((chunk + 1) * CHUNK);
                let count = ids.end - ids.start;
                // Cold pages of a map advised as random would come in one by one.
                self.table
                    .will_need(ids.clone().filter_map(|id| self.rows.get(id)));
                for id in ids {
                    let len = self.sample_len(id)?;
                    buffer.resize(buffer.len().max(len), 0);
                    let read = self.read(id, &mut buffer[..len])?;
                    scan.tokens += read as u64;
                    scan.max_token = scan.max_token.max(buffer[..read].iter().copied().max());
                }
                progress(count);
                Ok(scan)
            })
            .collect();
        parts.into_iter().try_fold(
            TokenScan {
                tokens: 0,
                max_token: None,
            },
            |sum, part| {
                let part = part?;
                Ok(TokenScan {
                    tokens: sum.tokens + part.tokens,
                    max_token: sum.max_token.max(part.max_token),
                })
            },
        )
    }
}

impl Source for HfSource {
    fn num_samples(&self) -> u64 {
        self.rows.len()
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        let len = self.table.row_len(self.row(id)?)?;
        Ok(usize::try_from(len).unwrap_or(usize::MAX).min(self.limit))
    }

    #[inline]
    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        self.table
            .read_row(self.row(id)?, out, self.limit, self.max_token)
    }

    #[inline]
    fn read_group(&self, ids: [SampleId; GROUP], out: [&mut [i32]; GROUP]) -> bool {
        let mut rows = [0; GROUP];
        for (row, id) in rows.iter_mut().zip(ids) {
            match self.rows.get(id) {
                Some(stored) => *row = stored,
                None => return false,
            }
        }
        self.table.read_rows(rows, out, self.limit, self.max_token)
    }

    #[inline]
    fn read_soon(&self, id: SampleId) {
        if let Some(row) = self.rows.get(id) {
            self.table.translate(row);
        }
    }

    fn will_need(&self, ids: &[SampleId]) {
        self.table
            .will_need(ids.iter().filter_map(|&id| self.rows.get(id)));
    }

    fn file_of(&self, id: SampleId) -> Option<PathBuf> {
        // A decoded copy stands at the same index as the file it was made from.
        let (index, _) = self.table.place_of(self.rows.get(id)?)?;
        self.files.get(index).cloned()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    fn stored_row(&self, id: SampleId) -> u64 {
        self.rows.get(id).unwrap_or(id)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.table.check_unchanged()
    }
}

impl HfSource {
    #[inline]
    fn row(&self, id: SampleId) -> Result<u64, SourceError> {
        self.rows.get(id).ok_or(SourceError::OutOfRange {
            id,
            num_samples: self.rows.len(),
        })
    }
}
