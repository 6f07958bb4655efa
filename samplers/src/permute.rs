//! Permutations, held as narrow as they fit: four bytes an entry below 2^32 entries, none for `0, 1, …, n-1`.

use crate::prefetch;
use crate::rng::RngError;

/// A list of indices `0..n` (usually a permutation), stored as u32 while `n < 2^32`.
#[derive(Clone, Debug)]
pub enum Permutation {
    /// `0, 1, …, n-1`, not stored.
    Identity(u64),
    /// Four bytes an entry.
    Narrow(Vec<u32>),
    /// Eight bytes an entry, for `n >= 2^32`.
    Wide(Vec<u64>),
}

/// Why two index lists cannot be composed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {at} of an index list points at {index}, but the list it is applied to has {len} entries")]
pub struct ComposeError {
    /// Where the bad entry is.
    pub at: u64,
    /// What it holds.
    pub index: u64,
    /// Length of the list it should point into.
    pub len: u64,
}

/// Equal means the same entries, however they are stored.
impl PartialEq for Permutation {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}
impl Eq for Permutation {}

impl Permutation {
    /// `0, 1, …, n-1` without storage.
    pub fn identity(n: u64) -> Self {
        Permutation::Identity(n)
    }

    /// `0, 1, …, n-1` stored, to be shuffled in place.
    ///
    /// # Errors
    /// [`RngError::OutOfMemory`] when it cannot be allocated.
    pub fn identity_list(n: u64) -> Result<Self, RngError> {
        match u32::try_from(n) {
            Ok(narrow) => {
                let mut list = allocate::<u32>(n)?;
                list.extend(0..narrow);
                Ok(Permutation::Narrow(list))
            }
            Err(_) => {
                let mut list = allocate::<u64>(n)?;
                list.extend(0..n);
                Ok(Permutation::Wide(list))
            }
        }
    }

    /// Any list of indices, stored as u32 when they all fit.
    pub fn from_indices(indices: Vec<u64>) -> Self {
        if indices.iter().all(|&i| u32::try_from(i).is_ok()) {
            Permutation::Narrow(indices.into_iter().map(|i| i as u32).collect())
        } else {
            Permutation::Wide(indices)
        }
    }

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

    /// Entry `i`, `None` past the end. O(1).
    #[inline]
    pub fn get(&self, i: u64) -> Option<u64> {
        let at = usize::try_from(i).ok()?;
        match self {
            Permutation::Identity(n) => (i < *n).then_some(i),
            Permutation::Narrow(v) => v.get(at).map(|&x| u64::from(x)),
            Permutation::Wide(v) => v.get(at).copied(),
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { list: self, at: 0 }
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> u64 {
        match self {
            Permutation::Identity(_) => 0,
            Permutation::Narrow(v) => v.capacity() as u64 * 4,
            Permutation::Wide(v) => v.capacity() as u64 * 8,
        }
    }

    /// Exchanges entries `i` and `j` of a stored list; an [`Permutation::Identity`] of equal `i` and `j` stays.
    ///
    /// # Panics
    /// When an index is past the end, or on an identity that is not stored (see [`Permutation::identity_list`]).
    pub fn swap(&mut self, i: u64, j: u64) {
        match self {
            Permutation::Narrow(v) => v.swap(i as usize, j as usize),
            Permutation::Wide(v) => v.swap(i as usize, j as usize),
            Permutation::Identity(_) => assert!(i == j, "an identity permutation is not stored"),
        }
    }

    /// Replaces every entry `i` by `first[i]`: the list that applies `first`, then `self`, as `Dataset.shuffle` of a
    /// shuffled dataset does. In place, unless the result needs wider entries than `self` has.
    ///
    /// # Errors
    /// [`ComposeError`] when an entry points past the end of `first`; `self` is unchanged then.
    pub fn compose(&mut self, first: &Permutation) -> Result<(), ComposeError> {
        let len = first.len();
        let past = match self {
            Permutation::Identity(n) => (*n > len).then_some((len, len)),
            Permutation::Narrow(v) => find_past(v.iter().map(|&x| u64::from(x)), len),
            Permutation::Wide(v) => find_past(v.iter().copied(), len),
        };
        if let Some((at, index)) = past {
            return Err(ComposeError { at, index, len });
        }
        match (&mut *self, first) {
            (_, Permutation::Identity(_)) => {}
            (Permutation::Identity(n), Permutation::Narrow(f)) => {
                *self = Permutation::Narrow(f[..*n as usize].to_vec())
            }
            (Permutation::Identity(n), Permutation::Wide(f)) => {
                *self = Permutation::Wide(f[..*n as usize].to_vec())
            }
            (Permutation::Narrow(v), Permutation::Narrow(f)) => {
                gather(v, f, |i| i as usize, |x| x);
            }
            (Permutation::Narrow(v), Permutation::Wide(f)) => {
                *self = Permutation::Wide(v.iter().map(|&x| f[x as usize]).collect());
            }
            (Permutation::Wide(v), Permutation::Narrow(f)) => {
                gather(v, f, |i| i as usize, u64::from);
            }
            (Permutation::Wide(v), Permutation::Wide(f)) => gather(v, f, |i| i as usize, |x| x),
        }
        Ok(())
    }
}

fn find_past(entries: impl Iterator<Item = u64>, len: u64) -> Option<(u64, u64)> {
    entries
        .enumerate()
        .find(|&(_, index)| index >= len)
        .map(|(at, index)| (at as u64, index))
}

/// Entries of a [`Permutation`], in order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    list: &'a Permutation,
    at: u64,
}

impl Iterator for Iter<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let entry = self.list.get(self.at)?;
        self.at += 1;
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.list.len() - self.at);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

impl<'a> IntoIterator for &'a Permutation {
    type Item = u64;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// An empty list with room for `n` entries.
pub(crate) fn allocate<T>(n: u64) -> Result<Vec<T>, RngError> {
    let too_large = || RngError::OutOfMemory {
        n,
        bytes: u128::from(n) * size_of::<T>() as u128,
    };
    let mut out = Vec::new();
    out.try_reserve_exact(usize::try_from(n).map_err(|_| too_large())?)
        .map_err(|_| too_large())?;
    prefetch::advise_huge_pages(&mut out);
    Ok(out)
}

/// Replaces each entry of `list` by `lookup` of it, which reads entry by entry of `from`.
fn gather<I: Copy, F: Copy>(list: &mut [I], from: &[F], index: impl Fn(I) -> usize, lookup: impl Fn(F) -> I) {
    const AHEAD: usize = 64;
    let near = if from.len() < prefetch::WORTHWHILE {
        0
    } else {
        list.len().saturating_sub(AHEAD)
    };
    for i in 0..near {
        prefetch::entry(from, index(list[i + AHEAD]));
        list[i] = lookup(from[index(list[i])]);
    }
    for entry in &mut list[near..] {
        *entry = lookup(from[index(*entry)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(v: &[u32]) -> Permutation {
        Permutation::Narrow(v.to_vec())
    }

    #[test]
    fn compose_is_first_then_self_in_every_storage() {
        let wide = |p: &Permutation| Permutation::Wide(p.iter().collect());
        let (second, first) = (narrow(&[2, 0, 1, 1]), narrow(&[7, 5, 6]));
        let expected = narrow(&[6, 7, 5, 5]);
        for s in [second.clone(), wide(&second)] {
            for f in [first.clone(), wide(&first)] {
                let mut composed = s.clone();
                composed.compose(&f).unwrap();
                assert_eq!(composed, expected);
            }
            let mut same = s.clone();
            same.compose(&Permutation::Identity(3)).unwrap();
            assert_eq!(same, second);
        }
        let mut cut = Permutation::Identity(2);
        cut.compose(&first).unwrap();
        assert_eq!(cut, narrow(&[7, 5]));
    }

    #[test]
    fn compose_refuses_an_entry_past_the_end_and_changes_nothing() {
        let mut list = narrow(&[0, 3, 1]);
        let error = list.compose(&narrow(&[1, 0, 2])).unwrap_err();
        assert_eq!(
            error,
            ComposeError {
                at: 1,
                index: 3,
                len: 3
            }
        );
        assert_eq!(list, narrow(&[0, 3, 1]));
        assert!(Permutation::Identity(4).compose(&list).is_err());
    }

    #[test]
    fn entries_past_the_end_are_none() {
        for p in [
            Permutation::Identity(2),
            narrow(&[1, 0]),
            Permutation::Wide(vec![1, 0]),
        ] {
            assert_eq!(p.len(), 2);
            assert!(p.get(1).is_some());
            assert_eq!(p.get(2), None);
            assert_eq!(p.get(u64::MAX), None);
            assert_eq!(p.iter().count(), 2);
        }
        assert_eq!(
            Permutation::from_indices(vec![1 << 32]),
            Permutation::Wide(vec![1 << 32])
        );
        assert!(matches!(
            Permutation::from_indices(vec![3, 1]),
            Permutation::Narrow(_)
        ));
    }
}
