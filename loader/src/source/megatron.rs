//! A Megatron indexed dataset (`.bin` and `.idx`) as a source: each stored sequence is one sample.
//!
//! Reproduces `IndexedDataset` of Megatron-Core 0.19.2. Tokens are read by the stored dtype code, whatever the
//! vocabulary. Samples of a GPT dataset, which cut across sequences, are [`super::megatron_gpt`]'s.
//!
//! Both files are memory-mapped; nothing else is held. Files over 4 GB are no special case.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ceteris_samplers::SampleId;

use super::int_tokens::{self, IntType};
use super::mapped::MappedFile;
use super::megatron_idx::{IndexFile, Sequence, TokenType, Totals};
use super::{Source, SourceError};

/// `PREFIX.idx`.
pub fn idx_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".idx")
}

/// `PREFIX.bin`.
pub fn bin_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".bin")
}

/// Appends to the last component: a prefix may hold dots, so this is not `with_extension`.
pub(crate) fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// How much of an index is read at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Every entry, once: anything wrong is found before the first sample.
    Full,
    /// Header, sizes and the last sequence; used when the same files passed the full check before.
    Quick,
}

/// An open pair of `.bin` and `.idx`.
#[derive(Debug)]
pub struct IndexedDataset {
    prefix: PathBuf,
    index: IndexFile,
    bin: MappedFile,
    totals: OnceLock<Totals>,
    /// Largest token id allowed.
    max_token: u32,
}

impl IndexedDataset {
    /// Opens `PREFIX.bin` and `PREFIX.idx`. A prefix given with one of the two endings is taken without it.
    ///
    /// # Errors
    /// [`SourceError`] naming the file: missing, not a Megatron index, cut off, or entries that cannot be.
    pub fn open(prefix: &Path, check: Check) -> Result<Self, SourceError> {
        let prefix = strip_ending(prefix);
        let (idx, bin) = (idx_path(&prefix), bin_path(&prefix));
        match (idx.is_file(), bin.is_file()) {
            (true, true) => {}
            (false, false) => {
                return Err(SourceError::NotFound(format!(
                    "no Megatron dataset at {0}: neither {0}.bin nor {0}.idx is there (give the path without ending)",
                    prefix.display()
                )));
            }
            (has_idx, _) => {
                let (there, missing) = if has_idx { (&idx, &bin) } else { (&bin, &idx) };
                return Err(SourceError::NotFound(format!(
                    "{} is there, but {} is missing; a Megatron dataset is both",
                    there.display(),
                    missing.display()
                )));
            }
        }
        let index = IndexFile::open(&idx)?;
        let file = File::open(&bin).map_err(|e| SourceError::io(&bin, "open", e))?;
        let bin = MappedFile::new(&bin, &file)?;
        let dataset = IndexedDataset {
            prefix,
            index,
            bin,
            totals: OnceLock::new(),
            max_token: i32::MAX as u32,
        };
        match check {
            Check::Full => {
                dataset.validate()?;
            }
            Check::Quick => dataset.check_end()?,
        }
        Ok(dataset)
    }

    /// Reads every entry of the index once and checks it against the `.bin` file; later calls cost nothing.
    ///
    /// # Errors
    /// [`SourceError::Corrupt`] naming the first entry that is wrong.
    pub fn validate(&self) -> Result<Totals, SourceError> {
        if let Some(totals) = self.totals.get() {
            return Ok(*totals);
        }
        let totals = self.index.validate(self.bin.len())?;
        Ok(*self.totals.get_or_init(|| totals))
    }

    /// Checks that the last sequence ends within the `.bin` file.
    fn check_end(&self) -> Result<(), SourceError> {
        let Some(last) = self.index.num_sequences().checked_sub(1) else {
            return Ok(());
        };
        let end = end_of(&self.index, self.index.sequence(last)?);
        if end.is_none_or(|end| end > self.bin.len()) {
            return Err(SourceError::corrupt(
                self.bin.path(),
                format!(
                    "{} bytes long, but the last sequence of {} lies behind that; the file is cut off or belongs to \
                     another index",
                    self.bin.len(),
                    self.index.path().display()
                ),
            ));
        }
        Ok(())
    }

    /// Refuses token ids from `vocab_size` on when they are read.
    #[must_use]
    pub fn with_vocab_size(mut self, vocab_size: u32) -> Self {
        self.max_token = vocab_size.saturating_sub(1).min(i32::MAX as u32);
        self
    }

    /// The path without ending.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The index.
    pub fn index(&self) -> &IndexFile {
        &self.index
    }

    /// The token file.
    pub(crate) fn bin(&self) -> &MappedFile {
        &self.bin
    }

    /// What the files add up to; known once every entry was checked.
    pub fn totals(&self) -> Option<Totals> {
        self.totals.get().copied()
    }

    /// Bytes of the `.bin` file.
    pub fn bin_bytes(&self) -> u64 {
        self.bin.len()
    }

    /// Copies tokens `offset..offset + out.len()` of sequence `sequence`.
    ///
    /// # Errors
    /// A stretch that is not in the sequence, tokens that are not ids, and reads that fail.
    pub fn read_tokens(&self, sequence: u64, offset: u64, out: &mut [i32]) -> Result<(), SourceError> {
        let Sequence { pointer, length } = self.index.sequence(sequence)?;
        let n = out.len() as u64;
        if offset.checked_add(n).is_none_or(|end| end > u64::from(length)) {
            return Err(SourceError::corrupt(
                self.index.path(),
                format!(
                    "tokens {offset}..{} of sequence {sequence} are asked for, which has {length}",
                    offset.wrapping_add(n)
                ),
            ));
        }
        let size = self.index.token_type().size();
        let start = pointer.checked_add(offset * size);
        let Some(from) = start.and_then(|at| self.bin.bytes(at, n * size)) else {
            if n == 0 {
                return Ok(());
            }
            return Err(SourceError::corrupt(
                self.bin.path(),
                format!(
                    "sequence {sequence} lies at byte {pointer} with {length} tokens of {size} bytes, but the file has \
                     {} bytes",
                    self.bin.len()
                ),
            ));
        };
        let bad = match int_type(self.index.token_type()) {
            Some(int) => {
                // SAFETY: `bytes` says that the whole stretch is mapped; the buffer is ours.
                let fine = unsafe { int_tokens::copy_tokens(int, from, out, self.max_token) };
                if fine {
                    None
                } else {
                    // SAFETY: as above. The file may have changed since; then nothing is found and the copy is lost.
                    unsafe { int_tokens::first_bad(int, from, out.len(), self.max_token) }
                        .or(Some((0, i128::from(out.first().copied().unwrap_or(0)))))
                }
            }
            None => self.copy_floats(start.unwrap_or(0), out)?,
        };
        self.bin.check_lost()?;
        match bad {
            None => Ok(()),
            Some((at, value)) => Err(SourceError::BadToken {
                path: self.bin.path().to_owned(),
                row: sequence,
                column: format!(
                    "{} tokens, document {}",
                    self.index.token_type().name(),
                    self.document_of(sequence)?
                ),
                position: usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(at),
                value,
                max: self.max_token,
            }),
        }
    }

    /// Floating point tokens: only whole numbers within range are ids. Returns the first value that is not.
    fn copy_floats(&self, start: u64, out: &mut [i32]) -> Result<Option<(usize, i128)>, SourceError> {
        let wide = self.index.token_type() == TokenType::F64;
        let size = self.index.token_type().size();
        for (i, slot) in out.iter_mut().enumerate() {
            let at = start + i as u64 * size;
            let value = if wide {
                let mut bytes = [0; 8];
                self.bin.copy(at, &mut bytes)?;
                f64::from_le_bytes(bytes)
            } else {
                let mut bytes = [0; 4];
                self.bin.copy(at, &mut bytes)?;
                f64::from(f32::from_le_bytes(bytes))
            };
            if !(value.fract() == 0.0 && value >= 0.0 && value <= f64::from(self.max_token)) {
                return Ok(Some((i, value as i128)));
            }
            *slot = value as i32;
        }
        Ok(None)
    }

    /// The document that holds a sequence (binary search over the bounds).
    ///
    /// # Errors
    /// A bound that cannot be read.
    pub fn document_of(&self, sequence: u64) -> Result<u64, SourceError> {
        let (mut low, mut high) = (0, self.index.num_documents());
        // The last document whose start is not behind the sequence; empty documents share a start.
        while low < high {
            let middle = low + (high - low) / 2;
            if self.index.bound(middle + 1)? <= sequence {
                low = middle + 1
            } else {
                high = middle
            }
        }
        Ok(low)
    }

    /// Sequences of document `document`.
    ///
    /// # Errors
    /// Out of range, or a bound that cannot be read.
    pub fn sequences_of(&self, document: u64) -> Result<Range<u64>, SourceError> {
        Ok(self.index.bound(document)?..self.index.bound(document + 1)?)
    }
}

fn end_of(index: &IndexFile, sequence: Sequence) -> Option<u64> {
    sequence
        .pointer
        .checked_add(u64::from(sequence.length) * index.token_type().size())
}

/// `path` without `.bin` or `.idx` at its end.
fn strip_ending(path: &Path) -> PathBuf {
    match path.extension() {
        Some(ending) if ending == "bin" || ending == "idx" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

fn int_type(token_type: TokenType) -> Option<IntType> {
    Some(match token_type {
        TokenType::U8 => IntType::U8,
        TokenType::I8 => IntType::I8,
        TokenType::I16 => IntType::I16,
        TokenType::U16 => IntType::U16,
        TokenType::I32 => IntType::I32,
        TokenType::I64 => IntType::I64,
        TokenType::F32 | TokenType::F64 => return None,
    })
}

impl Source for IndexedDataset {
    fn num_samples(&self) -> u64 {
        self.index.num_sequences()
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        Ok(self.index.sequence(id)?.length as usize)
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let n = self.sample_len(id)?.min(out.len());
        self.read_tokens(id, 0, &mut out[..n])?;
        Ok(n)
    }

    fn will_need(&self, ids: &[SampleId]) {
        for &id in ids {
            if let Ok(Sequence { pointer, length }) = self.index.sequence(id) {
                self.bin
                    .will_need(pointer, u64::from(length) * self.index.token_type().size());
            }
        }
    }

    fn file_of(&self, _id: SampleId) -> Option<PathBuf> {
        Some(self.bin.path().to_owned())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.index.path().to_owned(), self.bin.path().to_owned()]
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.index.map().check_unchanged()?;
        self.bin.check_unchanged()
    }
}
