//! The FLA pipeline golden through the binary: for every recorded run, the rows, positions and token hash of every
//! recorded (step, rank), and the hash of the epoch's whole token stream.

use ceteris_loader::source::{HfSource, SourceOptions};
use ceteris_tests::golden::{golden_dir, run_family, sha256_hex, sha256_u64};
use serde_json::Value;

use super::loader;

/// The order whose law a case was recorded under.
fn order_of(law: &str) -> Result<&'static str, String> {
    match law {
        "strided_distributed_sampler" => Ok("fla"),
        "hf_trainer_batch_sampler_shard" => Ok("hf-trainer"),
        other => Err(format!("unknown law {other}")),
    }
}

fn integers(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect()
}

/// Arguments of the run a case records, without the form of its output.
fn arguments(case: &Value, seq_length: usize) -> Result<Vec<String>, String> {
    let text = |key: &str| case[key].as_str().ok_or(format!("no {key}"));
    let number = |key: &str| {
        case[key]
            .as_i64()
            .map(|n| n.to_string())
            .ok_or(format!("no {key}"))
    };
    let mut args = vec!["--order".to_string(), order_of(text("law")?)?.to_string()];
    let folder = golden_dir().join(text("data")?);
    args.extend(["--cache-dir".to_string(), folder.display().to_string()]);
    for (flag, key) in [
        ("--seed", "run_seed"),
        ("--world-size", "world"),
        ("--micro-batch-size", "mbs"),
        ("--epoch", "epoch"),
    ] {
        args.extend([flag.to_string(), number(key)?]);
    }
    args.extend(["--seq-length".to_string(), seq_length.to_string()]);
    Ok(args)
}

/// Tokens of a row: the recording does not say, the dataset does.
fn seq_length(case: &Value) -> Result<usize, String> {
    let folder = golden_dir().join(case["data"].as_str().ok_or("no data")?);
    let source = HfSource::open(&folder, &SourceOptions::default()).map_err(|e| e.to_string())?;
    source
        .sample_length()
        .ok_or(format!("{}: rows differ in length", folder.display()))
}

fn jsonl(args: &[String], emit: &str) -> Vec<Value> {
    let mut args = args.to_vec();
    args.extend(["--emit", emit, "--format", "jsonl", "--quiet"].map(String::from));
    loader(&args).json_lines()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), String> {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: expected {want:?}, got {got:?}"))
    }
}

fn check(case: &Value) -> Result<(), String> {
    let args = arguments(case, seq_length(case)?)?;
    let world = case["world"].as_u64().ok_or("no world")?;
    let hashed = jsonl(&args, "sha256");
    let at = |step: u64, rank: u64| &hashed[(step * world + rank) as usize];
    for step in case["steps"].as_array().ok_or("no steps")? {
        let number = step["step"].as_u64().ok_or("no step")?;
        for (rank, want) in (0..).zip(step["ranks"].as_array().ok_or("no ranks")?) {
            let got = at(number, rank);
            let place = format!("step {number} rank {rank}");
            same(
                &place,
                (got["micro_step"].as_u64(), got["rank"].as_u64()),
                (Some(number), Some(rank)),
            )?;
            if want.is_null() {
                same(&place, integers(&got["rows"]), Vec::new())?;
                continue;
            }
            same(
                &format!("{place}: rows"),
                integers(&got["rows"]),
                integers(&want["rows"]),
            )?;
            same(
                &format!("{place}: positions"),
                integers(&got["positions"]),
                integers(&want["ids"]),
            )?;
            same(
                &format!("{place}: sha256"),
                &got["sha256"],
                &want["tokens_sha256"],
            )?;
        }
    }
    // The whole epoch: positions of each rank, and the tokens step by step and rank by rank.
    let tokens = jsonl(&args, "tokens");
    same("micro-batches", tokens.len(), hashed.len())?;
    let mut stream = Vec::new();
    for (line, hash) in tokens.iter().zip(&hashed) {
        let from = stream.len();
        for row in line["tokens"].as_array().ok_or("no tokens")? {
            stream.extend(
                integers(row)
                    .into_iter()
                    .flat_map(|token| (token as i32).to_le_bytes()),
            );
        }
        same(
            "sha256 of the tokens beside it",
            hash["sha256"].as_str(),
            Some(sha256_hex(&stream[from..]).as_str()),
        )?;
    }
    same(
        "epoch_tokens_sha256",
        Some(sha256_hex(&stream).as_str()),
        case["epoch_tokens_sha256"].as_str(),
    )?;
    for (rank, want) in (0..world).zip(
        case["epoch_ids_sha256_by_rank"]
            .as_array()
            .ok_or("no ids by rank")?,
    ) {
        let of_rank = hashed.iter().filter(|line| line["rank"] == rank);
        let positions = of_rank.flat_map(|line| integers(&line["positions"]));
        same(
            &format!("rank {rank}: positions"),
            Some(sha256_u64(positions).as_str()),
            want.as_str(),
        )?;
        let steps = hashed
            .iter()
            .filter(|line| line["rank"] == rank && !integers(&line["rows"]).is_empty())
            .count();
        same(
            &format!("rank {rank}: steps"),
            Some(steps as u64),
            case["steps_per_rank"][rank as usize].as_u64(),
        )?;
    }
    Ok(())
}

#[test]
fn fla_order_through_the_binary() {
    run_family("fla_order.json", check);
}
