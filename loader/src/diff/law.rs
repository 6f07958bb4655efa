//! The law by which samples go round the ranks, for logs, which do not tell it.

use super::layout::{Layout, Seat};
use super::side::{Samples, Side};

impl Side {
    /// Sorts the samples of each micro-step as `like` seats them, where these are the same seats.
    pub(super) fn take_seats_of(&mut self, like: &Layout) {
        for micro in 0..self.layout.micros().len().min(like.micros().len()) {
            let seats = like.seats(micro).to_vec();
            self.rearrange(micro, &seats);
        }
        self.law_unknown = false;
    }

    /// Sorts the samples of each micro-step sample by sample round the ranks.
    pub(super) fn deal_strided(&mut self) {
        for micro in 0..self.layout.micros().len() {
            let mut seats: Vec<Seat> = self.layout.seats(micro).to_vec();
            seats.sort_by_key(|seat| (seat.slot, seat.rank));
            self.rearrange(micro, &seats);
        }
    }

    fn rearrange(&mut self, micro: usize, seats: &[Seat]) {
        let Some(order) = self.layout.rearrangement(micro, seats) else {
            return;
        };
        let range = self.layout.micros().range(micro);
        match &mut self.samples {
            Samples::Ids(ids) => permute(&mut ids[range], &order),
            Samples::Digests(digests) | Samples::MicroBatches(digests) => {
                permute(&mut digests[range], &order);
            }
        }
        self.layout.set_seats(micro, seats);
    }
}

fn permute<T: Copy>(items: &mut [T], order: &[usize]) {
    let before = items.to_vec();
    for (slot, &from) in items.iter_mut().zip(order) {
        *slot = before[from];
    }
}
