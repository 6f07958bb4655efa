//! The index file (`.idx`) of a Megatron indexed dataset: where each sequence lies in the `.bin` beside it.
//!
//! Reproduces the format of Megatron-Core 0.19.2 (`indexed_dataset.py`, version 1), all little-endian:
//! `MMIDIDX\0\0`, version u64, dtype code u8, sequence count u64, document-index count u64; then sequence lengths
//! (i32), sequence pointers in bytes (i64), document indices (i64; the sequence each document starts at, and one past
//! the last), and for multimodal data one mode byte a sequence.
//!
//! Opening checks the header, that the file has the size its counts ask for, and the last entries; that is constant
//! work. [`IndexFile::validate`] reads all entries. Every look-up is checked on its own, so a file that was not
//! validated can give an error but never a wrong read. Memory: none but the map.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::SourceError;
use super::mapped::MappedFile;

/// The nine bytes every index file starts with.
pub const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// The only version there is.
pub const VERSION: u64 = 1;
/// Bytes before the sequence lengths.
pub const HEADER_BYTES: u64 = 34;

/// Vocabulary size from which tokens take 32 bits (`DType.optimal_dtype`: it is not 65536).
pub const WIDE_VOCAB: u64 = 65_500;

/// Stored type of a token, with Megatron's code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenType {
    /// numpy uint8.
    U8 = 1,
    /// numpy int8.
    I8 = 2,
    /// numpy int16.
    I16 = 3,
    /// numpy int32.
    I32 = 4,
    /// numpy int64.
    I64 = 5,
    /// numpy float64.
    F64 = 6,
    /// numpy float32.
    F32 = 7,
    /// numpy uint16.
    U16 = 8,
}

impl TokenType {
    /// All types, by code.
    pub const ALL: [TokenType; 8] = [
        TokenType::U8,
        TokenType::I8,
        TokenType::I16,
        TokenType::I32,
        TokenType::I64,
        TokenType::F64,
        TokenType::F32,
        TokenType::U16,
    ];

    /// The type with this code, `None` for an unknown one.
    pub fn from_code(code: u8) -> Option<Self> {
        TokenType::ALL.into_iter().find(|t| t.code() == code)
    }

    /// Megatron's code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes of one token.
    pub fn size(self) -> u64 {
        match self {
            TokenType::U8 | TokenType::I8 => 1,
            TokenType::I16 | TokenType::U16 => 2,
            TokenType::I32 | TokenType::F32 => 4,
            TokenType::I64 | TokenType::F64 => 8,
        }
    }

    /// numpy's name for it.
    pub fn name(self) -> &'static str {
        match self {
            TokenType::U8 => "uint8",
            TokenType::I8 => "int8",
            TokenType::I16 => "int16",
            TokenType::I32 => "int32",
            TokenType::I64 => "int64",
            TokenType::F64 => "float64",
            TokenType::F32 => "float32",
            TokenType::U16 => "uint16",
        }
    }

    /// Largest token id the type can hold, capped at `i32::MAX`; `None` for floating point.
    pub fn max_token(self) -> Option<u32> {
        match self {
            TokenType::U8 => Some(u8::MAX.into()),
            TokenType::I8 => Some(i8::MAX as u32),
            TokenType::I16 => Some(i16::MAX as u32),
            TokenType::U16 => Some(u16::MAX.into()),
            TokenType::I32 | TokenType::I64 => Some(i32::MAX as u32),
            TokenType::F32 | TokenType::F64 => None,
        }
    }

    /// The type Megatron writes for a vocabulary of this size: uint16 below 65500, else int32.
    pub fn for_vocab(vocab_size: u64) -> Self {
        if vocab_size < WIDE_VOCAB {
            TokenType::U16
        } else {
            TokenType::I32
        }
    }
}

/// Where a sequence lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// First byte in the `.bin` file.
    pub pointer: u64,
    /// Tokens.
    pub length: u32,
}

/// An open index file.
#[derive(Debug)]
pub struct IndexFile {
    path: PathBuf,
    map: MappedFile,
    token_type: TokenType,
    num_sequences: u64,
    num_bounds: u64,
    has_modes: bool,
}

impl IndexFile {
    /// Opens an index file and checks all that takes constant time.
    ///
    /// # Errors
    /// [`SourceError`] naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
        let map = MappedFile::new(path, &file)?;
        let bytes = map.len();
        let bad = |problem: String| SourceError::corrupt(path, problem);
        if bytes < HEADER_BYTES {
            return Err(bad(format!(
                "a Megatron index starts with {HEADER_BYTES} bytes of header, the file has {bytes}"
            )));
        }
        let mut header = [0u8; HEADER_BYTES as usize];
        map.copy(0, &mut header)?;
        if header[..9] != *MAGIC {
            return Err(bad(format!(
                "not a Megatron index: it starts with {:02x?}, not with \"MMIDIDX\\0\\0\"",
                &header[..9]
            )));
        }
        let word = |at: usize| {
            let mut eight = [0u8; 8];
            eight.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let version = word(9);
        if version != VERSION {
            return Err(bad(format!(
                "index version {version}; only version {VERSION} is known"
            )));
        }
        let token_type = TokenType::from_code(header[17])
            .ok_or_else(|| bad(format!("dtype code {} is unknown (codes 1 to 8 are)", header[17])))?;
        let (num_sequences, num_bounds) = (word(18), word(26));
        let expected = num_sequences
            .checked_mul(12)
            .and_then(|s| s.checked_add(num_bounds.checked_mul(8)?))
            .and_then(|s| s.checked_add(HEADER_BYTES));
        let has_modes = match expected {
            Some(e) if e == bytes => false,
            Some(e) if e.checked_add(num_sequences) == Some(bytes) => true,
            _ => {
                let needs = expected.map_or("more bytes than any file has".to_owned(), |e| {
                    format!("{e} bytes")
                });
                return Err(bad(format!(
                    "the header speaks of {num_sequences} sequences and {num_bounds} document bounds, which take \
                     {needs} (or one more per sequence with modes); the file has {bytes}"
                )));
            }
        };
        let index = IndexFile {
            path: path.to_owned(),
            map,
            token_type,
            num_sequences,
            num_bounds,
            has_modes,
        };
        if num_bounds == 0 {
            return Err(bad(
                "no document bounds: at least the bound 0 must be there".to_owned()
            ));
        }
        let (first, last) = (index.bound(0)?, index.bound(num_bounds - 1)?);
        if first != 0 {
            return Err(bad(format!(
                "the first document starts at sequence {first}, not at 0"
            )));
        }
        if last != num_sequences {
            return Err(bad(format!(
                "the last document bound is {last}, but there are {num_sequences} sequences; the file was merged or \
                 cut off wrongly"
            )));
        }
        Ok(index)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The map, for hashing and for checks that the file stays the same.
    pub(crate) fn map(&self) -> &MappedFile {
        &self.map
    }

    /// Stored type of the tokens in the `.bin` file.
    pub fn token_type(&self) -> TokenType {
        self.token_type
    }

    /// Number of sequences.
    pub fn num_sequences(&self) -> u64 {
        self.num_sequences
    }

    /// Number of documents.
    pub fn num_documents(&self) -> u64 {
        self.num_bounds - 1
    }

    /// True when the file carries a mode per sequence (multimodal data). Modes are ignored.
    pub fn has_modes(&self) -> bool {
        self.has_modes
    }

    fn lengths_at(&self) -> u64 {
        HEADER_BYTES
    }

    fn pointers_at(&self) -> u64 {
        HEADER_BYTES + 4 * self.num_sequences
    }

    fn bounds_at(&self) -> u64 {
        HEADER_BYTES + 12 * self.num_sequences
    }

    fn modes_at(&self) -> u64 {
        self.bounds_at() + 8 * self.num_bounds
    }

    fn corrupt(&self, problem: String) -> SourceError {
        SourceError::corrupt(&self.path, problem)
    }

    /// Where sequence `i` lies.
    ///
    /// # Errors
    /// Out of range, a negative length or pointer, or a read that fails.
    pub fn sequence(&self, i: u64) -> Result<Sequence, SourceError> {
        if i >= self.num_sequences {
            return Err(SourceError::OutOfRange {
                id: i,
                num_samples: self.num_sequences,
            });
        }
        let (mut length, mut pointer) = ([0u8; 4], [0u8; 8]);
        self.map.copy(self.lengths_at() + 4 * i, &mut length)?;
        self.map.copy(self.pointers_at() + 8 * i, &mut pointer)?;
        let (length, pointer) = (i32::from_le_bytes(length), i64::from_le_bytes(pointer));
        Ok(Sequence {
            length: u32::try_from(length)
                .map_err(|_| self.corrupt(format!("sequence {i} has length {length}")))?,
            pointer: u64::try_from(pointer)
                .map_err(|_| self.corrupt(format!("sequence {i} has pointer {pointer}")))?,
        })
    }

    /// Document bound `i`: the sequence document `i` starts at; bound `num_documents` is one past the last.
    ///
    /// # Errors
    /// Out of range, a negative value, or a read that fails.
    pub fn bound(&self, i: u64) -> Result<u64, SourceError> {
        if i >= self.num_bounds {
            return Err(SourceError::OutOfRange {
                id: i,
                num_samples: self.num_bounds,
            });
        }
        let mut bound = [0u8; 8];
        self.map.copy(self.bounds_at() + 8 * i, &mut bound)?;
        let bound = i64::from_le_bytes(bound);
        u64::try_from(bound).map_err(|_| self.corrupt(format!("document bound {i} is {bound}")))
    }

    /// The mode of sequence `i`, `None` where the file carries none.
    ///
    /// # Errors
    /// Out of range, or a read that fails.
    pub fn mode(&self, i: u64) -> Result<Option<i8>, SourceError> {
        if i >= self.num_sequences {
            return Err(SourceError::OutOfRange {
                id: i,
                num_samples: self.num_sequences,
            });
        }
        if !self.has_modes {
            return Ok(None);
        }
        let mut mode = [0u8; 1];
        self.map.copy(self.modes_at() + i, &mut mode)?;
        Ok(Some(i8::from_le_bytes(mode)))
    }

    /// Lengths of all sequences, in tokens.
    ///
    /// # Errors
    /// A negative length, or a read that fails.
    pub fn lengths(&self) -> Result<Vec<u32>, SourceError> {
        let n = usize::try_from(self.num_sequences).map_err(|_| {
            self.corrupt(format!(
                "{} sequences are too many for this machine",
                self.num_sequences
            ))
        })?;
        // The count was checked against the file's size, so this allocation is no larger than the file.
        let mut lengths: Vec<u32> = Vec::with_capacity(n);
        let mut low_bits = 0u32;
        self.each_block(self.lengths_at(), 4 * self.num_sequences, |block| {
            let (words, _) = block.as_chunks::<4>();
            lengths.extend(words.iter().map(|w| {
                let length = u32::from_le_bytes(*w);
                low_bits |= length;
                length
            }));
            Ok(())
        })?;
        if low_bits > i32::MAX as u32
            && let Some(i) = lengths.iter().position(|&n| n > i32::MAX as u32)
        {
            return Err(self.corrupt(format!("sequence {i} has length {}", lengths[i] as i32)));
        }
        Ok(lengths)
    }

    /// All document bounds.
    ///
    /// # Errors
    /// A negative bound, or a read that fails.
    pub fn bounds(&self) -> Result<Vec<u64>, SourceError> {
        let mut bounds = Vec::with_capacity(usize::try_from(self.num_bounds).unwrap_or(0));
        self.each_block(self.bounds_at(), 8 * self.num_bounds, |block| {
            for word in block.as_chunks::<8>().0 {
                let bound = i64::from_le_bytes(*word);
                bounds.push(
                    u64::try_from(bound)
                        .map_err(|_| self.corrupt(format!("document bound {} is {bound}", bounds.len())))?,
                );
            }
            Ok(())
        })?;
        Ok(bounds)
    }

    /// Gives the bytes of `[start, start + length)` to `take`, in blocks that hold whole entries.
    fn each_block(
        &self,
        start: u64,
        length: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        const BLOCK: u64 = 1 << 16;
        let mut buffer = [0u8; BLOCK as usize];
        let mut at = 0;
        while at < length {
            let block = &mut buffer[..(length - at).min(BLOCK) as usize];
            self.map.copy(start + at, block)?;
            take(block)?;
            at += block.len() as u64;
        }
        Ok(())
    }

    /// Reads every entry: lengths and pointers are not negative, sequences follow each other without overlap and end
    /// within a `.bin` file of `bin_bytes`, document bounds do not go down. Returns what the file adds up to.
    ///
    /// # Errors
    /// [`SourceError::Corrupt`] naming the first entry that is wrong, with both numbers.
    pub fn validate(&self, bin_bytes: u64) -> Result<Totals, SourceError> {
        let lengths = self.lengths()?;
        let size = self.token_type.size();
        let (mut i, mut end, mut tokens, mut empty) = (0usize, 0u64, 0u64, 0u64);
        self.each_block(self.pointers_at(), 8 * self.num_sequences, |block| {
            for word in block.as_chunks::<8>().0 {
                let pointer = i64::from_le_bytes(*word);
                let length = u64::from(lengths[i]);
                let start = u64::try_from(pointer)
                    .map_err(|_| self.corrupt(format!("sequence {i} has pointer {pointer}")))?;
                if start < end {
                    return Err(self.corrupt(format!(
                        "sequence {i} starts at byte {start}, before the one in front of it ends (byte {end})"
                    )));
                }
                end = start.checked_add(length * size).ok_or_else(|| {
                    self.corrupt(format!("sequence {i} at byte {start} has {length} tokens: past any file's end"))
                })?;
                if end > bin_bytes {
                    return Err(self.corrupt(format!(
                        "sequence {i} ends at byte {end}, but the .bin file has {bin_bytes} bytes; it is cut off or \
                         belongs to another index"
                    )));
                }
                tokens += length;
                empty += u64::from(length == 0);
                i += 1;
            }
            Ok(())
        })?;
        let (mut at, mut previous, mut empty_documents) = (0u64, 0u64, 0u64);
        self.each_block(self.bounds_at(), 8 * self.num_bounds, |block| {
            for word in block.as_chunks::<8>().0 {
                let bound = i64::from_le_bytes(*word);
                let bound = u64::try_from(bound)
                    .ok()
                    .filter(|&b| b >= previous && b <= self.num_sequences)
                    .ok_or_else(|| {
                        self.corrupt(format!(
                            "document bound {at} is {bound}; it must lie between the one in front of it ({previous}) \
                             and the number of sequences ({})",
                            self.num_sequences
                        ))
                    })?;
                empty_documents += u64::from(at > 0 && bound == previous);
                previous = bound;
                at += 1;
            }
            Ok(())
        })?;
        Ok(Totals {
            tokens,
            end,
            empty_sequences: empty,
            empty_documents,
            longest: lengths.iter().copied().max().unwrap_or(0),
        })
    }
}

/// What an index file adds up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Tokens of all sequences.
    pub tokens: u64,
    /// One past the last byte of the last sequence.
    pub end: u64,
    /// Sequences without a token.
    pub empty_sequences: u64,
    /// Documents without a sequence.
    pub empty_documents: u64,
    /// Tokens of the longest sequence.
    pub longest: u32,
}
