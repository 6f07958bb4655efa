//! Sources over real and broken files: every layout reads the same tokens, everything else is one clear
//! error.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod any_bytes;
mod arrow_layouts;
mod bad_input;
mod changing_files;
mod decoded;
mod groups;
mod inspect;
mod mutated;
mod row_lengths;

use std::path::Path;

use ceteris_loader::source::{HfSource, Source, SourceOptions};

/// The message of a failed open.
fn refusal(path: &Path, options: &SourceOptions) -> String {
    match HfSource::open(path, options) {
        Ok(source) => panic!("{} was opened: {source:?}", path.display()),
        Err(e) => e.to_string(),
    }
}

/// All rows.
fn read_all(source: &dyn Source) -> Vec<Vec<i64>> {
    let rows = (0..source.num_samples()).map(|id| ceteris_tests::tokens::row(source, id));
    rows.map(|row| row.unwrap().into_iter().map(i64::from).collect())
        .collect()
}

/// Every text is part of the message.
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no \"{part}\" in: {message}");
    }
}
