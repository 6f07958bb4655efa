//! The registry of orders: one file an order, one line here.
//!
//! An order's file holds its options, its source and what is particular to its law; what several share lies in
//! `dataset.rs` (dataset-level steps), `sampler.rs` (lists of an epoch), `deal.rs` (places) and `composed.rs`.

pub mod blend;
pub mod file;
pub mod fla;
pub mod hf_iterable;
pub mod hf_trainer;
pub mod index_array;
pub mod interleave;
pub mod megatron;
pub mod megatron_dataset;
pub mod megatron_epochs;
pub mod megatron_index;
pub mod megatron_random;
pub mod megatron_sampler;
pub mod sequential;
pub mod shuffle;
pub mod split;
pub mod torch_distributed;
pub mod torch_random;

use crate::deal::{Law, Tail};
use crate::spec::{Fields, OrderSpec, SpecError};

/// Every order, in the sequence help shows them. A new order is its file and its line here.
pub static REGISTRY: &[&OrderEntry] = &[
    &fla::ENTRY,
    &hf_trainer::ENTRY,
    &torch_distributed::ENTRY,
    &torch_random::ENTRY,
    &megatron::ENTRY,
    &megatron_random::ENTRY,
    &sequential::ENTRY,
    &shuffle::ENTRY,
    &interleave::ENTRY,
    &hf_iterable::ENTRY,
    &file::ENTRY,
];

/// What the registry knows of an order.
#[derive(Debug)]
pub struct OrderEntry {
    /// The name in specs and on the command line.
    pub name: &'static str,
    /// One line: what it is.
    pub summary: &'static str,
    /// Package, version and function whose behaviour it reproduces, or that it is this project's own.
    pub source: &'static str,
    /// Plain words: who needs this order, and which one to take instead otherwise.
    pub for_whom: &'static str,
    /// Its options, in the sequence specs are written.
    pub options: &'static [OptionHelp],
    /// What it is built over.
    pub needs: Needs,
    /// Reads the options.
    pub parse: fn(&mut Fields) -> Result<OrderSpec, SpecError>,
    /// Specs as JSON objects, the plainest first. Tests run all of them.
    pub examples: &'static [&'static str],
}

/// What an order is built over, besides a layout over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The number of rows.
    Rows,
    /// The number of rows and a list of rows read from a file.
    List,
}

/// One option of an order.
#[derive(Clone, Copy, Debug)]
pub struct OptionHelp {
    /// The key in a spec; the same with `-` for `_` on the command line.
    pub key: &'static str,
    /// What values it takes.
    pub values: &'static str,
    /// The value when it is not given, in words.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

impl OrderEntry {
    /// The option with this key.
    pub fn option(&self, key: &str) -> Option<&'static OptionHelp> {
        self.options.iter().find(|o| o.key == key)
    }
}

/// The order with this name.
pub fn entry(name: &str) -> Option<&'static OrderEntry> {
    REGISTRY.iter().copied().find(|e| e.name == name)
}

/// Options that several orders have.
pub(crate) mod options {
    use super::OptionHelp;

    pub const SEED: OptionHelp = OptionHelp {
        key: "seed",
        values: "integer, -2^63 to 2^64-1 (0 or more where numpy takes it)",
        default: "required",
        help: "seed of everything random in the order that has no seed of its own",
    };
    pub const SHUFFLE: OptionHelp = OptionHelp {
        key: "shuffle",
        values: "true, false",
        default: "true",
        help: "false: each epoch goes through the dataset in its own sequence (dataset-level steps still apply)",
    };
    pub const SET_EPOCH_CALLED: OptionHelp = OptionHelp {
        key: "set_epoch_called",
        values: "true, false",
        default: "true",
        help: "false: emulates a script that never calls sampler.set_epoch, so that every epoch repeats the order of epoch 0",
    };
    pub const DATASET: OptionHelp = OptionHelp {
        key: "dataset",
        values: "list of steps, as in [{shuffle: {seed: 42}}, {shard: {num_shards: 8, index: 0}}]: shuffle, select, shard, \
                 split_by_node, train_test_split, concatenate, interleave",
        default: "no steps",
        help: "what the script did to the Hugging Face dataset before the sampler, first step first; a second shuffle composes",
    };
    pub const SOURCES: OptionHelp = OptionHelp {
        key: "sources",
        values: "list of row counts, or of maps with rows (and shards, where the order has them)",
        default: "the whole dataset is one source",
        help: "consecutive parts of the stored table, each one dataset of the mix; one of them may leave out its count \
               (null) and is the rest",
    };
    pub const PROBABILITIES: OptionHelp = OptionHelp {
        key: "probabilities",
        values: "list of numbers that add up to 1, one a source",
        default: "the sources take turns",
        help: "chance of each source at every row of the mix",
    };
    pub const STOPPING_STRATEGY: OptionHelp = OptionHelp {
        key: "stopping_strategy",
        values: "first_exhausted, all_exhausted, all_exhausted_without_replacement",
        default: "first_exhausted",
        help: "when the mix ends: with the first source that is used up, with the last one (the others start over), or \
               when every row was given once",
    };
    pub const DROP_LAST: OptionHelp = OptionHelp {
        key: "drop_last",
        values: "true, false",
        default: "false",
        help: "leave out the samples at the end that do not fill a micro-batch on every rank",
    };
    pub const EVEN_BATCHES: OptionHelp = OptionHelp {
        key: "even_batches",
        values: "true, false",
        default: "false",
        help: "fill the last micro-batches of all ranks with samples from the start of the epoch; false: every sample exactly once",
    };
    pub const DEAL: OptionHelp = OptionHelp {
        key: "deal",
        values: "blocked, strided",
        default: "blocked",
        help: "blocked: micro-batch by micro-batch round the ranks; strided: sample by sample",
    };
}

/// The deal of an order that is this project's own, from the shared options.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct OwnDeal {
    deal: DealName,
    drop_last: bool,
    even_batches: bool,
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum DealName {
    Blocked,
    Strided,
}

impl OwnDeal {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let deal = OwnDeal {
            deal: fields.or("deal", DealName::Blocked)?,
            drop_last: fields.or("drop_last", false)?,
            even_batches: fields.or("even_batches", false)?,
        };
        if deal.drop_last && deal.even_batches {
            return Err(fields.refuse(
                "even_batches",
                "it fills up what `drop_last` leaves out: set one of the two",
            ));
        }
        Ok(deal)
    }

    fn law(self) -> Law {
        match self.deal {
            DealName::Blocked => Law::Blocked,
            DealName::Strided => Law::Strided,
        }
    }

    fn tail(self) -> Tail {
        if self.drop_last {
            Tail::Drop
        } else if self.even_batches {
            Tail::Pad
        } else {
            Tail::Ragged
        }
    }
}

/// The options as a JSON object. They are plain data, which always has one.
pub(crate) fn to_json(options: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(options).unwrap_or_default()
}
