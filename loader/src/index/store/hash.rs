//! One hash for an index, however it is stored.

use ceteris_samplers::orders::blend::BlendIndex;
use ceteris_samplers::orders::megatron_index::GptIndex;

/// BLAKE3 over an index: for each of document, sample and shuffle index its number of values (u64) and the values (u64),
/// all little-endian. The same for the same index, however wide it is stored.
pub fn index_hash(index: &GptIndex) -> String {
    let mut hasher = ValueHasher::new();
    let documents = &index.document_index;
    hasher.start(documents.len());
    (0..documents.len()).for_each(|i| hasher.value(documents.get(i).map_or(u64::MAX, u64::from)));
    hasher.start(2 * index.sample_index.len());
    (0..index.sample_index.len()).for_each(|i| {
        let (document, offset) = index.sample_index.get(i).unwrap_or((u64::MAX, u64::MAX));
        hasher.value(document);
        hasher.value(offset);
    });
    hasher.start(index.len());
    index.shuffle_index.iter().for_each(|value| hasher.value(value));
    hasher.finish()
}

/// BLAKE3 over the draws of a blend, in the same form: dataset index, then dataset sample index.
pub(super) fn blend_hash(blend: &BlendIndex) -> String {
    let mut hasher = ValueHasher::new();
    let datasets = blend.dataset_index();
    hasher.start(datasets.len());
    (0..datasets.len()).for_each(|i| hasher.value(datasets.get(i).map_or(u64::MAX, |d| d as u64)));
    hasher.start(blend.dataset_sample_index().len());
    blend
        .dataset_sample_index()
        .iter()
        .for_each(|value| hasher.value(value));
    hasher.finish()
}

struct ValueHasher {
    hasher: blake3::Hasher,
    bytes: Vec<u8>,
}

impl ValueHasher {
    fn new() -> Self {
        ValueHasher {
            hasher: blake3::Hasher::new(),
            bytes: Vec::with_capacity(1 << 16),
        }
    }

    fn start(&mut self, values: u64) {
        self.value(values);
    }

    fn value(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        if self.bytes.len() >= (1 << 16) {
            self.hasher.update(&self.bytes);
            self.bytes.clear();
        }
    }

    fn finish(mut self) -> String {
        self.hasher.update(&self.bytes);
        self.hasher.finalize().to_hex().to_string()
    }
}
