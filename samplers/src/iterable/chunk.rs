//! Rows that travel together through a stream.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Rows handed over together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Chunk {
    /// Consecutive rows.
    Run(Range<u64>),
    /// Any rows, in reverse, so that the next one is at the end.
    Reversed(Vec<u64>),
}

impl Chunk {
    pub(super) fn empty() -> Self {
        Chunk::Run(0..0)
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Chunk::Run(run) => run.end.saturating_sub(run.start),
            Chunk::Reversed(rows) => rows.len() as u64,
        }
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        match self {
            Chunk::Run(run) => run.next(),
            Chunk::Reversed(rows) => rows.pop(),
        }
    }

    /// The first rows, as their own chunk; `count` is at most the length.
    pub(super) fn split_front(&mut self, count: u64) -> Chunk {
        match self {
            Chunk::Run(run) => {
                let front = run.start..run.start + count;
                run.start = front.end;
                Chunk::Run(front)
            }
            Chunk::Reversed(rows) => Chunk::Reversed(rows.split_off(rows.len() - count as usize)),
        }
    }

    pub(super) fn rows(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        match self {
            Chunk::Run(run) => Box::new(run.clone()),
            Chunk::Reversed(rows) => Box::new(rows.iter().rev().copied()),
        }
    }

    pub(super) fn from_rows(mut rows: Vec<u64>) -> Self {
        rows.reverse();
        Chunk::Reversed(rows)
    }
}
