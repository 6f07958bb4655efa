//! The few edits that turn one sequence into another, where a few do: what was left out, put in, exchanged or moved.
//!
//! A walk along both sequences that, where they part, takes the smallest block left out, put in or replaced after which
//! they run together again. Linear in the length; gives up after a number of edits. Positions are those of the slices
//! given.

use std::collections::BTreeMap;

/// Samples that must agree for the sequences to run together again.
const RUN: usize = 16;
/// Longest block that is taken for replaced.
const REPLACED: usize = 8;

/// One edit. A block may be empty on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where in the first sequence, and how many samples of it.
    pub a: (usize, usize),
    /// Where in the second sequence, and how many samples of it.
    pub b: (usize, usize),
}

/// First appearance of each key, `u32::MAX` where it has none.
#[derive(Clone, Debug)]
pub struct Positions(pub Vec<u32>);

impl Positions {
    /// Of a sequence whose keys are below `bound`.
    pub fn of(keys: &[u32], bound: u32) -> Self {
        let mut first = vec![u32::MAX; bound as usize];
        for (at, &key) in keys.iter().enumerate() {
            let slot = &mut first[key as usize];
            *slot = (*slot).min(at as u32);
        }
        Self(first)
    }

    /// Where a key first appears.
    #[inline]
    pub fn get(&self, key: u32) -> Option<usize> {
        self.0
            .get(key as usize)
            .filter(|at| **at != u32::MAX)
            .map(|at| *at as usize)
    }
}

/// The edits from `a` to `b`, or `None` when more than `limit` would be needed.
pub fn edits(a: &[u32], b: &[u32], in_a: &Positions, in_b: &Positions, limit: usize) -> Option<Vec<Edit>> {
    let (mut i, mut j, mut found) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            i += 1;
            j += 1;
            continue;
        }
        if found.len() == limit {
            return None;
        }
        let (da, db) = step(a, b, in_a, in_b, i, j)?;
        found.push(Edit {
            a: (i, da),
            b: (j, db),
        });
        i += da;
        j += db;
    }
    if i < a.len() || j < b.len() {
        found.push(Edit {
            a: (i, a.len() - i),
            b: (j, b.len() - j),
        });
    }
    (found.len() <= limit.max(1)).then_some(found)
}

/// The smallest blocks of both sequences after which they run together.
fn step(
    a: &[u32],
    b: &[u32],
    in_a: &Positions,
    in_b: &Positions,
    i: usize,
    j: usize,
) -> Option<(usize, usize)> {
    let together = |i: usize, j: usize| {
        let (left_a, left_b) = (a.len().saturating_sub(i), b.len().saturating_sub(j));
        let run = RUN.min(left_a).min(left_b);
        run > 0 && a[i..i + run] == b[j..j + run]
    };
    let mut best: Option<(usize, (usize, usize))> = None;
    let mut offer = |da: usize, db: usize| {
        let cost = da.max(db);
        if best.is_none_or(|(old, _)| cost < old) {
            best = Some((cost, (da, db)));
        }
    };
    for s in 1..=REPLACED {
        // At the very end nothing is left to run together.
        let ends = i + s == a.len() && j + s == b.len();
        if ends || (i + s < a.len() && j + s < b.len() && together(i + s, j + s)) {
            offer(s, s);
            break;
        }
    }
    if let Some(at) = in_a.get(b[j]).filter(|at| *at > i)
        && together(at, j)
    {
        offer(at - i, 0);
    }
    if let Some(at) = in_b.get(a[i]).filter(|at| *at > j)
        && together(i, at)
    {
        offer(0, at - j);
    }
    // A key that came before is no first appearance: look a little ahead as well.
    for ahead in 1..=REPLACED {
        if together(i + ahead, j) {
            offer(ahead, 0);
        }
        if together(i, j + ahead) {
            offer(0, ahead);
        }
    }
    best.map(|(_, blocks)| blocks)
}

/// What a handful of edits amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// Pairs of places whose samples changed places (positions in the first sequence).
    Swapped(Vec<(usize, usize)>),
    /// The second sequence runs this many samples ahead of the first (behind, when negative), to its end.
    Shifted(i64),
    /// A sample comes a second time: where it is extra (second sequence), and where it also is.
    Duplicated {
        /// Position in the second sequence.
        at: usize,
        /// The other position in the second sequence.
        also_at: usize,
        /// Extra samples.
        count: usize,
        /// It stands in place of another sample, which is gone (position in the first sequence).
        instead_of: Option<usize>,
    },
    /// Samples are left out: where in the first sequence, and how many.
    Missing {
        /// Position in the first sequence.
        at: usize,
        /// Samples left out.
        count: usize,
    },
    /// Samples that the first sequence does not have are put in.
    Inserted {
        /// Position in the second sequence.
        at: usize,
        /// Samples put in.
        count: usize,
    },
    /// A block stands elsewhere.
    Moved {
        /// Position in the first sequence.
        from: usize,
        /// Position in the second sequence.
        to: usize,
        /// Samples of the block.
        count: usize,
    },
    /// Samples are replaced by others, place for place (positions in the first sequence).
    Replaced(Vec<usize>),
    /// Several of these.
    Several,
}

/// Says what edits amount to.
pub fn interpret(a: &[u32], b: &[u32], found: &[Edit], in_a: &Positions, in_b: &Positions) -> EditKind {
    let replaced = |edit: &Edit| edit.a.1 == edit.b.1;
    if found.iter().all(replaced) {
        return of_replaced(a, b, found, in_a, in_b);
    }
    // The end of the shorter sequence follows from what came before it.
    let (last, before) = match found.split_last() {
        Some((last, before)) if last.a.0 + last.a.1 == a.len() && last.b.0 + last.b.1 == b.len() => {
            (Some(last), before)
        }
        _ => (None, found),
    };
    let net = |edits: &[Edit]| -> i64 { edits.iter().map(|edit| edit.a.1 as i64 - edit.b.1 as i64).sum() };
    match (before, last) {
        ([], Some(end)) if end.b.1 == 0 => EditKind::Missing {
            at: end.a.0,
            count: end.a.1,
        },
        ([], Some(end)) => extra(b, end, in_a, in_b),
        ([one], _) if one.a.0 == 0 && one.b.0 == 0 && (one.a.1 == 0 || one.b.1 == 0) => {
            EditKind::Shifted(net(before))
        }
        ([one], end) if one.b.1 == 0 && consequence(net(before), end) => EditKind::Missing {
            at: one.a.0,
            count: one.a.1,
        },
        ([one], end) if one.a.1 == 0 && consequence(net(before), end) => extra(b, one, in_a, in_b),
        _ => moved(a, b, found).unwrap_or(EditKind::Several),
    }
}

/// The last edit is what a sequence of fixed length loses or gains at its end after `net` samples were left out.
fn consequence(net: i64, end: Option<&Edit>) -> bool {
    end.is_none_or(|end| end.b.1 as i64 - end.a.1 as i64 == net && (end.a.1 == 0 || end.b.1 == 0))
}

fn extra(b: &[u32], edit: &Edit, in_a: &Positions, in_b: &Positions) -> EditKind {
    let (at, count) = edit.b;
    match b.get(at) {
        Some(&key) if in_a.get(key).is_some() => {
            let first = in_b.get(key).unwrap_or(at);
            let also_at = if first == at {
                // The extra one comes first: the other is where the sequences run together.
                (at + count..b.len()).find(|&k| b[k] == key).unwrap_or(at)
            } else {
                first
            };
            EditKind::Duplicated {
                at,
                also_at,
                count,
                instead_of: None,
            }
        }
        _ => EditKind::Inserted { at, count },
    }
}

fn of_replaced(a: &[u32], b: &[u32], found: &[Edit], in_a: &Positions, in_b: &Positions) -> EditKind {
    let places: Vec<(usize, usize)> = found
        .iter()
        .flat_map(|edit| (0..edit.a.1).map(|k| (edit.a.0 + k, edit.b.0 + k)))
        .filter(|(i, j)| a[*i] != b[*j])
        .collect();
    let from: BTreeMap<u32, usize> = places.iter().map(|(i, _)| (a[*i], *i)).collect();
    let pairs: Option<Vec<(usize, usize)>> = places
        .iter()
        .map(|(i, j)| {
            let partner = *from.get(&b[*j])?;
            (b.get(j + partner - i) == Some(&a[*i]) || partner < *i).then_some((*i, partner))
        })
        .collect();
    if let Some(pairs) = pairs {
        let mut swaps: Vec<(usize, usize)> = pairs
            .iter()
            .map(|&(i, partner)| (i.min(partner), i.max(partner)))
            .collect();
        swaps.sort_unstable();
        swaps.dedup();
        if swaps.len() * 2 == places.len() {
            return EditKind::Swapped(swaps);
        }
        return EditKind::Several;
    }
    if let [(i, j)] = places[..]
        && in_a.get(b[j]).is_some()
        && in_b.get(a[i]).is_none()
    {
        let other = (0..b.len()).find(|&k| k != j && b[k] == b[j]).unwrap_or(j);
        return EditKind::Duplicated {
            at: j,
            also_at: other,
            count: 1,
            instead_of: Some(i),
        };
    }
    EditKind::Replaced(places.into_iter().map(|(i, _)| i).collect())
}

/// One block left out and the same block put in elsewhere.
fn moved(a: &[u32], b: &[u32], found: &[Edit]) -> Option<EditKind> {
    let [one, two] = found else { return None };
    let (out, into) = if one.b.1 == 0 { (one, two) } else { (two, one) };
    let same =
        out.b.1 == 0 && into.a.1 == 0 && a[out.a.0..out.a.0 + out.a.1] == b[into.b.0..into.b.0 + into.b.1];
    same.then_some(EditKind::Moved {
        from: out.a.0,
        to: into.b.0,
        count: out.a.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(a: &[u32], b: &[u32]) -> Option<EditKind> {
        let bound = a.iter().chain(b).max().map_or(0, |max| max + 1);
        let (in_a, in_b) = (Positions::of(a, bound), Positions::of(b, bound));
        let found = edits(a, b, &in_a, &in_b, 8)?;
        Some(interpret(a, b, &found, &in_a, &in_b))
    }

    #[test]
    fn single_edits_are_named() {
        let a: Vec<u32> = (0..100).collect();
        let mut swapped = a.clone();
        swapped.swap(10, 40);
        assert_eq!(kind(&a, &swapped), Some(EditKind::Swapped(vec![(10, 40)])));
        let mut neighbours = a.clone();
        neighbours.swap(10, 11);
        assert_eq!(kind(&a, &neighbours), Some(EditKind::Swapped(vec![(10, 11)])));

        let ahead: Vec<u32> = (1..100).chain([0]).collect();
        assert_eq!(kind(&a, &ahead), Some(EditKind::Shifted(1)));
        assert_eq!(kind(&a, &a[1..]), Some(EditKind::Shifted(1)));
        let behind: Vec<u32> = [200].into_iter().chain(0..99).collect();
        assert_eq!(kind(&a, &behind), Some(EditKind::Shifted(-1)));
        assert_eq!(kind(&a, &a[40..]), Some(EditKind::Shifted(40)));

        let mut duplicate = a.clone();
        duplicate.insert(51, 50);
        let expected = |at, also_at, instead_of| EditKind::Duplicated {
            at,
            also_at,
            count: 1,
            instead_of,
        };
        assert_eq!(kind(&a, &duplicate), Some(expected(51, 50, None)));
        duplicate.truncate(100);
        assert_eq!(kind(&a, &duplicate), Some(expected(51, 50, None)));
        let mut replaced = a.clone();
        replaced[60] = 3;
        assert_eq!(kind(&a, &replaced), Some(expected(60, 3, Some(60))));

        let mut missing = a.clone();
        missing.remove(70);
        assert_eq!(kind(&a, &missing), Some(EditKind::Missing { at: 70, count: 1 }));
        missing.push(0);
        assert_eq!(kind(&a, &missing), Some(EditKind::Missing { at: 70, count: 1 }));

        let mut moved = a.clone();
        let sample = moved.remove(20);
        moved.insert(80, sample);
        assert_eq!(
            kind(&a, &moved),
            Some(EditKind::Moved {
                from: 20,
                to: 80,
                count: 1
            })
        );
        let mut other = a.clone();
        other[30] = 500;
        assert_eq!(kind(&a, &other), Some(EditKind::Replaced(vec![30])));
        assert_eq!(kind(&a, &a[..90]), Some(EditKind::Missing { at: 90, count: 10 }));
    }

    #[test]
    fn another_order_is_not_a_few_edits() {
        let a: Vec<u32> = (0..100).collect();
        let b: Vec<u32> = (0..100).map(|i| i * 37 % 101 % 100).collect();
        assert_eq!(kind(&a, &b), None);
    }
}
