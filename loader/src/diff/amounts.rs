//! What a handful of edits amounts to: a swap, a shift, a duplicate, something missing.

use std::collections::BTreeMap;

use super::edits::{Edit, Positions};

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
