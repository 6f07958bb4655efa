//! Reads small ranges of a file through one buffer, by `pread`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::source::SourceError;

/// Least bytes read at a time: a header and the offsets behind it usually lie in one window.
pub(super) const WINDOW: u64 = 16 << 10;

/// Reads small ranges of a file through one buffer.
pub(super) struct Window<'a> {
    pub(super) path: &'a Path,
    pub(super) file: &'a File,
    pub(super) buffer: Vec<u8>,
    pub(super) at: u64,
}

impl Window<'_> {
    /// The bytes `at..at + len`, which must lie inside the file.
    pub(super) fn get(&mut self, at: u64, len: u64) -> Result<&[u8], SourceError> {
        let end = at + len;
        if at < self.at || end > self.at + self.buffer.len() as u64 {
            self.buffer
                .resize(usize::try_from(len.max(WINDOW)).unwrap_or(usize::MAX), 0);
            self.at = at;
            let mut filled = 0usize;
            while filled < self.buffer.len() {
                match self.file.read_at(&mut self.buffer[filled..], at + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(SourceError::io(self.path, format!("read at byte {at}"), e)),
                }
            }
            self.buffer.truncate(filled);
            if (filled as u64) < len {
                let problem = format!("only {filled} of {len} bytes could be read at byte {at}");
                return Err(SourceError::Changed {
                    path: self.path.to_owned(),
                    problem,
                });
            }
        }
        let from = (at - self.at) as usize;
        Ok(&self.buffer[from..from + len as usize])
    }

    /// The first zero among the bits `from..to` of a bitmap that begins at byte `at`.
    pub(super) fn first_zero_bit(&mut self, at: u64, from: u64, to: u64) -> Result<Option<u64>, SourceError> {
        let mut bit = from;
        while bit < to {
            let end = to.min((bit / 8 + WINDOW / 2) * 8);
            let first_byte = bit / 8;
            let bytes = self.get(at + first_byte, end.div_ceil(8) - first_byte)?;
            let zero = (bit..end).find(|b| {
                let byte = bytes[(b / 8 - first_byte) as usize];
                byte >> (b % 8) & 1 == 0
            });
            if zero.is_some() {
                return Ok(zero);
            }
            bit = end;
        }
        Ok(None)
    }
}

pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .rev()
        .fold(0, |sum, &b| sum << 8 | u32::from(b))
}

/// A little-endian signed integer of 4 or 8 bytes.
pub(super) fn le_int(bytes: &[u8]) -> i64 {
    match *bytes {
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}
