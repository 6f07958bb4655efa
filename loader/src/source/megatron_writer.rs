//! Writes Megatron indexed datasets (`.bin` and `.idx`), token by token or by joining finished ones.
//!
//! Byte for byte what `IndexedDatasetBuilder` of Megatron-Core 0.19.2 writes. Tokens go straight to disk; memory is
//! 4 bytes a sequence and 8 bytes a document until the index is written (372 MB for 31 million documents).
//!
//! Both files are written under temporary names in the target's folder, synced, and renamed at the end, the `.idx`
//! last: a pair that has an `.idx` is complete. An interrupted writer leaves nothing under the final names.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::SourceError;
use super::megatron::{Check, IndexedDataset, bin_path, idx_path};
use super::megatron_idx::{MAGIC, TokenType, VERSION};
use crate::atomic::{self, folder_of};

/// Why a dataset cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The target is there already.
    #[error("{} exists already; choose another name, or ask for overwriting", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A token that the chosen type cannot hold. It is never wrapped.
    #[error(
        "document {document}, position {position}: token id {token} does not fit {} (0 to {max}); choose a vocabulary \
         size of at least {} or a wider type", token_type.name(), i64::from(*token) + 1
    )]
    TokenTooLarge {
        /// The document being written.
        document: u64,
        /// Position within its sequence.
        position: usize,
        /// The token id.
        token: i32,
        /// The type of the file.
        token_type: TokenType,
        /// Largest id it holds.
        max: u32,
    },
    /// The type of the file cannot hold token ids exactly.
    #[error("tokens are not written as {}; use an integer type", .0.name())]
    NotInteger(TokenType),
    /// A sequence longer than 31 bits can say.
    #[error("document {document}: a sequence of {length} tokens; the index counts up to 2147483647")]
    TooLong {
        /// The document being written.
        document: u64,
        /// Tokens of the sequence.
        length: u64,
    },
    /// Datasets that cannot be joined.
    #[error("{}: cannot be joined: {problem}", prefix.display())]
    CannotJoin {
        /// The dataset, without ending.
        prefix: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A dataset to join cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl WriteError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| WriteError::Io { path, action, source }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Sequences.
    pub sequences: u64,
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
}

/// A dataset being written. Nothing lies under the final names until [`IndexedWriter::finish`].
#[derive(Debug)]
pub struct IndexedWriter {
    prefix: PathBuf,
    token_type: TokenType,
    max_token: u32,
    bin: BufWriter<NamedTempFile>,
    lengths: Vec<u32>,
    bounds: Vec<u64>,
    modes: Option<Vec<i8>>,
    tokens: u64,
    bytes: Vec<u8>,
}

/// A temporary file beside `target`.
fn temporary(target: &Path) -> Result<NamedTempFile, WriteError> {
    atomic::begin(target).map_err(WriteError::io(folder_of(target), "create a file in it"))
}

impl IndexedWriter {
    /// Starts a dataset at `PREFIX.bin` and `PREFIX.idx`, creating the folder if need be.
    ///
    /// # Errors
    /// Where one of the two exists and `overwrite` is off, the folder cannot be written, or the type is no integer.
    pub fn create(prefix: &Path, token_type: TokenType, overwrite: bool) -> Result<Self, WriteError> {
        let max_token = token_type.max_token().ok_or(WriteError::NotInteger(token_type))?;
        let target = bin_path(prefix);
        if !overwrite {
            for path in [idx_path(prefix), target.clone()] {
                if path.exists() {
                    return Err(WriteError::Exists { path });
                }
            }
        }
        let folder = folder_of(&target);
        fs::create_dir_all(folder).map_err(WriteError::io(folder, "create the folder"))?;
        Ok(IndexedWriter {
            prefix: prefix.to_owned(),
            token_type,
            max_token,
            bin: BufWriter::with_capacity(1 << 20, temporary(&target)?),
            lengths: Vec::new(),
            bounds: vec![0],
            modes: None,
            tokens: 0,
            bytes: Vec::new(),
        })
    }

    /// Documents ended so far.
    pub fn documents(&self) -> u64 {
        self.bounds.len() as u64 - 1
    }

    /// Tokens written so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Adds a sequence to the document being written.
    ///
    /// # Errors
    /// A token that does not fit the type, and writes that fail.
    pub fn add_sequence(&mut self, tokens: &[i32]) -> Result<(), WriteError> {
        let document = self.documents();
        let length = u32::try_from(tokens.len())
            .ok()
            .filter(|&n| n <= i32::MAX as u32)
            .ok_or(WriteError::TooLong {
                document,
                length: tokens.len() as u64,
            })?;
        // A negative id is a large one when taken without its sign.
        if let Some(position) = tokens.iter().position(|&t| t as u32 > self.max_token) {
            return Err(WriteError::TokenTooLarge {
                document,
                position,
                token: tokens[position],
                token_type: self.token_type,
                max: self.max_token,
            });
        }
        for block in tokens.chunks(1 << 14) {
            self.bytes.clear();
            match self.token_type.size() {
                1 => self.bytes.extend(block.iter().map(|&t| t as u8)),
                2 => self
                    .bytes
                    .extend(block.iter().flat_map(|&t| (t as u16).to_le_bytes())),
                4 => self.bytes.extend(block.iter().flat_map(|&t| t.to_le_bytes())),
                _ => self
                    .bytes
                    .extend(block.iter().flat_map(|&t| i64::from(t).to_le_bytes())),
            }
            self.bin
                .write_all(&self.bytes)
                .map_err(WriteError::io(&bin_path(&self.prefix), "write the tokens"))?;
        }
        self.lengths.push(length);
        if let Some(modes) = &mut self.modes {
            modes.push(0);
        }
        self.tokens += u64::from(length);
        Ok(())
    }

    /// Ends the document; without a sequence since the last end it is an empty one.
    pub fn end_document(&mut self) {
        self.bounds.push(self.lengths.len() as u64);
    }

    /// Adds a document of one sequence.
    ///
    /// # Errors
    /// As [`IndexedWriter::add_sequence`].
    pub fn add_document(&mut self, tokens: &[i32]) -> Result<(), WriteError> {
        self.add_sequence(tokens)?;
        self.end_document();
        Ok(())
    }

    /// Adds a whole dataset of the same type behind what is there, as `IndexedDatasetBuilder.add_index` does: its
    /// document bounds are shifted, its bytes are copied as they are. `progress` is told each number of bytes copied.
    ///
    /// # Errors
    /// A dataset that cannot be read, has another type, holds bytes that no sequence names, or carries modes where
    /// the ones before do not (or the other way round).
    pub fn append(&mut self, prefix: &Path, mut progress: impl FnMut(u64)) -> Result<(), WriteError> {
        let part = IndexedDataset::open(prefix, Check::Full)?;
        let refuse = |problem: String| WriteError::CannotJoin {
            prefix: part.prefix().to_owned(),
            problem,
        };
        if part.index().token_type() != self.token_type {
            return Err(refuse(format!(
                "its tokens are {}, those in front of it {}",
                part.index().token_type().name(),
                self.token_type.name()
            )));
        }
        let tokens = part.totals().map_or(0, |t| t.tokens);
        if tokens * self.token_type.size() != part.bin_bytes() {
            return Err(refuse(format!(
                "its sequences take {} bytes, its .bin file has {}; the bytes between would shift all later pointers",
                tokens * self.token_type.size(),
                part.bin_bytes()
            )));
        }
        let fresh = self.lengths.is_empty() && self.documents() == 0;
        if part.index().has_modes() {
            if fresh && self.modes.is_none() {
                self.modes = Some(Vec::new());
            }
            let Some(modes) = &mut self.modes else {
                return Err(refuse(
                    "it carries modes (multimodal data), those in front of it do not".to_owned(),
                ));
            };
            for i in 0..part.index().num_sequences() {
                modes.push(part.index().mode(i)?.unwrap_or(0));
            }
        } else if self.modes.is_some() && part.index().num_sequences() > 0 {
            return Err(refuse(
                "it carries no modes, those in front of it do (multimodal data)".to_owned(),
            ));
        }
        let shift = self.lengths.len() as u64;
        self.bounds.extend(
            part.index()
                .bounds()?
                .into_iter()
                .skip(1)
                .map(|bound| bound + shift),
        );
        self.lengths.extend(part.index().lengths()?);
        self.tokens += tokens;

        let from_path = bin_path(part.prefix());
        let mut from = File::open(&from_path).map_err(WriteError::io(&from_path, "open"))?;
        let to_path = bin_path(&self.prefix);
        self.bin
            .flush()
            .map_err(WriteError::io(&to_path, "write the tokens"))?;
        let to = self.bin.get_mut().as_file_mut();
        let mut left = part.bin_bytes();
        while left > 0 {
            // The kernel copies file to file where it can.
            let step = left.min(64 << 20);
            let copied = io::copy(&mut (&mut from).take(step), to)
                .map_err(WriteError::io(&to_path, "write the tokens"))?;
            if copied < step {
                return Err(refuse("its .bin file was cut off while it was read".to_owned()));
            }
            left -= copied;
            progress(copied);
        }
        part.bin().check_unchanged()?;
        Ok(())
    }

    /// Writes the index and gives both files their names.
    ///
    /// # Errors
    /// Writes that fail; nothing is left under the final names then, unless an older pair was being overwritten.
    pub fn finish(mut self) -> Result<Written, WriteError> {
        let (bin, idx) = (bin_path(&self.prefix), idx_path(&self.prefix));
        if self
            .bounds
            .last()
            .is_none_or(|&last| last != self.lengths.len() as u64)
        {
            // Sequences behind the last end belong to a document too.
            self.end_document();
        }
        let written = Written {
            sequences: self.lengths.len() as u64,
            documents: self.documents(),
            tokens: self.tokens,
        };
        let index = temporary(&idx)?;
        let mut out = BufWriter::with_capacity(1 << 20, index);
        self.write_index(&mut out)
            .map_err(WriteError::io(&idx, "write the index"))?;
        let index = out
            .into_inner()
            .map_err(|e| WriteError::io(&idx, "write the index")(e.into_error()))?;
        let data = self
            .bin
            .into_inner()
            .map_err(|e| WriteError::io(&bin, "write the tokens")(e.into_error()))?;
        for (file, path) in [(&data, &bin), (&index, &idx)] {
            file.as_file().sync_all().map_err(WriteError::io(path, "sync"))?;
        }
        // An older index must not be seen beside the new tokens.
        match fs::remove_file(&idx) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(WriteError::io(&idx, "replace")(e)),
            _ => {}
        }
        atomic::commit(data, &bin).map_err(WriteError::io(&bin, "finish"))?;
        atomic::commit(index, &idx).map_err(WriteError::io(&idx, "finish"))?;
        Ok(written)
    }

    fn write_index(&self, out: &mut impl Write) -> io::Result<()> {
        write_index(
            out,
            self.token_type,
            &self.lengths,
            &self.bounds,
            self.modes.as_deref(),
        )
    }
}

/// Writes the bytes of an `.idx` file. Pointers are the running sum of the lengths.
///
/// # Errors
/// What `out` returns.
pub fn write_index(
    out: &mut impl Write,
    token_type: TokenType,
    lengths: &[u32],
    bounds: &[u64],
    modes: Option<&[i8]>,
) -> io::Result<()> {
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&[token_type.code()])?;
    out.write_all(&(lengths.len() as u64).to_le_bytes())?;
    out.write_all(&(bounds.len() as u64).to_le_bytes())?;
    let mut bytes = Vec::with_capacity(1 << 16);
    let mut section = |out: &mut dyn Write, words: &mut dyn Iterator<Item = u64>, width: usize| {
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes()[..width]);
            if bytes.len() >= (1 << 16) - 8 {
                out.write_all(&bytes)?;
                bytes.clear();
            }
        }
        out.write_all(&bytes)?;
        bytes.clear();
        io::Result::Ok(())
    };
    section(out, &mut lengths.iter().map(|&n| n.into()), 4)?;
    let mut pointer = 0u64;
    let size = token_type.size();
    section(
        out,
        &mut lengths.iter().map(|&n| {
            let here = pointer;
            pointer += u64::from(n) * size;
            here
        }),
        8,
    )?;
    section(out, &mut bounds.iter().copied(), 8)?;
    if let Some(modes) = modes {
        section(out, &mut modes.iter().map(|&m| m as u8 as u64), 1)?;
    }
    Ok(())
}

/// Joins datasets in the order given, as users do after tokenizing in parallel.
///
/// # Errors
/// As [`IndexedWriter::append`]; no dataset at all is an error too.
pub fn merge(
    parts: &[PathBuf],
    target: &Path,
    overwrite: bool,
    mut progress: impl FnMut(u64),
) -> Result<Written, WriteError> {
    let Some(first) = parts.first() else {
        return Err(WriteError::CannotJoin {
            prefix: target.to_owned(),
            problem: "no parts were given".to_owned(),
        });
    };
    let token_type = IndexedDataset::open(first, Check::Quick)?.index().token_type();
    let mut writer = IndexedWriter::create(target, token_type, overwrite)?;
    for part in parts {
        writer.append(part, &mut progress)?;
    }
    writer.finish()
}
