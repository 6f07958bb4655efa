//! Row lengths against `seq_length`: errors that name the row, dropping, padding, truncation.

use super::HfSource;
use super::rows::Rows;
use crate::source::options::OnRagged;
use crate::source::{Source, SourceError};

impl HfSource {
    /// Checks row lengths against `seq_length`, dropping rows where that is asked for.
    pub(super) fn apply_seq_length(&mut self) -> Result<(), SourceError> {
        let Some(seq) = self.options.seq_length else {
            return Ok(());
        };
        let want = seq as u64;
        let lengths = self.row_lengths();
        let fits = |len: u64| {
            len == want
                || (len > want && self.options.truncate)
                || (len < want && self.options.on_ragged == OnRagged::Pad)
        };
        if fits(lengths.min) && fits(lengths.max) && (lengths.max <= want || self.options.truncate) {
            return Ok(());
        }
        let drop = self.options.on_ragged == OnRagged::Drop;
        if lengths.min == lengths.max && !drop {
            return Err(self.uniform_mismatch(lengths.max, seq));
        }
        let (mut short, mut long, mut first) = (0u64, 0u64, None);
        let mut kept = Vec::new();
        for id in 0..self.rows.len() {
            let row = self.stored_row(id);
            let len = self.table.row_len(row)?;
            if fits(len) {
                if drop {
                    kept.push(row);
                }
                continue;
            }
            short += u64::from(len < want);
            long += u64::from(len > want);
            first = first.or(Some((row, len)));
        }
        let Some((row, len)) = first else { return Ok(()) };
        if !drop {
            return Err(self.ragged(row, len, seq, short, long));
        }
        if kept.is_empty() {
            return Err(SourceError::RowLength(format!(
                "no row has {seq} tokens: on_ragged: drop would leave nothing (rows have {} to {} tokens)",
                lengths.min, lengths.max
            )));
        }
        self.dropped = short + long;
        self.warnings.push(format!(
            "{} of {} rows do not have {seq} tokens and are dropped ({short} shorter, {long} longer)",
            self.dropped,
            self.rows.len()
        ));
        self.rows = Rows::collect(self.table.num_rows(), kept.into_iter().map(Ok))?;
        Ok(())
    }

    fn uniform_mismatch(&self, len: u64, seq: usize) -> SourceError {
        let root = self.root.display();
        SourceError::RowLength(if len < seq as u64 {
            format!(
                "{root}: every row has {len} tokens, seq_length is {seq}: pass --seq-length {len}, or fill rows up with \
                 --on-ragged pad --pad-id N"
            )
        } else {
            format!(
                "{root}: every row has {len} tokens, seq_length is {seq}: pass --seq-length {len}, or keep only the first \
                 {seq} tokens of each row with --truncate"
            )
        })
    }

    fn ragged(&self, row: u64, len: u64, seq: usize, short: u64, long: u64) -> SourceError {
        let lengths = self.row_lengths();
        let place = self.table.place_of(row).and_then(|(file, in_file)| {
            Some(format!(" (row {in_file} of {})", self.files.get(file)?.display()))
        });
        let place = place.unwrap_or_default();
        let way = match (short > 0, long > 0) {
            (_, false) => "--on-ragged drop leaves such rows out, --on-ragged pad --pad-id N fills them up",
            (false, true) => "--on-ragged drop leaves such rows out, --truncate keeps their first tokens",
            (true, true) => {
                "--on-ragged drop leaves such rows out; --on-ragged pad --pad-id N fills short ones up, --truncate cuts long ones"
            }
        };
        SourceError::RowLength(format!(
            "row {row}{place} has {len} tokens, seq_length is {seq}; of {} rows {short} are shorter and {long} longer ({} to {} \
             tokens). {way}",
            self.rows.len(),
            lengths.min,
            lengths.max
        ))
    }
}
