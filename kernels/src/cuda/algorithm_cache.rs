//! Products' algorithms that were chosen on this machine before, so that every process on it makes the same products with
//! the same bits. One text file per library version and device in the cache folder: `key<TAB>hex`, one a line.

use std::path::PathBuf;

use super::compile::cache_dir;
use super::product::AlgorithmRecord;

fn path(library: &str) -> Option<PathBuf> {
    let name = blake3::hash(library.as_bytes()).to_hex();
    Some(cache_dir()?.join(format!("products-{}.tsv", &name[..16])))
}

/// What is known for this library and device; nothing where there is no file.
pub(super) fn load(library: &str) -> AlgorithmRecord {
    let text = path(library).and_then(|p| std::fs::read_to_string(p).ok());
    let text = text.unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some(library) {
        return AlgorithmRecord::new();
    }
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(key, hex)| (key.to_owned(), hex.to_owned()))
        .collect()
}

/// Adds a record to what was known. A cache that cannot be written is not an error.
pub(super) fn save(library: &str, mut known: AlgorithmRecord, record: &AlgorithmRecord) {
    let before = known.len();
    for (key, hex) in record.iter().filter(|(key, _)| *key != "library") {
        known.entry(key.clone()).or_insert_with(|| hex.clone());
    }
    let Some(path) = path(library).filter(|_| known.len() > before) else {
        return;
    };
    let mut text = format!("{library}\n");
    for (key, hex) in &known {
        text.push_str(&format!("{key}\t{hex}\n"));
    }
    let temp = path.with_extension(format!("{}", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&temp, text))
        .and_then(|()| std::fs::rename(&temp, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temp);
    }
}
