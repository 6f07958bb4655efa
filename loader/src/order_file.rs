//! Lists of rows in files, for the order `file`: `.npy`, raw little-endian integers, or text.
//!
//! * `.npy`: one-dimensional, any integer type.
//! * `.bin`: raw little-endian u32 or u64; without a stated type, the one in which the file holds as many rows as
//!   the dataset.
//! * anything else is text: one row a line; blank lines and what follows a `#` are left out.
//!
//! Memory: the list at 4 bytes an entry (8 where a row is 2^32 or more), plus a read buffer.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use ceteris_samplers::Permutation;
use ceteris_samplers::orders::file::BinDtype;

/// Why a list cannot be read.
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
}

/// Collects entries in four bytes each until one needs eight.
#[derive(Default)]
struct Collected {
    narrow: Vec<u32>,
    wide: Option<Vec<u64>>,
}

impl Collected {
    fn push(&mut self, row: u64) {
        match (&mut self.wide, u32::try_from(row)) {
            (Some(wide), _) => wide.push(row),
            (None, Ok(row)) => self.narrow.push(row),
            (None, Err(_)) => {
                let mut wide: Vec<u64> = self.narrow.drain(..).map(u64::from).collect();
                wide.push(row);
                self.wide = Some(wide);
            }
        }
    }

    fn finish(self) -> Permutation {
        match self.wide {
            Some(wide) => Permutation::Wide(wide),
            None => Permutation::Narrow(self.narrow),
        }
    }
}

/// Reads a list of rows and its digest: BLAKE3 over the rows as little-endian u64, 64 hex digits. Whether the rows
/// exist in the dataset is the order's to check; `num_samples` only decides the type of a `.bin` file.
///
/// # Errors
/// [`OrderFileError`] naming the file and the entry.
pub fn read(
    path: &Path,
    dtype: Option<BinDtype>,
    num_samples: u64,
) -> Result<(Permutation, String), OrderFileError> {
    let io = |source| OrderFileError::Io {
        path: path.to_path_buf(),
        source,
    };
    let wrong = |problem: String| OrderFileError::Content {
        path: path.to_path_buf(),
        problem,
    };
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let reader = BufReader::with_capacity(1 << 20, file);
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    if dtype.is_some() && ending != "bin" {
        return Err(wrong(
            "dtype is for .bin files: other files say themselves what they hold".into(),
        ));
    }
    let list = match ending {
        "npy" => read_npy(reader),
        "bin" => match width_of(bytes, dtype, num_samples) {
            Ok(width) => read_raw(reader, bytes / width, width as usize)
                .map_err(io)
                .map(Ok)?,
            Err(problem) => Err(problem),
        },
        _ => read_text(reader).map_err(io)?,
    };
    let list = list.map_err(wrong)?;
    let digest = digest(&list);
    Ok((list, digest))
}

fn digest(list: &Permutation) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = Vec::with_capacity(1 << 16);
    for i in 0..list.len() {
        buffer.extend_from_slice(&list.get(i).unwrap_or_default().to_le_bytes());
        if buffer.len() == 1 << 16 {
            hasher.update(&buffer);
            buffer.clear();
        }
    }
    hasher.update(&buffer);
    hasher.finalize().to_hex().to_string()
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

fn read_npy(reader: impl Read) -> Result<Permutation, String> {
    let file = npyz::NpyFile::new(reader).map_err(|e| format!("not a numpy array: {e}"))?;
    let &[len] = file.shape() else {
        return Err(format!(
            "a list of rows has one dimension, this array has the shape {:?}",
            file.shape()
        ));
    };
    let dtype = file.dtype().descr();
    let mut rows = Collected::default();
    let mut push = |i: usize, value: Result<Option<u64>, i64>| match value {
        Ok(Some(row)) => {
            rows.push(row);
            Ok(())
        }
        Ok(None) => Err(format!("cut off: {len} entries announced, {i} found")),
        Err(value) => Err(format!("entry {i} is {value}: rows are 0 or more")),
    };
    /// Entries of one integer type, each as the row it names.
    macro_rules! entries {
        ($type:ty) => {{
            let data = file.data::<$type>().map_err(|e| e.to_string())?;
            for (i, value) in data.enumerate() {
                let value = value
                    .ok()
                    .map(|v| u64::try_from(v).map_err(|_| v as i64))
                    .transpose();
                push(i, value)?;
            }
        }};
    }
    match dtype.trim_matches('\'').trim_start_matches(['<', '>', '|', '=']) {
        "i8" => entries!(i64),
        "u8" => entries!(u64),
        "i4" => entries!(i32),
        "u4" => entries!(u32),
        "i2" => entries!(i16),
        "u2" => entries!(u16),
        "i1" => entries!(i8),
        "u1" => entries!(u8),
        _ => return Err(format!("holds {dtype}, rows are integers")),
    }
    let rows = rows.finish();
    if rows.len() == len {
        Ok(rows)
    } else {
        Err(format!("cut off: {len} entries announced, {} found", rows.len()))
    }
}

fn read_raw(mut reader: impl Read, entries: u64, width: usize) -> io::Result<Permutation> {
    let mut rows = Collected::default();
    let mut entry = [0u8; 8];
    for _ in 0..entries {
        reader.read_exact(&mut entry[..width])?;
        rows.push(u64::from_le_bytes(entry));
    }
    Ok(rows.finish())
}

fn read_text(mut reader: impl BufRead) -> io::Result<Result<Permutation, String>> {
    let (mut rows, mut line, mut number) = (Collected::default(), Vec::new(), 0u64);
    loop {
        line.clear();
        // A row has at most 20 digits; a line without an end must not fill the memory.
        if reader.by_ref().take(4096).read_until(b'\n', &mut line)? == 0 {
            return Ok(Ok(rows.finish()));
        }
        number += 1;
        let text = String::from_utf8_lossy(&line);
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match text.parse() {
            Ok(row) => rows.push(row),
            Err(_) => {
                let shown: String = text.chars().take(40).collect();
                return Ok(Err(format!(
                    "line {number}: `{shown}` is not a row (an integer, 0 or more)"
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use npyz::WriterBuilder;

    use super::*;

    fn read_as(name: &str, bytes: &[u8], dtype: Option<BinDtype>) -> Result<Vec<u64>, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        let (rows, _) = read(&path, dtype, 5).map_err(|e| e.to_string())?;
        Ok((0..rows.len()).filter_map(|i| rows.get(i)).collect())
    }

    fn read_bytes(name: &str, bytes: &[u8]) -> Result<Vec<u64>, String> {
        read_as(name, bytes, None)
    }

    fn npy<T: npyz::Serialize + npyz::AutoSerialize + Copy>(shape: &[u64], values: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let options = npyz::WriteOptions::new()
            .default_dtype()
            .shape(shape)
            .writer(&mut bytes);
        let mut writer = options.begin_nd().expect("a vector takes writes");
        writer
            .extend(values.iter().copied())
            .expect("a vector takes writes");
        writer.finish().expect("a vector takes writes");
        bytes
    }

    #[test]
    fn every_form_reads_to_the_same_rows() {
        let rows = [3u64, 0, 2, 1, 7];
        let raw = |width: usize| {
            rows.iter()
                .flat_map(|r| r.to_le_bytes()[..width].to_vec())
                .collect::<Vec<u8>>()
        };
        let want = Ok(rows.to_vec());
        assert_eq!(read_bytes("a.bin", &raw(4)), want);
        assert_eq!(read_bytes("a.bin", &raw(8)), want);
        assert_eq!(
            read_as("a.bin", &raw(8)[..16], Some(BinDtype::U64)),
            Ok(vec![3, 0])
        );
        assert_eq!(
            read_as("a.bin", &raw(8)[..16], Some(BinDtype::U32)),
            Ok(vec![3, 0, 0, 0])
        );
        assert_eq!(read_bytes("a.npy", &npy(&[5], &rows)), want);
        assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as i64))), want);
        assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as i32))), want);
        assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as u16))), want);
        assert_eq!(
            read_bytes("a.txt", b"# rows\n3\n0\n\n 2 \n1 # last but one\n7"),
            want
        );
        let large = [1u64, 1 << 40, 0];
        assert_eq!(read_bytes("a.npy", &npy(&[3], &large)), Ok(large.to_vec()));
    }

    #[test]
    fn what_is_no_list_of_rows_is_refused() {
        let bytes = npy(&[5], &[3i64, 0, 2, 1, 7]);
        for (name, content, needle) in [
            ("a.npy", npy(&[2], &[3i64, -1]), "entry 1 is -1"),
            ("a.npy", npy(&[2, 1], &[3i64, 1]), "one dimension"),
            ("a.npy", npy(&[2], &[3f64, 1.0]), "rows are integers"),
            (
                "a.npy",
                bytes[..bytes.len() - 8].to_vec(),
                "5 entries announced, 4 found",
            ),
            ("a.npy", b"rows".to_vec(), "not a numpy array"),
            (
                "a.bin",
                vec![1, 0, 0, 0, 0, 0, 0, 0],
                "neither 5 rows of 4 nor of 8 bytes",
            ),
            ("a.txt", b"1\n-2\n".to_vec(), "line 2: `-2` is not a row"),
            ("a.txt", b"1\n99999999999999999999\n".to_vec(), "line 2"),
        ] {
            let error = read_bytes(name, &content).expect_err(needle);
            assert!(error.contains(needle), "{error}");
        }
        let cut = read_as("a.bin", &[0; 7], Some(BinDtype::U32)).expect_err("seven bytes");
        assert!(cut.contains("no whole number of 4-byte integers"), "{cut}");
        let typed = read_as("a.txt", b"1", Some(BinDtype::U32)).expect_err("a text file");
        assert!(typed.contains("dtype is for .bin files"), "{typed}");
        assert!(
            read(Path::new("/nonexistent/rows.txt"), None, 1)
                .is_err_and(|e| e.to_string().contains("rows.txt"))
        );
    }

    #[test]
    fn the_digest_does_not_depend_on_the_form() {
        let list = Permutation::Narrow(vec![3, 0, 2]);
        let bytes: Vec<u8> = [3u64, 0, 2].iter().flat_map(|row| row.to_le_bytes()).collect();
        assert_eq!(digest(&list), blake3::hash(&bytes).to_hex().to_string());
        assert_eq!(digest(&list), digest(&Permutation::Wide(vec![3, 0, 2])));
    }
}
