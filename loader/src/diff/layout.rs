//! Where each sample of a stream is consumed: epoch, step, micro-step, rank, slot, by index in deal order.
//!
//! A stream lists its samples micro-step by micro-step, within one in deal order. Micro-steps deal alike, so one table
//! of (rank, slot) serves nearly all of them. Memory: that table, and 4 bytes a micro-step only where sizes vary.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where a sample is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct At {
    /// Epoch.
    pub epoch: u64,
    /// Optimizer step within the epoch.
    pub step: u64,
    /// Micro-step within the epoch.
    pub micro_step: u64,
    /// Data-parallel rank.
    pub rank: u64,
    /// Row of the micro-batch.
    pub slot: u64,
}

/// A rank and a row of its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Data-parallel rank.
    pub rank: u32,
    /// Row of the micro-batch.
    pub slot: u32,
}

/// Starts of consecutive chunks; no list where all but the last have one size.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Starts {
    size: u32,
    chunks: u32,
    total: u32,
    list: Option<Vec<u32>>,
}

impl Starts {
    /// Appends a chunk.
    pub fn push(&mut self, size: u32) {
        if self.list.is_none() {
            if self.chunks == 0 {
                self.size = size;
            }
            // Uniform as long as everything before this chunk is whole and this one is no longer.
            let whole = u64::from(self.chunks) * u64::from(self.size) == u64::from(self.total);
            if !whole || size > self.size {
                self.list = Some(
                    (0..self.chunks)
                        .map(|i| (i * self.size).min(self.total))
                        .collect(),
                );
            }
        }
        if let Some(list) = &mut self.list {
            list.push(self.total);
        }
        self.chunks += 1;
        self.total += size;
    }

    /// Chunks.
    pub fn len(&self) -> usize {
        self.chunks as usize
    }

    /// No chunk.
    pub fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Items in all of them.
    pub fn total(&self) -> usize {
        self.total as usize
    }

    /// Items of a chunk.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        self.start(chunk)..self.start(chunk + 1)
    }

    fn start(&self, chunk: usize) -> usize {
        match &self.list {
            Some(list) => list
                .get(chunk)
                .map_or(self.total as usize, |start| *start as usize),
            None => (chunk * self.size as usize).min(self.total as usize),
        }
    }

    /// The chunk an item lies in.
    pub fn find(&self, item: usize) -> usize {
        match &self.list {
            Some(list) => list
                .partition_point(|start| *start as usize <= item)
                .saturating_sub(1),
            None => item / (self.size as usize).max(1),
        }
    }
}

/// An epoch of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochMark {
    /// Which epoch.
    pub epoch: u64,
    /// Its first micro-step in the stream, and that one's number within the epoch.
    pub first_micro: (usize, u64),
    /// Its first step in the stream, and that one's number within the epoch.
    pub first_step: (usize, u64),
}

/// The places of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    micros: Starts,
    steps: Starts,
    tables: Vec<Vec<Seat>>,
    /// Table of a micro-step where it is not the first one's.
    exceptions: BTreeMap<usize, usize>,
    epochs: Vec<EpochMark>,
    /// Micro-steps of an epoch whose number is not the next one.
    jumps: Vec<EpochMark>,
    open_step: u32,
}

impl Layout {
    /// Starts an epoch whose first micro-step and step here have these numbers.
    pub fn begin_epoch(&mut self, epoch: u64, micro_step: u64, step: u64) {
        self.close_step();
        self.epochs.push(EpochMark {
            epoch,
            first_micro: (self.micros.len(), micro_step),
            first_step: (self.steps.len(), step),
        });
    }

    /// Goes on within the epoch at these numbers, where some were left out.
    pub fn jump(&mut self, micro_step: u64, step: u64) {
        self.close_step();
        self.jumps.push(EpochMark {
            epoch: self.epochs.last().map_or(0, |mark| mark.epoch),
            first_micro: (self.micros.len(), micro_step),
            first_step: (self.steps.len(), step),
        });
    }

    /// The jump at a micro-step of the stream.
    pub fn jump_at(&self, micro: usize) -> Option<&EpochMark> {
        let at = self.jumps.partition_point(|jump| jump.first_micro.0 < micro);
        self.jumps.get(at).filter(|jump| jump.first_micro.0 == micro)
    }

    /// Epoch and number within it of a micro-step of the stream.
    pub fn number(&self, micro: usize) -> (u64, u64) {
        self.mark(micro).map_or((0, micro as u64), |mark| {
            (
                mark.epoch,
                micro.saturating_sub(mark.first_micro.0) as u64 + mark.first_micro.1,
            )
        })
    }

    /// What the numbers of a micro-step are counted from.
    fn mark(&self, micro: usize) -> Option<&EpochMark> {
        let last = |marks: &[EpochMark]| {
            marks
                .partition_point(|mark| mark.first_micro.0 <= micro)
                .checked_sub(1)
        };
        let epoch = last(&self.epochs).map(|at| &self.epochs[at]);
        let jump = last(&self.jumps).map(|at| &self.jumps[at]);
        match (epoch, jump) {
            (Some(epoch), Some(jump)) if jump.first_micro.0 < epoch.first_micro.0 => Some(epoch),
            (epoch, jump) => jump.or(epoch),
        }
    }

    /// Appends a micro-step with its seats in deal order.
    pub fn push_micro_step(&mut self, seats: &[Seat]) {
        let number = self.micros.len();
        match self.tables.iter().position(|table| table == seats) {
            Some(0) => {}
            Some(table) => {
                self.exceptions.insert(number, table);
            }
            None => {
                if !self.tables.is_empty() {
                    self.exceptions.insert(number, self.tables.len());
                }
                self.tables.push(seats.to_vec());
            }
        }
        self.micros.push(seats.len() as u32);
        self.open_step += seats.len() as u32;
    }

    /// Ends the step that the micro-steps since the last one make up.
    pub fn close_step(&mut self) {
        if self.open_step > 0 {
            self.steps.push(self.open_step);
            self.open_step = 0;
        }
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.micros.total()
    }

    /// No sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Micro-steps, as ranges of samples.
    pub fn micros(&self) -> &Starts {
        &self.micros
    }

    /// Optimizer steps, as ranges of samples.
    pub fn steps(&self) -> &Starts {
        &self.steps
    }

    /// Epochs.
    pub fn epochs(&self) -> &[EpochMark] {
        &self.epochs
    }

    /// Seats of a micro-step, in deal order.
    pub fn seats(&self, micro: usize) -> &[Seat] {
        let table = self.exceptions.get(&micro).copied().unwrap_or(0);
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }

    /// Seats of the usual micro-step: the first one's.
    pub fn usual_seats(&self) -> &[Seat] {
        self.seats(0)
    }

    /// Ranks there are.
    pub fn world_size(&self) -> u64 {
        let ranks = self.tables.iter().flatten().map(|seat| seat.rank);
        ranks.max().map_or(0, |rank| u64::from(rank) + 1)
    }

    /// Rows of the largest micro-batch.
    pub fn micro_batch_size(&self) -> u64 {
        let slots = self.tables.iter().flatten().map(|seat| seat.slot);
        slots.max().map_or(0, |slot| u64::from(slot) + 1)
    }

    /// Micro-steps of an epoch, as numbers in the stream.
    pub fn micros_of(&self, which: usize) -> Range<usize> {
        let end = self.epochs.get(which + 1);
        self.epochs.get(which).map_or(0, |mark| mark.first_micro.0)
            ..end.map_or(self.micros.len(), |mark| mark.first_micro.0)
    }

    /// Samples of an epoch.
    pub fn samples_of(&self, which: usize) -> Range<usize> {
        let micros = self.micros_of(which);
        if micros.is_empty() {
            return 0..0;
        }
        self.micros.range(micros.start).start..self.micros.range(micros.end - 1).end
    }

    /// Steps of an epoch, as numbers in the stream.
    pub fn steps_of(&self, which: usize) -> Range<usize> {
        let end = self.epochs.get(which + 1);
        self.epochs.get(which).map_or(0, |mark| mark.first_step.0)
            ..end.map_or(self.steps.len(), |mark| mark.first_step.0)
    }

    /// Rank and slot of a sample.
    #[inline]
    pub fn seat(&self, index: usize) -> Seat {
        let micro = self.micros.find(index);
        let within = index - self.micros.range(micro).start;
        self.seats(micro)
            .get(within)
            .copied()
            .unwrap_or(Seat { rank: 0, slot: 0 })
    }

    /// The place of a sample.
    pub fn at(&self, index: usize) -> At {
        let micro = self.micros.find(index);
        let step = self.steps.find(index);
        let seat = self.seat(index);
        let (epoch, first_micro, first_step) = self.mark(micro).map_or((0, (0, 0), (0, 0)), |mark| {
            (mark.epoch, mark.first_micro, mark.first_step)
        });
        At {
            epoch,
            step: step.saturating_sub(first_step.0) as u64 + first_step.1,
            micro_step: micro.saturating_sub(first_micro.0) as u64 + first_micro.1,
            rank: seat.rank.into(),
            slot: seat.slot.into(),
        }
    }

    /// All epochs as one, for streams whose epochs do not go together.
    pub fn merge_epochs(&mut self) {
        self.epochs.truncate(1);
    }

    /// The sequence in which to take the samples of micro-step `micro` so that their seats stand as in `seats`; `None`
    /// when these are other seats.
    pub fn rearrangement(&self, micro: usize, seats: &[Seat]) -> Option<Vec<usize>> {
        let own = self.seats(micro);
        if own.len() != seats.len() {
            return None;
        }
        let mut by_seat: Vec<usize> = (0..own.len()).collect();
        by_seat.sort_by_key(|&i| own[i]);
        let mut wanted: Vec<usize> = (0..seats.len()).collect();
        wanted.sort_by_key(|&i| seats[i]);
        let mut order = vec![0; own.len()];
        for (&have, &want) in by_seat.iter().zip(&wanted) {
            if own[have] != seats[want] {
                return None;
            }
            order[want] = have;
        }
        Some(order)
    }

    /// Makes micro-step `micro` stand as in `seats`.
    pub fn set_seats(&mut self, micro: usize, seats: &[Seat]) {
        let table = match self.tables.iter().position(|table| table == seats) {
            Some(table) => table,
            None => {
                self.tables.push(seats.to_vec());
                self.tables.len() - 1
            }
        };
        if table == 0 {
            self.exceptions.remove(&micro);
        } else {
            self.exceptions.insert(micro, table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_uniform_until_they_are_not() {
        let mut starts = Starts::default();
        for size in [4, 4, 2] {
            starts.push(size);
        }
        assert!(starts.list.is_none());
        assert_eq!(
            (starts.range(1), starts.range(2), starts.total()),
            (4..8, 8..10, 10)
        );
        assert_eq!([0, 3, 4, 8, 9].map(|i| starts.find(i)), [0, 0, 1, 2, 2]);
        starts.push(4);
        assert!(starts.list.is_some());
        assert_eq!(
            (starts.range(2), starts.range(3), starts.len()),
            (8..10, 10..14, 4)
        );
        assert_eq!([0, 4, 9, 10, 13].map(|i| starts.find(i)), [0, 1, 2, 3, 3]);
    }

    #[test]
    fn places_restart_at_each_epoch() {
        let seats: Vec<Seat> = [(0, 0), (1, 0), (0, 1), (1, 1)]
            .map(|(rank, slot)| Seat { rank, slot })
            .to_vec();
        let mut layout = Layout::default();
        for epoch in 0..2 {
            layout.begin_epoch(epoch, 0, 0);
            layout.push_micro_step(&seats);
            layout.push_micro_step(&seats);
            layout.close_step();
            layout.push_micro_step(&seats[..2]);
        }
        layout.close_step();
        assert_eq!(
            (layout.len(), layout.steps().len(), layout.micros().len()),
            (20, 4, 6)
        );
        let at = layout.at(16);
        assert_eq!(
            (at.epoch, at.step, at.micro_step, at.rank, at.slot),
            (1, 0, 1, 0, 1)
        );
        let last = layout.at(19);
        assert_eq!((last.epoch, last.step, last.micro_step, last.rank), (1, 1, 2, 1));
        assert_eq!((layout.samples_of(1), layout.steps_of(1)), (10..20, 2..4));
        assert_eq!((layout.world_size(), layout.micro_batch_size()), (2, 2));
        let blocked: Vec<Seat> = [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(rank, slot)| Seat { rank, slot })
            .to_vec();
        assert_eq!(layout.rearrangement(0, &blocked), Some(vec![0, 2, 1, 3]));
        assert_eq!(layout.rearrangement(2, &blocked), None);
    }
}
