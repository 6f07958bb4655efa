//! `--format jsonl`: the contract for other programs.
//!
//! Stdout holds one JSON object a line and nothing else. With `--emit rows`, `tokens`, `sha256` or `fingerprint`
//! it is one object per (micro-step, rank), in micro-step order and within a micro-step in rank order, with
//! these keys in this sequence and no white space:
//!
//! ```json
//! {"epoch":0,"micro_step":0,"step":0,"global_micro_step":0,"rank":0,"rows":[651,266],"positions":[672,481]}
//! ```
//!
//! `micro_step` and `step` (the optimizer step) restart at each epoch, `global_micro_step` does not and counts
//! from epoch 0 whichever epoch is asked for. `rows` are rows of the stored table, `positions` the same samples
//! after the order's own dataset shuffle; both are as long as the micro-batch has valid rows, possibly 0.
//! One more key follows: `"tokens":[[…],…]` for `tokens` (one list a valid row), `"sha256":"…"` for `sha256` (over
//! the valid rows' tokens as little-endian i32, concatenated), `"fingerprint":"…"` for `fingerprint`
//! (definition 1 of `fingerprint.rs`). With `--emit summary` it is one object: the summary of the run.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use super::{Emit, Emitter, Record, sha256_of};
use crate::fingerprint::Fingerprint;

pub(super) struct Jsonl {
    emit: Emit,
}

impl Jsonl {
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit }
    }
}

/// Field order is the contract's key order.
#[derive(Serialize)]
struct Line<'a> {
    epoch: u64,
    micro_step: u64,
    step: u64,
    global_micro_step: u64,
    rank: u64,
    rows: &'a [u64],
    positions: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<&'a [i32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Fingerprint>,
}

/// Writes one record as a JSON object, without a line end.
pub(super) fn write_object(out: &mut dyn Write, emit: Emit, record: &Record<'_>) -> io::Result<()> {
    let tokens = (emit == Emit::Tokens).then(|| {
        let width = record.tokens.len().checked_div(record.rows.len()).unwrap_or(0);
        record.tokens.chunks(width.max(1)).collect()
    });
    let line = Line {
        epoch: record.epoch,
        micro_step: record.micro_step,
        step: record.step,
        global_micro_step: record.global_micro_step,
        rank: record.rank,
        rows: record.rows,
        positions: record.positions,
        tokens,
        sha256: (emit == Emit::Sha256).then(|| sha256_of(record.tokens)),
        fingerprint: record.fingerprint.filter(|_| emit == Emit::Fingerprint),
    };
    serde_json::to_writer(out, &line).map_err(io::Error::from)
}

impl Emitter for Jsonl {
    fn begin(&mut self, _: &mut dyn Write, _: &Value, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()> {
        if self.emit == Emit::Summary {
            return Ok(());
        }
        write_object(out, self.emit, record)?;
        out.write_all(b"\n")
    }

    fn finish(&mut self, out: &mut dyn Write, summary: &Value, _: &str) -> io::Result<()> {
        if self.emit == Emit::Summary {
            writeln!(out, "{summary}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(emit: Emit, tokens: &[i32]) -> String {
        let record = Record {
            epoch: 1,
            micro_step: 2,
            step: 3,
            global_micro_step: 4,
            rank: 5,
            rows: &[6, 7],
            positions: &[8, u64::MAX],
            tokens,
            fingerprint: Some(Fingerprint(9)),
        };
        let mut out = Vec::new();
        let mut jsonl = Jsonl::new(emit);
        jsonl
            .begin(&mut out, &Value::Null, "header")
            .expect("a vector takes writes");
        jsonl.record(&mut out, &record).expect("a vector takes writes");
        jsonl
            .finish(&mut out, &Value::Null, "summary")
            .expect("a vector takes writes");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    /// Byte for byte: other programs parse these lines.
    #[test]
    fn lines_are_the_contract() {
        let head = "{\"epoch\":1,\"micro_step\":2,\"step\":3,\"global_micro_step\":4,\"rank\":5,\"rows\":[6,7],\
                    \"positions\":[8,18446744073709551615]";
        assert_eq!(line(Emit::Rows, &[1, 2, 3, 4]), format!("{head}}}\n"));
        assert_eq!(
            line(Emit::Tokens, &[1, 2, 3, 4]),
            format!("{head},\"tokens\":[[1,2],[3,4]]}}\n")
        );
        let sha = sha256_of(&[1, 2, 3, 4]);
        assert_eq!(
            line(Emit::Sha256, &[1, 2, 3, 4]),
            format!("{head},\"sha256\":\"{sha}\"}}\n")
        );
        let fingerprint = "00000000000000000000000000000009";
        assert_eq!(
            line(Emit::Fingerprint, &[]),
            format!("{head},\"fingerprint\":\"{fingerprint}\"}}\n")
        );
        assert_eq!(line(Emit::Summary, &[]), "null\n");
    }
}
