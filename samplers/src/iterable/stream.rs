//! Reading a [`Source`] row by row, with a state that can be saved at any row.

use serde::{Deserialize, Serialize};

use super::chunk::Chunk;
use super::node::{Node, NodeState};
use super::source::{IterableError, Source};

/// A running stream of rows.
#[derive(Clone, Debug)]
pub struct Stream {
    root: Node,
    /// Rows already taken from the root, not yet given out.
    pending: Chunk,
    /// Rows given out.
    delivered: u64,
}

/// Everything that decides what a stream gives from here on, besides its [`Source`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    /// Rows given out so far.
    pub delivered: u64,
    pending: Chunk,
    root: NodeState,
}

impl Stream {
    /// Starts a stream.
    ///
    /// # Errors
    /// [`IterableError`] when a generator refuses.
    pub fn new(source: &Source) -> Result<Self, IterableError> {
        Ok(Stream {
            root: Node::new(source)?,
            pending: Chunk::empty(),
            delivered: 0,
        })
    }

    /// The next row, `None` at the end.
    ///
    /// # Errors
    /// [`IterableError`] when a shuffle buffer cannot be held.
    pub fn next_row(&mut self) -> Result<Option<u64>, IterableError> {
        loop {
            if let Some(row) = self.pending.pop() {
                self.delivered += 1;
                return Ok(Some(row));
            }
            match self.root.next()? {
                Some(chunk) => self.pending = chunk,
                None => return Ok(None),
            }
        }
    }

    /// All rows from here on.
    ///
    /// # Errors
    /// As [`Self::next_row`].
    pub fn rest(self) -> Result<Vec<u64>, IterableError> {
        let mut rows = Vec::new();
        self.for_each(|row| rows.push(row))?;
        Ok(rows)
    }

    /// Calls `row` with every row from here on.
    ///
    /// # Errors
    /// As [`Self::next_row`].
    pub fn for_each(mut self, mut row: impl FnMut(u64)) -> Result<(), IterableError> {
        self.pending.rows().for_each(&mut row);
        while let Some(chunk) = self.root.next()? {
            chunk.rows().for_each(&mut row);
        }
        Ok(())
    }

    /// The state after the rows given out so far.
    pub fn state(&self) -> StreamState {
        StreamState {
            delivered: self.delivered,
            pending: self.pending.clone(),
            root: self.root.state(),
        }
    }

    /// A stream of `source` that goes on where `state` was saved. Nothing is read again.
    ///
    /// # Errors
    /// [`IterableError::State`] when the state was saved from a stream of another make.
    pub fn resume(source: &Source, state: &StreamState) -> Result<Self, IterableError> {
        let mut stream = Stream::new(source)?;
        stream.root.load(&state.root)?;
        stream.pending = state.pending.clone();
        stream.delivered = state.delivered;
        Ok(stream)
    }
}
