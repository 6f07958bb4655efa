//! Hashes of what a run is made of, part by part, without running it.
//!
//! `order`, `init` and `model` are those of the run's manifest. Rows are opened, orders built and weights drawn once for
//! all cells that share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ceteris_loader::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::IsolateError;
use super::factors::Part;
use crate::config::RunConfig;
use crate::data::{DataError, TrainData, open_rows};
use crate::init::tensor_sha256;
use crate::model::parameters::named_parameters;
use crate::run::manifest::combined_sha256;

/// Hashes of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hashes(BTreeMap<Part, String>);

impl Hashes {
    /// The hash of a part.
    pub fn of(&self, part: Part) -> &str {
        self.0.get(&part).map_or("", String::as_str)
    }
}

/// Rows of a run.
#[derive(Clone)]
struct Rows {
    source: Arc<dyn Source>,
    fingerprint: String,
}

/// Computes hashes and keeps what cells share.
#[derive(Default)]
pub struct Hasher {
    rows: BTreeMap<String, Rows>,
    orders: BTreeMap<String, String>,
    weights: BTreeMap<String, String>,
}

fn digest(value: &Value) -> String {
    blake3::hash(value.to_string().as_bytes()).to_hex()[..32].to_owned()
}

impl Hasher {
    fn rows(&mut self, config: &RunConfig, notice: &mut dyn FnMut(&str)) -> Result<Rows, IsolateError> {
        let key = json!([config.data, config.model.vocab_size]).to_string();
        if let Some(rows) = self.rows.get(&key) {
            return Ok(rows.clone());
        }
        let (source, fingerprint) = open_rows(config, notice).map_err(DataError::from)?;
        let rows = Rows { source, fingerprint };
        self.rows.insert(key, rows.clone());
        Ok(rows)
    }

    /// The data of a run, over rows that are opened once.
    ///
    /// # Errors
    /// [`IsolateError::Data`].
    pub fn data(
        &mut self,
        config: &RunConfig,
        notice: &mut dyn FnMut(&str),
    ) -> Result<TrainData, IsolateError> {
        let rows = self.rows(config, notice)?;
        Ok(TrainData::over(config, rows.source, rows.fingerprint)?)
    }

    /// Hashes of a run with these settings.
    ///
    /// # Errors
    /// Rows that cannot be opened, an order that cannot be built, weights that cannot be drawn.
    pub fn hashes(
        &mut self,
        config: &RunConfig,
        notice: &mut dyn FnMut(&str),
    ) -> Result<Hashes, IsolateError> {
        let data = self.data(config, notice)?;
        let steps = data.steps(config);
        let order_key = json!([
            data.order.spec(),
            data.geometry,
            data.fingerprint,
            data.source.num_samples(),
            steps
        ]);
        let order = match self.orders.entry(order_key.to_string()) {
            std::collections::btree_map::Entry::Occupied(known) => known.get().clone(),
            std::collections::btree_map::Entry::Vacant(unknown) => {
                unknown.insert(data.order_hash(steps)?).clone()
            }
        };
        let init = self.init(config)?;
        let (of, batch) = (&config.data, &config.batch);
        let corpus = json!([data.fingerprint, data.source.num_samples(), of.column, of.indices]);
        // The ids that cut rows into documents are the model's; they count where rows are cut.
        let documents = match of.documents {
            crate::config::DocumentMarker::None => Value::Null,
            marker => json!([
                marker,
                config.model.bos_token_id,
                config.model.eos_token_id,
                of.max_documents_per_row
            ]),
        };
        let samples = json!([
            of.seq_length,
            of.on_ragged,
            of.truncate,
            of.pad_token_id,
            of.collator,
            documents,
            config.loss.shift_in_model
        ]);
        let optimizer = json!([config.optimizer, config.schedule, steps]);
        let mut train = json!(config.train);
        if let Value::Object(train) = &mut train {
            // The length of a run is the optimizer's, through the schedule.
            train.retain(|key, _| key != "steps" && key != "epochs");
        }
        let execution = json!([
            train,
            batch.device_micro_batch_size,
            config.loss.chunks,
            config.loader
        ]);
        Ok(Hashes(BTreeMap::from([
            (Part::Corpus, digest(&corpus)),
            (Part::Samples, digest(&samples)),
            (Part::Order, order),
            (Part::Init, init),
            (Part::Model, config.model_hash()),
            (Part::Batch, digest(&json!(data.geometry))),
            (Part::Optimizer, digest(&optimizer)),
            (Part::Execution, digest(&execution)),
        ])))
    }

    fn init(&mut self, config: &RunConfig) -> Result<String, IsolateError> {
        let tensors = named_parameters(&config.model);
        let key = json!([config.init, config.seeds.init, config.model]).to_string();
        if let Some(known) = self.weights.get(&key) {
            return Ok(known.clone());
        }
        let mut filling: BTreeMap<String, (Vec<f32>, usize)> = BTreeMap::new();
        let mut done = Vec::with_capacity(tensors.len());
        config
            .init
            .run(&config.model, config.seeds.init, &mut |name, first, values| {
                let tensor = tensors.iter().find(|t| t.name == name);
                let len = tensor.ok_or_else(|| format!("no tensor is named {name}"))?.len();
                let (all, filled) = filling
                    .entry(name.to_owned())
                    .or_insert_with(|| (vec![0.0; len], 0));
                let place = all.get_mut(first..first + values.len());
                place
                    .ok_or_else(|| format!("{name} has {len} values"))?
                    .copy_from_slice(values);
                *filled += values.len();
                if *filled == len {
                    done.push((name.to_owned(), tensor_sha256(all)));
                    filling.remove(name);
                }
                Ok(())
            })?;
        let hash = combined_sha256(&done);
        self.weights.insert(key, hash.clone());
        Ok(hash)
    }
}
