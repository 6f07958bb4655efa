//! What a stream writes: one record per (micro-step, rank), in one of four formats. One file a format.
//!
//! `jsonl` is a contract (see `jsonl.rs`); `json` and `npy` hold the same values, `text` is for reading.

mod json;
mod jsonl;
mod npy;
mod text;

use std::fmt;
use std::io::{self, Write};

use ceteris_samplers::SampleId;
use serde_json::Value;

use crate::fingerprint::Fingerprint;

/// What is written for each (micro-step, rank).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Emit {
    /// Rows of the stored table and positions after the order's own shuffle.
    Rows,
    /// The same, and the token ids.
    Tokens,
    /// The same, and the SHA-256 of the token ids as little-endian i32.
    Sha256,
    /// The same, and the micro-batch's fingerprint.
    Fingerprint,
    /// Nothing for each micro-step: only the summary of the run.
    Summary,
}

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for reading.
    Text,
    /// One document: `{"header": …, "records": […], "summary": …}`.
    Json,
    /// One object a line: the contract for other programs.
    Jsonl,
    /// One numpy array, of shape (micro-steps, ranks, …).
    Npy,
}

impl Format {
    /// Data for a program: header, notes and progress then go to stderr and stdout holds the data alone.
    pub fn is_machine(self) -> bool {
        self != Format::Text
    }
}

/// What one rank consumes in one micro-step.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Micro-step within the epoch.
    pub micro_step: u64,
    /// Optimizer step within the epoch.
    pub step: u64,
    /// Micro-step counted from epoch 0 on.
    pub global_micro_step: u64,
    /// Data-parallel rank.
    pub rank: u64,
    /// Rows of the stored table, one for each valid row.
    pub rows: &'a [SampleId],
    /// Index of each row after the order's own dataset shuffle.
    pub positions: &'a [u64],
    /// Tokens of the valid rows, row-major; empty when no dataset is read.
    pub tokens: &'a [i32],
    /// Digest of the micro-batch; `None` when no dataset is read.
    pub fingerprint: Option<Fingerprint>,
}

/// Sizes a format may need before the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Micro-steps that will be written.
    pub micro_steps: u64,
    /// Ranks written for each of them.
    pub ranks: u64,
    /// Rows of a full micro-batch.
    pub micro_batch_size: u64,
    /// Tokens of a row.
    pub seq_length: u64,
}

/// Writes a stream in one format.
pub trait Emitter {
    /// Called once, before the first record, with the header as JSON and as text.
    ///
    /// # Errors
    /// Failed writes.
    fn begin(&mut self, out: &mut dyn Write, header: &Value, text: &str) -> io::Result<()>;

    /// One record; records come in micro-step order and within a micro-step in rank order.
    ///
    /// # Errors
    /// Failed writes.
    fn record(&mut self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()>;

    /// Called once, after the last record.
    ///
    /// # Errors
    /// Failed writes.
    fn finish(&mut self, out: &mut dyn Write, summary: &Value, text: &str) -> io::Result<()>;
}

/// A combination of format and content that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--format {format} cannot hold --emit {emit}")]
pub struct EmitError {
    format: String,
    emit: String,
}

impl EmitError {
    fn new(format: Format, emit: Emit) -> Self {
        Self {
            format: format.to_string(),
            emit: emit.to_string(),
        }
    }
}

/// The writer for a format.
///
/// # Errors
/// [`EmitError`] for a summary as a numpy array, which it is not.
pub fn emitter(format: Format, emit: Emit, layout: Layout) -> Result<Box<dyn Emitter>, EmitError> {
    Ok(match format {
        Format::Text => Box::new(text::Text::new(emit)),
        Format::Json => Box::new(json::Json::new(emit)),
        Format::Jsonl => Box::new(jsonl::Jsonl::new(emit)),
        Format::Npy if emit == Emit::Summary => return Err(EmitError::new(format, emit)),
        Format::Npy => Box::new(npy::Npy::new(emit, layout)),
    })
}

fn value_name(f: &mut fmt::Formatter<'_>, value: &impl clap::ValueEnum) -> fmt::Result {
    match value.to_possible_value() {
        Some(possible) => f.write_str(possible.get_name()),
        None => Ok(()),
    }
}

impl fmt::Display for Emit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(f, self)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(f, self)
    }
}

/// Lower-case hex SHA-256 over token ids as little-endian i32, concatenated.
fn sha256_of(tokens: &[i32]) -> String {
    use std::fmt::Write as _;

    use sha2::{Digest, Sha256};

    let mut hasher = Sha256::new();
    let mut buffer = [0u8; 4096];
    for chunk in tokens.chunks(buffer.len() / 4) {
        let bytes = &mut buffer[..chunk.len() * 4];
        for (out, token) in bytes.chunks_exact_mut(4).zip(chunk) {
            out.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&*bytes);
    }
    hasher
        .finalize()
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_is_over_little_endian_i32() {
        // hashlib.sha256(numpy.arange(3000, dtype="<i4").tobytes()).hexdigest(), and that of no bytes.
        let tokens: Vec<i32> = (0..3000).collect();
        assert_eq!(
            sha256_of(&tokens),
            "4f1d9d3f3961a83278f6828a405bb212f99530efabde1c7f245cf4118367d2c3"
        );
        assert_eq!(
            sha256_of(&[]),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn a_summary_is_no_array() {
        let layout = Layout {
            micro_steps: 1,
            ranks: 1,
            micro_batch_size: 1,
            seq_length: 1,
        };
        let error = emitter(Format::Npy, Emit::Summary, layout)
            .err()
            .map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("--format npy cannot hold --emit summary"));
    }
}
