//! A read-only memory map of one file that knows what the file looked like when it was opened.
//!
//! Bytes are only ever copied out, never lent as slices: another process may change the file at any time. The
//! descriptor is closed after mapping (thousands of shards stay within any descriptor limit), so later checks
//! go by path: a path that now names another inode, or nothing, leaves the mapped bytes as they were and is
//! no error.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};

use super::SourceError;
use super::sigbus::Guard;

/// Identity of a file at open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    mtime: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

/// A mapped file. Dropping it unmaps.
pub(crate) struct MappedFile {
    path: PathBuf,
    stamp: Stamp,
    // Dropped before the map it watches.
    guard: Option<Guard>,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl std::fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedFile")
            .field("path", &self.path)
            .field("len", &self.stamp.len)
            .finish()
    }
}

impl MappedFile {
    /// Maps `file`, which was opened from `path`. Costs no read and no memory beyond page tables.
    ///
    /// # Errors
    /// [`SourceError::Io`] when the file cannot be examined or mapped.
    pub(crate) fn new(path: &Path, file: &File) -> Result<Self, SourceError> {
        let meta = file.metadata().map_err(|e| SourceError::io(path, "examine", e))?;
        let stamp = Stamp::of(&meta);
        let len = usize::try_from(stamp.len)
            .map_err(|_| SourceError::corrupt(path, "is larger than this machine's address space"))?;
        if len == 0 {
            return Ok(Self {
                path: path.to_owned(),
                stamp,
                guard: None,
                map: None,
            });
        }
        // SAFETY: the map is read through `copy` and `copy_from` only, which tolerate concurrent changes by
        // copying and vanishing pages by the guard.
        let map = unsafe { Mmap::map(file) }.map_err(|e| SourceError::io(path, "map", e))?;
        // Shuffled reads: the kernel's read-around would fetch 16 times what one row needs. Sequential
        // page-in is asked for explicitly through `will_need`. Advice may fail without harm.
        let _ = map.advise(Advice::Random);
        let guard = Guard::new(map.as_ptr(), len);
        Ok(Self {
            path: path.to_owned(),
            stamp,
            guard: Some(guard),
            map: Some(map),
        })
    }

    /// Length in bytes at open.
    pub(crate) fn len(&self) -> u64 {
        self.stamp.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Start of the bytes `at..at + len`, `None` when they are not inside the file as it was opened. The
    /// memory may change or vanish at any time: read it by copying, and ask [`Self::check_lost`] afterwards.
    #[inline]
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Option<*const u8> {
        let end = at.checked_add(len)?;
        let map = self.map.as_ref()?;
        if end > map.len() as u64 {
            return None;
        }
        // `at` fits: it is at most the map's length.
        Some(map.as_ptr().wrapping_add(at as usize))
    }

    /// Copies `out.len()` bytes from `at`.
    ///
    /// # Errors
    /// [`SourceError::Changed`] when they are outside the file or lost.
    pub(crate) fn copy(&self, at: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if out.is_empty() {
            return Ok(());
        }
        let from = self
            .bytes(at, out.len() as u64)
            .ok_or_else(|| self.changed("it is shorter than at open"))?;
        // SAFETY: `bytes` checked the range, and `out` is ours, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        self.check_lost()
    }

    /// An error when a page of the map was lost since it was opened.
    ///
    /// # Errors
    /// [`SourceError::Changed`].
    #[inline]
    pub(crate) fn check_lost(&self) -> Result<(), SourceError> {
        match &self.guard {
            Some(guard) if guard.lost() => Err(self.lost_error()),
            _ => Ok(()),
        }
    }

    #[cold]
    fn lost_error(&self) -> SourceError {
        match self.check_unchanged() {
            Err(e) => e,
            Ok(()) => {
                self.changed("pages of it can no longer be read (an I/O error of the disk or file system)")
            }
        }
    }

    /// Compares the file with what it was at open.
    ///
    /// # Errors
    /// [`SourceError::Changed`] with what differs.
    pub(crate) fn check_unchanged(&self) -> Result<(), SourceError> {
        let now = match std::fs::metadata(&self.path) {
            Ok(meta) => Stamp::of(&meta),
            // The name is gone; the mapped bytes are not.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(SourceError::io(&self.path, "examine", e)),
        };
        if (now.device, now.inode) != (self.stamp.device, self.stamp.inode) || now == self.stamp {
            return Ok(());
        }
        if now.len != self.stamp.len {
            return Err(self.changed(&format!(
                "{} bytes at open, {} bytes now",
                self.stamp.len, now.len
            )));
        }
        Err(self.changed(&format!(
            "written to after it was opened (modification time {}.{:09} then, {}.{:09} now)",
            self.stamp.mtime.0, self.stamp.mtime.1, now.mtime.0, now.mtime.1
        )))
    }

    fn changed(&self, problem: &str) -> SourceError {
        SourceError::Changed {
            path: self.path.clone(),
            problem: problem.to_owned(),
        }
    }

    /// Asks the processor for the address translations of `len` bytes from `at`, and with each for the first bytes of its
    /// page; of long ranges only as many as are still there when they are used. Never faults, never reads from disk.
    #[inline]
    pub(crate) fn translate(&self, at: u64, len: u64) {
        if let Some(from) = self.bytes(at, len) {
            // `bytes` checked that the range fits the map, so its length fits an address.
            fetch_page_starts(from, len as usize);
        }
    }

    /// Asks the system to page in `len` bytes from `at`; out-of-range parts are ignored.
    pub(crate) fn will_need(&self, at: u64, len: u64) {
        let Some(map) = &self.map else { return };
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(map.len());
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(map.len() - at);
        if len > 0 {
            let _ = map.advise_range(Advice::WillNeed, at, len);
        }
    }
}

/// Fetches a cache line at the start of the range, at every page in it up to the fourth, and at its end if that lies before.
#[inline(always)]
fn fetch_page_starts(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        const PAGE: usize = 4096;
        const MOST: usize = 4 * PAGE;
        let len = len.min(MOST);
        for at in (0..len).step_by(PAGE).chain(len.checked_sub(1)) {
            // SAFETY: a prefetch reads nothing the program can see and never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> (tempfile::NamedTempFile, MappedFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.flush().unwrap();
        let map = MappedFile::new(file.path(), file.as_file()).unwrap();
        (file, map)
    }

    #[test]
    fn copies_inside_and_refuses_outside() {
        let (_file, map) = file_of(b"0123456789");
        let mut out = [0u8; 4];
        map.copy(6, &mut out).unwrap();
        assert_eq!(&out, b"6789");
        assert!(map.copy(7, &mut out).is_err());
        assert!(map.copy(u64::MAX, &mut out).is_err());
    }

    #[test]
    fn an_empty_file_maps_to_nothing() {
        let (_file, map) = file_of(b"");
        assert!(map.copy(0, &mut [0]).is_err());
        map.copy(0, &mut []).unwrap();
    }

    #[test]
    fn a_file_cut_under_the_map_is_an_error_and_not_a_signal() {
        let (file, map) = file_of(&vec![7u8; 1 << 16]);
        let (_other, untouched) = file_of(&vec![9u8; 1 << 16]);
        let mut out = vec![0u8; 4096];
        map.copy(1 << 15, &mut out).unwrap();
        file.as_file().set_len(4096).unwrap();
        let error = map.copy(1 << 15, &mut out).unwrap_err().to_string();
        assert!(error.contains("65536 bytes at open, 4096 bytes now"), "{error}");
        // Every later read of the map is refused too, also from many threads at once; other maps go on.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut out = vec![0u8; 4096];
                    for at in (0..(1u64 << 16)).step_by(4096) {
                        assert!(map.copy(at, &mut out).is_err());
                    }
                    untouched.copy(0, &mut out).unwrap();
                    assert!(out.iter().all(|&b| b == 9));
                });
            }
        });
    }

    #[test]
    fn a_rewritten_file_is_noticed_and_a_replaced_one_is_harmless() {
        let (file, map) = file_of(&[1u8; 100]);
        map.check_unchanged().unwrap();
        file.as_file().set_len(90).unwrap();
        assert!(
            map.check_unchanged()
                .unwrap_err()
                .to_string()
                .contains("100 bytes at open, 90 bytes now")
        );
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
        map.check_unchanged().unwrap();
        let mut out = [0u8; 10];
        map.copy(0, &mut out).unwrap();
    }
}
