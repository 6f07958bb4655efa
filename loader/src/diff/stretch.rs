//! An epoch of both sides, with the positions of its keys.

use super::edits::Positions;
use super::keys::{KeyKind, Keys};
use super::layout::At;
use super::side::{Samples, Side};
use super::stats::View;

/// Two stretches with the positions of their keys.
pub(super) struct Stretch<'a> {
    pub a: View<'a>,
    pub b: View<'a>,
    pub in_a: Positions,
    pub in_b: Positions,
}

impl<'a> Stretch<'a> {
    pub(super) fn new(a: &'a Side, b: &'a Side, keys: &'a Keys, which: usize) -> Self {
        let view = |side: &'a Side, keys: &'a [u32]| {
            let samples = side.layout.samples_of(which);
            let (steps, micros) = (side.layout.steps_of(which), side.layout.micros_of(which));
            View {
                keys: &keys[samples.clone()],
                layout: &side.layout,
                base: samples.start,
                steps: (steps.start, steps.len()),
                micros: (micros.start, micros.len()),
            }
        };
        let (a, b) = (view(a, &keys.a), view(b, &keys.b));
        Self {
            in_a: Positions::of(a.keys, keys.bound),
            in_b: Positions::of(b.keys, keys.bound),
            a,
            b,
        }
    }

    pub(super) fn at_a(&self, position: usize) -> At {
        self.a.layout.at(self.a.base + position)
    }

    pub(super) fn at_b(&self, position: usize) -> At {
        self.b.layout.at(self.b.base + position)
    }

    /// Both deal alike.
    pub(super) fn same_law(&self) -> bool {
        self.a.layout.usual_seats() == self.b.layout.usual_seats()
    }
}

/// The sample id at a position of a stretch.
pub(super) fn id_at(side: &Side, of: &[u32], keys: &Keys, index: usize) -> Option<u64> {
    match keys.kind {
        KeyKind::Ids => of.get(index).map(|key| u64::from(keys.name(*key))),
        KeyKind::Tokens => match side.samples {
            Samples::Ids(_) => side.source_id(index),
            _ => None,
        },
        KeyKind::MicroBatches => None,
    }
}
