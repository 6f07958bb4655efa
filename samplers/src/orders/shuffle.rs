//! `shuffle`: this project's own shuffle, a new one each epoch.
//!
//! Epoch `e` is numpy's `default_rng([seed, e]).permutation(n)`, so anyone with numpy can check it in one line.
//! Seeds do not run into each other: epoch 1 of seed 42 is not epoch 0 of seed 43, as it is where seed and epoch
//! are added. By default every sample is consumed exactly once an epoch, the last micro-batches short.
//!
//! Bias: none known (exact draws over 128 bits of state). Memory: 4 bytes a sample for each epoch in use.

use std::sync::Arc;

use serde::Serialize;

use super::fla::seeds_in_effect;
use super::{Needs, OptionHelp, OrderEntry, OwnDeal, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep};
use crate::order::Order;
use crate::permute::Permutation;
use crate::rng::numpy::{Generator, Pcg64, SeedSequence};
use crate::sampler::Sampler;
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "shuffle",
    summary: "a new exact shuffle each epoch, numpy's default_rng([seed, epoch]).permutation(n)",
    source: "this project's own, over numpy 2.4.6 SeedSequence, PCG64 and Generator.permutation",
    for_whom: "You start a new run that has to match no other stack: no sample repeats within an epoch unless you ask for \
               it, and neither seeds nor epochs share orders.",
    options: &[
        OptionHelp {
            values: "integer, 0 to 2^64-1",
            ..options::SEED
        },
        options::DEAL,
        options::DROP_LAST,
        options::EVEN_BATCHES,
        options::DATASET,
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(Shuffle::parse(fields)?)),
    examples: &[
        r#"{"name":"shuffle","seed":42}"#,
        r#"{"name":"shuffle","seed":0,"deal":"strided","drop_last":true}"#,
        r#"{"name":"shuffle","seed":18446744073709551615,"even_batches":true,"dataset":[{"select":{"start":1}}]}"#,
    ],
};

/// Options of `shuffle`.
#[derive(Clone, Debug, Serialize)]
pub struct Shuffle {
    seed: Seed,
    #[serde(flatten)]
    deal: OwnDeal,
    dataset: Vec<DatasetStep>,
}

impl Shuffle {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let options = Shuffle {
            seed: fields.take("seed")?.ok_or_else(|| fields.no_seed())?,
            deal: OwnDeal::parse(fields)?,
            dataset: fields.or("dataset", Vec::new())?,
        };
        options
            .seed
            .numpy()
            .map_err(|e| fields.refuse("seed", e.to_string()))?;
        dataset::check(&options.dataset).map_err(|e| fields.refuse("dataset", e.to_string()))?;
        Ok(options)
    }
}

/// `default_rng([seed, epoch]).permutation(n)`.
#[derive(Clone, Copy, Debug)]
struct EpochSeedSequence {
    seed: Seed,
}

impl Sampler for EpochSeedSequence {
    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        let entropy = SeedSequence::from_decimals(&[self.seed.numpy()?.to_string(), epoch.to_string()])?;
        Ok(Arc::new(
            Generator::new(Pcg64::new(&entropy)).permutation(positions)?,
        ))
    }
}

impl OrderOptions for Shuffle {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, Some(self.seed))
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let parts = Parts {
            dataset: self.dataset.clone(),
            sampler: Box::new(EpochSeedSequence { seed: self.seed }),
            law: self.deal.law(),
            tail: self.deal.tail(),
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}
