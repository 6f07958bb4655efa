//! Two logs held against each other by the numbers of their micro-steps, where these are not the same.

use std::collections::BTreeMap;

use super::classify::Class;
use super::keys::Keys;
use super::layout::Layout;

/// What the numbers say: equal where both have lines, or, of the `same` sequence, that it stands at other places. `None`
/// where the numbers are the same or explain nothing.
pub(super) fn numbered(a: &Layout, b: &Layout, keys: &Keys, same: bool) -> Option<Class> {
    let numbers = |layout: &Layout| -> Vec<(u64, u64)> {
        (0..layout.micros().len())
            .map(|micro| layout.number(micro))
            .collect()
    };
    let (of_a, of_b) = (numbers(a), numbers(b));
    let shared = of_a.iter().zip(&of_b).take_while(|(x, y)| x == y).count();
    if shared == of_a.len().min(of_b.len()) {
        return None;
    }
    let in_b: BTreeMap<(u64, u64), usize> = of_b.iter().copied().zip(0..).collect();
    let both: Vec<(usize, usize)> = of_a
        .iter()
        .enumerate()
        .filter_map(|(micro, number)| in_b.get(number).map(|other| (micro, *other)))
        .collect();
    let agree = |&(micro, other): &(usize, usize)| {
        a.seats(micro) == b.seats(other) && keys.a[a.micros().range(micro)] == keys.b[b.micros().range(other)]
    };
    let start = |layout: &Layout, micro: usize| layout.at(layout.micros().range(micro).start);
    match both.first() {
        Some(&(first, _)) if !same && both.iter().all(agree) => Some(Class::EqualWhereBoth {
            both: both.len() as u64,
            only_a: (of_a.len() - both.len()) as u64,
            only_b: (of_b.len() - both.len()) as u64,
            from: start(a, first),
        }),
        _ if same => Some(Class::OtherPlaces {
            a: start(a, shared),
            b: start(b, shared),
        }),
        _ => None,
    }
}
