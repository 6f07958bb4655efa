//! An order put together from its three parts: dataset-level steps, a sampler, a deal.
//!
//! Memory: 4 bytes a list entry (8 from 2^32 rows on) for every epoch someone holds, and for the last one asked
//! for: steps and sampler are composed while an epoch is built, and only rows are kept. The first request for a
//! position where positions and rows differ rebuilds the sampler's list, for 4 bytes an entry more.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::dataset::{self, DatasetStep};
use crate::deal::{Deal, Law, Tail};
use crate::order::{Epoch, Order};
use crate::permute::Permutation;
use crate::place::{Geometry, Place, SampleId};
use crate::sampler::Sampler;
use crate::spec::{OrderError, OrderInput, OrderSpec};

/// What a [`ComposedOrder`] is made of.
#[derive(Debug)]
pub struct Parts {
    /// Dataset-level steps, in order.
    pub dataset: Vec<DatasetStep>,
    /// The epoch's list over what the steps leave.
    pub sampler: Box<dyn Sampler>,
    /// How the list is dealt.
    pub law: Law,
    /// What happens at the end of an epoch.
    pub tail: Tail,
    /// The layout that places use.
    pub geometry: Geometry,
}

/// An order made of [`Parts`] over a dataset of known size.
#[derive(Debug)]
pub struct ComposedOrder {
    core: Arc<Core>,
    cache: Mutex<Cache>,
}

#[derive(Debug)]
struct Core {
    spec: OrderSpec,
    num_samples: u64,
    num_positions: u64,
    parts: Parts,
    deal: Deal,
}

/// An epoch being built once, or built.
type Cell = OnceLock<Result<Arc<ComposedEpoch>, OrderError>>;

#[derive(Debug, Default)]
struct Cache {
    /// The last epoch asked for, kept alive.
    last: Option<(u64, Arc<Cell>)>,
    /// Epochs being built.
    building: Vec<(u64, Arc<Cell>)>,
    /// Epochs that someone may still hold.
    held: Vec<(u64, Weak<ComposedEpoch>)>,
}

impl ComposedOrder {
    /// Puts an order together; no list is built yet.
    ///
    /// # Errors
    /// [`OrderError`] when a dataset-level step does not fit the dataset, or sizes overflow.
    pub fn new(spec: &OrderSpec, input: &OrderInput, parts: Parts) -> Result<Self, OrderError> {
        let num_positions = dataset::len(&parts.dataset, input.num_samples)?;
        let len = parts.sampler.len(num_positions);
        let deal = Deal::new(parts.law, parts.tail, parts.geometry, len).ok_or_else(|| {
            OrderError::TooLarge(format!(
                "an epoch of {len} samples cannot be padded: the count leaves 64 bits"
            ))
        })?;
        Ok(ComposedOrder {
            core: Arc::new(Core {
                spec: spec.clone(),
                num_samples: input.num_samples,
                num_positions,
                parts,
                deal,
            }),
            cache: Mutex::default(),
        })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // A panic elsewhere cannot leave the cache half-written: each change is one push, retain or assignment.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where epoch `epoch` is, or will be, built.
    fn cell(&self, epoch: u64) -> Arc<Cell> {
        let mut cache = self.cache();
        cache.held.retain(|(_, weak)| weak.strong_count() > 0);
        let known = cache
            .last
            .iter()
            .chain(&cache.building)
            .find(|(e, _)| *e == epoch);
        let cell = match known {
            Some((_, cell)) => Arc::clone(cell),
            None => {
                let held = cache.held.iter().find(|(e, _)| *e == epoch);
                match held.and_then(|(_, weak)| weak.upgrade()) {
                    Some(built) => Arc::new(Cell::from(Ok(built))),
                    None => {
                        let cell = Arc::new(Cell::new());
                        cache.building.push((epoch, Arc::clone(&cell)));
                        cell
                    }
                }
            }
        };
        cache.last = Some((epoch, Arc::clone(&cell)));
        cell
    }
}

impl Core {
    fn build(self: &Arc<Self>, epoch: u64) -> Result<Arc<ComposedEpoch>, OrderError> {
        let list = || self.parts.sampler.list(epoch, self.num_positions);
        let (rows, positions) = if self.parts.dataset.is_empty() {
            (list()?, Positions::SameAsRows)
        } else {
            let table = || dataset::apply(&self.parts.dataset, self.num_samples);
            // The two lists do not depend on each other; below some size a thread costs more than it saves.
            let (mut rows, table) = if self.num_samples < 1 << 20 {
                (list()?, table()?)
            } else {
                std::thread::scope(|scope| {
                    let table = scope.spawn(table);
                    let rows = list();
                    let table = table
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    Ok::<_, OrderError>((rows?, table?))
                })?
            };
            Arc::make_mut(&mut rows).compose(&table)?;
            (rows, Positions::Rebuilt(OnceLock::new()))
        };
        Ok(Arc::new(ComposedEpoch {
            core: Arc::clone(self),
            epoch,
            rows,
            positions,
        }))
    }
}

impl Order for ComposedOrder {
    fn spec(&self) -> &OrderSpec {
        &self.core.spec
    }

    fn geometry(&self) -> Geometry {
        self.core.parts.geometry
    }

    fn num_samples(&self) -> u64 {
        self.core.num_samples
    }

    fn num_positions(&self) -> u64 {
        self.core.num_positions
    }

    fn micro_steps_per_epoch(&self) -> u64 {
        self.core.deal.micro_steps()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.core.deal.steps()
    }

    fn num_padded(&self) -> u64 {
        self.core.deal.num_padded()
    }

    fn num_dropped(&self) -> u64 {
        self.core.deal.num_dropped()
    }

    fn is_elastic(&self) -> bool {
        self.core.parts.sampler.is_elastic()
    }

    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError> {
        let cell = self.cell(epoch);
        // Outside the lock: whoever asks for another epoch does not wait for this one.
        let built = cell.get_or_init(|| self.core.build(epoch)).clone();
        let mut cache = self.cache();
        cache.building.retain(|(_, other)| !Arc::ptr_eq(other, &cell));
        let built = built?;
        if !cache
            .held
            .iter()
            .any(|(e, weak)| *e == epoch && weak.strong_count() > 0)
        {
            cache.held.push((epoch, Arc::downgrade(&built)));
        }
        Ok(built)
    }
}

/// One epoch of a [`ComposedOrder`].
#[derive(Debug)]
struct ComposedEpoch {
    core: Arc<Core>,
    epoch: u64,
    /// Row of the stored table for each entry of the epoch's list.
    rows: Arc<Permutation>,
    positions: Positions,
}

#[derive(Debug)]
enum Positions {
    /// No dataset-level steps: a position is a row.
    SameAsRows,
    /// The sampler's list, built again when first asked for.
    Rebuilt(OnceLock<Arc<Permutation>>),
}

impl ComposedEpoch {
    fn position_of_entry(&self, entry: u64) -> Option<u64> {
        match &self.positions {
            Positions::SameAsRows => self.rows.get(entry),
            Positions::Rebuilt(cell) => cell
                .get_or_init(|| {
                    self.core
                        .parts
                        .sampler
                        .list(self.epoch, self.core.num_positions)
                        .expect("the same list was built for the rows")
                })
                .get(entry),
        }
    }
}

impl Epoch for ComposedEpoch {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn micro_steps(&self) -> u64 {
        self.core.deal.micro_steps()
    }

    fn steps(&self) -> u64 {
        self.core.deal.steps()
    }

    fn step_of(&self, micro_step: u64) -> u64 {
        self.core.deal.step_of(micro_step)
    }

    fn deal_index(&self, place: Place) -> Option<u64> {
        self.core.deal.index(place)
    }

    fn place_of(&self, deal_index: u64) -> Option<Place> {
        self.core.deal.place(deal_index)
    }

    fn position(&self, place: Place) -> Option<u64> {
        self.position_of_entry(self.core.deal.entry(self.core.deal.index(place)?))
    }

    fn sample(&self, place: Place) -> Option<SampleId> {
        self.rows.get(self.core.deal.entry(self.core.deal.index(place)?))
    }

    fn is_padding(&self, place: Place) -> bool {
        self.core
            .deal
            .index(place)
            .is_some_and(|k| self.core.deal.is_padding(k))
    }

    fn padded(&self) -> Vec<u64> {
        let deal = &self.core.deal;
        (self.rows.len()..deal.end())
            .filter_map(|k| self.position_of_entry(deal.entry(k)))
            .collect()
    }

    fn dropped(&self) -> Vec<u64> {
        (self.core.deal.end()..self.rows.len())
            .filter_map(|entry| self.position_of_entry(entry))
            .collect()
    }
}
