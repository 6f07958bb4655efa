//! The few edits that turn one sequence into another, where a few do: what was left out, put in, exchanged or moved.
//!
//! Stretches that run on together in both sequences are the anchors; the heaviest chain of them that goes forward in both
//! is kept, and what lies between is an edit. Blocks of one size are then compared place by place, so that a sample that
//! did not change is in no edit. Time: linear in the length, and n log n in the stretches, whose number is bounded.
//! Positions are those of the slices given.

/// Longest block that is taken for replaced where a difference is a matter of a few samples.
pub const REPLACED: usize = 8;
/// Times a block is looked at again for anchors of its own.
const DEPTH: usize = 64;

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

/// A stretch that both sequences have: where in each, and how long.
type Anchor = (usize, usize, usize);

/// A part of both sequences: start and end in each.
type Block = (usize, usize, usize, usize);

/// The edits from `a` to `b`, or `None` when more than `limit` would be needed, when a block of more than `longest` is
/// replaced, or when less than half of the shorter sequence stays.
pub fn edits(
    a: &[u32],
    b: &[u32],
    in_a: &Positions,
    in_b: &Positions,
    limit: usize,
    longest: usize,
) -> Option<Vec<Edit>> {
    // Each edit breaks a stretch at its ends, or at each of its samples.
    let most = limit.saturating_mul(2 * longest.min(2 * REPLACED)).max(64);
    let partner = |i: usize| in_b.get(a[i]).filter(|_| in_a.get(a[i]) == Some(i));
    let anchors = chain(anchors(a.len(), &partner, most)?);
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (at_a, at_b, len) in anchors.into_iter().chain([(a.len(), b.len(), 0)]) {
        within(a, b, (i, at_a, j, at_b), most, &mut found)?;
        (i, j) = (at_a + len, at_b + len);
    }
    let found = settled(a, b, found);
    let changed: usize = found.iter().map(|edit| edit.a.1).sum();
    let kept = a.len() - changed;
    let few = found.len() <= limit.max(1)
        && 2 * kept >= a.len().min(b.len())
        && found.iter().all(|edit| edit.a.1.min(edit.b.1) <= longest);
    few.then_some(found)
}

/// Stretches of `0..len` whose partners go on one by one; `None` when there are more than `most`.
fn anchors(len: usize, partner: &dyn Fn(usize) -> Option<usize>, most: usize) -> Option<Vec<Anchor>> {
    let mut found: Vec<Anchor> = Vec::new();
    for i in 0..len {
        let Some(j) = partner(i) else { continue };
        if let Some((at_a, at_b, run)) = found.last_mut()
            && *at_a + *run == i
            && *at_b + *run == j
        {
            *run += 1;
            continue;
        }
        if found.len() == most {
            return None;
        }
        found.push((i, j, 1));
    }
    Some(found)
}

/// The heaviest of the chains that go forward in both sequences; of equals, the one whose last stretch comes first.
fn chain(anchors: Vec<Anchor>) -> Vec<Anchor> {
    let mut by_b: Vec<usize> = (0..anchors.len()).collect();
    by_b.sort_unstable_by_key(|&k| anchors[k].1);
    let mut rank = vec![0; anchors.len()];
    for (at, &k) in by_b.iter().enumerate() {
        rank[k] = at;
    }
    // Best weight and its last stretch for each prefix of places in b, as a binary indexed tree.
    let mut tree: Vec<(usize, Option<usize>)> = vec![(0, None); anchors.len() + 1];
    let mut before: Vec<Option<usize>> = vec![None; anchors.len()];
    let mut best: (usize, Option<usize>) = (0, None);
    for (k, &(_, _, len)) in anchors.iter().enumerate() {
        let (mut weight, mut at) = ((0, None), rank[k]);
        while at > 0 {
            if tree[at].0 > weight.0 {
                weight = tree[at];
            }
            at &= at - 1;
        }
        before[k] = weight.1;
        let own = (weight.0 + len, Some(k));
        let mut at = rank[k] + 1;
        while at < tree.len() {
            if own.0 > tree[at].0 {
                tree[at] = own;
            }
            at += at & at.wrapping_neg();
        }
        if own.0 > best.0 {
            best = own;
        }
    }
    let (mut kept, mut last) = (Vec::new(), best.1);
    while let Some(k) = last {
        kept.push(anchors[k]);
        last = before[k];
    }
    kept.reverse();
    kept
}

/// Edits of a block between two anchors: what agrees at its ends is taken off, and keys that are repeated elsewhere may
/// be anchors within it.
fn within(a: &[u32], b: &[u32], block: Block, most: usize, found: &mut Vec<Edit>) -> Option<()> {
    let mut open = vec![(block, 0)];
    while let Some(((mut i, mut end_a, mut j, mut end_b), depth)) = open.pop() {
        while i < end_a && j < end_b && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        }
        while i < end_a && j < end_b && a[end_a - 1] == b[end_b - 1] {
            (end_a, end_b) = (end_a - 1, end_b - 1);
        }
        if i == end_a && j == end_b {
            continue;
        }
        let kept = if i < end_a && j < end_b && depth < DEPTH {
            let (first_a, first_b) = (firsts(&a[i..end_a]), firsts(&b[j..end_b]));
            let position = |list: &[(u32, usize)], key: u32| {
                let at = list.partition_point(|(other, _)| *other < key);
                list.get(at).filter(|(other, _)| *other == key).map(|(_, at)| *at)
            };
            let partner = |k: usize| {
                let key = a[i + k];
                position(&first_b, key).filter(|_| position(&first_a, key) == Some(k))
            };
            chain(anchors(end_a - i, &partner, most)?)
        } else {
            Vec::new()
        };
        if kept.is_empty() {
            if found.len() > most {
                return None;
            }
            found.push(Edit {
                a: (i, end_a - i),
                b: (j, end_b - j),
            });
            continue;
        }
        let (mut from_a, mut from_b, mut parts) = (i, j, Vec::new());
        for (at_a, at_b, len) in kept.into_iter().chain([(end_a - i, end_b - j, 0)]) {
            parts.push(((from_a, i + at_a, from_b, j + at_b), depth + 1));
            (from_a, from_b) = (i + at_a + len, j + at_b + len);
        }
        open.extend(parts.into_iter().rev());
    }
    Some(())
}

/// Keys with the place where they first stand, by key.
fn firsts(keys: &[u32]) -> Vec<(u32, usize)> {
    let mut list: Vec<(u32, usize)> = keys.iter().copied().zip(0..).collect();
    list.sort_unstable();
    list.dedup_by_key(|(key, _)| *key);
    list
}

/// Neighbouring edits that undo one another's shift become one block of one size where that costs no more; blocks of one
/// size are cut down to the places that differ.
fn settled(a: &[u32], b: &[u32], found: Vec<Edit>) -> Vec<Edit> {
    let cost = |edit: &Edit| edit.a.1.max(edit.b.1);
    let mut merged: Vec<Edit> = Vec::new();
    let mut next = 0;
    while next < found.len() {
        let (mut net, mut price, mut taken) = (0i64, 0, None);
        for (last, edit) in found.iter().enumerate().skip(next) {
            net += edit.a.1 as i64 - edit.b.1 as i64;
            price += cost(edit);
            let len = edit.a.0 + edit.a.1 - found[next].a.0;
            if net == 0 {
                let (from_a, from_b) = (found[next].a.0, found[next].b.0);
                if last > next && differing(&a[from_a..from_a + len], &b[from_b..from_b + len]) <= price {
                    taken = Some((last, len));
                }
                break;
            }
            // A block this long cannot cost less than its edits.
            if len > 4 * price + 4 * REPLACED {
                break;
            }
        }
        let one = match taken {
            Some((_, len)) => Edit {
                a: (found[next].a.0, len),
                b: (found[next].b.0, len),
            },
            None => found[next].clone(),
        };
        next = taken.map_or(next, |(last, _)| last) + 1;
        merged.push(one);
    }
    let mut out = Vec::new();
    for edit in merged {
        let pairs = edit.a.1.min(edit.b.1);
        let mut k = 0;
        while k < pairs {
            let run = (k..pairs)
                .take_while(|&k| a[edit.a.0 + k] != b[edit.b.0 + k])
                .count();
            if run > 0 {
                out.push(Edit {
                    a: (edit.a.0 + k, run),
                    b: (edit.b.0 + k, run),
                });
            }
            k += run.max(1);
        }
        if edit.a.1 != edit.b.1 {
            out.push(Edit {
                a: (edit.a.0 + pairs, edit.a.1 - pairs),
                b: (edit.b.0 + pairs, edit.b.1 - pairs),
            });
        }
    }
    out
}

fn differing(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).filter(|(x, y)| x != y).count()
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
