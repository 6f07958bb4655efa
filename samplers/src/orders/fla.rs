//! `fla`: the order flash-linear-attention's legacy training loop gives, and what the FLA-order shim replays.
//!
//! Reproduces datasets 5.2.0 `Dataset.shuffle(seed)` (numpy 2.4.6 PCG64), then torch 2.15.0
//! `DistributedSampler(seed=data_seed or seed)` with `set_epoch`, cut into micro-batches: the strided deal.
//!
//! Bias: see [`crate::sampler::TorchEpochSeed`]; up to `world_size - 1` samples of each epoch come twice.
//! Memory: 4 bytes a sample for each epoch in use.

use std::sync::Arc;

use serde::Serialize;

use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep};
use crate::deal::{Law, Tail};
use crate::order::Order;
use crate::sampler::{Sampler, Sequential, TorchEpochSeed};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "fla",
    summary: "HF dataset shuffle, then torch's DistributedSampler: sample by sample round the ranks (strided)",
    source: "datasets 5.2.0 Dataset.shuffle over numpy 2.4.6 default_rng; torch 2.15.0 DistributedSampler (transformers' \
             Trainer before it moved to accelerate)",
    for_whom: "You replay a run of flash-linear-attention's legacy trainer, or one fed by the FLA-order shim. If your run \
               used today's transformers Trainer with more than one rank, its ranks got other samples: take `hf-trainer`. \
               With one rank both are the same.",
    options: &[
        options::SEED,
        OptionHelp {
            key: "data_seed",
            values: "integer, -2^63 to 2^64-1",
            default: "the seed",
            help: "seed of the sampler alone; the dataset shuffle keeps `seed`",
        },
        options::SHUFFLE,
        OptionHelp {
            help: "cut the epoch to a multiple of world_size instead of repeating its first samples",
            ..options::DROP_LAST
        },
        options::SET_EPOCH_CALLED,
        OptionHelp {
            default: "one shuffle with the seed",
            ..options::DATASET
        },
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(Fla::parse(fields)?)),
    examples: &[
        r#"{"name":"fla","seed":42}"#,
        r#"{"name":"fla","seed":42,"data_seed":-7,"drop_last":true}"#,
        r#"{"name":"fla","seed":7,"set_epoch_called":false,"dataset":[{"shuffle":{"seed":7}},{"shuffle":{"seed":8}}]}"#,
        r#"{"name":"fla","shuffle":false,"dataset":[]}"#,
    ],
};

/// Options of `fla`.
#[derive(Clone, Debug, Serialize)]
pub struct Fla {
    seed: Option<Seed>,
    data_seed: Option<Seed>,
    shuffle: bool,
    drop_last: bool,
    set_epoch_called: bool,
    dataset: Vec<DatasetStep>,
}

impl Fla {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let seed: Option<Seed> = fields.take("seed")?;
        let dataset = dataset_or_shuffle(fields, seed)?;
        let options = Fla {
            seed,
            data_seed: fields.take("data_seed")?,
            shuffle: fields.or("shuffle", true)?,
            drop_last: fields.or("drop_last", false)?,
            set_epoch_called: fields.or("set_epoch_called", true)?,
            dataset,
        };
        if options.shuffle && options.seed.or(options.data_seed).is_none() {
            return Err(fields.no_seed());
        }
        if !options.shuffle && options.data_seed.is_some() {
            return Err(fields.refuse(
                "data_seed",
                "it has no effect with `shuffle: false`: leave it out",
            ));
        }
        Ok(options)
    }

    fn sampler_seed(&self) -> Option<Seed> {
        self.data_seed.or(self.seed).filter(|_| self.shuffle)
    }
}

/// The `dataset` option of orders that shuffle the dataset with `seed` unless told otherwise.
pub(super) fn dataset_or_shuffle(
    fields: &mut Fields,
    seed: Option<Seed>,
) -> Result<Vec<DatasetStep>, SpecError> {
    let steps = match fields.take("dataset")? {
        Some(steps) => steps,
        None => vec![DatasetStep::shuffle(seed.ok_or_else(|| fields.no_seed())?)],
    };
    dataset::check(&steps).map_err(|e| fields.refuse("dataset", e.to_string()))?;
    Ok(steps)
}

/// Seeds in effect: those of the dataset-level steps, then the sampler's.
pub(super) fn seeds_in_effect(dataset: &[DatasetStep], sampler: Option<Seed>) -> Vec<(&'static str, Seed)> {
    let mut seeds = dataset::seeds(dataset);
    seeds.extend(sampler.map(|seed| ("sampler", seed)));
    seeds
}

/// What to tell a user whose epochs all have the same order.
pub(super) const EPOCH_NEVER_SET: &str = "set_epoch_called is false: every epoch repeats the order of epoch 0, as in a \
                                          script that never calls sampler.set_epoch";

impl OrderOptions for Fla {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, self.sampler_seed())
    }

    fn warnings(&self) -> Vec<String> {
        let repeats = self.shuffle && !self.set_epoch_called;
        repeats.then(|| EPOCH_NEVER_SET.to_string()).into_iter().collect()
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let sampler: Box<dyn Sampler> = match self.sampler_seed() {
            Some(seed) => Box::new(TorchEpochSeed {
                seed,
                epoch_is_set: self.set_epoch_called,
            }),
            None => Box::new(Sequential),
        };
        let parts = Parts {
            dataset: self.dataset.clone(),
            sampler,
            law: Law::Strided,
            tail: if self.drop_last { Tail::Drop } else { Tail::Pad },
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}
