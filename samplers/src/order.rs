//! The contract of an order: a pure function from place to sample.

use std::fmt;
use std::sync::Arc;

use crate::place::{Geometry, Place, SampleId};
use crate::spec::{OrderError, OrderSpec};

/// An order over a dataset of `num_samples` samples, for one [`Geometry`].
///
/// An order holds no cursor: epochs are built on request and any place of an epoch can be asked for in any
/// sequence, so workers, prefetch and restarts cannot change what is delivered.
pub trait Order: Send + Sync + fmt::Debug {
    /// The spec this order was built from.
    fn spec(&self) -> &OrderSpec;
    /// The layout over ranks it was built for.
    fn geometry(&self) -> Geometry;
    /// Samples in the dataset the order permutes.
    fn num_samples(&self) -> u64;
    /// Builds epoch `epoch` (O(n) at most once per epoch; a few epochs may be cached).
    ///
    /// # Errors
    /// [`OrderError`] when the epoch does not exist for this order or cannot be built.
    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError>;
}

/// One epoch of an order; every look-up is O(1).
pub trait Epoch: Send + Sync + fmt::Debug {
    /// Which epoch this is.
    fn epoch(&self) -> u64;
    /// Micro-steps in this epoch (a rank may have fewer rows, or none, in the last ones).
    fn micro_steps(&self) -> u64;
    /// Optimizer steps in this epoch, under the order's own rule for the last, partial accumulation.
    fn steps(&self) -> u64;
    /// Optimizer step (within the epoch) a micro-step belongs to.
    fn step_of(&self, micro_step: u64) -> u64;
    /// Position `k` of a place in the epoch's dealt list, `None` past the end.
    fn deal_index(&self, place: Place) -> Option<u64>;
    /// Index after the order's own dataset shuffle, `None` past the end.
    fn position(&self, place: Place) -> Option<u64>;
    /// Row of the stored table, `None` past the end.
    fn sample(&self, place: Place) -> Option<SampleId>;
    /// The place consumes a sample the epoch already consumed, because the order pads its end.
    fn is_padding(&self, place: Place) -> bool;
    /// Samples consumed a second time by padding, as positions in deal order.
    fn padded(&self) -> Vec<u64>;
    /// Positions of the epoch's permutation that no place consumes.
    fn dropped(&self) -> Vec<u64>;
}
