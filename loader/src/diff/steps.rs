//! Two stretches held against each other place by place and step by step.

use serde::Serialize;

use super::edits::Positions;
use super::layout::Seat;
use super::stats::{View, mix};

/// The first place, by micro-step, rank and slot, at which two stretches differ: positions in each, `None` where one has
/// no sample there. `None` altogether when they are equal.
pub fn first_difference(a: &View<'_>, b: &View<'_>) -> Option<(Option<usize>, Option<usize>)> {
    for micro in 0..a.micros.1.max(b.micros.1) {
        let (range_a, range_b) = (micro_range(a, micro), micro_range(b, micro));
        let (seats_a, seats_b) = (seats(a, micro), seats(b, micro));
        if seats_a == seats_b && a.keys[range_a.clone()] == b.keys[range_b.clone()] {
            continue;
        }
        let seated = |seats: &[Seat], start: usize| {
            let mut seated: Vec<(Seat, usize)> = seats
                .iter()
                .enumerate()
                .map(|(within, seat)| (*seat, start + within))
                .collect();
            seated.sort_unstable();
            seated
        };
        let (in_a, in_b) = (seated(seats_a, range_a.start), seated(seats_b, range_b.start));
        let (mut i, mut j) = (0, 0);
        loop {
            match (in_a.get(i), in_b.get(j)) {
                (None, None) => break,
                (Some((seat_a, at_a)), Some((seat_b, at_b))) if seat_a == seat_b => {
                    if a.keys[*at_a] != b.keys[*at_b] {
                        return Some((Some(*at_a), Some(*at_b)));
                    }
                    i += 1;
                    j += 1;
                }
                (Some((seat_a, at_a)), other) if other.is_none_or(|(seat_b, _)| seat_a < seat_b) => {
                    return Some((Some(*at_a), None));
                }
                (_, other) => return Some((None, other.map(|(_, at_b)| *at_b))),
            }
        }
    }
    None
}

fn micro_range(view: &View<'_>, micro: usize) -> std::ops::Range<usize> {
    if micro >= view.micros.1 {
        return view.keys.len()..view.keys.len();
    }
    let range = view.layout.micros().range(view.micros.0 + micro);
    range.start - view.base..range.end - view.base
}

fn seats<'a>(view: &View<'a>, micro: usize) -> &'a [Seat] {
    if micro >= view.micros.1 {
        return &[];
    }
    view.layout.seats(view.micros.0 + micro)
}

/// Whether the steps of two stretches consume the same samples, whatever the sequence within a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepSets {
    /// Both take as many samples a step, so that steps can be held against each other.
    pub comparable: bool,
    /// Steps of the longer one.
    pub steps: u64,
    /// Steps that consume the same samples.
    pub equal: u64,
    /// The first one that does not.
    pub first_different: Option<u64>,
}

impl StepSets {
    /// Compares step by step, by order-free sums of hashes of the keys.
    pub fn of(a: &View<'_>, b: &View<'_>) -> Self {
        let size = |view: &View<'_>| match view.steps.1 {
            0 => 0,
            _ => view.layout.steps().range(view.steps.0).len(),
        };
        if size(a) != size(b) {
            return Self::default();
        }
        let steps = a.steps.1.max(b.steps.1);
        let mut sets = Self {
            comparable: true,
            steps: steps as u64,
            ..Self::default()
        };
        for step in 0..steps {
            if step < a.steps.1 && step < b.steps.1 && set(a, step) == set(b, step) {
                sets.equal += 1;
            } else if sets.first_different.is_none() {
                sets.first_different = Some(step as u64);
            }
        }
        sets
    }

    /// Every step, or every one but the last, consumes the same samples.
    pub fn all_but_the_end(&self) -> bool {
        self.comparable && self.equal > 0 && self.first_different.is_none_or(|first| first + 1 == self.steps)
    }
}

/// An order-free digest of a step's keys: two sums of different hashes, and how many there are.
fn set(view: &View<'_>, step: usize) -> (u64, u64, usize) {
    let range = view.layout.steps().range(view.steps.0 + step);
    let keys = &view.keys[range.start - view.base..range.end - view.base];
    let sum = |salt: u64| {
        keys.iter()
            .fold(0u64, |sum, &key| sum.wrapping_add(mix(u64::from(key) ^ salt)))
    };
    (sum(0), sum(0xA5A5_5A5A_1234_8765), keys.len())
}

/// Both hold the same samples, each as often.
pub fn same_samples(a: &[u32], b: &[u32], in_a: &Positions, in_b: &Positions) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let all_known = |keys: &[u32], other: &Positions| keys.iter().all(|&key| other.get(key).is_some());
    if !all_known(a, in_b) || !all_known(b, in_a) {
        return false;
    }
    let repeats = |keys: &[u32], own: &Positions| {
        let mut repeats: Vec<u32> = keys
            .iter()
            .enumerate()
            .filter(|&(i, &key)| own.get(key) != Some(i))
            .map(|(_, &key)| key)
            .collect();
        repeats.sort_unstable();
        repeats
    };
    repeats(a, in_a) == repeats(b, in_b)
}

/// Both go through one list of samples: equal as far as the shorter one goes, but for repeats that fill up the end.
pub fn same_list(a: &[u32], b: &[u32], in_a: &Positions, in_b: &Positions) -> bool {
    let shared = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let only_repeats = |keys: &[u32], own: &Positions| {
        keys.iter()
            .enumerate()
            .skip(shared)
            .all(|(i, &key)| own.get(key) != Some(i))
    };
    // A stretch cut off by `drop_last` still goes through the same list.
    shared > 0
        && (shared == a.len() || only_repeats(a, in_a) || shared == b.len())
        && (shared == b.len() || only_repeats(b, in_b) || shared == a.len())
}
