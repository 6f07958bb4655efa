//! Index arrays that lie in memory or in a mapped file.
//!
//! A built index is a vector; one from a cache stays on disk, and a second start reads only what it looks up.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// Values of an index, wherever they lie.
pub trait IndexArray<T>: Send + Sync {
    /// Number of values.
    fn len(&self) -> u64;
    /// True without a value.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Value `i`; `None` past the end, or when a file under it can no longer be read.
    fn get(&self, i: u64) -> Option<T>;
    /// All values, where they lie in memory.
    fn as_slice(&self) -> Option<&[T]> {
        None
    }
    /// The file the values lie in; `None` in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
}

impl<T: Copy + Send + Sync> IndexArray<T> for Vec<T> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn get(&self, i: u64) -> Option<T> {
        self.as_slice().get(usize::try_from(i).ok()?).copied()
    }

    fn as_slice(&self) -> Option<&[T]> {
        Some(self)
    }
}

/// An [`IndexArray`] that is either built in memory or lies in a mapped file; cloning shares it.
pub struct SharedArray<T>(Arc<dyn IndexArray<T>>);

impl<T> SharedArray<T> {
    /// Shares an array.
    pub fn new(array: impl IndexArray<T> + 'static) -> Self {
        SharedArray(Arc::new(array))
    }
}

impl<T> Clone for SharedArray<T> {
    fn clone(&self) -> Self {
        SharedArray(Arc::clone(&self.0))
    }
}

impl<T> Deref for SharedArray<T> {
    type Target = dyn IndexArray<T>;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl<T> fmt::Debug for SharedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} values]", self.len())
    }
}

/// Indices of samples, 32 or 64 bits wide.
#[derive(Clone, Debug)]
pub enum Indices {
    /// 32-bit entries.
    Narrow(SharedArray<u32>),
    /// 64-bit entries.
    Wide(SharedArray<u64>),
}

impl Indices {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        match self {
            Indices::Narrow(v) => v.len(),
            Indices::Wide(v) => v.len(),
        }
    }

    /// True without an entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file the entries lie in; `None` in memory.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Indices::Narrow(v) => v.file(),
            Indices::Wide(v) => v.file(),
        }
    }

    /// Entry `i`, `None` past the end.
    pub fn get(&self, i: u64) -> Option<u64> {
        match self {
            Indices::Narrow(v) => v.get(i).map(u64::from),
            Indices::Wide(v) => v.get(i),
        }
    }

    /// All entries in order. Stops early when a file under them can no longer be read.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map_while(|i| self.get(i))
    }
}
