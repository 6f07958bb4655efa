//! Files that are either there as a whole or not at all.
//!
//! A file is written under a temporary name in its target's folder, synced, and renamed; then the folder is synced. A
//! writer that is killed leaves a `.ceteris-*.part` file behind, which nothing ever reads.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// The folder a target lies in.
pub(crate) fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A temporary file beside `target`, with the permissions a new file gets.
///
/// # Errors
/// What the operating system says.
pub(crate) fn begin(target: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".ceteris-")
        .suffix(".part")
        // The process's umask applies, as to any new file; without this the file would be its owner's alone.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(target))
}

/// Gives a finished file its name.
///
/// # Errors
/// What the operating system says; an older file of that name is then still there.
pub(crate) fn commit(file: NamedTempFile, target: &Path) -> io::Result<()> {
    name(file, target)?;
    File::open(folder_of(target))?.sync_all()
}

/// As [`commit`], but a crash of the machine may still take the name away: for files that mean nothing until another one
/// of the same folder is committed, which makes all names of the folder last.
///
/// # Errors
/// What the operating system says; an older file of that name is then still there.
pub(crate) fn name(file: NamedTempFile, target: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(target).map_err(|e| e.error)?;
    Ok(())
}

/// Writes a small file as a whole.
///
/// # Errors
/// What the operating system says.
pub fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = begin(target)?;
    io::Write::write_all(&mut file, bytes)?;
    commit(file, target)
}
