//! `--format npy`: one numpy array, written as the stream runs.
//!
//! | emit | dtype | shape | missing rows |
//! |---|---|---|---|
//! | rows | int64 | (micro-steps, ranks, micro_batch_size) | -1 |
//! | tokens | int32 | (micro-steps, ranks, micro_batch_size, seq_length) | -1 |
//! | sha256 | bytes `S64` (hex) | (micro-steps, ranks) | – |
//! | fingerprint | bytes `S32` (hex) | (micro-steps, ranks) | – |

use std::io::{self, Write};

use npyz::{DType, WriterBuilder};
use serde_json::Value;

use super::{Emit, Emitter, Layout, Record, sha256_of};

pub(super) struct Npy {
    emit: Emit,
    layout: Layout,
    records: u64,
    buffer: Vec<u8>,
}

impl Npy {
    pub(super) fn new(emit: Emit, layout: Layout) -> Self {
        Self {
            emit,
            layout,
            records: 0,
            buffer: Vec::new(),
        }
    }
}

impl Emitter for Npy {
    fn begin(&mut self, out: &mut dyn Write, _: &Value, _: &str) -> io::Result<()> {
        let Layout {
            micro_steps,
            ranks,
            micro_batch_size,
            seq_length,
        } = self.layout;
        let (dtype, shape) = match self.emit {
            Emit::Rows | Emit::Summary => ("<i8", vec![micro_steps, ranks, micro_batch_size]),
            Emit::Tokens => ("<i4", vec![micro_steps, ranks, micro_batch_size, seq_length]),
            Emit::Sha256 => ("|S64", vec![micro_steps, ranks]),
            Emit::Fingerprint => ("|S32", vec![micro_steps, ranks]),
        };
        let dtype = dtype
            .parse()
            .map_err(|e| io::Error::other(format!("numpy type {dtype}: {e}")))?;
        npyz::WriteOptions::new_header_only()
            .dtype(DType::Plain(dtype))
            .shape(&shape)
            .writer(out)
            .write_header_only()?;
        Ok(())
    }

    fn record(&mut self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()> {
        self.records += 1;
        self.buffer.clear();
        let rows = self.layout.micro_batch_size;
        match self.emit {
            Emit::Rows | Emit::Summary => {
                let missing = std::iter::repeat(-1i64);
                let held = record.rows.iter().map(|&row| i64::try_from(row).unwrap_or(-1));
                for row in held.chain(missing).take(rows as usize) {
                    self.buffer.extend_from_slice(&row.to_le_bytes());
                }
            }
            Emit::Tokens => {
                let len = (rows * self.layout.seq_length) as usize;
                let missing = std::iter::repeat(&-1i32);
                for token in record.tokens.iter().chain(missing).take(len) {
                    self.buffer.extend_from_slice(&token.to_le_bytes());
                }
            }
            Emit::Sha256 => self.buffer.extend_from_slice(sha256_of(record.tokens).as_bytes()),
            Emit::Fingerprint => {
                let text = record.fingerprint.unwrap_or_default().to_string();
                self.buffer.extend_from_slice(text.as_bytes());
            }
        }
        out.write_all(&self.buffer)
    }

    fn finish(&mut self, _: &mut dyn Write, _: &Value, _: &str) -> io::Result<()> {
        let expected = self.layout.micro_steps * self.layout.ranks;
        if self.records == expected {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the array was announced with {expected} micro-batches and holds {}",
            self.records
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(emit: Emit, records: u64) -> io::Result<Vec<u8>> {
        let layout = Layout {
            micro_steps: 2,
            ranks: 1,
            micro_batch_size: 2,
            seq_length: 3,
        };
        let mut npy = Npy::new(emit, layout);
        let mut out = Vec::new();
        npy.begin(&mut out, &Value::Null, "")?;
        for micro_step in 0..records {
            let (rows, tokens): (&[u64], &[i32]) = if micro_step == 0 {
                (&[4, 5], &[1, 2, 3, 4, 5, 6])
            } else {
                (&[6], &[7, 8, 9])
            };
            let record = Record {
                epoch: 0,
                micro_step,
                step: micro_step,
                global_micro_step: micro_step,
                rank: 0,
                rows,
                positions: rows,
                tokens,
                fingerprint: Some(crate::fingerprint::Fingerprint::of_sample(tokens)),
            };
            npy.record(&mut out, &record)?;
        }
        npy.finish(&mut out, &Value::Null, "")?;
        Ok(out)
    }

    #[test]
    fn arrays_have_the_documented_shape_and_filling() {
        let bytes = write(Emit::Rows, 2).expect("writes");
        let file = npyz::NpyFile::new(&bytes[..]).expect("a numpy file");
        assert_eq!(file.shape(), [2, 1, 2]);
        assert_eq!(file.into_vec::<i64>().expect("int64"), [4, 5, 6, -1]);
        let bytes = write(Emit::Tokens, 2).expect("writes");
        let file = npyz::NpyFile::new(&bytes[..]).expect("a numpy file");
        assert_eq!(file.shape(), [2, 1, 2, 3]);
        assert_eq!(
            file.into_vec::<i32>().expect("int32"),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1]
        );
        let bytes = write(Emit::Sha256, 2).expect("writes");
        let file = npyz::NpyFile::new(&bytes[..]).expect("a numpy file");
        assert_eq!(file.shape(), [2, 1]);
        assert!(bytes.ends_with(sha256_of(&[7, 8, 9]).as_bytes()));
    }

    #[test]
    fn an_array_shorter_than_announced_is_an_error() {
        assert!(write(Emit::Rows, 1).is_err());
    }
}
