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
    /// The layout over ranks that places use. It is the one the order was built for, except where the spec
    /// itself divides the micro-batch (`split_batches`): use this one for buffers.
    fn geometry(&self) -> Geometry;
    /// Samples in the stored table.
    fn num_samples(&self) -> u64;
    /// Samples after the order's own dataset-level steps: positions are below it. The stored table's count
    /// when there are none.
    fn num_positions(&self) -> u64 {
        self.num_samples()
    }
    /// Micro-steps of every epoch, known without building one.
    fn micro_steps_per_epoch(&self) -> u64;
    /// Optimizer steps of every epoch, known without building one.
    fn steps_per_epoch(&self) -> u64;
    /// Places an epoch fills by repeating samples of its start.
    fn num_padded(&self) -> u64;
    /// Entries of the epoch's list that no place consumes.
    fn num_dropped(&self) -> u64;
    /// Number of epochs, `None` when any epoch can be asked for.
    fn num_epochs(&self) -> Option<u64> {
        None
    }
    /// Any factorisation of one global batch into ranks, micro-batch and accumulation consumes the same
    /// samples in every full global batch.
    fn is_elastic(&self) -> bool {
        true
    }
    /// Builds epoch `epoch` (O(n) at most once while anyone holds it; the last one asked for is kept).
    ///
    /// # Errors
    /// [`OrderError`] when the epoch does not exist for this order or cannot be built.
    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError>;

    /// Epoch and micro-step within it of a micro-step counted from the start of the run.
    ///
    /// # Errors
    /// [`OrderError::Epoch`] when epochs are empty and there is no such micro-step.
    fn locate(&self, global_micro_step: u64) -> Result<(u64, u64), OrderError> {
        match self.micro_steps_per_epoch() {
            0 => Err(OrderError::Epoch {
                epoch: 0,
                why: "an epoch of this order has no micro-steps".to_string(),
            }),
            per_epoch => Ok((global_micro_step / per_epoch, global_micro_step % per_epoch)),
        }
    }
}

/// One epoch of an order; every look-up is O(1).
///
/// "Deal index" is the position `k` of a place in the list that the epoch deals out, padding included. It
/// does not depend on how a global batch is factored, so digests over samples in deal order do not either.
pub trait Epoch: Send + Sync + fmt::Debug {
    /// Which epoch this is.
    fn epoch(&self) -> u64;
    /// Micro-steps in this epoch (a rank may have fewer rows, or none, in the last ones).
    fn micro_steps(&self) -> u64;
    /// Optimizer steps in this epoch, under the order's own rule for the last, partial accumulation.
    fn steps(&self) -> u64;
    /// Optimizer step (within the epoch) a micro-step belongs to.
    fn step_of(&self, micro_step: u64) -> u64;
    /// Deal index of a place, `None` past the end.
    fn deal_index(&self, place: Place) -> Option<u64>;
    /// The place that consumes deal index `k`, `None` past the end.
    fn place_of(&self, deal_index: u64) -> Option<Place>;
    /// Index after the order's own dataset shuffle, `None` past the end.
    fn position(&self, place: Place) -> Option<u64>;
    /// Row of the stored table, `None` past the end.
    fn sample(&self, place: Place) -> Option<SampleId>;
    /// Why a place inside the epoch has no sample: something the order looks up was damaged while it ran. `None` for
    /// places that have one and places past the end.
    fn fault(&self, _place: Place) -> Option<String> {
        None
    }
    /// As [`Epoch::sample`], where damage is no end of the epoch.
    ///
    /// # Errors
    /// [`OrderError::Damaged`] with what [`Epoch::fault`] says.
    fn checked_sample(&self, place: Place) -> Result<Option<SampleId>, OrderError> {
        match self.sample(place) {
            Some(sample) => Ok(Some(sample)),
            None => self
                .fault(place)
                .map_or(Ok(None), |why| Err(OrderError::Damaged(why))),
        }
    }
    /// The place consumes a sample the epoch already consumed, because the order pads its end.
    fn is_padding(&self, place: Place) -> bool;
    /// Positions consumed a second time by padding, in deal order.
    fn padded(&self) -> Vec<u64>;
    /// Positions of the epoch's list that no place consumes, in list order.
    fn dropped(&self) -> Vec<u64>;
}
