//! datasets: `Dataset.shuffle`, `train_test_split`, `shard`, `select`, `concatenate_datasets`, `split_dataset_by_node`.
//!
//! A case names the call it records; a call this file does not know fails.

use ceteris_samplers::dataset::{self, DatasetStep};
use ceteris_tests::golden::{check_digest, run_family, sha256_u64};
use serde_json::{Value, json};

use crate::case::{boolean, list, number, numbers, same, text};

/// Rows that the steps leave of `n`.
fn rows(steps: Value, n: u64) -> Result<Vec<u64>, String> {
    let steps: Vec<DatasetStep> = serde_json::from_value(steps).map_err(|e| e.to_string())?;
    let rows = dataset::apply(&steps, n).map_err(|e| e.to_string())?;
    let len = dataset::len(&steps, n).map_err(|e| e.to_string())?;
    same("length known beforehand", rows.len(), len)?;
    Ok(rows.iter().collect())
}

#[test]
fn hf_order() {
    run_family("hf_order.json", check);
}

fn check(case: &Value) -> Result<(), String> {
    let call = text(case, "call")?;
    let seed = &case["seed"];
    let digest = |steps: Value| check_digest(case, &rows(steps, number(case, "n")?)?);
    match call {
        "Dataset.shuffle(seed=seed)" => digest(json!([{"shuffle": {"seed": seed}}])),
        "Dataset.shuffle(seed=seed).shuffle(seed=seed)" => {
            digest(json!([{"shuffle": {"seed": seed}}, {"shuffle": {"seed": seed}}]))
        }
        "Dataset.train_test_split(test_size, seed)" => train_test_split(case),
        "Dataset.shard(num_shards, index, contiguous)" => {
            let (n, num_shards) = (number(case, "n")?, number(case, "num_shards")?);
            let contiguous = boolean(case, "contiguous")?;
            let step = |index| json!([{"shard": {"num_shards": num_shards, "index": index, "contiguous": contiguous}}]);
            parts(
                case,
                (0..num_shards)
                    .map(|i| rows(step(i), n))
                    .collect::<Result<_, _>>()?,
            )
        }
        "split_dataset_by_node(Dataset, rank, world)" => {
            let (n, world) = (number(case, "n")?, number(case, "world")?);
            let step = |rank| json!([{"split_by_node": {"rank": rank, "world_size": world}}]);
            parts(
                case,
                (0..world).map(|r| rows(step(r), n)).collect::<Result<_, _>>()?,
            )
        }
        "concatenate_datasets" => {
            let (parts, n) = runs(&numbers(&case["lengths"])?);
            check_digest(case, &rows(json!([{"concatenate": parts}]), n)?)
        }
        "interleave_datasets(list, stopping_strategy)"
        | "interleave_datasets(list, probabilities, seed, stopping_strategy)" => {
            let (sources, n) = runs(&numbers(&case["lengths"])?);
            let mut mix = json!({"sources": sources, "stopping_strategy": case["stopping_strategy"]});
            if !case["probabilities"].is_null() {
                mix["probabilities"] = case["probabilities"].clone();
                mix["seed"] = seed.clone();
            }
            check_digest(case, &rows(json!([{"interleave": mix}]), n)?)
        }
        _ => match unseeded_or_generator(call) {
            Some((key, nth)) => digest(json!([{"shuffle": {key: seed, "call": nth}}])),
            None => digest(chain(call)?),
        },
    }
}

/// Datasets of these lengths, one after the other in one table, and the table's length.
fn runs(lengths: &[u64]) -> (Vec<Value>, u64) {
    let mut start = 0;
    let runs = lengths.iter().map(|len| {
        start += len;
        json!([{"select": {"start": start - len, "stop": start}}])
    });
    (runs.collect(), lengths.iter().sum())
}

/// `np.random.seed(seed); Dataset.shuffle() [2nd]`, `g=…; Dataset.shuffle(generator=g) [1st]`.
fn unseeded_or_generator(call: &str) -> Option<(&'static str, u64)> {
    let key = if call.starts_with("np.random.seed(seed); Dataset.shuffle() [") {
        "numpy_global_seed"
    } else if call.starts_with("g=np.random.default_rng(seed); Dataset.shuffle(generator=g) [") {
        "seed"
    } else {
        return None;
    };
    let nth = call.split_once(" [")?.1;
    let digits = nth.trim_end_matches(']').trim_end_matches(char::is_alphabetic);
    Some((key, digits.parse().ok()?))
}

/// A chain of calls with its numbers written out: `Dataset.shuffle(seed=42).shard(8, 3)`.
fn chain(call: &str) -> Result<Value, String> {
    let unknown = || format!("unknown call {call}");
    let mut rest = call.strip_prefix("Dataset").ok_or_else(unknown)?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let (method, after) = rest
            .strip_prefix('.')
            .and_then(|r| r.split_once('('))
            .ok_or_else(unknown)?;
        let end = closing(after).ok_or_else(unknown)?;
        let (arguments, after) = (&after[..end], &after[end + 1..]);
        rest = after;
        let ints = |text: &str| -> Result<Vec<u64>, String> {
            text.split(',')
                .map(|t| t.trim().parse().map_err(|_| unknown()))
                .collect()
        };
        steps.push(match method {
            "shuffle" => {
                let seed = arguments.strip_prefix("seed=").unwrap_or(arguments);
                let seed: u64 = seed.parse().map_err(|_| unknown())?;
                json!({"shuffle": {"seed": seed}})
            }
            "shard" => match ints(arguments)?[..] {
                [num_shards, index] => json!({"shard": {"num_shards": num_shards, "index": index}}),
                _ => return Err(unknown()),
            },
            "select" => {
                let inner = |open: &str, close: &str| arguments.strip_prefix(open)?.strip_suffix(close);
                match (
                    inner("range(", ")").map(ints).transpose()?,
                    inner("[", "]").map(ints).transpose()?,
                ) {
                    (Some(range), None) => match range[..] {
                        [stop] => json!({"select": {"stop": stop}}),
                        [start, stop] => json!({"select": {"start": start, "stop": stop}}),
                        _ => return Err(unknown()),
                    },
                    (None, Some(indices)) => json!({"select": {"indices": indices}}),
                    _ => return Err(unknown()),
                }
            }
            _ => return Err(unknown()),
        });
    }
    Ok(steps.into())
}

/// Where the bracket that is already open closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at)
    })
}

fn train_test_split(case: &Value) -> Result<(), String> {
    let n = number(case, "n")?;
    let split = |take: &str, shuffle: bool| {
        let mut step = json!({"take": take, "test_size": case["test_size"], "shuffle": shuffle});
        if shuffle {
            step["seed"] = case["seed"].clone();
        }
        rows(json!([{"train_test_split": step}]), n)
    };
    check_digest(&case["train"], &split("train", true)?).map_err(|e| format!("train: {e}"))?;
    check_digest(&case["test"], &split("test", true)?).map_err(|e| format!("test: {e}"))?;
    let (train, test) = (split("train", false)?, split("test", false)?);
    same(
        "unshuffled lengths",
        numbers(&case["unshuffled_train_test_lens"])?,
        vec![train.len() as u64, test.len() as u64],
    )?;
    same(
        "unshuffled train",
        text(case, "unshuffled_train_sha256")?,
        &sha256_u64(train),
    )
}

/// Cases that list all parts of a dataset.
fn parts(case: &Value, parts: Vec<Vec<u64>>) -> Result<(), String> {
    let lens: Vec<u64> = parts.iter().map(|p| p.len() as u64).collect();
    same("lens", numbers(&case["lens"])?, lens)?;
    let firsts: Vec<u64> = parts.iter().filter_map(|p| p.first().copied()).collect();
    same("first_of_each", numbers(&case["first_of_each"])?, firsts)?;
    let hashes: Vec<Value> = parts.into_iter().map(|p| sha256_u64(p).into()).collect();
    same("sha256_of_each", list(&case["sha256_of_each"])?, &hashes)
}
