//! Times the index build of one GPT dataset over synthetic documents, in memory.
//!
//! The other side is `tests/bench/megatron_index.py`, with the same documents: lengths are
//! `RandomState(7).randint(1, longest + 1, documents)`. Prints one JSON line.
//!
//!     cargo bench -p ceteris-samplers --bench megatron_index -- [documents [longest [epochs [sequence length]]]]

use std::time::Instant;

use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::megatron_index::GptIndex;
use ceteris_samplers::rng::numpy::RandomState;

fn main() {
    let numbers: Vec<f64> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let number = |i: usize, default: f64| numbers.get(i).copied().unwrap_or(default);
    let (documents, longest) = (number(0, 1e7) as usize, number(1, 1000.0) as u32);
    let (epochs, sequence_length) = (number(2, 3.0), number(3, 2048.0) as u64);
    let lengths: Vec<i64> = RandomState::new(7)
        .randint(1, i128::from(longest) + 1, documents)
        .expect("a valid interval");
    let lengths: Vec<u32> = lengths.iter().map(|&n| n as u32).collect();
    let tokens: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
    let spec = GptIndexSpec {
        sequence_length,
        add_extra_token: true,
        random_seed: 1234,
        num_samples: Some((epochs * tokens as f64) as u64 / sequence_length - 1),
        drop_last_partial_sequence: true,
    };
    let start = Instant::now();
    let index = GptIndex::build(&lengths, 0..documents as u64, &spec).expect("builds");
    let seconds = start.elapsed().as_secs_f64();
    let first: Vec<u64> = index.shuffle_index.iter().take(4).collect();
    println!(
        "{{\"tool\": \"ceteris\", \"documents\": {documents}, \"tokens\": {tokens}, \"samples\": {}, \"epochs\": {}, \
         \"seconds\": {seconds:.3}, \"first\": {first:?}}}",
        index.len(),
        index.rule.num_epochs
    );
}
