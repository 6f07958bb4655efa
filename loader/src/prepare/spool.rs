//! All documents of a job in one file, in the order they came: what a shuffled order reads at random.
//!
//! `texts` holds the documents end to end, `offsets` where each starts and where the last ends (u64). Both are complete
//! once `texts.done` is there; an interrupted spool is made anew.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{PrepareError, Progress, texts};
use crate::atomic;
use crate::source::mapped::MappedFile;

/// A finished spool.
#[derive(Debug)]
pub(super) struct Spool {
    texts: MappedFile,
    offsets: MappedFile,
    documents: u64,
}

impl Spool {
    /// Opens the spool in `folder`, making it from `inputs` if it is not complete.
    pub(super) fn open_or_make(
        folder: &Path,
        inputs: &[PathBuf],
        column: &str,
        longest: usize,
        progress: Progress<'_>,
    ) -> Result<Self, PrepareError> {
        let done = folder.join("texts.done");
        if !done.is_file() {
            make(folder, inputs, column, longest, progress)?;
            atomic::write(&done, b"").map_err(|e| PrepareError::io(&done, "write", e))?;
        }
        let map = |name: &str| -> Result<MappedFile, PrepareError> {
            let path = folder.join(name);
            let file = File::open(&path).map_err(|e| PrepareError::io(&path, "open", e))?;
            Ok(MappedFile::new(&path, &file)?)
        };
        let (texts, offsets) = (map("texts")?, map("offsets")?);
        let documents = (offsets.len() / 8).saturating_sub(1);
        let spool = Spool {
            texts,
            offsets,
            documents,
        };
        if spool.offset(documents)? != spool.texts.len() {
            return Err(PrepareError::Options(format!(
                "{}: damaged; delete the folder and start again",
                folder.display()
            )));
        }
        Ok(spool)
    }

    pub(super) fn len(&self) -> u64 {
        self.documents
    }

    fn offset(&self, i: u64) -> Result<u64, PrepareError> {
        let mut bytes = [0; 8];
        self.offsets.copy(8 * i, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Where document `i` lies in the texts.
    fn range(&self, i: u64) -> Result<Range<u64>, PrepareError> {
        let (start, end) = (self.offset(i)?, self.offset(i + 1)?);
        if start > end || end > self.texts.len() {
            return Err(self.damaged(i));
        }
        Ok(start..end)
    }

    fn damaged(&self, i: u64) -> PrepareError {
        PrepareError::Text {
            path: self.offsets.path().to_owned(),
            place: format!("document {i}"),
            problem: "damaged; start over with --restart".to_owned(),
        }
    }

    /// Bytes of document `i`.
    pub(super) fn size(&self, i: u64) -> Result<u64, PrepareError> {
        self.range(i).map(|range| range.end - range.start)
    }

    /// Document `i`.
    pub(super) fn text(&self, i: u64) -> Result<String, PrepareError> {
        let range = self.range(i)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.texts.copy(range.start, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.damaged(i))
    }
}

fn make(
    folder: &Path,
    inputs: &[PathBuf],
    column: &str,
    longest: usize,
    progress: Progress<'_>,
) -> Result<(), PrepareError> {
    let (texts_path, offsets_path) = (folder.join("texts"), folder.join("offsets"));
    let create = |path: &Path| -> Result<BufWriter<File>, PrepareError> {
        let file = File::create(path).map_err(|e| PrepareError::io(path, "create", e))?;
        Ok(BufWriter::with_capacity(1 << 20, file))
    };
    let (mut texts, mut offsets) = (create(&texts_path)?, create(&offsets_path)?);
    let size = |path: &PathBuf| {
        fs::metadata(path)
            .map(|m| m.len())
            .map_err(|e| PrepareError::io(path, "examine", e))
    };
    let total: u64 = inputs.iter().map(size).sum::<Result<u64, _>>()?;
    let write_texts = |e| PrepareError::io(&texts_path, "write", e);
    let write_offsets = |e| PrepareError::io(&offsets_path, "write", e);
    let (mut at, mut before) = (0u64, 0u64);
    offsets.write_all(&at.to_le_bytes()).map_err(write_offsets)?;
    // Told after every so many documents too: one batch of a file may hold very many.
    let read_so_far = Cell::new(0);
    let go_on = || match progress("reading", read_so_far.get(), total) {
        true => Ok(()),
        false => Err(PrepareError::Stopped),
    };
    let mut documents = 0u64;
    for path in inputs {
        texts::for_each_text(
            path,
            column,
            longest,
            &mut |read| {
                read_so_far.set(before + read);
                go_on()
            },
            &mut |text| {
                at += text.len() as u64;
                texts.write_all(text.as_bytes()).map_err(write_texts)?;
                offsets.write_all(&at.to_le_bytes()).map_err(write_offsets)?;
                documents += 1;
                if documents.is_multiple_of(1024) {
                    go_on()
                } else {
                    Ok(())
                }
            },
        )?;
        before += size(path)?;
    }
    for (file, path) in [(texts, &texts_path), (offsets, &offsets_path)] {
        let file = file
            .into_inner()
            .map_err(|e| PrepareError::io(path, "write", e.into_error()))?;
        file.sync_all().map_err(|e| PrepareError::io(path, "sync", e))?;
    }
    Ok(())
}
