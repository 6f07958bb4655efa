//! The swaps of a Fisher-Yates shuffle, with the targets known ahead.
//!
//! Draws do not depend on the data, so a chunk of targets is made while the one before it is swapped, and the cache
//! line of a target is fetched many swaps before its turn. The swaps happen in their own sequence, so the result is
//! that of the plain loop. Cost beyond the list: two chunks of targets, 64 kB.

use crate::prefetch;

/// Targets made at once.
const CHUNK: usize = 1 << 13;
/// Swaps between fetching a target's cache line and using it: enough to hide a miss in all caches and the page walk.
const AHEAD: usize = 96;

/// Which entry step `s` of `steps` swaps with its target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Entry `s`: torch, from the first entry up.
    Up,
    /// Entry `steps - s`: numpy, from the last entry (`steps`) down to 1.
    Down,
}

/// Swaps entry after entry of `list` with its target, for `steps` steps.
///
/// `targets(s, out)` fills `out` with the targets of steps `s, s + 1, …`, each below `list.len()`; it is called for
/// consecutive ranges of steps, each step once.
pub(super) fn run<T>(list: &mut [T], walk: Walk, steps: usize, mut targets: impl FnMut(usize, &mut [u32])) {
    if steps == 0 {
        return;
    }
    let chunk = CHUNK.min(steps);
    let (mut now, mut next) = (vec![0u32; chunk], vec![0u32; chunk]);
    let mut ready = chunk;
    targets(0, &mut now);
    let mut start = 0;
    while start < steps {
        let after = (steps - start - ready).min(chunk);
        targets(start + ready, &mut next[..after]);
        let entry_of = |s: usize| match walk {
            Walk::Up => s,
            Walk::Down => steps - s,
        };
        let (here, ahead) = (&now[..ready], &next[..after]);
        let settled = ready.saturating_sub(AHEAD);
        for (k, (&target, &far)) in here.iter().zip(&here[ready - settled..]).enumerate() {
            prefetch::entry(list, far as usize);
            list.swap(entry_of(start + k), target as usize);
        }
        for (k, &target) in here[settled..].iter().enumerate() {
            if let Some(&far) = ahead.get(k) {
                prefetch::entry(list, far as usize);
            }
            list.swap(entry_of(start + settled + k), target as usize);
        }
        start += ready;
        ready = after;
        std::mem::swap(&mut now, &mut next);
    }
}
