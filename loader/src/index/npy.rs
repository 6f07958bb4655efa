//! Arrays of integers in `.npy` files, as index caches hold them: read through a map, written as numpy writes them.
//!
//! Format 1.0 is written, byte for byte as numpy 2.4 `numpy.save` does (header padded to 64 bytes, room for the first
//! axis to grow); 1.0 to 3.0 are read. Only little-endian integers in C order with one or two axes exist here;
//! anything else is refused. A header is untrusted: counts are checked against the file's size before use.

use std::fs::File;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::Path;

use ceteris_samplers::orders::index_array::{IndexArray, SharedArray};

use crate::source::SourceError;
use crate::source::mapped::MappedFile;

/// Longest header that is read; numpy itself stops at 10,000 bytes.
const MAX_HEADER: u64 = 10_000;

/// Integer types of index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// `<i2`
    I16,
    /// `<u2`, as token files have it
    U16,
    /// `<i4`
    I32,
    /// `<u4`
    U32,
    /// `<i8`
    I64,
}

impl ElementType {
    const ALL: [ElementType; 5] = [
        ElementType::I16,
        ElementType::U16,
        ElementType::I32,
        ElementType::U32,
        ElementType::I64,
    ];

    /// numpy's type string.
    pub fn descr(self) -> &'static str {
        match self {
            ElementType::I16 => "<i2",
            ElementType::U16 => "<u2",
            ElementType::I32 => "<i4",
            ElementType::U32 => "<u4",
            ElementType::I64 => "<i8",
        }
    }

    /// Bytes of one value.
    pub fn size(self) -> u64 {
        match self {
            ElementType::I16 | ElementType::U16 => 2,
            ElementType::I32 | ElementType::U32 => 4,
            ElementType::I64 => 8,
        }
    }
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the values.
    pub element: ElementType,
    /// Length of each axis.
    pub shape: Vec<u64>,
    /// First byte of the values.
    pub start: u64,
}

/// A mapped `.npy` file.
#[derive(Debug)]
pub struct NpyFile {
    map: MappedFile,
    header: Header,
}

impl NpyFile {
    /// Opens an array and checks header and size.
    ///
    /// # Errors
    /// [`SourceError`] naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
        let map = MappedFile::new(path, &file)?;
        let header = read_header(&map).map_err(|problem| SourceError::corrupt(path, problem))?;
        Ok(NpyFile { map, header })
    }

    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Values of the first axis.
    pub fn len(&self) -> u64 {
        self.header.shape[0]
    }

    /// True when the first axis is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The array as values of `T`, if that is what it holds.
    pub fn array<T: Element>(self) -> Option<SharedArray<T>> {
        let columns = if self.header.shape.len() == 2 {
            self.header.shape[1]
        } else {
            1
        };
        let fits = T::TYPES.contains(&self.header.element)
            && columns == T::COLUMNS
            && (self.header.shape.len() == 2) == (T::COLUMNS > 1);
        fits.then(|| {
            SharedArray::new(MappedArray {
                file: self,
                element: PhantomData::<fn() -> T>,
            })
        })
    }

    /// Gives all values to `take`, widened, in order. Negative values arrive as very large ones.
    ///
    /// # Errors
    /// A read that fails.
    pub fn for_each(&self, mut take: impl FnMut(u64)) -> Result<(), SourceError> {
        let size = self.header.element.size();
        let total = self.header.shape.iter().product::<u64>() * size;
        let mut block = [0u8; 1 << 16];
        let mut at = 0;
        while at < total {
            let now = (total - at).min(block.len() as u64) as usize;
            self.map.copy(self.header.start + at, &mut block[..now])?;
            for bytes in block[..now].chunks_exact(size as usize) {
                let mut word = [0u8; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                let word = u64::from_le_bytes(word);
                take(match self.header.element {
                    ElementType::I16 => word as u16 as i16 as i64 as u64,
                    ElementType::I32 => word as u32 as i32 as i64 as u64,
                    ElementType::U16 | ElementType::U32 | ElementType::I64 => word,
                });
            }
            at += now as u64;
        }
        Ok(())
    }
}

/// A value of an index array: how it lies in the file.
pub trait Element: Copy + Send + Sync + 'static {
    /// Stored types it may have; all have its width. Signed ones hold no negative value in a sound index.
    const TYPES: &'static [ElementType];
    /// Numbers in one value: the length of the second axis.
    const COLUMNS: u64;
    /// Bytes of one value.
    const BYTES: usize;
    /// The value from its little-endian bytes ([`Element::BYTES`] of them).
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Appends its little-endian bytes.
    fn push_bytes(self, out: &mut Vec<u8>);
}

macro_rules! element {
    ($($t:ty, $types:expr;)*) => {$(
        impl Element for $t {
            const TYPES: &'static [ElementType] = &$types;
            const COLUMNS: u64 = 1;
            const BYTES: usize = size_of::<$t>();
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<$t>()];
                word.copy_from_slice(bytes);
                <$t>::from_le_bytes(word)
            }
            fn push_bytes(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Element for [$t; 2] {
            const TYPES: &'static [ElementType] = &$types;
            const COLUMNS: u64 = 2;
            const BYTES: usize = 2 * size_of::<$t>();
            fn from_bytes(bytes: &[u8]) -> Self {
                let (a, b) = bytes.split_at(size_of::<$t>());
                [<$t>::from_bytes(a), <$t>::from_bytes(b)]
            }
            fn push_bytes(self, out: &mut Vec<u8>) {
                self[0].push_bytes(out);
                self[1].push_bytes(out);
            }
        }
    )*};
}
element! {
    i16, [ElementType::I16];
    u32, [ElementType::I32, ElementType::U32];
    u64, [ElementType::I64];
}

struct MappedArray<T> {
    file: NpyFile,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> IndexArray<T> for MappedArray<T> {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn get(&self, i: u64) -> Option<T> {
        if i >= self.file.len() {
            return None;
        }
        let mut bytes = [0u8; 16];
        let bytes = bytes.get_mut(..T::BYTES)?;
        self.file
            .map
            .copy(self.file.header.start + i * T::BYTES as u64, bytes)
            .ok()?;
        Some(T::from_bytes(bytes))
    }

    fn file(&self) -> Option<&Path> {
        Some(self.file.map.path())
    }
}

fn read_header(map: &MappedFile) -> Result<Header, String> {
    let short = |_| format!("cut off: {} bytes are no .npy file", map.len());
    let mut lead = [0u8; 10];
    map.copy(0, &mut lead).map_err(short)?;
    if &lead[..6] != b"\x93NUMPY" {
        return Err("not a .npy file: it does not start with \"\\x93NUMPY\"".to_owned());
    }
    let (start, length) = match lead[6] {
        1 => (10, u64::from(u16::from_le_bytes([lead[8], lead[9]]))),
        2 | 3 => {
            let mut four = [0u8; 4];
            map.copy(8, &mut four).map_err(short)?;
            (12, u64::from(u32::from_le_bytes(four)))
        }
        version => {
            return Err(format!(
                ".npy format version {version} is unknown (1, 2 and 3 are)"
            ));
        }
    };
    if length > MAX_HEADER {
        return Err(format!(
            "the header claims {length} bytes; more than {MAX_HEADER} is no sane array"
        ));
    }
    let mut text = vec![0u8; length as usize];
    map.copy(start, &mut text).map_err(short)?;
    let text = String::from_utf8(text).map_err(|_| "the header is not text".to_owned())?;
    let (element, shape) = parse_header(&text)?;
    let start = start + length;
    let expected = shape
        .iter()
        .try_fold(element.size(), |bytes, &n| bytes.checked_mul(n))
        .and_then(|bytes| bytes.checked_add(start));
    if expected != Some(map.len()) {
        return Err(format!(
            "an array of shape {shape:?} and type {} takes {} bytes with its header, the file has {}",
            element.descr(),
            expected.map_or("more than any file's".to_owned(), |n| n.to_string()),
            map.len()
        ));
    }
    Ok(Header {
        element,
        shape,
        start,
    })
}

/// Reads the dictionary of a header: exactly `descr`, `fortran_order` and `shape`, in any order.
fn parse_header(text: &str) -> Result<(ElementType, Vec<u64>), String> {
    let bad = || {
        format!(
            "the header is not one of an array of integers: {:?}",
            text.trim_end()
        )
    };
    let mut rest = text
        .trim()
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
        .ok_or_else(bad)?
        .trim();
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, tail) = string(rest).ok_or_else(bad)?;
        let tail = tail.trim_start().strip_prefix(':').ok_or_else(bad)?.trim_start();
        let tail = match key {
            "descr" if descr.is_none() => {
                let (value, tail) = string(tail).ok_or_else(bad)?;
                descr = Some(value);
                tail
            }
            "fortran_order" if fortran.is_none() => {
                let (value, tail) = match tail.strip_prefix("False") {
                    Some(tail) => (false, tail),
                    None => (true, tail.strip_prefix("True").ok_or_else(bad)?),
                };
                fortran = Some(value);
                tail
            }
            "shape" if shape.is_none() => {
                let (inside, tail) = tail
                    .strip_prefix('(')
                    .and_then(|t| t.split_once(')'))
                    .ok_or_else(bad)?;
                let axes: Result<Vec<u64>, String> = inside
                    .split(',')
                    .map(str::trim)
                    .filter(|axis| !axis.is_empty())
                    .map(|axis| axis.parse().map_err(|_| bad()))
                    .collect();
                shape = Some(axes?);
                tail
            }
            _ => return Err(bad()),
        };
        let tail = tail.trim_start();
        rest = match tail.strip_prefix(',') {
            Some(tail) => tail.trim_start(),
            None if tail.is_empty() => tail,
            None => return Err(bad()),
        };
    }
    let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err(bad());
    };
    let element = ElementType::ALL
        .into_iter()
        .find(|e| e.descr() == descr)
        .ok_or_else(|| format!("values of type {descr:?}; arrays hold <i2, <u2, <i4, <u4 or <i8"))?;
    if fortran {
        return Err("the array is stored column by column (Fortran order)".to_owned());
    }
    if !(1..=2).contains(&shape.len()) {
        return Err(format!(
            "an array with {} axes; index arrays have one or two",
            shape.len()
        ));
    }
    Ok((element, shape))
}

/// A Python string literal without escapes at the start of `text`, and what follows it.
fn string(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (value, tail) = text[1..].split_once(quote)?;
    (!value.contains('\\')).then_some((value, tail))
}

/// The header numpy writes for an array in C order.
pub fn header(element: ElementType, shape: &[u64]) -> Vec<u8> {
    let axes = match shape {
        [n] => format!("({n},)"),
        _ => format!(
            "({})",
            shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        ),
    };
    let mut text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': {axes}, }}",
        element.descr()
    );
    // Room for the first axis to grow to 21 digits in place.
    let digits = shape.first().map_or(21, |n| n.to_string().len());
    text.push_str(&" ".repeat(21usize.saturating_sub(digits)));
    let used = 10 + text.len() + 1;
    text.push_str(&" ".repeat(64 - used % 64));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Writes an array: its header and all values.
///
/// # Errors
/// What `out` returns, and `UnexpectedEof` when a value can no longer be read.
pub fn write<T: Element>(
    out: &mut impl Write,
    element: ElementType,
    array: &dyn IndexArray<T>,
) -> io::Result<()> {
    debug_assert!(T::TYPES.contains(&element) || T::BYTES as u64 != element.size() * T::COLUMNS);
    let shape = if T::COLUMNS == 1 {
        vec![array.len()]
    } else {
        vec![array.len(), T::COLUMNS]
    };
    out.write_all(&header(element, &shape))?;
    let mut bytes = Vec::with_capacity(1 << 16);
    let mut flush_at = |bytes: &mut Vec<u8>, limit: usize| {
        if bytes.len() >= limit {
            out.write_all(bytes)?;
            bytes.clear();
        }
        io::Result::Ok(())
    };
    let full = (1 << 16) - 16;
    match array.as_slice() {
        Some(values) => {
            for block in values.chunks(full / T::BYTES) {
                block.iter().for_each(|value| value.push_bytes(&mut bytes));
                flush_at(&mut bytes, 1)?;
            }
        }
        None => {
            for i in 0..array.len() {
                array
                    .get(i)
                    .ok_or(io::ErrorKind::UnexpectedEof)?
                    .push_bytes(&mut bytes);
                flush_at(&mut bytes, full)?;
            }
        }
    }
    flush_at(&mut bytes, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From numpy 2.4.6: the first bytes of `numpy.save` of such an array.
    #[test]
    fn headers_are_numpys() {
        let (one, two) = (
            header(ElementType::U32, &[1010]),
            header(ElementType::I32, &[1011, 2]),
        );
        assert_eq!(one.len(), 128);
        assert_eq!(two.len(), 128);
        assert!(one.starts_with(
            b"\x93NUMPY\x01\x00v\x00{'descr': '<u4', 'fortran_order': False, 'shape': (1010,), }   "
        ));
        assert!(two.starts_with(
            b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1011, 2), } "
        ));
    }

    fn open(bytes: &[u8]) -> Result<NpyFile, SourceError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        NpyFile::open(file.path())
    }

    #[test]
    fn arrays_read_back() {
        let mut bytes = Vec::new();
        write(&mut bytes, ElementType::I32, &vec![[1u32, 2], [3, 4], [5, 6]]).unwrap();
        let array = open(&bytes).unwrap().array::<[u32; 2]>().unwrap();
        assert_eq!((array.len(), array.get(2), array.get(3)), (3, Some([5, 6]), None));
        assert!(open(&bytes).unwrap().array::<u32>().is_none());
        assert!(open(&bytes).unwrap().array::<[u64; 2]>().is_none());
        let mut seen = Vec::new();
        open(&bytes).unwrap().for_each(|v| seen.push(v)).unwrap();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let mut good = Vec::new();
        write(&mut good, ElementType::U32, &vec![1u32, 2, 3]).unwrap();
        assert!(open(&good).is_ok());
        assert!(open(&good[..good.len() - 1]).is_err());
        assert!(open(&[]).is_err());
        assert!(open(b"\x93NUMPY\x01\x00\xff\xff").is_err());
        for (from, to) in [
            ("'<u4'", "'<f4'"),
            ("False", "True "),
            ("(3,)", "(9,)"),
            ("(3,)", "()  "),
            ("descr", "shape"),
        ] {
            let text = String::from_utf8_lossy(&good[10..128]).replace(from, to);
            let mut bad = good[..10].to_vec();
            bad.extend_from_slice(text.as_bytes());
            bad.extend_from_slice(&good[128..]);
            assert!(open(&bad).is_err(), "{to}");
        }
        let mut huge = header(ElementType::I64, &[u64::MAX, u64::MAX]);
        huge.extend_from_slice(&[0; 8]);
        assert!(open(&huge).is_err());
    }
}
