//! Token datasets from one form into the other, checked after writing.
//!
//! A row of a Hugging Face dataset becomes a document of one sequence and the other way round; no token is added, dropped
//! or changed, so there and back gives the same rows. After writing, every row is read back and compared by fingerprint.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::save_to_disk::{self, Rows, num_shards};
use super::{PrepareError, Progress};
use crate::fingerprint::Fingerprint;
use crate::source::megatron::{Check, IndexedDataset, bin_path, with_suffix};
use crate::source::megatron_idx::TokenType;
use crate::source::megatron_writer::{IndexedWriter, Written};
use crate::source::{HfSource, Source, SourceOptions};

/// Rows compared at a time after writing.
const BLOCK: u64 = 1 << 12;
/// What a conversion that is stopped leaves.
const NOTHING_WRITTEN: &str = "nothing was written";

fn row(source: &dyn Source, id: u64, tokens: &mut Vec<i32>) -> Result<(), PrepareError> {
    let length = source.sample_len(id)?;
    tokens.clear();
    tokens.resize(length, 0);
    let read = source.read(id, tokens)?;
    if read == length {
        Ok(())
    } else {
        Err(PrepareError::Verification(format!(
            "row {id}: {read} of {length} tokens read"
        )))
    }
}

/// What rows of a Megatron dataset are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Each stored sequence.
    Sequence,
    /// Each document: its sequences laid end to end.
    Document,
}

/// Writes the rows of a source as a Megatron dataset, one document each, and reads them back.
///
/// # Errors
/// Rows that cannot be read, ids that do not fit the type, and what reads back differently.
pub fn to_megatron(
    source: &dyn Source,
    prefix: &Path,
    token_type: TokenType,
    append_eod: Option<i32>,
    overwrite: bool,
    progress: Progress<'_>,
) -> Result<Written, PrepareError> {
    let mut writer = IndexedWriter::create(prefix, token_type, overwrite)?;
    let mut tokens = Vec::new();
    let n = source.num_samples();
    for id in 0..n {
        row(source, id, &mut tokens)?;
        tokens.extend(append_eod);
        writer.add_document(&tokens)?;
        if id.is_multiple_of(1024) && !progress("writing", id, n) {
            return Err(PrepareError::Cancelled(NOTHING_WRITTEN));
        }
    }
    let written = writer.finish()?;
    let copy = IndexedDataset::open(prefix, Check::Full)?;
    verify(n, progress, |id| {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        row(source, id, &mut before)?;
        before.extend(append_eod);
        row(&copy, id, &mut after)?;
        Ok(Fingerprint::of_sample(&before) == Fingerprint::of_sample(&after))
    })?;
    Ok(written)
}

struct MegatronRows<'a> {
    data: &'a IndexedDataset,
    unit: Unit,
}

impl MegatronRows<'_> {
    fn sequences(&self, i: u64) -> Result<std::ops::Range<u64>, PrepareError> {
        Ok(match self.unit {
            Unit::Sequence => i..i + 1,
            Unit::Document => self.data.sequences_of(i)?,
        })
    }
}

impl Rows for MegatronRows<'_> {
    fn len(&self) -> u64 {
        match self.unit {
            Unit::Sequence => self.data.index().num_sequences(),
            Unit::Document => self.data.index().num_documents(),
        }
    }

    fn tokens(&self) -> u64 {
        self.data.totals().map_or(0, |totals| totals.tokens)
    }

    fn push(&self, i: u64, out: &mut Vec<i32>) -> Result<(), PrepareError> {
        let mut tokens = Vec::new();
        for sequence in self.sequences(i)? {
            row(self.data, sequence, &mut tokens)?;
            out.extend_from_slice(&tokens);
        }
        Ok(())
    }
}

/// Writes a Megatron dataset as a saved Hugging Face folder and reads it back. Returns rows and files.
///
/// # Errors
/// Sequences that cannot be read, a folder that is there already, and what reads back differently.
pub fn to_saved_folder(
    data: &IndexedDataset,
    unit: Unit,
    folder: &Path,
    overwrite: bool,
    progress: Progress<'_>,
) -> Result<(u64, Vec<PathBuf>), PrepareError> {
    data.validate()?;
    if let t @ (TokenType::F32 | TokenType::F64) = data.index().token_type() {
        return Err(PrepareError::Options(format!(
            "{}: its dtype is {}, and token ids are whole numbers: it holds no tokens to convert; write the dataset anew \
             with an integer dtype",
            bin_path(data.prefix()).display(),
            t.name()
        )));
    }
    if folder.exists() && !overwrite {
        return Err(PrepareError::Options(format!(
            "{} exists already; choose another name, or ask for overwriting",
            folder.display()
        )));
    }
    let work = with_suffix(folder, ".converting");
    if let Some(parent) = folder.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(|e| PrepareError::io(parent, "create the folder", e))?;
    }
    let rows = MegatronRows { data, unit };
    let n = rows.len();
    let written = save_to_disk::write(&rows, num_shards(n, rows.tokens(), 1), &work, folder, progress);
    if written.is_err() {
        // Half a folder is of no use to anyone; the error that led here is the one to report.
        let _ = fs::remove_dir_all(&work);
    }
    let names = written.map_err(|error| match error {
        PrepareError::Stopped => PrepareError::Cancelled(NOTHING_WRITTEN),
        error => error,
    })?;
    let copy = HfSource::open(folder, &SourceOptions::default())?;
    if copy.num_samples() != n {
        return Err(PrepareError::Verification(format!(
            "{} of {n} rows read back",
            copy.num_samples()
        )));
    }
    verify(n, progress, |id| {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        rows.push(id, &mut before)?;
        row(&copy, id, &mut after)?;
        Ok(Fingerprint::of_sample(&before) == Fingerprint::of_sample(&after))
    })?;
    Ok((n, names.into_iter().map(|name| folder.join(name)).collect()))
}

fn verify(
    rows: u64,
    progress: Progress<'_>,
    same: impl Fn(u64) -> Result<bool, PrepareError> + Sync,
) -> Result<(), PrepareError> {
    let mut start = 0;
    while start < rows {
        let end = (start + BLOCK).min(rows);
        let bad = (start..end).into_par_iter().find_map_first(|id| match same(id) {
            Ok(true) => None,
            Ok(false) => Some(PrepareError::Verification(format!(
                "row {id} reads back with other tokens"
            ))),
            Err(e) => Some(e),
        });
        if let Some(error) = bad {
            return Err(error);
        }
        start = end;
        if !progress("verifying", start, rows) {
            return Err(PrepareError::Cancelled(
                "what was written stays, not wholly verified",
            ));
        }
    }
    Ok(())
}
