//! A lock beside what is being built.

use std::fs::{self, File};
use std::path::PathBuf;

/// Lets one process build at a time. Advisory: a file system without locks costs double work, nothing else.
pub(super) struct Lock {
    pub(super) path: PathBuf,
    pub(super) file: Option<File>,
    /// Another process held it: what it built may be there now.
    pub(super) waited: bool,
}

impl Lock {
    pub(super) fn take(path: PathBuf) -> Self {
        let Ok(file) = File::create(&path) else {
            return Lock {
                path,
                file: None,
                waited: false,
            };
        };
        let waited = match file.try_lock() {
            Ok(()) => false,
            Err(fs::TryLockError::WouldBlock) => file.lock().is_ok(),
            Err(fs::TryLockError::Error(_)) => {
                return Lock {
                    path,
                    file: None,
                    waited: false,
                };
            }
        };
        Lock {
            path,
            file: Some(file),
            waited,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever waits on the unlinked file goes on to look for what was built; a newcomer makes a new one.
        let _ = fs::remove_file(&self.path);
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}
