//! Reports about Megatron data, V34 to V49, and what their tests share.

mod cache;
mod damage;
mod files;
mod order;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ceteris_loader::index::build::{BuildOptions, BuiltSplit, build_split};
use ceteris_loader::index::plan::{BlendSpec, DataSpec, MegatronConfig};
use ceteris_loader::index::store::Store;
use ceteris_loader::source::megatron::{Check, IndexedDataset};
use ceteris_loader::source::megatron_gpt::GptSource;
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_loader::source::megatron_writer::IndexedWriter;
use ceteris_samplers::orders::megatron_index::GptIndex;
use ceteris_samplers::orders::split::Split;
use ceteris_tests::tokens::row;
use serde_json::Value;

/// Writes documents, each a list of sequences.
pub fn write(prefix: &Path, token_type: TokenType, documents: &[Vec<Vec<i32>>]) {
    let mut writer = IndexedWriter::create(prefix, token_type, true).unwrap();
    for document in documents {
        for sequence in document {
            writer.add_sequence(sequence).unwrap();
        }
        writer.end_document();
    }
    writer.finish().unwrap();
}

/// Documents of one sequence with these lengths; token = 100 x document + position.
pub fn numbered(lengths: &[usize]) -> Vec<Vec<Vec<i32>>> {
    (0..)
        .zip(lengths)
        .map(|(document, &n)| vec![(0..n as i32).map(|i| 100 * document + i).collect()])
        .collect()
}

pub fn open(prefix: &Path) -> IndexedDataset {
    IndexedDataset::open(prefix, Check::Full).unwrap_or_else(|e| panic!("{e}"))
}

pub fn whole(prefixes: &[&Path], weights: Option<Vec<f64>>, seq_length: u64, seed: u64) -> MegatronConfig {
    let prefixes = prefixes.iter().map(|p| p.display().to_string()).collect();
    let data = DataSpec::Cut {
        blend: BlendSpec { prefixes, weights },
        split: "100,0,0".to_owned(),
    };
    MegatronConfig::new(data, seq_length, seed)
}

pub fn build(config: &MegatronConfig, store: Option<&Store>) -> BuiltSplit {
    let options = BuildOptions {
        store,
        ..BuildOptions::default()
    };
    build_split(config, Split::Train, &options)
        .unwrap_or_else(|e| panic!("{e}"))
        .unwrap()
}

pub fn samples(built: &BuiltSplit, seq_length: u64) -> Vec<Vec<i32>> {
    let data = built.parts.iter().map(|part| Arc::clone(&part.data)).collect();
    let source = GptSource::new(data, Arc::clone(&built.dataset), seq_length, true).unwrap();
    (0..built.dataset.len())
        .map(|i| row(&source, built.dataset.sample_id(i).unwrap()).unwrap())
        .collect()
}

pub fn shuffled(index: &GptIndex) -> Vec<u64> {
    index.shuffle_index.iter().collect()
}

pub fn documents(index: &GptIndex) -> Vec<u32> {
    (0..index.document_index.len())
        .map(|i| index.document_index.get(i).unwrap())
        .collect()
}

pub fn loader() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loader-under-test"));
    command.env_remove("CETERIS_CACHE");
    command
}

pub fn build_command(prefix: &Path, cache: &Path) -> Command {
    let mut command = loader();
    command.args([
        "index",
        "build",
        "--json",
        "--split",
        "100,0,0",
        "--seq-length",
        "16",
        "--seed",
        "1234",
    ]);
    command
        .args(["--train-samples", "5000", "--data-path"])
        .arg(prefix)
        .arg("--data-cache-path")
        .arg(cache);
    command
}

/// The first value under `key`, at any depth.
pub fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields
            .get(key)
            .or_else(|| fields.values().find_map(|field| find(field, key))),
        Value::Array(items) => items.iter().find_map(|item| find(item, key)),
        _ => None,
    }
}
