//! Lines of an untrusted text file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::compare::log_error::LogError;

/// Bytes a line may have. Argument dumps and progress bars stay far below it.
const LONGEST: usize = 1 << 20;

/// A piece of a line. Progress bars overwrite their line by a carriage return: each state is a piece of its own.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Line of the file, from 1.
    pub line: u64,
    /// Its text, without colours; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Whether the file ends without a line end behind it: its writer may still be at it.
    pub unfinished: bool,
}

/// Pieces of a file, in turn.
#[derive(Debug)]
pub(crate) struct Pieces {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
    bytes: Vec<u8>,
}

impl Pieces {
    /// Opens `path`.
    pub(crate) fn open(path: &Path) -> Result<Pieces, LogError> {
        let file = File::open(path).map_err(|source| LogError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Pieces {
            path: path.to_owned(),
            reader: BufReader::with_capacity(1 << 16, file),
            line: 1,
            bytes: Vec::new(),
        })
    }

    /// The next piece that holds more than blanks.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, LogError> {
        loop {
            let line = self.line;
            let Some(end) = self.fill()? else {
                return Ok(None);
            };
            if end == Some(b'\n') {
                self.line += 1;
            }
            let text = without_colours(&String::from_utf8_lossy(&self.bytes));
            if !text.trim().is_empty() {
                return Ok(Some(Piece {
                    line,
                    text,
                    unfinished: end.is_none(),
                }));
            }
        }
    }

    /// Reads up to the next line end into `bytes`: `None` at the end of the file, else the byte that ended the piece.
    fn fill(&mut self) -> Result<Option<Option<u8>>, LogError> {
        self.bytes.clear();
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(LogError::Io {
                        path: self.path.clone(),
                        source,
                    });
                }
            };
            if buffer.is_empty() {
                return Ok((!self.bytes.is_empty()).then_some(None));
            }
            let end = buffer.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let taken = end.unwrap_or(buffer.len());
            if self.bytes.len() + taken > LONGEST {
                return Err(LogError::Line {
                    path: self.path.clone(),
                    line: self.line,
                    field: "line".to_owned(),
                    problem: format!("longer than {LONGEST} bytes: not a log of losses"),
                });
            }
            self.bytes.extend_from_slice(&buffer[..taken]);
            match end {
                Some(at) => {
                    let byte = buffer[at];
                    self.reader.consume(at + 1);
                    return Ok(Some(Some(byte)));
                }
                None => self.reader.consume(taken),
            }
        }
    }
}

/// Reads a whole file of at most `most` bytes as text.
pub(crate) fn whole(path: &Path, most: u64) -> Result<String, LogError> {
    let io = |source| LogError::Io {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > most {
        return Err(LogError::File {
            path: path.to_owned(),
            problem: format!("larger than {most} bytes: not a log of losses"),
        });
    }
    String::from_utf8(bytes).map_err(|_| LogError::File {
        path: path.to_owned(),
        problem: "not UTF-8 text".to_owned(),
    })
}

/// Text without terminal control sequences (`ESC [ … letter`).
fn without_colours(text: &str) -> String {
    if !text.contains('\u{1b}') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        if chars.next() == Some('[') {
            // Parameters end with a byte from @ to ~.
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go() {
        assert_eq!(without_colours("\u{1b}[1;32mok\u{1b}[0m 3"), "ok 3");
        assert_eq!(without_colours("a\u{1b}"), "a");
    }

    #[test]
    fn pieces_end_at_line_ends_and_carriage_returns() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("log");
        std::fs::write(&path, " 1%\r 2%\n\r\n\nlast")?;
        let mut pieces = Pieces::open(&path)?;
        let mut seen = Vec::new();
        while let Some(piece) = pieces.next()? {
            seen.push((piece.line, piece.text, piece.unfinished));
        }
        let all: Vec<(u64, &str, bool)> = seen.iter().map(|(l, t, u)| (*l, t.as_str(), *u)).collect();
        assert_eq!(all, [(1, " 1%", false), (1, " 2%", false), (4, "last", true)]);
        std::fs::write(&path, vec![b'x'; LONGEST + 1])?;
        assert!(Pieces::open(&path)?.next().is_err());
        Ok(())
    }
}
