//! Streams of Hugging Face `IterableDataset`s: shards, mixes, the shuffle buffer, nodes and workers.
//!
//! Reproduces datasets 5.2.0 (`iterable_dataset.py`): a stream is described by a [`Source`], on which the package's
//! rewriting steps (shuffle, epoch, node, worker) act, and then read by a [`Stream`], whose state can be saved at any
//! row and restored exactly, buffer content and draws included (the package itself loses the buffer on resume).
//!
//! Bias of the shuffle buffer: a row comes at most about a buffer's length before or after its place in the input, so
//! the start of a stream holds rows of the first shards only. Memory: the buffer, and one look-ahead a source.

mod chunk;
mod mix;
mod node;
mod rewrite;
mod source;
mod stream;

pub use source::{IterableError, Source};
pub use stream::{Stream, StreamState};
