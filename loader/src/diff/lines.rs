//! Which micro-batches a log has lines of, so that an order is listed for these and no others.
//!
//! Memory: a few bytes where every rank has a line at every micro-step, else 24 bytes a line.

use std::collections::BTreeSet;

/// Micro-batches by epoch, micro-step and rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    ranks: Vec<u64>,
    /// Lines of micro-steps that some of the ranks lack.
    uneven: BTreeSet<(u64, u64, u64)>,
    /// Those micro-steps.
    lacking: BTreeSet<(u64, u64)>,
    /// The micro-step whose lines come in.
    open: Option<((u64, u64), Vec<u64>)>,
}

impl Lines {
    /// Lines of these ranks.
    pub fn of_ranks(ranks: &[u64]) -> Self {
        Self {
            ranks: ranks.to_vec(),
            ..Self::default()
        }
    }

    /// Takes a line in; those of a micro-step come one behind the other.
    pub fn push(&mut self, epoch: u64, micro_step: u64, rank: u64) {
        match &mut self.open {
            Some((at, ranks)) if *at == (epoch, micro_step) => ranks.push(rank),
            _ => {
                self.close();
                self.open = Some(((epoch, micro_step), vec![rank]));
            }
        }
    }

    /// There are no more lines.
    pub fn close(&mut self) {
        if let Some(((epoch, micro_step), ranks)) = self.open.take()
            && ranks.len() < self.ranks.len()
        {
            self.lacking.insert((epoch, micro_step));
            self.uneven
                .extend(ranks.into_iter().map(|rank| (epoch, micro_step, rank)));
        }
    }

    /// There is a line of this micro-batch, given one of its micro-step.
    pub fn contain(&self, epoch: u64, micro_step: u64, rank: u64) -> bool {
        if self.lacking.contains(&(epoch, micro_step)) {
            self.uneven.contains(&(epoch, micro_step, rank))
        } else {
            self.ranks.contains(&rank)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_steps_that_some_ranks_lack_are_kept_by_line() {
        let mut lines = Lines::of_ranks(&[0, 2]);
        for (micro_step, rank) in [(0, 0), (0, 2), (1, 2), (2, 0), (2, 2)] {
            lines.push(5, micro_step, rank);
        }
        lines.close();
        assert_eq!(lines.lacking.len(), 1);
        let of = |micro_step, rank| lines.contain(5, micro_step, rank);
        assert_eq!([of(0, 0), of(0, 1), of(0, 2)], [true, false, true]);
        assert_eq!([of(1, 0), of(1, 2), of(2, 0)], [false, true, true]);
    }
}
