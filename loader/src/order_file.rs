//! Lists of rows in files, for the order `file`: `.npy`, raw little-endian integers, or text.
//!
//! * `.npy`: one-dimensional, any integer type.
//! * `.bin`: raw little-endian u32 or u64; without a stated type, the one in which the file holds as many rows as
//!   the dataset.
//! * anything else is text: one row a line; blank lines and what follows a `#` are left out.
//!
//! Every row is checked against the dataset while it is read, so that an error names the line, or entry and byte.
//!
//! Memory: the list at 4 bytes an entry (8 when the dataset has more than 2^32 rows), a bit a row for the check on
//! repeats, and a read buffer.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use ceteris_samplers::Permutation;
use ceteris_samplers::orders::file::{BinDtype, FileOrder, check_list};

/// Longest line of a text list. A row has at most 20 digits, the rest is room for a comment.
const MAX_LINE: u64 = 4096;

/// Longest header of a `.npy` list; numpy itself stops at 10,000 bytes.
const MAX_NPY_HEADER: u64 = 10_000;
/// A record type with subarrays opens four; no list of rows needs as many as this.
const MAX_NPY_DEPTH: usize = 8;

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OrderFileError {
    /// The operating system refused.
    #[error("{}: cannot read the list of rows", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The content is no list of rows.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// One entry is wrong.
    #[error("{}, {place}: {problem}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// Its line, or its number and first byte.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It is another list than the one expected.
    #[error("{}: the list has digest {found}, expected {expected}: use the list the digest was taken from, or leave it out", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Digest of what it holds.
        found: String,
        /// Digest that the spec states.
        expected: String,
    },
}

/// A fault before it is known how its place is named.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    Content(String),
    /// Number of the entry, from 0, and what is wrong with it.
    Entry(u64, String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

/// Where entries lie in a file.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Lines,
    /// `width` bytes each, from byte `start` on.
    Raw {
        start: u64,
        width: u64,
    },
}

/// Rows as they come in, each checked against the dataset's size.
struct Collected {
    rows: Permutation,
    num_samples: u64,
}

impl Collected {
    /// Room for `entries` rows, a number that the file's size has confirmed.
    fn new(num_samples: u64, entries: u64) -> Result<Self, Fault> {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        let rows = if num_samples <= 1 << 32 {
            let mut rows = Vec::new();
            rows.try_reserve_exact(entries)
                .map(|()| Permutation::Narrow(rows))
        } else {
            let mut rows = Vec::new();
            rows.try_reserve_exact(entries).map(|()| Permutation::Wide(rows))
        };
        match rows {
            Ok(rows) => Ok(Collected { rows, num_samples }),
            Err(_) => Err(Fault::Content(format!("{entries} rows do not fit in memory"))),
        }
    }

    fn push(&mut self, row: u64) -> Result<(), Fault> {
        if row >= self.num_samples {
            let problem = format!(
                "row {row} is out of range: the dataset has {} rows",
                self.num_samples
            );
            return Err(Fault::Entry(self.rows.len(), problem));
        }
        match &mut self.rows {
            // Below 2^32 rows, as `new` has seen to.
            Permutation::Narrow(rows) => rows.push(row as u32),
            Permutation::Wide(rows) => rows.push(row),
            Permutation::Identity(_) => {}
        }
        Ok(())
    }
}

/// Reads the list of a `file` order for a dataset of `num_samples` rows. Returns it with its digest: BLAKE3 over the
/// rows as little-endian u64, 64 hex digits.
///
/// # Errors
/// [`OrderFileError`] naming the file, and the line or entry.
pub fn read(file: &FileOrder, num_samples: u64) -> Result<(Permutation, String), OrderFileError> {
    let path = Path::new(file.path());
    let (list, layout) = match read_list(path, file.dtype(), num_samples) {
        Ok(read) => read,
        Err((fault, layout)) => return Err(name(fault, layout, path)),
    };
    check_list(&list, num_samples, file.rows())
        .map_err(|fault| name(Fault::Entry(fault.entry, fault.why), layout, path))?;
    let found = digest(&list);
    match file.digest() {
        Some(expected) if expected != found => Err(OrderFileError::Digest {
            path: path.to_path_buf(),
            found,
            expected: expected.to_string(),
        }),
        _ => Ok((list, found)),
    }
}

/// The error for a fault, its place as a reader of the file finds it.
fn name(fault: Fault, layout: Layout, path: &Path) -> OrderFileError {
    let path = path.to_path_buf();
    match fault {
        Fault::Io(source) => OrderFileError::Io { path, source },
        Fault::Content(problem) => OrderFileError::Content { path, problem },
        Fault::Entry(entry, problem) => OrderFileError::Entry {
            place: match layout {
                Layout::Lines => {
                    line_of(&path, entry).map_or(format!("entry {entry}"), |line| format!("line {line}"))
                }
                Layout::Raw { start, width } => format!("entry {entry} (byte {})", start + entry * width),
            },
            path,
            problem,
        },
    }
}

fn read_list(
    path: &Path,
    dtype: Option<BinDtype>,
    num_samples: u64,
) -> Result<(Permutation, Layout), (Fault, Layout)> {
    let lines = |fault| (fault, Layout::Lines);
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if dtype.is_some() && ending != "bin" {
        let why = "dtype is for .bin files: other files say themselves what they hold";
        return Err(lines(Fault::Content(why.to_string())));
    }
    let file = File::open(path).map_err(|e| lines(e.into()))?;
    let bytes = file.metadata().map_err(|e| lines(e.into()))?.len();
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (values, layout) = match ending {
        "npz" => {
            let why = "an .npz holds several arrays: save the one with the rows as .npy (numpy.save)";
            return Err(lines(Fault::Content(why.to_string())));
        }
        "npy" => npy_values(&mut reader, bytes).map_err(lines)?,
        "bin" => {
            let width = width_of(bytes, dtype, num_samples).map_err(|why| lines(Fault::Content(why)))?;
            let values = Values {
                entries: bytes / width,
                width: width as usize,
                signed: false,
                big_endian: false,
            };
            (values, Layout::Raw { start: 0, width })
        }
        _ => {
            let list = read_text(reader, num_samples).map_err(lines)?;
            return Ok((list, Layout::Lines));
        }
    };
    let list = read_raw(reader, values, num_samples).map_err(|fault| (fault, layout))?;
    Ok((list, layout))
}

/// Width of a `.bin` file's entries in bytes.
fn width_of(bytes: u64, dtype: Option<BinDtype>, num_samples: u64) -> Result<u64, String> {
    let width = match dtype {
        Some(BinDtype::U32) => 4,
        Some(BinDtype::U64) => 8,
        None if Some(bytes) == num_samples.checked_mul(4) => 4,
        None if Some(bytes) == num_samples.checked_mul(8) => 8,
        None => {
            return Err(format!(
                "{bytes} bytes are neither {num_samples} rows of 4 nor of 8 bytes: say with dtype: u32 or dtype: u64 what \
                 they are, or use a list that fits the dataset"
            ));
        }
    };
    if bytes.is_multiple_of(width) {
        Ok(width)
    } else {
        Err(format!(
            "{bytes} bytes are no whole number of {width}-byte integers: the file is cut off"
        ))
    }
}

/// Fixed-width integers.
#[derive(Clone, Copy, Debug)]
struct Values {
    entries: u64,
    width: usize,
    signed: bool,
    big_endian: bool,
}

/// Reads and checks the header of a `.npy` file of `bytes` bytes; the reader then stands at its values.
fn npy_values(reader: &mut impl BufRead, bytes: u64) -> Result<(Values, Layout), Fault> {
    let bad = |why: String| Fault::Content(why);
    // The header's stated length is looked at first: the parser makes room for it before it reads.
    let mut lead = [0u8; 12];
    let have = reader.fill_buf()?.len().min(lead.len());
    lead[..have].copy_from_slice(&reader.fill_buf()?[..have]);
    if have < 10 || &lead[..6] != b"\x93NUMPY" {
        return Err(bad(
            "not a numpy array: it does not start as .npy files do".to_string()
        ));
    }
    let (before, length) = match lead[6] {
        1 => (10, u64::from(u16::from_le_bytes([lead[8], lead[9]]))),
        _ => (
            12,
            u64::from(u32::from_le_bytes([lead[8], lead[9], lead[10], lead[11]])),
        ),
    };
    let start = before + length;
    if length > MAX_NPY_HEADER || start > bytes {
        return Err(bad(format!(
            "its header claims {length} bytes, which no list of rows needs"
        )));
    }
    let mut header = vec![0; start as usize];
    reader.read_exact(&mut header)?;
    // npyz's parser goes back at every open bracket, in time exponential in their depth: a short header can hold it for hours.
    if bracket_depth(&header[before as usize..]) > MAX_NPY_DEPTH {
        return Err(bad(
            "its header nests brackets deeper than any array's".to_string()
        ));
    }
    let header =
        npyz::NpyHeader::from_reader(&header[..]).map_err(|e| bad(format!("not a numpy array: {e}")))?;
    let &[entries] = header.shape() else {
        let shape = header.shape();
        return Err(bad(format!(
            "a list of rows has one dimension, this array has the shape {shape:?}"
        )));
    };
    let not_integers = || bad(format!("holds {}, rows are integers", header.dtype().descr()));
    let npyz::DType::Plain(plain) = header.dtype() else {
        return Err(not_integers());
    };
    let signed = match plain.type_char() {
        npyz::TypeChar::Int => true,
        npyz::TypeChar::Uint => false,
        _ => return Err(not_integers()),
    };
    let width = plain
        .num_bytes()
        .filter(|w| matches!(w, 1 | 2 | 4 | 8))
        .ok_or_else(not_integers)?;
    let announced = entries
        .checked_mul(width as u64)
        .and_then(|n| n.checked_add(start));
    if announced != Some(bytes) {
        let found = (bytes - start) / width as u64;
        return Err(bad(format!(
            "cut off or damaged: {entries} entries announced, {found} found"
        )));
    }
    let values = Values {
        entries,
        width,
        signed,
        big_endian: plain.endianness() == npyz::Endianness::Big,
    };
    let width = width as u64;
    Ok((values, Layout::Raw { start, width }))
}

/// The most brackets open at once in a header, as one in a string counts too.
fn bracket_depth(header: &[u8]) -> usize {
    let (mut open, mut deepest) = (0usize, 0);
    for byte in header {
        match byte {
            b'{' | b'(' | b'[' => open += 1,
            b'}' | b')' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

fn read_raw(mut reader: impl Read, values: Values, num_samples: u64) -> Result<Permutation, Fault> {
    let mut collected = Collected::new(num_samples, values.entries)?;
    let mut block = vec![0u8; values.width << 15];
    let mut left = values.entries;
    while left > 0 {
        let now = left.min(1 << 15);
        let block = &mut block[..now as usize * values.width];
        reader.read_exact(block)?;
        for bytes in block.chunks_exact_mut(values.width) {
            if values.big_endian {
                bytes.reverse();
            }
            let mut word = [0u8; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let value = u64::from_le_bytes(word);
            let unused = 64 - 8 * values.width as u32;
            let as_signed = (value << unused) as i64 >> unused;
            if values.signed && as_signed < 0 {
                let problem = format!("{as_signed} is not a row: rows are 0 or more");
                return Err(Fault::Entry(collected.rows.len(), problem));
            }
            collected.push(value)?;
        }
        left -= now;
    }
    Ok(collected.rows)
}

/// The next line that holds an entry, its number and its text; comments and blank lines are passed over.
struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(reader: R) -> Self {
        Lines {
            reader,
            line: Vec::new(),
            number: 0,
        }
    }

    fn next(&mut self) -> Result<Option<&str>, Fault> {
        loop {
            self.line.clear();
            // A line without an end must not fill the memory.
            let read = self
                .reader
                .by_ref()
                .take(MAX_LINE)
                .read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read as u64 == MAX_LINE && self.line.last() != Some(&b'\n') {
                let why = format!(
                    "line {} is longer than {MAX_LINE} bytes: this is no list of rows",
                    self.number
                );
                return Err(Fault::Content(why));
            }
            let end = self
                .line
                .iter()
                .position(|b| *b == b'#')
                .unwrap_or(self.line.len());
            if !self.line[..end].trim_ascii().is_empty() {
                let why = |_| Fault::Content(format!("line {} is not text", self.number));
                return std::str::from_utf8(self.line[..end].trim_ascii())
                    .map(Some)
                    .map_err(why);
            }
        }
    }
}

fn read_text(reader: impl BufRead, num_samples: u64) -> Result<Permutation, Fault> {
    let mut collected = Collected::new(num_samples, 0)?;
    let mut lines = Lines::new(reader);
    while let Some(text) = lines.next()? {
        match text.parse() {
            Ok(row) => collected.push(row)?,
            Err(_) => {
                let shown: String = text.chars().take(40).collect();
                let why = format!("`{shown}` is not a row (an integer, 0 or more)");
                return Err(Fault::Entry(collected.rows.len(), why));
            }
        }
    }
    Ok(collected.rows)
}

/// Line of an entry of a text list, from 1; the last line when the list ends before it.
fn line_of(path: &Path, entry: u64) -> Option<u64> {
    let mut lines = Lines::new(BufReader::new(File::open(path).ok()?));
    for _ in 0..=entry {
        if lines.next().ok()?.is_none() {
            break;
        }
    }
    Some(lines.number)
}

fn digest(list: &Permutation) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = Vec::with_capacity(1 << 16);
    for row in list {
        buffer.extend_from_slice(&row.to_le_bytes());
        if buffer.len() == 1 << 16 {
            hasher.update(&buffer);
            buffer.clear();
        }
    }
    hasher.update(&buffer);
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests;
