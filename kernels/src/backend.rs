//! What every executor offers: data in and out of a plan's buffers, and running its sections.

use std::time::Duration;

use crate::plan::{BufferId, Plan, Section};

/// Why an executor refused.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// Access outside of a buffer.
    #[error("'{buffer}' has {len} elements; {count} from {offset} were asked for")]
    Range {
        /// The buffer.
        buffer: String,
        /// Its number of elements.
        len: usize,
        /// First element asked for.
        offset: usize,
        /// Number of elements asked for.
        count: usize,
    },
    /// The buffer holds another kind of values than the call moves.
    #[error("'{buffer}' holds {holds}; the call moves {moves}")]
    Kind {
        /// The buffer.
        buffer: String,
        /// What it holds.
        holds: &'static str,
        /// What was asked for.
        moves: &'static str,
    },
    /// An id that a table has no row for.
    #[error("'{buffer}': id {value} at position {position} is outside 0..{limit}")]
    Id {
        /// The id buffer.
        buffer: String,
        /// Position of the id.
        position: usize,
        /// The id.
        value: i32,
        /// Number of valid ids.
        limit: usize,
    },
    /// `cu_seqlens` is not an ascending list from 0 to the number of rows, or a document crosses a sequence.
    #[error("'{buffer}': {reason}")]
    Documents {
        /// The id buffer.
        buffer: String,
        /// What is wrong, with the position.
        reason: String,
    },
    /// The buffer lives only while the step runs.
    #[error("'{buffer}' is not kept: its memory is reused during the step")]
    NotKept {
        /// The buffer.
        buffer: String,
    },
    /// The executor does not support an operator's sizes.
    #[error("{0}")]
    Unsupported(String),
    /// The device or its libraries failed.
    #[error("{0}")]
    Device(String),
}

/// Time of one operator of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// Section.
    pub section: Section,
    /// Position in [`Plan::ops`].
    pub index: usize,
    /// Time it took.
    pub time: Duration,
}

/// Bytes an executor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// Parameters, gradients and optimizer state.
    pub persistent: usize,
    /// The arena shared by everything that lives within a step.
    pub arena: usize,
    /// What the arena would need if no memory were reused.
    pub arena_without_reuse: usize,
}

/// Walks a plan. Memory for all buffers is allocated when the executor is made; running allocates nothing.
///
/// The same inputs give the same bits on every run and, on a CPU, for every number of threads.
/// Freshly made executors hold zeros in persistent buffers.
pub trait Executor: Send {
    /// The plan.
    fn plan(&self) -> &Plan;

    /// Writes ids (tokens, labels, document offsets) from the start of an [`crate::plan::Role::Ids`] buffer, which is
    /// filled completely.
    ///
    /// # Errors
    /// Another number of values than the buffer has, values out of range for the operators that use the buffer, or a
    /// malformed `cu_seqlens`.
    fn write_ids(&mut self, buffer: BufferId, values: &[i32]) -> Result<(), ExecError>;

    /// Writes values from element `offset` on, rounding to the buffer's type.
    ///
    /// # Errors
    /// [`ExecError::Range`], [`ExecError::Kind`].
    fn write_f32(&mut self, buffer: BufferId, offset: usize, values: &[f32]) -> Result<(), ExecError>;

    /// As [`write_f32`](Self::write_f32). The way to set [`crate::plan::Role::Scalar`] buffers.
    ///
    /// # Errors
    /// [`ExecError::Range`], [`ExecError::Kind`].
    fn write_f64(&mut self, buffer: BufferId, offset: usize, values: &[f64]) -> Result<(), ExecError>;

    /// Reads values from element `offset` on, rounding to f32 where the buffer holds more.
    ///
    /// # Errors
    /// [`ExecError::Range`], [`ExecError::Kind`], [`ExecError::NotKept`].
    fn read_f32(&mut self, buffer: BufferId, offset: usize, out: &mut [f32]) -> Result<(), ExecError>;

    /// As [`read_f32`](Self::read_f32), exact for every float type.
    ///
    /// # Errors
    /// [`ExecError::Range`], [`ExecError::Kind`], [`ExecError::NotKept`].
    fn read_f64(&mut self, buffer: BufferId, offset: usize, out: &mut [f64]) -> Result<(), ExecError>;

    /// Runs all operators of a section. Returns when the results can be read.
    ///
    /// # Errors
    /// [`ExecError::Device`] if a device failed. The CPU does not fail.
    fn run(&mut self, section: Section) -> Result<(), ExecError>;

    /// Runs a section and times each operator.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn profile(&mut self, section: Section) -> Result<Vec<OpTime>, ExecError>;

    /// A digest of every bit of readable buffers: for comparing many runs without keeping what they gave. Executors form
    /// it in their own ways; compare digests of one kind of executor only.
    ///
    /// # Errors
    /// As [`read_f64`](Self::read_f64).
    fn digest(&mut self, buffers: &[BufferId]) -> Result<u64, ExecError> {
        let mut digest = 0u64;
        for &id in buffers {
            for value in read_all(self, id)? {
                let z = (digest ^ value.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                digest = z ^ (z >> 29);
            }
        }
        Ok(digest)
    }

    /// Memory held.
    fn memory(&self) -> Memory;

    /// Fills everything that does not persist with NaN: a test then sees what reads memory that nothing wrote.
    fn poison(&mut self);
}

/// Reads a whole buffer as f64.
///
/// # Errors
/// As [`Executor::read_f64`].
pub fn read_all<E: Executor + ?Sized>(executor: &mut E, buffer: BufferId) -> Result<Vec<f64>, ExecError> {
    let mut out = vec![0.0; executor.plan().buffer(buffer).len()];
    executor.read_f64(buffer, 0, &mut out)?;
    Ok(out)
}
