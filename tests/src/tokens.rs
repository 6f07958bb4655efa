//! Reading token rows of recorded datasets, digested as the recordings are.

use std::path::Path;

use ceteris_loader::source::{HfSource, Source, SourceOptions};

use crate::golden::sha256_i32;

/// Opens a dataset with default options.
///
/// # Errors
/// The source's own message.
pub fn open(dir: &Path) -> Result<HfSource, String> {
    HfSource::open(dir, &SourceOptions::default()).map_err(|e| e.to_string())
}

/// All tokens of a sample.
///
/// # Errors
/// The source's own message, or a read shorter than the row.
pub fn row(source: &dyn Source, id: u64) -> Result<Vec<i32>, String> {
    let len = source.sample_len(id).map_err(|e| e.to_string())?;
    let mut tokens = vec![-1; len];
    let read = source.read(id, &mut tokens).map_err(|e| e.to_string())?;
    if read == len {
        Ok(tokens)
    } else {
        Err(format!("sample {id}: {read} of {len} tokens read"))
    }
}

/// SHA-256 over the tokens of the samples in the sequence given, as little-endian i32: the recordings' block
/// and stream hash.
///
/// # Errors
/// As [`row`].
pub fn sha256_of_rows(source: &dyn Source, ids: impl IntoIterator<Item = u64>) -> Result<String, String> {
    let mut tokens = Vec::new();
    for id in ids {
        tokens.extend(row(source, id)?);
    }
    Ok(sha256_i32(&tokens))
}
