//! `megatron`: a Megatron-Core pretraining run, dataset shuffles and pretraining sampler together.
//!
//! Reproduces Megatron-Core 0.19.2 `GPTDataset` and `BlendedDataset` (see [`super::megatron_index`] and
//! [`super::blend`]) under `MegatronPretrainingSampler` of Megatron-LM at d98e8a64 ([`super::megatron_sampler`]).
//!
//! Over `.bin/.idx` data the caller builds the datasets, since their indices need the stored lengths
//! ([`OrderInput::megatron`]). Over a table of rows each row is one document of one sample, without the extra token: what
//! comparisons of orders on one corpus need.
//!
//! The run is one pass over the built dataset, so there is one epoch, however many the indices lay out.
//! Bias: that of the indices. Memory: theirs; over rows 16 bytes a row and epoch.

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::megatron_dataset::MegatronDataset;
use super::megatron_epochs::GptIndexSpec;
use super::megatron_index::GptIndex;
use super::megatron_sampler::PretrainingSampler;
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::order::{Epoch, Order};
use crate::place::{Geometry, Place, SampleId};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// Options that both Megatron orders have: how the dataset is built.
pub(super) mod dataset_options {
    use super::OptionHelp;

    pub const SHUFFLE: OptionHelp = OptionHelp {
        key: "shuffle",
        values: "true, false",
        default: "true",
        help: "false: over rows, take them as they stand, without document and shuffle index",
    };
    pub const SAMPLES: OptionHelp = OptionHelp {
        key: "samples",
        values: "integer, 0 or more",
        default: "one epoch of the data",
        help: "samples asked of the split (train_samples, or train_iters times the global batch); the data is laid out as often as that takes",
    };
    pub const EXTRA_TOKEN: OptionHelp = OptionHelp {
        key: "add_extra_token_to_sequence",
        values: "true, false",
        default: "true over .bin/.idx, false over rows",
        help: "a sample takes one token more than the sequence length, which the next one starts with",
    };
    pub const DROP_PARTIAL: OptionHelp = OptionHelp {
        key: "drop_last_partial_validation_sequence",
        values: "true, false",
        default: "true",
        help: "valid split only; false: keep what is left behind its last whole sample",
    };
    pub const SURPLUS: OptionHelp = OptionHelp {
        key: "mid_level_dataset_surplus",
        values: "number from 0 on",
        default: "0.005",
        help: "margin built above what a blend asks of each dataset",
    };
}
use dataset_options::{DROP_PARTIAL, EXTRA_TOKEN, SAMPLES, SHUFFLE, SURPLUS};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "megatron",
    summary: "a Megatron-Core pretraining run: GPTDataset, blends, and its sequential sampler",
    source: "Megatron-Core 0.19.2 GPTDataset, BlendedDataset; Megatron-LM d98e8a64 MegatronPretrainingSampler",
    for_whom: "Your run is Megatron's with dataloader_type single, its default. With dataloader_type cyclic take \
               `megatron-random`.",
    options: &[
        options::SEED,
        SHUFFLE,
        SAMPLES,
        EXTRA_TOKEN,
        DROP_PARTIAL,
        SURPLUS,
        OptionHelp {
            key: "consumed_samples",
            values: "integer, 0 or more",
            default: "0",
            help: "samples the run has behind it: the first micro-step takes the next one",
        },
        OptionHelp {
            key: "drop_last",
            values: "true, false",
            default: "true",
            help: "leave out the samples at the end that do not fill a global batch; false: their micro-batches are short",
        },
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(MegatronOrder::parse(fields)?)),
    examples: &[
        r#"{"name":"megatron","seed":1234}"#,
        r#"{"name":"megatron","seed":1234,"drop_last":false}"#,
        r#"{"name":"megatron","seed":7,"samples":250}"#,
        r#"{"name":"megatron","seed":7,"shuffle":false}"#,
    ],
};

/// How the dataset of a Megatron order is built.
#[derive(Clone, Debug, Serialize)]
pub struct DatasetOptions {
    seed: Seed,
    shuffle: bool,
    samples: Option<u64>,
    add_extra_token_to_sequence: Option<bool>,
    drop_last_partial_validation_sequence: bool,
    mid_level_dataset_surplus: f64,
}

impl DatasetOptions {
    pub(super) fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let options = DatasetOptions {
            seed: fields.take("seed")?.ok_or_else(|| fields.no_seed())?,
            shuffle: fields.or("shuffle", true)?,
            samples: fields.take("samples")?,
            add_extra_token_to_sequence: fields.take("add_extra_token_to_sequence")?,
            drop_last_partial_validation_sequence: fields
                .or("drop_last_partial_validation_sequence", true)?,
            mid_level_dataset_surplus: fields
                .or("mid_level_dataset_surplus", super::blend::DEFAULT_SURPLUS)?,
        };
        if u32::try_from(options.seed.get()).is_err() {
            return Err(fields.refuse("seed", "numpy's RandomState takes 0 to 4294967295"));
        }
        let surplus = options.mid_level_dataset_surplus;
        if !(surplus.is_finite() && surplus >= 0.0) {
            return Err(fields.refuse("mid_level_dataset_surplus", "it is no number from 0 on"));
        }
        if !options.shuffle && options.samples.is_some() {
            return Err(fields.refuse(
                "samples",
                "without the shuffle there are no indices: the rows are what there is",
            ));
        }
        Ok(options)
    }

    /// Seed of the run, 0 to 2^32 - 1.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// The indices are applied.
    pub fn shuffle(&self) -> bool {
        self.shuffle
    }

    /// Samples asked of the split, `None` for one epoch.
    pub fn samples(&self) -> Option<u64> {
        self.samples
    }

    /// Draw the extra token over `.bin/.idx` data.
    pub fn add_extra_token(&self) -> bool {
        self.add_extra_token_to_sequence.unwrap_or(true)
    }

    /// Drop the last partial sequence of the valid split.
    pub fn drop_last_partial_validation_sequence(&self) -> bool {
        self.drop_last_partial_validation_sequence
    }

    /// Margin built above what a blend asks for.
    pub fn mid_level_dataset_surplus(&self) -> f64 {
        self.mid_level_dataset_surplus
    }

    /// The dataset a sampler goes through.
    pub(super) fn dataset(&self, order: &'static str, input: &OrderInput) -> Result<Samples, OrderError> {
        if let Some(dataset) = &input.megatron {
            if !self.shuffle {
                return Err(OrderError::Input {
                    order,
                    what: "its indices over .bin/.idx data (`shuffle: false` is for tables of rows)",
                });
            }
            return Ok(Samples::Gpt(Arc::clone(dataset)));
        }
        if self.add_extra_token_to_sequence == Some(true) {
            return Err(OrderError::Input {
                order,
                what: "samples that are rows, or .bin/.idx data: a row has no extra token to give \
                       (`add_extra_token_to_sequence`)",
            });
        }
        if !self.shuffle {
            return Ok(Samples::Rows(input.num_samples));
        }
        let too_large = || {
            OrderError::TooLarge(format!(
                "{} rows are more than the indices can name",
                input.num_samples
            ))
        };
        let rows = usize::try_from(input.num_samples).map_err(|_| too_large())?;
        let mut lengths = Vec::new();
        lengths.try_reserve_exact(rows).map_err(|_| too_large())?;
        lengths.resize(rows, 1u32);
        // Rows of equal length, of which each is one sample: the length itself cancels out.
        let spec = GptIndexSpec {
            sequence_length: 1,
            add_extra_token: false,
            random_seed: u64::try_from(self.seed.get()).unwrap_or(0),
            num_samples: self.samples,
            drop_last_partial_sequence: true,
        };
        let index = GptIndex::build(&lengths, 0..input.num_samples, &spec)?;
        Ok(Samples::ShuffledRows(Arc::new(index)))
    }
}

/// The dataset a sampler goes through, position by position.
#[derive(Clone, Debug)]
pub(super) enum Samples {
    /// Built from `.bin/.idx` data.
    Gpt(Arc<MegatronDataset>),
    /// Rows under document and shuffle index.
    ShuffledRows(Arc<GptIndex>),
    /// Rows as they stand.
    Rows(u64),
}

impl Samples {
    /// Positions.
    pub fn len(&self) -> u64 {
        match self {
            Samples::Gpt(dataset) => dataset.len(),
            Samples::ShuffledRows(index) => index.len(),
            Samples::Rows(rows) => *rows,
        }
    }

    /// Ids there are.
    pub fn num_ids(&self, input: &OrderInput) -> u64 {
        match self {
            Samples::Gpt(dataset) => dataset.num_ids(),
            Samples::ShuffledRows(_) | Samples::Rows(_) => input.num_samples,
        }
    }

    /// Why a position has no id.
    pub fn fault(&self, position: u64) -> Option<String> {
        match self {
            Samples::Gpt(dataset) => dataset.fault(position),
            // Built in memory.
            Samples::ShuffledRows(_) | Samples::Rows(_) => None,
        }
    }

    /// Id at a position.
    pub fn id(&self, position: u64) -> Option<SampleId> {
        match self {
            Samples::Gpt(dataset) => dataset.sample_id(position),
            Samples::ShuffledRows(index) => index
                .document_index
                .get(index.shuffle_index.get(position)?)
                .map(u64::from),
            Samples::Rows(rows) => (position < *rows).then_some(position),
        }
    }
}

/// Options of `megatron`.
#[derive(Clone, Debug, Serialize)]
pub struct MegatronOrder {
    #[serde(flatten)]
    dataset: DatasetOptions,
    consumed_samples: u64,
    drop_last: bool,
}

impl MegatronOrder {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        Ok(MegatronOrder {
            dataset: DatasetOptions::parse(fields)?,
            consumed_samples: fields.or("consumed_samples", 0)?,
            drop_last: fields.or("drop_last", true)?,
        })
    }

    /// How its dataset is built.
    pub fn dataset_options(&self) -> &DatasetOptions {
        &self.dataset
    }

    /// Samples the run has behind it.
    pub fn consumed_samples(&self) -> u64 {
        self.consumed_samples
    }
}

impl OrderOptions for MegatronOrder {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        vec![("seed", self.dataset.seed)]
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let samples = self.dataset.dataset(ENTRY.name, input)?;
        let Geometry {
            world_size,
            micro_batch_size,
            gradient_accumulation_steps,
        } = input.geometry;
        let sampler = PretrainingSampler::new(
            samples.len(),
            self.consumed_samples,
            micro_batch_size,
            world_size,
            self.drop_last,
        )?;
        // A step that does not get all its micro-batches never happens: the iterator ends inside it.
        let steps = match self.drop_last {
            true => sampler.batches() / gradient_accumulation_steps,
            false => sampler.batches().div_ceil(gradient_accumulation_steps),
        };
        let micro_steps = sampler.batches().min(steps * gradient_accumulation_steps);
        let end = (self.consumed_samples + micro_steps * input.geometry.samples_per_micro_step())
            .min(samples.len());
        Ok(Arc::new(Run(Arc::new(RunParts {
            spec: spec.clone(),
            geometry: input.geometry,
            num_ids: samples.num_ids(input),
            samples,
            positions: self.consumed_samples..end,
            micro_steps,
            steps,
        }))))
    }
}

#[derive(Debug)]
struct RunParts {
    spec: OrderSpec,
    geometry: Geometry,
    num_ids: u64,
    samples: Samples,
    /// Positions that places consume, in deal order.
    positions: Range<u64>,
    micro_steps: u64,
    steps: u64,
}

/// The order, which is also its only epoch.
#[derive(Clone, Debug)]
struct Run(Arc<RunParts>);

impl Order for Run {
    fn spec(&self) -> &OrderSpec {
        &self.0.spec
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn num_samples(&self) -> u64 {
        self.0.num_ids
    }

    fn num_positions(&self) -> u64 {
        self.0.samples.len()
    }

    fn micro_steps_per_epoch(&self) -> u64 {
        self.0.micro_steps
    }

    fn steps_per_epoch(&self) -> u64 {
        self.0.steps
    }

    fn num_padded(&self) -> u64 {
        0
    }

    fn num_dropped(&self) -> u64 {
        self.0.samples.len() - (self.0.positions.end - self.0.positions.start)
    }

    fn num_epochs(&self) -> Option<u64> {
        Some(1)
    }

    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError> {
        if epoch > 0 {
            return Err(OrderError::Epoch {
                epoch,
                why: "a Megatron run is one pass over its dataset, which holds as many epochs of the data as `samples` \
                      asks for"
                    .to_string(),
            });
        }
        Ok(Arc::new(self.clone()))
    }
}

impl Epoch for Run {
    fn epoch(&self) -> u64 {
        0
    }

    fn micro_steps(&self) -> u64 {
        self.0.micro_steps
    }

    fn steps(&self) -> u64 {
        self.0.steps
    }

    fn step_of(&self, micro_step: u64) -> u64 {
        micro_step / self.0.geometry.gradient_accumulation_steps
    }

    fn deal_index(&self, place: Place) -> Option<u64> {
        let RunParts {
            geometry, positions, ..
        } = &*self.0;
        if place.rank >= geometry.world_size || place.slot >= geometry.micro_batch_size {
            return None;
        }
        let start = place.micro_step.checked_mul(geometry.samples_per_micro_step())?;
        let k = start.checked_add(place.rank * geometry.micro_batch_size + place.slot)?;
        (k < positions.end - positions.start).then_some(k)
    }

    fn place_of(&self, deal_index: u64) -> Option<Place> {
        let RunParts {
            geometry, positions, ..
        } = &*self.0;
        if deal_index >= positions.end - positions.start {
            return None;
        }
        let (micro_step, within) = (
            deal_index / geometry.samples_per_micro_step(),
            deal_index % geometry.samples_per_micro_step(),
        );
        Some(Place {
            micro_step,
            rank: within / geometry.micro_batch_size,
            slot: within % geometry.micro_batch_size,
        })
    }

    fn position(&self, place: Place) -> Option<u64> {
        Some(self.0.positions.start + self.deal_index(place)?)
    }

    fn sample(&self, place: Place) -> Option<SampleId> {
        self.0.samples.id(self.position(place)?)
    }

    fn fault(&self, place: Place) -> Option<String> {
        self.0.samples.fault(self.position(place)?)
    }

    fn is_padding(&self, _place: Place) -> bool {
        false
    }

    fn padded(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dropped(&self) -> Vec<u64> {
        (0..self.0.positions.start)
            .chain(self.0.positions.end..self.0.samples.len())
            .collect()
    }
}
