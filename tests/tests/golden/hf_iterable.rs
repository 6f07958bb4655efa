//! datasets: `IterableDataset.shuffle`, epochs, nodes, `interleave_datasets` of iterable datasets, `skip`, `take`.
//!
//! Every stream is also read in two parts, the second from a state saved as JSON.

use ceteris_samplers::interleave::StoppingStrategy;
use ceteris_samplers::iterable::{Source, Stream, StreamState};
use ceteris_samplers::rng::numpy::Generator;
use ceteris_tests::golden::{check_digest, load_family, run_family, sha256_u64};
use serde_json::Value;

use crate::case::{floats, list, number, numbers, same, text};

/// `IterableDataset.from_generator` over `shards` ranges of `n` rows, cut at `n * i // shards`.
fn generated(n: u64, shards: u64, start: u64) -> Source {
    let cut = |i: u64| start + n * i / shards;
    Source::Shards {
        shards: (0..shards).map(|i| cut(i)..cut(i + 1)).collect(),
        tables: false,
    }
}

/// `Dataset.to_iterable_dataset(num_shards)`: contiguous shards, the first `n % shards` one row longer.
fn from_table(n: u64, shards: u64) -> Source {
    let cut = |i: u64| n / shards * i + i.min(n % shards);
    Source::Shards {
        shards: (0..shards).map(|i| cut(i)..cut(i + 1)).collect(),
        tables: true,
    }
}

fn rows(source: &Source) -> Result<Vec<u64>, String> {
    let stream = || Stream::new(source).map_err(|e| e.to_string());
    let all = stream()?.rest().map_err(|e| e.to_string())?;
    if let Some(len) = source.fixed_len() {
        same("length known beforehand", all.len() as u64, len)?;
    }
    for cut in [0, 1, all.len() / 3, all.len().saturating_sub(1), all.len()] {
        let mut head = stream()?;
        for row in &all[..cut] {
            same(
                "row by row",
                Some(*row),
                head.next_row().map_err(|e| e.to_string())?,
            )?;
        }
        let saved = serde_json::to_string(&head.state()).map_err(|e| e.to_string())?;
        let state: StreamState = serde_json::from_str(&saved).map_err(|e| e.to_string())?;
        let tail = Stream::resume(source, &state)
            .and_then(Stream::rest)
            .map_err(|e| e.to_string())?;
        same(&format!("resumed after {cut} rows"), &all[cut..], &tail)?;
    }
    Ok(all)
}

fn strategy(case: &Value) -> Result<StoppingStrategy, String> {
    serde_json::from_value(case["stopping_strategy"].clone()).map_err(|e| e.to_string())
}

fn interleaved(
    lengths: &[u64],
    probabilities: Option<(Vec<f64>, u64)>,
    strategy: StoppingStrategy,
) -> Result<Source, String> {
    let mut start = 0;
    let sources = lengths.iter().map(|&n| {
        start += n;
        generated(n, 1, start - n)
    });
    let drawn = probabilities.map(|(p, seed)| (p, Generator::default_rng(seed)));
    Source::interleave(sources.collect(), drawn, strategy).map_err(|e| e.to_string())
}

/// Cases that list what every rank reads.
fn nodes(case: &Value, source: &Source) -> Result<(), String> {
    let world = number(case, "world")?;
    let parts: Vec<Vec<u64>> = (0..world)
        .map(|rank| rows(&source.for_node(rank, world)))
        .collect::<Result<_, _>>()?;
    same(
        "lens",
        numbers(&case["lens"])?,
        parts.iter().map(|p| p.len() as u64).collect(),
    )?;
    for (want, got) in list(&case["first_of_each"])?.iter().zip(&parts) {
        let want = numbers(want)?;
        same("first_of_each", &want[..], &got[..want.len().min(got.len())])?;
    }
    let hashes: Vec<Value> = parts.into_iter().map(|p| sha256_u64(p).into()).collect();
    same("sha256_of_each", list(&case["sha256_of_each"])?, &hashes)
}

#[test]
fn hf_iterable() {
    let Some(family) = load_family("hf_iterable.json") else {
        return;
    };
    let cases = family["cases"].as_array().cloned().unwrap_or_default();
    // "p0" is the first list of probabilities that the set uses for so many sources.
    let p0 = |count: usize| {
        let lists = cases
            .iter()
            .filter_map(|case| floats(&case["probabilities"]).ok());
        lists
            .into_iter()
            .find(|p| p.len() == count)
            .ok_or("the set has no probabilities to serve as p0")
    };
    run_family("hf_iterable.json", |case| {
        let call = text(case, "call")?;
        let sized =
            |make: fn(u64, u64) -> Source| Ok::<_, String>(make(number(case, "n")?, number(case, "shards")?));
        let plain = || sized(|n, shards| generated(n, shards, 0));
        let shuffled = || -> Result<Source, String> {
            let generator = Generator::default_rng(number(case, "seed")?);
            Ok(plain()?.shuffle(&generator, number(case, "buffer_size")?, 10))
        };
        if let Some(epoch) = call.strip_prefix("the same after set_epoch(") {
            let epoch = epoch
                .trim_end_matches(')')
                .parse()
                .map_err(|_| format!("unknown call {call}"))?;
            return check_digest(
                case,
                &rows(&shuffled()?.for_epoch(epoch).map_err(|e| e.to_string())?)?,
            );
        }
        match call {
            "IterableDataset.shuffle(seed, buffer_size)" => check_digest(case, &rows(&shuffled()?)?),
            "split_dataset_by_node(IterableDataset.shuffle(...), rank, world)" => nodes(case, &shuffled()?),
            "split_dataset_by_node(IterableDataset, rank, world)" => nodes(case, &plain()?),
            "Dataset.to_iterable_dataset(num_shards).shuffle(seed=42, buffer_size)" => {
                let generator = Generator::default_rng(42);
                let source = sized(from_table)?.shuffle(&generator, number(case, "buffer_size")?, 10);
                check_digest(case, &rows(&source)?)
            }
            "interleave_datasets([IterableDataset...], probabilities, seed, stopping_strategy)" => {
                let drawn = match &case["probabilities"] {
                    Value::Null => None,
                    p => Some((floats(p)?, number(case, "seed")?)),
                };
                check_digest(
                    case,
                    &rows(&interleaved(&numbers(&case["lengths"])?, drawn, strategy(case)?)?)?,
                )
            }
            "interleave_datasets([IterableDataset...], p0, seed=42).shuffle(seed=1, buffer_size=16)" => {
                let lengths = numbers(&case["lengths"])?;
                let drawn = Some((p0(lengths.len())?, 42));
                let mix = interleaved(&lengths, drawn, StoppingStrategy::FirstExhausted)?;
                check_digest(case, &rows(&mix.shuffle(&Generator::default_rng(1), 16, 10))?)
            }
            "IterableDataset.shuffle(42, 100).skip(10).take(300)" => {
                let source = plain()?.shuffle(&Generator::default_rng(42), 100, 10);
                let source = Source::Skip {
                    source: Box::new(source),
                    rows: 10,
                    split: true,
                };
                check_digest(
                    case,
                    &rows(&Source::Take {
                        source: Box::new(source),
                        rows: 300,
                        split: true,
                    })?,
                )
            }
            _ => Err(format!("unknown call {call}")),
        }
    });
}
