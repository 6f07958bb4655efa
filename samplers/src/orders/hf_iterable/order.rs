//! The order and its epochs: rows read once, places looked up.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::HfIterable;
use super::layout::{Layout, Reading};
use crate::order::{Epoch, Order};
use crate::permute::Permutation;
use crate::place::{Geometry, Place, SampleId};
use crate::spec::{OrderError, OrderSpec};

#[derive(Debug)]
struct Core {
    spec: OrderSpec,
    options: HfIterable,
    num_samples: u64,
    reading: Reading,
    /// Places of an epoch: of every one, or of the first where they differ.
    layout: Layout,
    epochs_differ: bool,
}

type Cell = OnceLock<Result<Arc<StreamEpoch>, OrderError>>;

/// The order over a dataset of known size.
#[derive(Debug)]
pub(super) struct HfIterableOrder {
    core: Arc<Core>,
    /// The last epoch asked for, kept alive.
    last: Mutex<Option<(u64, Arc<Cell>)>>,
}

impl HfIterableOrder {
    pub fn new(
        spec: &OrderSpec,
        options: &HfIterable,
        num_samples: u64,
        reading: Reading,
    ) -> Result<Self, OrderError> {
        let core = Core {
            spec: spec.clone(),
            num_samples,
            layout: reading.layout(options.pass(0))?,
            epochs_differ: options.set_epoch_called && reading.epochs_differ_in_length(),
            reading,
            options: options.clone(),
        };
        Ok(HfIterableOrder {
            core: Arc::new(core),
            last: Mutex::default(),
        })
    }
}

impl Order for HfIterableOrder {
    fn spec(&self) -> &OrderSpec {
        &self.core.spec
    }

    fn geometry(&self) -> Geometry {
        self.core.reading.geometry
    }

    fn num_samples(&self) -> u64 {
        self.core.num_samples
    }

    fn num_positions(&self) -> u64 {
        self.core.layout.num_positions()
    }

    fn micro_steps_per_epoch(&self) -> u64 {
        self.core.layout.micro_steps()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.core
            .layout
            .micro_steps()
            .div_ceil(self.geometry().gradient_accumulation_steps)
    }

    fn num_padded(&self) -> u64 {
        self.core.layout.num_padded()
    }

    fn num_dropped(&self) -> u64 {
        self.core.layout.num_dropped()
    }

    fn num_epochs(&self) -> Option<u64> {
        self.core.epochs_differ.then_some(1)
    }

    fn is_elastic(&self) -> bool {
        self.core.reading.is_elastic()
    }

    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError> {
        if epoch > 0 && self.core.epochs_differ {
            return Err(OrderError::Epoch {
                epoch,
                why: "epochs of this stream differ in length, so each is an order of its own: set `first_epoch`".to_string(),
            });
        }
        let cell = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            match &*last {
                Some((e, cell)) if *e == epoch => Arc::clone(cell),
                _ => {
                    let cell = Arc::new(Cell::new());
                    *last = Some((epoch, Arc::clone(&cell)));
                    cell
                }
            }
        };
        // Outside the lock: whoever asks for another epoch does not wait for this one.
        let built = cell.get_or_init(|| {
            let rows = self
                .core
                .reading
                .rows(self.core.options.pass(epoch), &self.core.layout)?;
            Ok(Arc::new(StreamEpoch {
                core: Arc::clone(&self.core),
                epoch,
                rows,
            }))
        });
        Ok(built.clone()?)
    }
}

/// One epoch of the order.
#[derive(Debug)]
struct StreamEpoch {
    core: Arc<Core>,
    epoch: u64,
    /// Rows in the sequence of deal indices, then those that no place consumes.
    rows: Permutation,
}

impl Epoch for StreamEpoch {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn micro_steps(&self) -> u64 {
        self.core.layout.micro_steps()
    }

    fn steps(&self) -> u64 {
        self.micro_steps()
            .div_ceil(self.core.reading.geometry.gradient_accumulation_steps)
    }

    fn step_of(&self, micro_step: u64) -> u64 {
        micro_step / self.core.reading.geometry.gradient_accumulation_steps
    }

    fn deal_index(&self, place: Place) -> Option<u64> {
        self.core.layout.index(place)
    }

    fn place_of(&self, deal_index: u64) -> Option<Place> {
        self.core.layout.place(deal_index)
    }

    fn position(&self, place: Place) -> Option<u64> {
        Some(self.core.layout.entry(self.core.layout.index(place)?))
    }

    fn sample(&self, place: Place) -> Option<SampleId> {
        self.rows.get(self.position(place)?)
    }

    fn is_padding(&self, place: Place) -> bool {
        self.core
            .layout
            .index(place)
            .is_some_and(|k| k >= self.rows.len())
    }

    fn padded(&self) -> Vec<u64> {
        let layout = &self.core.layout;
        (self.rows.len()..layout.end()).map(|k| layout.entry(k)).collect()
    }

    fn dropped(&self) -> Vec<u64> {
        (self.core.layout.end()..self.rows.len()).collect()
    }
}
