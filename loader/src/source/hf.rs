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

use std::path::{Path, PathBuf};

use ceteris_samplers::SampleId;
use rayon::prelude::*;

use super::arrow_table::{ArrowTable, OpenFile, Shard, open_files};
use super::decode::{self, Decoded};
use super::fingerprint::{DatasetFingerprint, FingerprintMode};
use super::hf_dir::{DatasetKind, SplitFiles, check_present, choose_split, did_you_mean, survey};
use super::int_tokens::IntType;
use super::ipc_columns::{ColumnKind, Columns};
use super::ipc_walk::Choose;
use super::options::{OnRagged, SourceOptions};
use super::{Source, SourceError};

/// Told about work over whole files: what is done, how much of how much (bytes).
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Sample ids to stored rows.
#[derive(Debug)]
enum Rows {
    All(u64),
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Rows {
    fn len(&self) -> u64 {
        match self {
            Self::All(n) => *n,
            Self::Narrow(rows) => rows.len() as u64,
            Self::Wide(rows) => rows.len() as u64,
        }
    }

    #[inline]
    fn get(&self, id: SampleId) -> Option<u64> {
        match self {
            Self::All(n) => (id < *n).then_some(id),
            Self::Narrow(rows) => rows.get(usize::try_from(id).ok()?).map(|&r| u64::from(r)),
            Self::Wide(rows) => rows.get(usize::try_from(id).ok()?).copied(),
        }
    }

    /// Collects rows of a table of `n`, in the narrowest form that holds them.
    fn collect(n: u64, rows: impl Iterator<Item = Result<u64, SourceError>>) -> Result<Self, SourceError> {
        if n <= 1 << 32 {
            rows.map(|r| r.map(|r| r as u32))
                .collect::<Result<_, _>>()
                .map(Self::Narrow)
        } else {
            rows.collect::<Result<_, _>>().map(Self::Wide)
        }
    }
}

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

    /// Checks row lengths against `seq_length`, dropping rows where that is asked for.
    fn apply_seq_length(&mut self) -> Result<(), SourceError> {
        let Some(seq) = self.options.seq_length else {
            return Ok(());
        };
        let want = seq as u64;
        let lengths = self.row_lengths();
        let fits = |len: u64| {
            len == want
                || (len > want && self.options.truncate)
                || (len < want && self.options.on_ragged == OnRagged::Pad)
        };
        if fits(lengths.min) && fits(lengths.max) && (lengths.max <= want || self.options.truncate) {
            return Ok(());
        }
        let drop = self.options.on_ragged == OnRagged::Drop;
        if lengths.min == lengths.max && !drop {
            return Err(self.uniform_mismatch(lengths.max, seq));
        }
        let (mut short, mut long, mut first) = (0u64, 0u64, None);
        let mut kept = Vec::new();
        for id in 0..self.rows.len() {
            let row = self.stored_row(id);
            let len = self.table.row_len(row)?;
            if fits(len) {
                if drop {
                    kept.push(row);
                }
                continue;
            }
            short += u64::from(len < want);
            long += u64::from(len > want);
            first = first.or(Some((row, len)));
        }
        let Some((row, len)) = first else { return Ok(()) };
        if !drop {
            return Err(self.ragged(row, len, seq, short, long));
        }
        if kept.is_empty() {
            return Err(SourceError::RowLength(format!(
                "no row has {seq} tokens: on_ragged: drop would leave nothing (rows have {} to {} tokens)",
                lengths.min, lengths.max
            )));
        }
        self.dropped = short + long;
        self.warnings.push(format!(
            "{} of {} rows do not have {seq} tokens and are dropped ({short} shorter, {long} longer)",
            self.dropped,
            self.rows.len()
        ));
        self.rows = Rows::collect(self.table.num_rows(), kept.into_iter().map(Ok))?;
        Ok(())
    }

    fn uniform_mismatch(&self, len: u64, seq: usize) -> SourceError {
        let root = self.root.display();
        SourceError::RowLength(if len < seq as u64 {
            format!(
                "{root}: every row has {len} tokens, seq_length is {seq}: pass --seq-length {len}, or fill rows up with \
                 --on-ragged pad --pad-id N"
            )
        } else {
            format!(
                "{root}: every row has {len} tokens, seq_length is {seq}: pass --seq-length {len}, or keep only the first \
                 {seq} tokens of each row with --truncate"
            )
        })
    }

    fn ragged(&self, row: u64, len: u64, seq: usize, short: u64, long: u64) -> SourceError {
        let lengths = self.row_lengths();
        let place = self.table.place_of(row).map_or(String::new(), |(path, in_file)| {
            format!(" (row {in_file} of {})", path.display())
        });
        let way = match (short > 0, long > 0) {
            (_, false) => "--on-ragged drop leaves such rows out, --on-ragged pad --pad-id N fills them up",
            (false, true) => "--on-ragged drop leaves such rows out, --truncate keeps their first tokens",
            (true, true) => {
                "--on-ragged drop leaves such rows out; --on-ragged pad --pad-id N fills short ones up, --truncate cuts long ones"
            }
        };
        SourceError::RowLength(format!(
            "row {row}{place} has {len} tokens, seq_length is {seq}; of {} rows {short} are shorter and {long} longer ({} to {} \
             tokens). {way}",
            self.rows.len(),
            lengths.min,
            lengths.max
        ))
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

    fn will_need(&self, ids: &[SampleId]) {
        for row in ids.iter().filter_map(|&id| self.rows.get(id)) {
            self.table.will_need(row);
        }
    }

    fn file_of(&self, id: SampleId) -> Option<PathBuf> {
        let (path, _) = self.table.place_of(self.rows.get(id)?)?;
        // A decoded copy stands at the same index as the file it was made from.
        let index = self.table.paths().position(|p| p == path)?;
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

/// Opens the token column of every file of a split, decoding first what cannot be mapped.
fn open_tokens(
    kind: DatasetKind,
    split: &SplitFiles,
    options: &SourceOptions,
    progress: Progress<'_>,
    warnings: &mut Vec<String>,
) -> Result<(Vec<OpenFile>, String), SourceError> {
    let choose = |path: &Path, columns: &Columns| choose_tokens(path, columns, &options.column).map(Some);
    let paths: Vec<PathBuf> = split.shards.iter().map(|s| s.path.clone()).collect();
    let decoded = if kind == DatasetKind::Parquet {
        decode::parquet(&paths, options, progress)?
    } else {
        let opened = open_files(&split.shards, &choose)?;
        let Some(codec) = opened.iter().find_map(|f| f.layout.compression) else {
            let token_type = type_of(&opened);
            return Ok((opened, token_type));
        };
        let token_type = type_of(&opened);
        let decoded = decode::compressed_arrow(&paths, options, progress)?;
        warnings.push(format!(
            "{}: record batches are compressed ({codec}) and cannot be mapped; read from the decoded copy {}",
            split.dir.display(),
            decoded.dir.display()
        ));
        return open_decoded(&decoded, &choose).map(|opened| (opened, token_type));
    };
    let token_type = decoded.token_type.clone();
    open_decoded(&decoded, &choose).map(|opened| (opened, token_type))
}

fn open_decoded(decoded: &Decoded, choose: Choose<'_>) -> Result<Vec<OpenFile>, SourceError> {
    let shards: Vec<Shard> = decoded
        .files
        .iter()
        .map(|(path, rows)| Shard {
            path: path.clone(),
            expected_rows: Some((*rows, decode::MANIFEST.to_owned())),
        })
        .collect();
    open_files(&shards, choose)
}

fn type_of(files: &[OpenFile]) -> String {
    files
        .first()
        .and_then(|f| f.layout.columns.list.get(f.layout.column?))
        .map_or(String::new(), |c| c.type_name.clone())
}

/// The token column called `name`.
fn choose_tokens(path: &Path, columns: &Columns, name: &str) -> Result<usize, SourceError> {
    let usable = || -> Vec<String> {
        columns
            .list
            .iter()
            .filter(|c| matches!(c.kind, ColumnKind::Tokens(_)))
            .map(|c| format!("\"{}\" ({})", c.name, c.type_name))
            .collect()
    };
    let Some(index) = columns.find(name).map_err(|e| SourceError::corrupt(path, e))? else {
        let names: Vec<&str> = columns.list.iter().map(|c| c.name.as_str()).collect();
        return Err(SourceError::NotFound(format!(
            "{} has no column \"{name}\"; it has {}{}",
            path.display(),
            columns.describe(),
            did_you_mean(name, &names)
        )));
    };
    let column = &columns.list[index];
    if matches!(column.kind, ColumnKind::Tokens(_)) {
        return Ok(index);
    }
    let usable = usable();
    Err(SourceError::NotFound(format!(
        "{}: column \"{name}\" is {}, from row 0 on; token ids are a list of integers{}",
        path.display(),
        column.type_name,
        if usable.is_empty() {
            format!(", and no column here is: {}", columns.describe())
        } else {
            format!(", as in {}", usable.join(", "))
        }
    )))
}

/// Reads an indices table (one u64 column `indices`, as datasets writes it) over a table of `num_rows`.
///
/// # Errors
/// When it is no such table, is empty, or points outside.
fn read_indices(path: &Path, num_rows: u64) -> Result<Rows, SourceError> {
    let table = open_indices(path)?;
    let n = table.num_rows();
    if n == 0 {
        return Err(SourceError::corrupt(
            path,
            "this indices table is empty: no sample would be left",
        ));
    }
    Rows::collect(
        num_rows,
        (0..n).map(|i| {
            let row = table.read_u64(i)?;
            if row < num_rows {
                return Ok(row);
            }
            Err(SourceError::corrupt(
                path,
                format!("entry {i} of this indices table is row {row}, but the dataset has {num_rows} rows: it belongs to other data"),
            ))
        }),
    )
}

/// Opens an indices table.
///
/// # Errors
/// When it is no such table.
pub(crate) fn open_indices(path: &Path) -> Result<ArrowTable, SourceError> {
    let choose = |path: &Path, columns: &Columns| -> Result<Option<usize>, SourceError> {
        match columns.list.as_slice() {
            [one] if one.name == "indices" && one.kind == ColumnKind::Int(IntType::U64) => Ok(Some(0)),
            _ => Err(SourceError::corrupt(
                path,
                format!(
                    "is no indices table: one is a single column indices: uint64, here is {}",
                    columns.describe()
                ),
            )),
        }
    };
    let files = open_files(
        &[Shard {
            path: path.to_owned(),
            expected_rows: None,
        }],
        &choose,
    )?;
    if files.iter().any(|f| f.layout.compression.is_some()) {
        return Err(SourceError::corrupt(
            path,
            "this indices table is compressed; datasets writes it uncompressed",
        ));
    }
    ArrowTable::new(files)
}
