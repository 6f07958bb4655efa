//! `torch-distributed`: torch's `DistributedSampler` as it stands.
//!
//! Reproduces torch 2.15.0 `torch.utils.data.DistributedSampler` with `shuffle`, `seed`, `drop_last` and
//! `set_epoch`, its list cut into micro-batches.
//!
//! Bias: see [`crate::sampler::TorchEpochSeed`]; up to `world_size - 1` samples of each epoch come twice, and with
//! fewer samples than ranks all of them come several times.
//! Memory: 4 bytes a sample for each epoch in use.

use std::sync::Arc;

use serde::Serialize;

use super::fla::{EPOCH_NEVER_SET, seeds_in_effect};
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep};
use crate::deal::{Law, Tail};
use crate::order::Order;
use crate::sampler::{Sampler, Sequential, TorchEpochSeed};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "torch-distributed",
    summary: "torch's DistributedSampler: sample by sample round the ranks (strided), no dataset shuffle before it",
    source: "torch 2.15.0 torch.utils.data.DistributedSampler",
    for_whom: "Your own training loop puts a DistributedSampler into its DataLoader. For flash-linear-attention's legacy \
               trainer, which shuffles the dataset first, take `fla`; for transformers' Trainer take `hf-trainer`.",
    options: &[
        options::SEED,
        options::SHUFFLE,
        OptionHelp {
            help: "cut the epoch to a multiple of world_size instead of repeating its first samples",
            ..options::DROP_LAST
        },
        options::SET_EPOCH_CALLED,
        options::DATASET,
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(TorchDistributed::parse(fields)?)),
    examples: &[
        r#"{"name":"torch-distributed","seed":0}"#,
        r#"{"name":"torch-distributed","seed":-1,"drop_last":true}"#,
        r#"{"name":"torch-distributed","seed":42,"set_epoch_called":false}"#,
        r#"{"name":"torch-distributed","shuffle":false}"#,
    ],
};

/// Options of `torch-distributed`.
#[derive(Clone, Debug, Serialize)]
pub struct TorchDistributed {
    seed: Option<Seed>,
    shuffle: bool,
    drop_last: bool,
    set_epoch_called: bool,
    dataset: Vec<DatasetStep>,
}

impl TorchDistributed {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let options = TorchDistributed {
            seed: fields.take("seed")?,
            shuffle: fields.or("shuffle", true)?,
            drop_last: fields.or("drop_last", false)?,
            set_epoch_called: fields.or("set_epoch_called", true)?,
            dataset: fields.or("dataset", Vec::new())?,
        };
        dataset::check(&options.dataset).map_err(|e| fields.refuse("dataset", e.to_string()))?;
        if options.shuffle && options.seed.is_none() {
            return Err(fields.no_seed());
        }
        Ok(options)
    }
}

impl OrderOptions for TorchDistributed {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, self.seed.filter(|_| self.shuffle))
    }

    fn warnings(&self) -> Vec<String> {
        let repeats = self.shuffle && !self.set_epoch_called;
        repeats.then(|| EPOCH_NEVER_SET.to_string()).into_iter().collect()
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let sampler: Box<dyn Sampler> = match self.seed.filter(|_| self.shuffle) {
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
