//! `--format text`: the header, one line per (micro-step, rank), and the summary, for reading.

use std::io::{self, Write};

use serde_json::Value;

use super::{Emit, Emitter, Record, sha256_of};

pub(super) struct Text {
    emit: Emit,
}

impl Text {
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit }
    }
}

fn list<T: std::fmt::Display>(out: &mut dyn Write, label: &str, values: &[T]) -> io::Result<()> {
    write!(out, "  {label}")?;
    values.iter().try_for_each(|value| write!(out, " {value}"))
}

impl Emitter for Text {
    fn begin(&mut self, out: &mut dyn Write, _: &Value, text: &str) -> io::Result<()> {
        out.write_all(text.as_bytes())
    }

    fn record(&mut self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()> {
        if self.emit == Emit::Summary {
            return Ok(());
        }
        write!(
            out,
            "epoch {} step {} micro_step {} rank {}",
            record.epoch, record.step, record.micro_step, record.rank
        )?;
        list(out, "rows", record.rows)?;
        list(out, "positions", record.positions)?;
        match (self.emit, record.fingerprint) {
            (Emit::Sha256, _) => write!(out, "  sha256 {}", sha256_of(record.tokens))?,
            (Emit::Fingerprint, Some(fingerprint)) => write!(out, "  fingerprint {fingerprint}")?,
            (Emit::Tokens, _) => {
                let width = record.tokens.len().checked_div(record.rows.len()).unwrap_or(0);
                for (row, tokens) in record.rows.iter().zip(record.tokens.chunks(width.max(1))) {
                    writeln!(out)?;
                    list(out, &format!("  row {row}:"), tokens)?;
                }
            }
            _ => {}
        }
        writeln!(out)
    }

    fn finish(&mut self, out: &mut dyn Write, _: &Value, text: &str) -> io::Result<()> {
        out.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_as_words() {
        let record = Record {
            epoch: 0,
            micro_step: 3,
            step: 1,
            global_micro_step: 3,
            rank: 7,
            rows: &[651, 266],
            positions: &[672, 481],
            tokens: &[1, 2, 3, 4],
            fingerprint: None,
        };
        let write = |emit| {
            let mut out = Vec::new();
            Text::new(emit)
                .record(&mut out, &record)
                .expect("a vector takes writes");
            String::from_utf8(out).expect("UTF-8")
        };
        let head = "epoch 0 step 1 micro_step 3 rank 7  rows 651 266  positions 672 481";
        assert_eq!(write(Emit::Rows), format!("{head}\n"));
        assert_eq!(
            write(Emit::Tokens),
            format!("{head}\n    row 651: 1 2\n    row 266: 3 4\n")
        );
        assert_eq!(write(Emit::Summary), "");
    }
}
