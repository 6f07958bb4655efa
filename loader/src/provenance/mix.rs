//! The datasets that a source or an order is a mix of, as consecutive ranges of sample ids.

use ceteris_samplers::composition::Composition;
use ceteris_samplers::{Order, OrderError, OrderSpec, SampleId};
use serde_json::Value;

use crate::source::Source;

/// Datasets of a mix; one where there is no mix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    names: Vec<String>,
    /// Behind the last id of each.
    ends: Vec<u64>,
}

impl Mix {
    /// What the source says of its parts, else what the order's `sources` say, else one part. `None` for a source whose
    /// parts are not ranges of ids.
    pub fn of(source: Option<&dyn Source>, spec: Option<&OrderSpec>, num_samples: u64) -> Option<Self> {
        let names = source.map(Source::part_names).unwrap_or_default();
        if let (Some(source), [_, _, ..]) = (source, &names[..]) {
            let mut ends = vec![0; names.len()];
            let mut part = 0;
            for id in 0..num_samples {
                let now = source.part_of(id);
                if now < part || now >= ends.len() {
                    return None;
                }
                ends[part..now].fill(id);
                part = now;
            }
            ends[part..].fill(num_samples);
            return Some(Self { names, ends });
        }
        let sources = spec
            .and_then(|spec| spec.options().into_iter().find(|(key, _)| *key == "sources"))
            .and_then(|(_, sources)| sources.as_array().cloned())
            .unwrap_or_default();
        let rows: Vec<Option<u64>> = sources
            .iter()
            .map(|source| match source {
                Value::Object(map) => map.get("rows").and_then(Value::as_u64),
                other => other.as_u64(),
            })
            .collect();
        if rows.len() < 2 {
            return Some(Self {
                names: vec!["the dataset".to_owned()],
                ends: vec![num_samples],
            });
        }
        // One of them may leave out its count and is the rest.
        let known: u64 = rows.iter().flatten().sum();
        let rest = num_samples.saturating_sub(known);
        let mut end = 0u64;
        let ends = rows
            .iter()
            .map(|rows| {
                end = end.saturating_add(rows.unwrap_or(rest));
                end
            })
            .collect();
        let names = (0..rows.len()).map(|which| format!("source {which}")).collect();
        Some(Self { names, ends })
    }

    /// Names of the datasets.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Several datasets.
    pub fn is_mix(&self) -> bool {
        self.names.len() > 1
    }

    /// The dataset a sample is of.
    pub fn part_of(&self, id: SampleId) -> usize {
        self.ends
            .partition_point(|end| *end <= id)
            .min(self.names.len() - 1)
    }

    /// Samples of each dataset.
    pub fn lengths(&self) -> Vec<u64> {
        let starts = std::iter::once(&0).chain(&self.ends);
        self.ends
            .iter()
            .zip(starts)
            .map(|(end, start)| end - start)
            .collect()
    }

    /// What an order takes of each dataset in some epochs: samples, epochs' worth, first repeats. `done` hears of samples.
    ///
    /// # Errors
    /// [`OrderError`] for an epoch that cannot be built.
    pub fn composition(
        &self,
        order: &dyn Order,
        epochs: std::ops::Range<u64>,
        done: &dyn Fn(u64),
    ) -> Result<Composition, OrderError> {
        let mut failed = None;
        let mut rows = epochs.flat_map(|epoch| {
            let index = match order.epoch(epoch) {
                Ok(index) => Some(index),
                Err(error) => {
                    failed.get_or_insert(error);
                    None
                }
            };
            (0..).map_while(move |k| {
                let index = index.as_ref()?;
                index.sample(index.place_of(k)?)
            })
        });
        let mut counted = 0u64;
        let counting = std::iter::from_fn(|| {
            counted += 1;
            if counted.is_multiple_of(1 << 16) {
                done(1 << 16);
            }
            rows.next()
        });
        let lengths = self.lengths();
        let found = Composition::count(counting, &lengths, None, order.geometry().global_batch_size());
        drop(rows);
        match failed {
            Some(error) => Err(error),
            None => found.map_err(OrderError::TooLarge),
        }
    }
}
