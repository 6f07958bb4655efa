//! Two logs held against each other by the numbers of their micro-batches, where these are not the same.

use std::collections::BTreeMap;
use std::ops::Range;

use super::classify::Class;
use super::keys::Keys;
use super::layout::Layout;

/// A micro-batch by epoch, micro-step and rank.
type Number = (u64, u64, u64);

/// Positions of each micro-batch's samples within the stream, in the sequence of their slots.
fn batches(layout: &Layout) -> BTreeMap<Number, Vec<usize>> {
    let mut out: BTreeMap<Number, Vec<(u32, usize)>> = BTreeMap::new();
    for micro in 0..layout.micros().len() {
        let (epoch, number) = layout.number(micro);
        let range: Range<usize> = layout.micros().range(micro);
        for (seat, index) in layout.seats(micro).iter().zip(range) {
            out.entry((epoch, number, seat.rank.into()))
                .or_default()
                .push((seat.slot, index));
        }
    }
    let in_sequence = |mut seated: Vec<(u32, usize)>| {
        seated.sort_unstable();
        seated.into_iter().map(|(_, index)| index).collect()
    };
    out.into_iter()
        .map(|(number, seated)| (number, in_sequence(seated)))
        .collect()
}

/// What the numbers say: equal where both have lines, or, of the `same` sequence, that it stands at other places. `None`
/// where the numbers are the same, where one side only goes on longer, or where they explain nothing.
pub(super) fn numbered(a: &Layout, b: &Layout, keys: &Keys, same: bool) -> Option<Class> {
    let micro_steps = |layout: &Layout| -> Vec<((u64, u64), Vec<u32>)> {
        let ranks = |micro: usize| {
            let mut ranks: Vec<u32> = layout.seats(micro).iter().map(|seat| seat.rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            ranks
        };
        (0..layout.micros().len())
            .map(|micro| (layout.number(micro), ranks(micro)))
            .collect()
    };
    let (of_a, of_b) = (micro_steps(a), micro_steps(b));
    let shared = of_a.iter().zip(&of_b).take_while(|(x, y)| x == y).count();
    if shared == of_a.len().min(of_b.len()) {
        return None;
    }
    if same {
        let start = |layout: &Layout| layout.at(layout.micros().range(shared).start);
        return Some(Class::OtherPlaces {
            a: start(a),
            b: start(b),
        });
    }
    let (of_a, of_b) = (batches(a), batches(b));
    let both: Vec<(&Vec<usize>, &Vec<usize>)> = of_a
        .iter()
        .filter_map(|(number, in_a)| Some((in_a, of_b.get(number)?)))
        .collect();
    let agree = |&(in_a, in_b): &(&Vec<usize>, &Vec<usize>)| {
        in_a.len() == in_b.len() && in_a.iter().zip(in_b).all(|(&i, &j)| keys.a[i] == keys.b[j])
    };
    let first = *both.first()?.0.first()?;
    both.iter().all(agree).then(|| Class::EqualWhereBoth {
        both: both.len() as u64,
        only_a: (of_a.len() - both.len()) as u64,
        only_b: (of_b.len() - both.len()) as u64,
        from: a.at(first),
    })
}
