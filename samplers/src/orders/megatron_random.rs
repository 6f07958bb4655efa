//! `megatron-random`: a Megatron-Core run whose sampler shuffles anew each epoch.
//!
//! Reproduces `MegatronPretrainingRandomSampler` of Megatron-LM at d98e8a64 (dataloader_type `cyclic`;
//! [`super::megatron_sampler`]) over the same datasets as [`super::megatron`].
//!
//! An epoch is one pass of the sampler: all whole global batches of the dataset. Its permutation depends on the number of
//! ranks and on the micro-batch, so a run cannot be resumed with other ones. Without data sharding the first ranks may have
//! a batch more than the others at the end of an epoch: all steps of epoch 0 are defined then, and no later epoch is.
//! Bias: the seed of an epoch's permutation is its number, so every run has the same ones; with data sharding each rank
//! stays in its own bucket. Memory: 4 bytes a sample for each epoch in use, beside the dataset's indices.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::megatron::{DatasetOptions, Samples, dataset_options};
use super::megatron_sampler::RandomSampler;
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::order::{Epoch, Order};
use crate::permute::Permutation;
use crate::place::{Geometry, Place, SampleId};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "megatron-random",
    summary: "a Megatron-Core run under its random sampler (dataloader_type cyclic)",
    source: "Megatron-LM d98e8a64 MegatronPretrainingRandomSampler over Megatron-Core 0.19.2 datasets",
    for_whom: "Your run is Megatron's with dataloader_type cyclic. With dataloader_type single take `megatron`.",
    options: &[
        options::SEED,
        dataset_options::SHUFFLE,
        dataset_options::SAMPLES,
        dataset_options::EXTRA_TOKEN,
        dataset_options::DROP_PARTIAL,
        dataset_options::SURPLUS,
        OptionHelp {
            key: "data_sharding",
            values: "true, false",
            default: "true",
            help: "each rank shuffles a bucket of its own; false: one shuffle dealt round the ranks",
        },
        OptionHelp {
            key: "consumed_samples",
            values: "0",
            default: "0",
            help: "a resumed run goes on inside its epoch with the batches it would have had: --epoch and --steps start \
                   there, and any other value is refused with theirs",
        },
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(MegatronRandom::parse(fields)?)),
    examples: &[
        r#"{"name":"megatron-random","seed":1234}"#,
        r#"{"name":"megatron-random","seed":1234,"data_sharding":false}"#,
        r#"{"name":"megatron-random","seed":7,"shuffle":false}"#,
    ],
};

/// Options of `megatron-random`.
#[derive(Clone, Debug, Serialize)]
pub struct MegatronRandom {
    #[serde(flatten)]
    dataset: DatasetOptions,
    data_sharding: bool,
    consumed_samples: u64,
}

impl MegatronRandom {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        Ok(MegatronRandom {
            dataset: DatasetOptions::parse(fields)?,
            data_sharding: fields.or("data_sharding", true)?,
            consumed_samples: fields.or("consumed_samples", 0)?,
        })
    }

    /// How its dataset is built.
    pub fn dataset_options(&self) -> &DatasetOptions {
        &self.dataset
    }
}

impl OrderOptions for MegatronRandom {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        vec![("seed", self.dataset.seed())]
    }

    fn warnings(&self) -> Vec<String> {
        vec![
            "the sampler's permutations are seeded by the epoch's number alone, as Megatron's are: `seed` decides the \
             dataset's indices only"
                .to_string(),
        ]
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let samples = self.dataset.dataset(ENTRY.name, input)?;
        let Geometry {
            world_size,
            micro_batch_size,
            gradient_accumulation_steps,
        } = input.geometry;
        let sampler = RandomSampler::new(samples.len(), micro_batch_size, world_size, self.data_sharding)?;
        let micro_steps = sampler.epoch_size() / input.geometry.samples_per_micro_step();
        if !micro_steps.is_multiple_of(gradient_accumulation_steps) {
            return Err(OrderError::Geometry(format!(
                "an epoch has {micro_steps} micro-steps, which {gradient_accumulation_steps} accumulation steps do not \
                 divide: Megatron goes on accumulating over the end of an epoch, which is not replayed; the samples are \
                 those of gradient_accumulation_steps 1"
            )));
        }
        if self.consumed_samples > 0 {
            let (epoch, within) = sampler.locate(self.consumed_samples)?;
            let micro_step = within / input.geometry.samples_per_micro_step();
            let step = micro_step / gradient_accumulation_steps;
            return Err(OrderError::Geometry(format!(
                "{} consumed samples are {micro_step} micro-steps into epoch {epoch} of {micro_steps}; Megatron goes on there \
                 with the batches the run would have had, so leave consumed_samples out and start at --epoch {epoch} \
                 --steps {step}..{}",
                self.consumed_samples,
                match micro_step % gradient_accumulation_steps {
                    0 => String::new(),
                    into => format!(" (the run stopped {into} micro-steps into that step)"),
                }
            )));
        }
        Ok(Arc::new(RandomOrder {
            parts: Arc::new(Parts {
                spec: spec.clone(),
                geometry: input.geometry,
                num_ids: samples.num_ids(input),
                samples,
                sampler,
                micro_steps,
            }),
            last: Mutex::new(None),
        }))
    }
}

#[derive(Debug)]
struct Parts {
    spec: OrderSpec,
    geometry: Geometry,
    num_ids: u64,
    samples: Samples,
    sampler: RandomSampler,
    micro_steps: u64,
}

impl Parts {
    /// Deal indices of an epoch.
    fn end(&self) -> u64 {
        self.micro_steps * self.geometry.samples_per_micro_step()
    }
}

#[derive(Debug)]
struct RandomOrder {
    parts: Arc<Parts>,
    /// The epoch built last.
    last: Mutex<Option<Arc<RandomEpoch>>>,
}

impl Order for RandomOrder {
    fn spec(&self) -> &OrderSpec {
        &self.parts.spec
    }

    fn geometry(&self) -> Geometry {
        self.parts.geometry
    }

    fn num_samples(&self) -> u64 {
        self.parts.num_ids
    }

    fn num_positions(&self) -> u64 {
        self.parts.samples.len()
    }

    fn micro_steps_per_epoch(&self) -> u64 {
        self.parts.micro_steps
    }

    fn steps_per_epoch(&self) -> u64 {
        self.parts.micro_steps / self.parts.geometry.gradient_accumulation_steps
    }

    fn num_padded(&self) -> u64 {
        0
    }

    fn num_dropped(&self) -> u64 {
        self.parts.samples.len() - self.parts.end()
    }

    fn num_epochs(&self) -> Option<u64> {
        (!self.parts.sampler.is_even()).then_some(1)
    }

    fn is_elastic(&self) -> bool {
        false
    }

    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError> {
        if self.num_epochs().is_some_and(|epochs| epoch >= epochs) {
            let geometry = self.parts.geometry;
            return Err(OrderError::Epoch {
                epoch,
                why: format!(
                    "{} samples over {} ranks with micro-batches of {} and no data sharding give the first ranks a batch \
                     more than the others in epoch 0, and Megatron's ranks run apart from then on; with data_sharding \
                     true, or a number of samples of which whole micro-batches fill whole rounds of the ranks, every \
                     epoch is defined",
                    self.parts.samples.len(),
                    geometry.world_size,
                    geometry.micro_batch_size
                ),
            });
        }
        // The lock is held while the list is made, so that it is made once; a panic leaves what was there before.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = last.as_ref().filter(|built| built.epoch == epoch) {
            return Ok(Arc::clone(built) as Arc<dyn Epoch>);
        }
        let permutation = self.parts.sampler.permutation(epoch)?;
        let built = Arc::new(RandomEpoch {
            parts: Arc::clone(&self.parts),
            epoch,
            permutation,
        });
        *last = Some(Arc::clone(&built));
        Ok(built)
    }
}

#[derive(Debug)]
struct RandomEpoch {
    parts: Arc<Parts>,
    epoch: u64,
    permutation: Permutation,
}

impl Epoch for RandomEpoch {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn micro_steps(&self) -> u64 {
        self.parts.micro_steps
    }

    fn steps(&self) -> u64 {
        self.parts.micro_steps / self.parts.geometry.gradient_accumulation_steps
    }

    fn step_of(&self, micro_step: u64) -> u64 {
        micro_step / self.parts.geometry.gradient_accumulation_steps
    }

    fn deal_index(&self, place: Place) -> Option<u64> {
        let geometry = self.parts.geometry;
        if place.rank >= geometry.world_size || place.slot >= geometry.micro_batch_size {
            return None;
        }
        let start = place.micro_step.checked_mul(geometry.samples_per_micro_step())?;
        let k = start.checked_add(place.rank * geometry.micro_batch_size + place.slot)?;
        (k < self.parts.end()).then_some(k)
    }

    fn place_of(&self, deal_index: u64) -> Option<Place> {
        if deal_index >= self.parts.end() {
            return None;
        }
        let geometry = self.parts.geometry;
        let within = deal_index % geometry.samples_per_micro_step();
        Some(Place {
            micro_step: deal_index / geometry.samples_per_micro_step(),
            rank: within / geometry.micro_batch_size,
            slot: within % geometry.micro_batch_size,
        })
    }

    fn position(&self, place: Place) -> Option<u64> {
        if place.rank >= self.parts.geometry.world_size || place.micro_step >= self.parts.micro_steps {
            return None;
        }
        let (entry, offset) = self
            .parts
            .sampler
            .entry(0, place.micro_step, place.rank, place.slot)?;
        Some(self.permutation.get(entry)? + offset)
    }

    fn sample(&self, place: Place) -> Option<SampleId> {
        self.parts.samples.id(self.position(place)?)
    }

    fn fault(&self, place: Place) -> Option<String> {
        self.parts.samples.fault(self.position(place)?)
    }

    fn is_padding(&self, _place: Place) -> bool {
        false
    }

    fn padded(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dropped(&self) -> Vec<u64> {
        let consumed: BTreeSet<u64> = (0..self.parts.end())
            .filter_map(|k| self.position(self.place_of(k)?))
            .collect();
        (0..self.parts.samples.len())
            .filter(|position| !consumed.contains(position))
            .collect()
    }
}
