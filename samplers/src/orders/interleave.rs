//! `interleave`: map-style Hugging Face datasets mixed by `interleave_datasets`, read in the mix's own sequence.
//!
//! Reproduces datasets 5.2.0 `interleave_datasets` of `Dataset`s (numpy 2.4.6 `choice`); the deal is this project's own.
//! Every epoch has the same sequence. To shuffle a mix, put it into the `dataset` steps of an order that shuffles.
//!
//! Bias: see [`crate::interleave`]. Memory: 4 bytes a row of the mix.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fla::seeds_in_effect;
use super::{Needs, OptionHelp, OrderEntry, OwnDeal, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep, Interleave, Select};
use crate::interleave::StoppingStrategy;
use crate::order::Order;
use crate::sampler;
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "interleave",
    summary: "parts of the dataset mixed by HF interleave_datasets, in the mix's own sequence",
    source: "datasets 5.2.0 interleave_datasets of map-style datasets over numpy 2.4.6 default_rng",
    for_whom: "Your script mixed several `Dataset`s with interleave_datasets and read the result in order. If it shuffled the \
               mix, give the `interleave` step to the order that did (`fla`, `hf-trainer`). For streaming datasets take \
               `hf-iterable`: without probabilities they stop elsewhere.",
    options: &[
        options::SOURCES,
        options::PROBABILITIES,
        OptionHelp {
            values: "integer, 0 to 2^64-1",
            default: "required with probabilities",
            help: "seed of the draws among the sources",
            ..options::SEED
        },
        options::STOPPING_STRATEGY,
        options::DEAL,
        options::DROP_LAST,
        options::EVEN_BATCHES,
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(InterleaveOrder::parse(fields)?)),
    examples: &[
        r#"{"name":"interleave","sources":[3,null]}"#,
        r#"{"name":"interleave","sources":[1,2,null],"stopping_strategy":"all_exhausted","drop_last":true}"#,
        r#"{"name":"interleave","sources":[2,null,3],"probabilities":[0.2,0.5,0.3],"seed":42,"stopping_strategy":"all_exhausted_without_replacement","deal":"strided"}"#,
        r#"{"name":"interleave","sources":[4,null],"probabilities":[0.5,0.5],"seed":0,"even_batches":true}"#,
    ],
};

/// Options of `interleave`.
#[derive(Clone, Debug, Serialize)]
pub struct InterleaveOrder {
    sources: Vec<PartRows>,
    probabilities: Option<Vec<f64>>,
    seed: Option<Seed>,
    stopping_strategy: StoppingStrategy,
    #[serde(flatten)]
    deal: OwnDeal,
}

/// Rows of one part: a count, or null for the rest.
type PartRows = Option<u64>;

/// Lengths of consecutive parts of `n` rows; at most one count is left out and takes what the others leave.
///
/// # Errors
/// Says how the counts and `n` disagree.
pub(super) fn part_lengths(rows: &[PartRows], n: u64) -> Result<Vec<u64>, String> {
    let given = rows
        .iter()
        .flatten()
        .try_fold(0u64, |sum, rows| sum.checked_add(*rows));
    let open = rows.iter().filter(|rows| rows.is_none()).count();
    let rest = match (given.and_then(|given| n.checked_sub(given)), open) {
        (_, 2..) => return Err("more than one source leaves out its number of rows".to_string()),
        (Some(rest), 1) => rest,
        (Some(0), 0) => 0,
        _ => {
            let sum: u128 = rows.iter().flatten().map(|rows| u128::from(*rows)).sum();
            return Err(format!("the sources have {sum} rows, the dataset has {n}"));
        }
    };
    Ok(rows.iter().map(|rows| rows.unwrap_or(rest)).collect())
}

impl InterleaveOrder {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Part {
            Rows(PartRows),
            #[serde(rename_all = "snake_case")]
            Map(MapPart),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct MapPart {
            rows: PartRows,
        }
        let parts: Vec<Part> = fields.or("sources", vec![Part::Rows(None)])?;
        let options = InterleaveOrder {
            sources: parts
                .into_iter()
                .map(|part| match part {
                    Part::Rows(rows) | Part::Map(MapPart { rows }) => rows,
                })
                .collect(),
            probabilities: fields.take("probabilities")?,
            seed: fields.take("seed")?,
            stopping_strategy: fields.or("stopping_strategy", StoppingStrategy::default())?,
            deal: OwnDeal::parse(fields)?,
        };
        let steps = options.steps(&vec![0; options.sources.len()]);
        dataset::check(&steps).map_err(|e| fields.refuse("sources", e.to_string()))?;
        Ok(options)
    }

    /// The mix as a dataset-level step over consecutive parts of these lengths.
    fn steps(&self, lengths: &[u64]) -> Vec<DatasetStep> {
        let mut start = 0;
        let sources = lengths.iter().map(|len| {
            start += len;
            vec![DatasetStep::Select(Select {
                start: Some(start - len),
                stop: Some(start),
                indices: None,
            })]
        });
        vec![DatasetStep::Interleave(Interleave {
            sources: sources.collect(),
            probabilities: self.probabilities.clone(),
            seed: self.seed,
            stopping_strategy: self.stopping_strategy,
        })]
    }
}

impl OrderOptions for InterleaveOrder {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.steps(&vec![0; self.sources.len()]), None)
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let lengths = part_lengths(&self.sources, input.num_samples).map_err(|why| SpecError::Value {
            order: ENTRY.name,
            key: "sources",
            why,
        })?;
        let parts = Parts {
            dataset: self.steps(&lengths),
            sampler: Box::new(sampler::Sequential),
            law: self.deal.law(),
            tail: self.deal.tail(),
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}
