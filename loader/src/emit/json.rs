//! `--format json`: one document `{"header": …, "records": […], "summary": …}`; a record is a `jsonl` object.
//! It is written as the stream runs, so memory does not grow with the run.

use std::io::{self, Write};

use serde_json::Value;

use super::jsonl::write_object;
use super::{Emit, Emitter, Record};

pub(super) struct Json {
    emit: Emit,
    records: u64,
}

impl Json {
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit, records: 0 }
    }
}

impl Emitter for Json {
    fn begin(&mut self, out: &mut dyn Write, header: &Value, _: &str) -> io::Result<()> {
        write!(out, "{{\"header\":{header},\n\"records\":[")
    }

    fn record(&mut self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()> {
        if self.emit == Emit::Summary {
            return Ok(());
        }
        out.write_all(if self.records == 0 { b"\n" } else { b",\n" })?;
        self.records += 1;
        write_object(out, self.emit, record)
    }

    fn finish(&mut self, out: &mut dyn Write, summary: &Value, _: &str) -> io::Result<()> {
        writeln!(out, "],\n\"summary\":{summary}}}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_document_parses_for_any_number_of_records() {
        for records in 0..3u64 {
            let mut out = Vec::new();
            let mut emitter = Json::new(Emit::Rows);
            emitter
                .begin(&mut out, &json!({"samples": 3}), "")
                .expect("a vector takes writes");
            for micro_step in 0..records {
                let record = Record {
                    epoch: 0,
                    micro_step,
                    step: 0,
                    global_micro_step: 0,
                    rank: 0,
                    rows: &[1],
                    positions: &[2],
                    tokens: &[],
                    fingerprint: None,
                };
                emitter.record(&mut out, &record).expect("a vector takes writes");
            }
            emitter
                .finish(&mut out, &json!({"steps": records}), "")
                .expect("a vector takes writes");
            let document: Value = serde_json::from_slice(&out).expect("one JSON document");
            assert_eq!(document["header"]["samples"], 3);
            assert_eq!(document["summary"]["steps"], records);
            assert_eq!(
                document["records"].as_array().map(Vec::len),
                Some(records as usize)
            );
        }
    }
}
