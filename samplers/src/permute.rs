//! Permutations, held as narrow as they fit.

/// A list of indices `0..n` (usually a permutation), stored as u32 while `n < 2^32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permutation {
    /// `0, 1, …, n-1`, not stored.
    Identity(u64),
    /// Four bytes an entry.
    Narrow(Vec<u32>),
    /// Eight bytes an entry, for `n >= 2^32`.
    Wide(Vec<u64>),
}

impl Permutation {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        match self {
            Permutation::Identity(n) => *n,
            Permutation::Narrow(v) => v.len() as u64,
            Permutation::Wide(v) => v.len() as u64,
        }
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entry `i`, `None` past the end.
    pub fn get(&self, i: u64) -> Option<u64> {
        let at = usize::try_from(i).ok()?;
        match self {
            Permutation::Identity(n) => (i < *n).then_some(i),
            Permutation::Narrow(v) => v.get(at).map(|&x| u64::from(x)),
            Permutation::Wide(v) => v.get(at).copied(),
        }
    }
}
