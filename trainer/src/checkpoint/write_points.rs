//! Every act of writing a checkpoint, numbered, so that a test can kill the process at each of them.
//!
//! A write point is a `write`, an `fsync`, a `rename` or a removal. With the environment variable
//! `CETERIS_TEST_KILL_AT_WRITE=n` the process sends itself SIGKILL right before its n-th write point (from 1); a write
//! is then half done first, as a crash would leave it. Without the variable this costs one comparison.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static DONE: AtomicU64 = AtomicU64::new(0);

fn limit() -> Option<u64> {
    static LIMIT: OnceLock<Option<u64>> = OnceLock::new();
    *LIMIT.get_or_init(|| std::env::var("CETERIS_TEST_KILL_AT_WRITE").ok()?.parse().ok())
}

/// True when the process must die at this point.
fn reached() -> bool {
    limit().is_some_and(|limit| DONE.fetch_add(1, Ordering::SeqCst) + 1 == limit)
}

fn die() -> ! {
    // SAFETY: `kill` with this process's own id and a valid signal number touches no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}

/// Points passed so far, while a limit is set.
pub fn passed() -> u64 {
    DONE.load(Ordering::SeqCst)
}

/// A file whose writes are write points.
#[derive(Debug)]
pub(super) struct PointFile(File);

impl PointFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        point()?;
        File::create(path).map(PointFile)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        point()?;
        self.0.sync_all()
    }
}

impl Write for PointFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if reached() {
            // Best effort: the half a crash leaves behind.
            let _ = self.0.write(&bytes[..bytes.len() / 2]);
            die();
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn point() -> io::Result<()> {
    if reached() {
        die();
    }
    Ok(())
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    point()?;
    fs::rename(from, to)
}

pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    point()?;
    File::open(path)?.sync_all()
}

/// Removes a folder file by file, each a write point.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        point()?;
        if entry.file_type()?.is_dir() {
            remove_folder(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    point()?;
    fs::remove_dir(path)
}
