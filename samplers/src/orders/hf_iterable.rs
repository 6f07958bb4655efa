//! `hf-iterable`: Hugging Face streaming datasets, with shuffle buffer, mixes, epochs, nodes and loader workers.
//!
//! Reproduces datasets 5.2.0 `IterableDataset.shuffle`, `interleave_datasets`, `set_epoch` and `split_dataset_by_node`,
//! read by a torch 2.15.0 `DataLoader` with any number of workers, or dealt by accelerate 1.15.0 `IterableDatasetShard`.
//! An epoch is read once when it is built; after that every place is a look-up and a resume is a seek. (To go through a
//! stream row by row with a saved buffer, see [`crate::iterable::Stream`].)
//!
//! Bias: see [`crate::iterable`]. Positions are places in the epoch's stream. Memory: 4 bytes a row for each epoch in
//! use, twice that while one is built, and 4 bytes a batch where ranks read for themselves.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::interleave::part_lengths;
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::interleave::{Interleave, StoppingStrategy};
use crate::iterable::Source;
use crate::order::Order;
use crate::orders::fla::EPOCH_NEVER_SET;
use crate::rng::numpy::Generator;
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

mod layout;
mod order;

use layout::Reading;
use order::HfIterableOrder;

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "hf-iterable",
    summary: "HF streaming dataset: shards shuffled, then a shuffle buffer; split by node, read by loader workers",
    source: "datasets 5.2.0 IterableDataset.shuffle, interleave_datasets, set_epoch, split_dataset_by_node over numpy 2.4.6; \
             torch 2.15.0 DataLoader workers; accelerate 1.15.0 IterableDatasetShard",
    for_whom: "You trained from load_dataset(…, streaming=True) or to_iterable_dataset(). With split_dataset_by_node take \
               `split: node`, with accelerate's IterableDatasetShard (dispatch_batches off) `split: batches`. transformers' \
               Trainer left to itself reads a stream on rank 0 and hands batches out, which no order here replays.",
    options: &[
        OptionHelp {
            values: "integer, 0 to 2^64-1",
            default: "required while shuffle is true",
            help: "seed of IterableDataset.shuffle",
            ..options::SEED
        },
        OptionHelp {
            help: "false: no IterableDataset.shuffle",
            ..options::SHUFFLE
        },
        OptionHelp {
            key: "buffer_size",
            values: "integer from 1",
            default: "1000",
            help: "rows in the shuffle buffer",
        },
        OptionHelp {
            key: "max_buffer_input_shards",
            values: "integer from 1",
            default: "10",
            help: "shards that feed the shuffle buffer in turn",
        },
        OptionHelp {
            key: "shards",
            values: "number of shards, or list of their row counts",
            default: "1",
            help: "how each source is cut into shards (files, or num_shards); a number cuts evenly, the first ones a row longer",
        },
        OptionHelp {
            key: "reader",
            values: "tables, rows",
            default: "tables",
            help: "tables: Arrow, Parquet, to_iterable_dataset; rows: a generator, JSON lines, text. Decides what the \
                   shuffle buffer moves at once",
        },
        options::SOURCES,
        options::PROBABILITIES,
        OptionHelp {
            key: "mix_seed",
            values: "integer, 0 to 2^64-1",
            default: "required with probabilities",
            help: "seed of interleave_datasets; a shuffle of the mix draws with its own seed instead, as the package does",
        },
        options::STOPPING_STRATEGY,
        OptionHelp {
            key: "split",
            values: "node, batches",
            default: "node",
            help: "node: split_dataset_by_node (whole shards when their number divides by world_size, else every \
                   world_size-th row); batches: IterableDatasetShard, one stream dealt batch by batch and padded at the end",
        },
        OptionHelp {
            key: "num_workers",
            values: "integer from 0",
            default: "0",
            help: "DataLoader workers of each rank: shards are divided among them, and each shuffles with its own seed",
        },
        OptionHelp {
            help: "leave out short batches at the end of a stream",
            ..options::DROP_LAST
        },
        options::SET_EPOCH_CALLED,
        OptionHelp {
            key: "first_epoch",
            values: "integer from 0",
            default: "0",
            help: "what set_epoch was called with for the first epoch; picks the epoch where epochs differ in length",
        },
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(HfIterable::parse(fields)?)),
    examples: &[
        r#"{"name":"hf-iterable","seed":42}"#,
        r#"{"name":"hf-iterable","seed":42,"buffer_size":10,"shards":7,"reader":"rows","num_workers":1,"drop_last":true}"#,
        r#"{"name":"hf-iterable","seed":1,"buffer_size":4,"split":"batches"}"#,
        r#"{"name":"hf-iterable","seed":3,"buffer_size":5,"sources":[{"rows":2},{"shards":3}],"stopping_strategy":"all_exhausted"}"#,
        r#"{"name":"hf-iterable","shuffle":false,"sources":[{"rows":2},{"shards":3}],"probabilities":[0.5,0.5],"mix_seed":7,"set_epoch_called":false,"split":"batches","drop_last":true}"#,
    ],
};

/// Options of `hf-iterable`.
#[derive(Clone, Debug, Serialize)]
pub struct HfIterable {
    seed: Option<Seed>,
    shuffle: bool,
    buffer_size: u64,
    max_buffer_input_shards: u64,
    shards: Shards,
    reader: Reader,
    sources: Option<Vec<Part>>,
    probabilities: Option<Vec<f64>>,
    mix_seed: Option<Seed>,
    stopping_strategy: StoppingStrategy,
    split: SplitKind,
    num_workers: u64,
    drop_last: bool,
    set_epoch_called: bool,
    first_epoch: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Shards {
    Count(u64),
    Rows(Vec<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reader {
    Tables,
    Rows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SplitKind {
    Node,
    Batches,
}

/// One source: its rows (the rest when left out) and its shards (those of the order when left out).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shards: Option<Shards>,
}

impl HfIterable {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum AnyPart {
            Rows(Option<u64>),
            Part(Part),
        }
        let parts: Option<Vec<AnyPart>> = fields.take("sources")?;
        let parts = parts.map(|parts| {
            let part = |part| match part {
                AnyPart::Rows(rows) => Part { rows, shards: None },
                AnyPart::Part(part) => part,
            };
            parts.into_iter().map(part).collect::<Vec<Part>>()
        });
        let options = HfIterable {
            seed: fields.take("seed")?,
            shuffle: fields.or("shuffle", true)?,
            buffer_size: fields.or("buffer_size", 1000)?,
            max_buffer_input_shards: fields.or("max_buffer_input_shards", 10)?,
            shards: fields.or("shards", Shards::Count(1))?,
            reader: fields.or("reader", Reader::Tables)?,
            sources: parts,
            probabilities: fields.take("probabilities")?,
            mix_seed: fields.take("mix_seed")?,
            stopping_strategy: fields.or("stopping_strategy", StoppingStrategy::default())?,
            split: fields.or("split", SplitKind::Node)?,
            num_workers: fields.or("num_workers", 0)?,
            drop_last: fields.or("drop_last", false)?,
            set_epoch_called: fields.or("set_epoch_called", true)?,
            first_epoch: fields.or("first_epoch", 0)?,
        };
        match (options.shuffle, options.seed) {
            (true, None) => return Err(fields.no_seed()),
            (true, Some(seed)) => seed
                .numpy()
                .map(drop)
                .map_err(|e| fields.refuse("seed", e.to_string()))?,
            (false, Some(_)) => {
                return Err(fields.refuse("seed", "it has no effect with `shuffle: false`: leave it out"));
            }
            (false, None) => {}
        }
        for (key, value) in [
            ("buffer_size", options.buffer_size),
            ("max_buffer_input_shards", options.max_buffer_input_shards),
        ] {
            if value == 0 {
                return Err(fields.refuse(key, "it must be at least 1"));
            }
        }
        if options.split == SplitKind::Batches && options.num_workers > 0 {
            return Err(fields.refuse(
                "num_workers",
                "loader workers under `split: batches` are not emulated: use 0",
            ));
        }
        let Some(parts) = &options.sources else {
            if options.probabilities.is_some() || options.mix_seed.is_some() {
                return Err(fields.refuse(
                    "sources",
                    "`probabilities` and `mix_seed` belong to a mix: give its `sources`",
                ));
            }
            return Ok(options);
        };
        let mix = Interleave {
            probabilities: options.probabilities.clone(),
            seed: options.mix_seed,
            stopping_strategy: options.stopping_strategy,
        };
        mix.check(parts.len())
            .map_err(|why| fields.refuse("sources", why.replace("`seed`", "`mix_seed`")))?;
        Ok(options)
    }

    /// The stream a script makes of `n` rows, before epoch, node and worker.
    fn source(&self, n: u64) -> Result<Source, OrderError> {
        let refuse = |key, why| {
            OrderError::Spec(SpecError::Value {
                order: ENTRY.name,
                key,
                why,
            })
        };
        let whole = [Part::default()];
        let parts = self.sources.as_deref().unwrap_or(&whole);
        let rows: Vec<Option<u64>> = parts.iter().map(|part| part.rows).collect();
        let lengths = part_lengths(&rows, n).map_err(|why| refuse("sources", why))?;
        let mut start = 0;
        let mut sources = Vec::new();
        for (part, len) in parts.iter().zip(lengths) {
            let cuts = part
                .shards
                .as_ref()
                .unwrap_or(&self.shards)
                .cut(len)
                .map_err(|why| refuse("shards", why))?;
            let shards = cuts.into_iter().map(|rows| {
                start += rows;
                start - rows..start
            });
            sources.push(Source::Shards {
                shards: shards.collect(),
                tables: self.reader == Reader::Tables,
            });
        }
        let mut source = match (self.sources.is_some(), sources.pop()) {
            (false, Some(only)) => only,
            (_, last) => {
                sources.extend(last);
                let seed = self.mix_seed.map(Seed::numpy).transpose()?;
                let drawn = self.probabilities.clone().zip(seed.map(Generator::default_rng));
                Source::interleave(sources, drawn, self.stopping_strategy)?
            }
        };
        if let (true, Some(seed)) = (self.shuffle, self.seed) {
            let generator = Generator::default_rng(seed.numpy()?);
            source = source.shuffle(&generator, self.buffer_size, self.max_buffer_input_shards);
        }
        Ok(source)
    }
}

impl Shards {
    /// Rows of each shard of `len` rows.
    fn cut(&self, len: u64) -> Result<Vec<u64>, String> {
        match self {
            Shards::Count(0) => Err("there must be at least 1 shard".to_string()),
            Shards::Count(count) if *count > 1 && *count > len => {
                Err(format!("{count} shards of {len} rows"))
            }
            Shards::Count(count) => Ok((0..*count)
                .map(|i| len / count + u64::from(i < len % count))
                .collect()),
            Shards::Rows(rows) => {
                let sum: u128 = rows.iter().map(|rows| u128::from(*rows)).sum();
                if sum != u128::from(len) {
                    return Err(format!("the shards have {sum} rows, the source has {len}"));
                }
                Ok(rows.clone())
            }
        }
    }
}

impl OrderOptions for HfIterable {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        let mix = self.mix_seed.map(|seed| ("interleave", seed));
        mix.into_iter()
            .chain(self.seed.map(|seed| ("buffer shuffle", seed)))
            .collect()
    }

    fn warnings(&self) -> Vec<String> {
        let repeats = self.shuffle && !self.set_epoch_called;
        repeats.then(|| EPOCH_NEVER_SET.to_string()).into_iter().collect()
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let reading = Reading {
            source: self.source(input.num_samples)?,
            geometry: input.geometry,
            by_node: self.split == SplitKind::Node,
            num_workers: self.num_workers,
            drop_last: self.drop_last,
        };
        Ok(Arc::new(HfIterableOrder::new(
            spec,
            self,
            input.num_samples,
            reading,
        )?))
    }
}

impl HfIterable {
    /// The value of `set_epoch` that epoch `epoch` of the run has.
    fn pass(&self, epoch: u64) -> u64 {
        let epoch = if self.set_epoch_called { epoch } else { 0 };
        self.first_epoch.saturating_add(epoch)
    }
}
