//! Orders and seeds that a run is likely to have had, the most likely first.

use ceteris_samplers::{OrderSpec, Seed};
use serde_json::{Value, json};

/// An order with a place for the seed, and options that only change the end of an epoch.
#[derive(Clone, Debug)]
pub(super) struct Template {
    name: &'static str,
    options: Vec<(String, Value)>,
    seeded: bool,
    pub tails: Vec<Vec<(String, Value)>>,
}

impl Template {
    fn new(name: &'static str, seeded: bool, options: Value, tails: &[Value]) -> Self {
        let pairs = |value: &Value| -> Vec<(String, Value)> {
            value
                .as_object()
                .map(|map| map.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
                .unwrap_or_default()
        };
        Self {
            name,
            options: pairs(&options),
            seeded,
            tails: tails.iter().map(pairs).collect(),
        }
    }

    /// The claimed order with its seeds replaced by the candidate's wherever they equal the claimed one.
    pub fn of_claim(spec: &OrderSpec) -> Self {
        let options = spec.options();
        let seeded = options.iter().any(|(key, _)| *key == "seed");
        Self {
            name: spec.name(),
            options: options
                .into_iter()
                .map(|(key, value)| (key.to_string(), value))
                .collect(),
            seeded,
            tails: vec![Vec::new()],
        }
    }

    /// The spec with a seed; `was` is the seed to be replaced below the top level too (in dataset steps).
    pub fn spec(&self, seed: Option<Seed>, was: Option<Seed>, tail: &[(String, Value)]) -> Option<OrderSpec> {
        let mut options = self.options.clone();
        if let Some(seed) = seed.filter(|_| self.seeded) {
            let value = serde_json::to_value(seed).ok()?;
            if let Some(was) = was.and_then(|was| serde_json::to_value(was).ok()) {
                options
                    .iter_mut()
                    .for_each(|(_, v)| replace_seed(v, &was, &value));
            }
            options.retain(|(key, _)| key != "seed");
            options.push(("seed".to_string(), value));
        }
        for (key, value) in tail {
            options.retain(|(old, _)| old != key);
            options.push((key.clone(), value.clone()));
        }
        OrderSpec::from_options(self.name, options).ok()
    }
}

/// Replaces `"seed": was` in maps at any depth.
fn replace_seed(value: &mut Value, was: &Value, now: &Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| replace_seed(item, was, now)),
        Value::Object(map) => {
            for (key, item) in map.iter_mut() {
                if key == "seed" && item == was {
                    *item = now.clone();
                } else {
                    replace_seed(item, was, now);
                }
            }
        }
        _ => {}
    }
}

/// Orders that runs over tables of rows are likely to have had.
pub(super) fn row_templates(world_size: u64) -> Vec<Template> {
    let drop = json!({"drop_last": true});
    let mut all = vec![
        Template::new("fla", true, json!({}), &[json!({}), drop.clone()]),
        Template::new(
            "hf-trainer",
            true,
            json!({}),
            &[json!({}), drop.clone(), json!({"even_batches": false})],
        ),
        Template::new(
            "hf-trainer",
            true,
            json!({"dataset": []}),
            &[json!({}), drop.clone(), json!({"even_batches": false})],
        ),
        Template::new("torch-distributed", true, json!({}), &[json!({}), drop.clone()]),
        Template::new(
            "torch-distributed",
            true,
            json!({"set_epoch_called": false}),
            &[json!({}), drop.clone()],
        ),
        Template::new(
            "fla",
            true,
            json!({"set_epoch_called": false}),
            &[json!({}), drop.clone()],
        ),
        Template::new(
            "shuffle",
            true,
            json!({}),
            &[json!({}), drop.clone(), json!({"even_batches": true})],
        ),
        Template::new(
            "sequential",
            false,
            json!({}),
            &[json!({}), drop.clone(), json!({"even_batches": true})],
        ),
        Template::new(
            "sequential",
            false,
            json!({"deal": "strided"}),
            &[json!({"even_batches": true}), json!({}), drop.clone()],
        ),
    ];
    if world_size == 1 {
        for options in [
            json!({}),
            json!({"generator": "own"}),
            json!({"data_loader": false}),
            json!({"generator": "own", "data_loader": false}),
        ] {
            all.push(Template::new(
                "torch-random",
                true,
                options,
                &[json!({}), drop.clone()],
            ));
        }
    }
    all
}

/// Seeds people use, after the claimed one and its neighbours.
pub fn likely_seeds(claimed: Option<Seed>, more: impl IntoIterator<Item = u64>) -> Vec<Seed> {
    let common = [
        42u64, 0, 1, 1234, 123, 1337, 12345, 2, 3, 7, 3407, 2023, 2024, 2025, 2026, 31415, 100, 1000, 999,
    ];
    let mut seeds: Vec<Seed> = claimed.into_iter().collect();
    seeds.extend(common.into_iter().chain(more).map(Seed::from));
    let mut seen = std::collections::BTreeSet::new();
    seeds.retain(|seed| seen.insert(*seed));
    seeds
}

/// One order and seed.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub template: &'a Template,
    pub seed: Option<Seed>,
}

/// The claimed seed under every order, then every seed under the claimed order, then the rest.
pub(super) fn candidates<'a>(
    templates: &'a [Template],
    seeds: &[Seed],
    claimed_seed: Option<Seed>,
) -> Vec<Candidate<'a>> {
    let mut all: Vec<(u8, Candidate<'a>)> = Vec::new();
    for (which, template) in templates.iter().enumerate() {
        if !template.seeded {
            all.push((0, Candidate { template, seed: None }));
            continue;
        }
        for &seed in seeds {
            let stage = if claimed_seed.is_none_or(|claimed| claimed == seed) {
                0
            } else if which == 0 {
                1
            } else {
                2
            };
            let seed = Some(seed);
            all.push((stage, Candidate { template, seed }));
        }
    }
    all.sort_by_key(|(stage, _)| *stage);
    all.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The seed an order was given, `None` where nothing is random.
pub fn seed_of(spec: &OrderSpec) -> Option<Seed> {
    let (_, value) = spec.options().into_iter().find(|(key, _)| *key == "seed")?;
    serde_json::from_value(value).ok()
}
