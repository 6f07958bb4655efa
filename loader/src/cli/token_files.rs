//! Token files as sides of a comparison: rows or documents in stored sequence.

use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::Geometry;

use super::failure::Failure;
use crate::diff::layout::Seat;
use crate::diff::side::{Side, TokenRows};
use crate::index::npy::NpyFile;
use crate::source::Source;

/// A source's rows as a side.
///
/// # Errors
/// More rows than a comparison can number.
pub fn stored(
    path: PathBuf,
    source: Arc<dyn Source>,
    seq_length: Option<usize>,
    identity: String,
    layout: Geometry,
) -> Result<Side, Failure> {
    // Rows of a token file stand as a run's global batches do: a micro-batch for each rank in turn.
    let seats: Vec<Seat> = (0..layout.world_size)
        .flat_map(|rank| {
            (0..layout.micro_batch_size).map(move |slot| Seat {
                rank: rank as u32,
                slot: slot as u32,
            })
        })
        .collect();
    Ok(Side::of_stored(
        path.display().to_string(),
        source,
        seq_length,
        identity,
        &seats,
    )?)
}

/// Rows of tokens in an `.npy` file of shape (rows, tokens).
///
/// # Errors
/// What is wrong with the file.
pub fn array(path: PathBuf, layout: Geometry) -> Result<Side, Failure> {
    let file = NpyFile::open(&path)?;
    let shape = file.header().shape.clone();
    let [rows, width] = shape[..] else {
        return Err(Failure::new(format!(
            "{}: an array of shape {shape:?}",
            path.display()
        ))
        .fix("token files have the shape (rows, tokens); a list of row numbers is compared with file,path=FILE"));
    };
    let width = usize::try_from(width).map_err(|_| Failure::new("rows are too long"))?;
    let mut tokens: Vec<Vec<i32>> = Vec::new();
    let mut row = Vec::with_capacity(width.min(1 << 20));
    let mut bad = None;
    file.for_each(|value| {
        if bad.is_none() {
            match i32::try_from(value) {
                Ok(token) => row.push(token),
                Err(_) => bad = Some((tokens.len(), row.len(), value)),
            }
        }
        if row.len() == width {
            tokens.push(std::mem::take(&mut row));
        }
    })?;
    if let Some((row, at, value)) = bad {
        return Err(Failure::new(format!(
            "{}: row {row}, position {at}: {value} is no token id",
            path.display()
        )));
    }
    if tokens.len() as u64 != rows {
        return Err(Failure::new(format!(
            "{}: {} rows of {width} tokens, {rows} were promised",
            path.display(),
            tokens.len()
        )));
    }
    let identity = path.display().to_string();
    let source: Arc<dyn Source> = Arc::new(TokenRows {
        path: path.clone(),
        rows: tokens,
    });
    stored(path, source, None, identity, layout)
}
