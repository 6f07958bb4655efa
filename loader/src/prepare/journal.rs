//! How far a job got: a small file replaced after each unit of work, and the output cut back to it at the next start.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::PrepareError;
use crate::atomic;

/// Counters of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Documents tokenized.
    pub documents: u64,
    /// Of these, documents that came to no token at all.
    pub empty_documents: u64,
    /// Tokens of all documents.
    pub tokens: u64,
    /// Tokens left over behind the last whole row of each batch.
    pub dropped_tail_tokens: u64,
    /// Rows (samples) made; documents written for Megatron.
    pub rows: u64,
}

/// State of an unfinished job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    format: u32,
    /// Hash of everything that decides the output.
    job: String,
    units: u64,
    tokens_bytes: u64,
    lengths_bytes: u64,
    counts: Counts,
}

const FORMAT: u32 = 1;

/// The output of a job in the making.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    entry: Entry,
    tokens: File,
    lengths: File,
    folder: PathBuf,
}

impl Journal {
    /// Opens the job in `folder`: a new one, or where it stood.
    pub(super) fn open(folder: &Path, job: &str) -> Result<Self, PrepareError> {
        let path = folder.join("progress.json");
        let fresh = Entry {
            format: FORMAT,
            job: job.to_owned(),
            units: 0,
            tokens_bytes: 0,
            lengths_bytes: 0,
            counts: Counts::default(),
        };
        let entry = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Entry>(&bytes) {
                Ok(entry) if entry.format == FORMAT && entry.job == job => entry,
                _ => {
                    return Err(PrepareError::Options(format!(
                        "{} holds an unfinished job with other inputs or options; finish that one, give another \
                         --out, or start over with --restart",
                        folder.display()
                    )));
                }
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => fresh,
            Err(e) => return Err(PrepareError::io(&path, "read", e)),
        };
        let open = |name: &str, bytes: u64| -> Result<File, PrepareError> {
            let path = folder.join(name);
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| PrepareError::io(&path, "open", e))?;
            let there = file
                .metadata()
                .map_err(|e| PrepareError::io(&path, "examine", e))?
                .len();
            if there < bytes {
                return Err(PrepareError::Options(format!(
                    "{} has {there} bytes, the journal speaks of {bytes}; start over with --restart",
                    path.display()
                )));
            }
            // What a killed run wrote after its last entry is written again.
            file.set_len(bytes)
                .map_err(|e| PrepareError::io(&path, "cut back", e))?;
            Ok(file)
        };
        let tokens = open("tokens", entry.tokens_bytes)?;
        let lengths = open("lengths", entry.lengths_bytes)?;
        let journal = Journal {
            path,
            entry,
            tokens,
            lengths,
            folder: folder.to_owned(),
        };
        journal.save()?;
        Ok(journal)
    }

    /// Units of work done.
    pub(super) fn units(&self) -> u64 {
        self.entry.units
    }

    /// Counters so far.
    pub(super) fn counts(&self) -> Counts {
        self.entry.counts
    }

    /// File of the tokens written.
    pub(super) fn tokens_path(&self) -> PathBuf {
        self.folder.join("tokens")
    }

    /// File of the lengths written.
    pub(super) fn lengths_path(&self) -> PathBuf {
        self.folder.join("lengths")
    }

    /// Adds a unit's output and makes it permanent.
    pub(super) fn add(&mut self, tokens: &[u8], lengths: &[u8], counts: Counts) -> Result<(), PrepareError> {
        let write = |file: &mut File, bytes: &[u8], path: PathBuf| -> Result<(), PrepareError> {
            file.write_all(bytes)
                .map_err(|e| PrepareError::io(&path, "write", e))?;
            file.sync_data().map_err(|e| PrepareError::io(&path, "sync", e))
        };
        write(&mut self.tokens, tokens, self.folder.join("tokens"))?;
        write(&mut self.lengths, lengths, self.folder.join("lengths"))?;
        self.entry.units += 1;
        self.entry.tokens_bytes += tokens.len() as u64;
        self.entry.lengths_bytes += lengths.len() as u64;
        self.entry.counts = counts;
        self.save()
    }

    fn save(&self) -> Result<(), PrepareError> {
        let text = serde_json::to_vec_pretty(&self.entry).unwrap_or_default();
        atomic::write(&self.path, &text).map_err(|e| PrepareError::io(&self.path, "write", e))
    }
}
