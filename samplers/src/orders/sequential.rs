//! `sequential`: no shuffle at all.
//!
//! This project's own. By default every sample is consumed exactly once an epoch, the last micro-batches short.
//!
//! Bias: the dataset's. Memory: none (4 bytes a row when dataset-level steps are given).

use std::sync::Arc;

use serde::Serialize;

use super::fla::seeds_in_effect;
use super::{Needs, OrderEntry, OwnDeal, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep};
use crate::order::Order;
use crate::sampler;
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "sequential",
    summary: "the dataset's own sequence, every epoch the same",
    source: "this project's own (the sequence is that of torch's SequentialSampler)",
    for_whom: "You want no shuffle: evaluation, or data whose rows already stand in training order. An order of your own \
               goes through `file`.",
    options: &[
        options::DEAL,
        options::DROP_LAST,
        options::EVEN_BATCHES,
        options::DATASET,
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(SequentialOrder::parse(fields)?)),
    examples: &[
        r#"{"name":"sequential"}"#,
        r#"{"name":"sequential","deal":"strided","even_batches":true}"#,
        r#"{"name":"sequential","drop_last":true,"dataset":[{"shard":{"num_shards":2,"index":1}}]}"#,
    ],
};

/// Options of `sequential`.
#[derive(Clone, Debug, Serialize)]
pub struct SequentialOrder {
    #[serde(flatten)]
    deal: OwnDeal,
    dataset: Vec<DatasetStep>,
}

impl SequentialOrder {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let options = SequentialOrder {
            deal: OwnDeal::parse(fields)?,
            dataset: fields.or("dataset", Vec::new())?,
        };
        dataset::check(&options.dataset).map_err(|e| fields.refuse("dataset", e.to_string()))?;
        Ok(options)
    }
}

impl OrderOptions for SequentialOrder {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, None)
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let parts = Parts {
            dataset: self.dataset.clone(),
            sampler: Box::new(sampler::Sequential),
            law: self.deal.law(),
            tail: self.deal.tail(),
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}
