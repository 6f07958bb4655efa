//! Fingerprint of a dataset's files, definition 1: finds other data, other shards, and rewritten files.
//!
//! - File: BLAKE3 over its bytes. Mode `full` takes all of them; mode `sampled` takes files of up to 1 MiB
//!   whole, and of larger ones the 16 blocks of 65536 bytes at offsets `i * (length - 65536) / 15` (integer
//!   division), i = 0 to 15.
//! - Dataset: BLAKE3 over the text `ceteris dataset 1`, a zero byte, the mode's name, a zero byte, then for
//!   each file in order: the length of its name in bytes (u64), the name without folders (UTF-8), its length
//!   in bytes (u64) and its 32-byte hash. Integers are little-endian.
//!
//! Sampled costs 1 MiB of reads per file and sees every change of length and any rewrite that is not confined
//! to unread blocks; full sees every bit. Folders, times and owners are left out, so a copied dataset keeps
//! its fingerprint.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::SourceError;

const BLOCK: u64 = 65536;
const BLOCKS: u64 = 16;

/// How much of each file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FingerprintMode {
    /// 1 MiB per file.
    #[default]
    Sampled,
    /// Every byte.
    Full,
}

impl fmt::Display for FingerprintMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FingerprintMode {
    fn name(self) -> &'static str {
        match self {
            Self::Sampled => "sampled",
            Self::Full => "full",
        }
    }
}

/// One file of a [`DatasetFingerprint`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileFingerprint {
    /// Name without folders.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// BLAKE3, 64 hex digits.
    pub hash: String,
}

/// Fingerprint of the files of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetFingerprint {
    /// How much was read.
    pub mode: FingerprintMode,
    /// BLAKE3 over mode and files, 64 hex digits.
    pub hash: String,
    /// In dataset order.
    pub files: Vec<FileFingerprint>,
}

impl fmt::Display for DatasetFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hash)
    }
}

impl DatasetFingerprint {
    /// Reads the files and computes the fingerprint; `progress` is told how many bytes were hashed since it
    /// was last called.
    ///
    /// # Errors
    /// [`SourceError::Io`] for a file that cannot be read, [`SourceError::Changed`] for one that shrinks
    /// meanwhile.
    pub fn compute(
        paths: &[PathBuf],
        mode: FingerprintMode,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, SourceError> {
        let slots: Vec<Mutex<Option<Result<FileFingerprint, SourceError>>>> =
            paths.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism()
            .map_or(1, |n| n.get().min(8))
            .min(paths.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((path, slot)) = {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        paths.get(i).zip(slots.get(i))
                    } {
                        let one = file_fingerprint(path, mode, progress);
                        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(one);
                    }
                });
            }
        });
        let files = slots
            .into_iter()
            .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of_files(mode, files))
    }

    /// Puts file hashes together.
    pub fn of_files(mode: FingerprintMode, files: Vec<FileFingerprint>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"ceteris dataset 1\0");
        hasher.update(mode.name().as_bytes());
        hasher.update(&[0]);
        for file in &files {
            hasher.update(&(file.name.len() as u64).to_le_bytes());
            hasher.update(file.name.as_bytes());
            hasher.update(&file.len.to_le_bytes());
            match blake3::Hash::from_hex(&file.hash) {
                Ok(hash) => hasher.update(hash.as_bytes()),
                // A hash that is none cannot equal a computed one.
                Err(_) => hasher.update(file.hash.as_bytes()),
            };
        }
        Self {
            mode,
            hash: hasher.finalize().to_hex().to_string(),
            files,
        }
    }

    /// The first difference from `recorded` to `self`, as a sentence naming the file; `None` when they agree.
    /// Fingerprints of different modes are compared by names and lengths only, and said to be uncertain when
    /// those agree.
    pub fn difference(&self, recorded: &Self) -> Option<String> {
        let same_mode = self.mode == recorded.mode;
        for (i, old) in recorded.files.iter().enumerate() {
            let Some(new) = self.files.get(i) else {
                return Some(format!(
                    "{} of {} recorded files are there; {} is the first one missing",
                    self.files.len(),
                    recorded.files.len(),
                    old.name
                ));
            };
            if old.name != new.name {
                return Some(format!("file {i} is {}, recorded was {}", new.name, old.name));
            }
            if old.len != new.len {
                return Some(format!(
                    "{} has {} bytes, recorded were {}",
                    new.name, new.len, old.len
                ));
            }
            if same_mode && old.hash != new.hash {
                return Some(format!(
                    "{} has other content than recorded ({} bytes both; BLAKE3 of the {} bytes {}… now, {}… then)",
                    new.name,
                    new.len,
                    self.mode.name(),
                    new.hash.get(..16).unwrap_or(&new.hash),
                    old.hash.get(..16).unwrap_or(&old.hash)
                ));
            }
        }
        if let Some(extra) = self.files.get(recorded.files.len()) {
            return Some(format!(
                "{} files are there, {} were recorded; {} is the first one more",
                self.files.len(),
                recorded.files.len(),
                extra.name
            ));
        }
        if !same_mode {
            return Some(format!(
                "recorded with mode {}, computed with mode {}: names and lengths agree, contents cannot be compared",
                recorded.mode.name(),
                self.mode.name()
            ));
        }
        (self.hash != recorded.hash)
            .then(|| "the files agree one by one, the recorded hash over them does not".to_owned())
    }
}

/// The part of the bytes that `mode` reads of a file of `len` bytes, as (offset, length).
fn blocks(len: u64, mode: FingerprintMode) -> Vec<(u64, u64)> {
    if mode == FingerprintMode::Full || len <= BLOCK * BLOCKS {
        return vec![(0, len)];
    }
    (0..BLOCKS)
        .map(|i| {
            let at = u128::from(i) * u128::from(len - BLOCK) / u128::from(BLOCKS - 1);
            (at as u64, BLOCK)
        })
        .collect()
}

pub(crate) fn file_fingerprint(
    path: &Path,
    mode: FingerprintMode,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<FileFingerprint, SourceError> {
    let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
    let len = file
        .metadata()
        .map_err(|e| SourceError::io(path, "examine", e))?
        .len();
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; (1 << 20).min(len.max(1)) as usize];
    for (mut at, mut left) in blocks(len, mode) {
        while left > 0 {
            let n = left.min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..n], at)
                .map_err(|e| match e.kind() {
                    std::io::ErrorKind::UnexpectedEof => SourceError::Changed {
                        path: path.to_owned(),
                        problem: format!("it had {len} bytes and became shorter while it was read"),
                    },
                    _ => SourceError::io(path, format!("read at byte {at}"), e),
                })?;
            hasher.update(&buffer[..n]);
            progress(n as u64);
            at += n as u64;
            left -= n as u64;
        }
    }
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(FileFingerprint {
        name,
        len,
        hash: hasher.finalize().to_hex().to_string(),
    })
}

/// Bytes that [`DatasetFingerprint::compute`] will hash, for progress bars.
///
/// # Errors
/// [`SourceError::Io`] for a file that cannot be examined.
pub fn bytes_to_hash(paths: &[PathBuf], mode: FingerprintMode) -> Result<u64, SourceError> {
    paths.iter().try_fold(0u64, |sum, path| {
        let len = std::fs::metadata(path)
            .map_err(|e| SourceError::io(path, "examine", e))?
            .len();
        Ok(sum + blocks(len, mode).iter().map(|(_, n)| n).sum::<u64>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let paths = files
            .iter()
            .map(|(name, bytes)| {
                let path = dir.path().join(name);
                std::fs::write(&path, bytes).unwrap();
                path
            })
            .collect();
        (dir, paths)
    }

    fn big(seed: u8) -> Vec<u8> {
        (0..3_000_001u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed)
            .collect()
    }

    #[test]
    fn the_definition_holds() {
        let (_dir, paths) = folder(&[("a.arrow", b"abc".to_vec()), ("b.arrow", big(1))]);
        let print = DatasetFingerprint::compute(&paths, FingerprintMode::Sampled, &|_| {}).unwrap();
        // The same bytes, put together by hand as the file head says.
        let bytes = big(1);
        let mut sample = Vec::new();
        for i in 0..16usize {
            let at = i * (bytes.len() - 65536) / 15;
            sample.extend_from_slice(&bytes[at..at + 65536]);
        }
        let mut whole = b"ceteris dataset 1\0sampled\0".to_vec();
        for (name, len, hash) in [
            ("a.arrow", 3u64, blake3::hash(b"abc")),
            ("b.arrow", bytes.len() as u64, blake3::hash(&sample)),
        ] {
            whole.extend((name.len() as u64).to_le_bytes());
            whole.extend(name.bytes());
            whole.extend(len.to_le_bytes());
            whole.extend(hash.as_bytes());
        }
        assert_eq!(print.hash, blake3::hash(&whole).to_hex().to_string());
        let full = DatasetFingerprint::compute(&paths, FingerprintMode::Full, &|_| {}).unwrap();
        assert_eq!(full.files[1].hash, blake3::hash(&bytes).to_hex().to_string());
        assert_ne!(full.hash, print.hash);
    }

    #[test]
    fn a_mismatch_names_the_first_differing_file() {
        let (_dir, paths) = folder(&[("a", big(1)), ("b", big(2)), ("c", big(3))]);
        let old = DatasetFingerprint::compute(&paths, FingerprintMode::Full, &|_| {}).unwrap();
        assert_eq!(old.difference(&old), None);
        let mut bytes = big(2);
        bytes[1_234_567] ^= 1;
        std::fs::write(&paths[1], &bytes).unwrap();
        let new = DatasetFingerprint::compute(&paths, FingerprintMode::Full, &|_| {}).unwrap();
        assert!(
            new.difference(&old).unwrap().starts_with("b has other content"),
            "{:?}",
            new.difference(&old)
        );
        std::fs::write(&paths[1], &bytes[1..]).unwrap();
        let new = DatasetFingerprint::compute(&paths, FingerprintMode::Full, &|_| {}).unwrap();
        assert_eq!(
            new.difference(&old).unwrap(),
            "b has 3000000 bytes, recorded were 3000001"
        );
        let fewer = DatasetFingerprint::compute(&paths[..1], FingerprintMode::Full, &|_| {}).unwrap();
        assert!(
            fewer
                .difference(&old)
                .unwrap()
                .contains("b is the first one missing")
        );
        assert!(
            old.difference(&fewer)
                .unwrap()
                .contains("b is the first one more")
        );
        let sampled = DatasetFingerprint::compute(&paths[..1], FingerprintMode::Sampled, &|_| {}).unwrap();
        assert!(sampled.difference(&fewer).unwrap().contains("cannot be compared"));
    }

    #[test]
    fn progress_adds_up_and_json_round_trips() {
        let (_dir, paths) = folder(&[("a", big(1)), ("b", vec![]), ("c", vec![1; 70_000])]);
        for mode in [FingerprintMode::Sampled, FingerprintMode::Full] {
            let done = std::sync::atomic::AtomicU64::new(0);
            let print = DatasetFingerprint::compute(&paths, mode, &|n| {
                done.fetch_add(n, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(done.into_inner(), bytes_to_hash(&paths, mode).unwrap());
            let text = serde_json::to_string(&print).unwrap();
            assert_eq!(serde_json::from_str::<DatasetFingerprint>(&text).unwrap(), print);
        }
    }
}
