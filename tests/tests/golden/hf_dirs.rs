//! Datasets on disk as `datasets` wrote them: the folders `hf/` and `fla/`, and the token blocks of
//! `fla_order.json`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use arrow_array::Int64Array;
use arrow_ipc::reader::StreamReader;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_samplers::rng::numpy::Generator;
use ceteris_tests::golden::{check_digest, golden_dir, load_family, run_family, run_folders, sha256_i32};
use ceteris_tests::tokens::{open, row, sha256_of_rows};
use serde_json::Value;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, got: &T) -> Result<(), String> {
    if expected == got {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, got {got:?}"))
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("no text {key}"))
}

fn number(value: &Value, key: &str) -> Result<u64, String> {
    value[key].as_u64().ok_or_else(|| format!("no number {key}"))
}

fn tokens(value: &Value) -> Result<Vec<i32>, String> {
    serde_json::from_value(value.clone()).map_err(|e| e.to_string())
}

fn read_json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Rows of `Dataset.shuffle(seed)` over `n` rows.
fn shuffled(n: u64, seed: u64) -> Result<Vec<u64>, String> {
    let permutation = Generator::default_rng(seed)
        .permutation(n)
        .map_err(|e| e.to_string())?;
    Ok(permutation.iter().collect())
}

/// The column `id` that stands beside the tokens, read with another reader.
fn id_column(source: &HfSource) -> Result<Vec<u64>, String> {
    let mut ids = Vec::new();
    for path in source.files() {
        let file = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let reader = StreamReader::try_new(BufReader::new(file), None).map_err(|e| e.to_string())?;
        for batch in reader {
            let batch = batch.map_err(|e| e.to_string())?;
            let column = batch.column_by_name("id").ok_or("no column id")?;
            let column = column
                .as_any()
                .downcast_ref::<Int64Array>()
                .ok_or("the column id is not int64")?;
            ids.extend(column.values().iter().map(|&v| v as u64));
        }
    }
    Ok(ids)
}

#[test]
fn hf_folders() {
    run_folders("hf", |dir| {
        let expected = read_json(&dir.join("expected.json"))?;
        let source = open(dir)?;
        let n = source.num_samples();
        equal("num_rows", &number(&expected, "num_rows")?, &n)?;
        equal(
            "arrow_type",
            &text(&expected, "arrow_type")?,
            &source.token_type(),
        )?;
        for (key, value) in expected.as_object().ok_or("expected.json is no object")? {
            match key.as_str() {
                "versions" | "num_rows" | "columns" | "features" | "arrow_type" | "how_to_read"
                | "made_by" | "files" | "note" => {}
                "in_order" => in_order(&source, value)?,
                "indices_caches" => {
                    for cache in value.as_array().ok_or("indices_caches is no list")? {
                        indices_cache(dir, &source, cache)?;
                    }
                }
                other => match other.strip_prefix("shuffle_").map(str::parse::<u64>) {
                    Some(Ok(seed)) => {
                        let rows = shuffled(n, seed)?;
                        if !value["ids"].is_null() {
                            let ids = id_column(&source)?;
                            let picked: Option<Vec<u64>> =
                                rows.iter().map(|&r| ids.get(r as usize).copied()).collect();
                            check_digest(&value["ids"], &picked.ok_or("fewer ids than rows")?)?;
                        }
                        let got = sha256_of_rows(&source, rows)?;
                        equal(
                            &format!("{key} tokens_sha256"),
                            &text(value, "tokens_sha256")?,
                            &got.as_str(),
                        )?;
                    }
                    _ => return Err(format!("expected.json has an unknown entry {key}")),
                },
            }
        }
        Ok(())
    });
}

fn in_order(source: &HfSource, expected: &Value) -> Result<(), String> {
    let n = source.num_samples();
    for (key, value) in expected.as_object().ok_or("in_order is no object")? {
        match key.as_str() {
            "row_lens_first" => {
                let lens: Vec<usize> = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
                for (id, len) in lens.iter().enumerate() {
                    let got = source.sample_len(id as u64).map_err(|e| e.to_string())?;
                    equal(&format!("length of row {id}"), len, &got)?;
                }
            }
            "first_row" => equal(key, &tokens(value)?, &row(source, 0)?)?,
            "last_row" => equal(key, &tokens(value)?, &row(source, n - 1)?)?,
            "tokens_sha256" => equal(
                key,
                &value.as_str().unwrap_or(""),
                &sha256_of_rows(source, 0..n)?.as_str(),
            )?,
            "per_row_sha256_first8" => per_row(source, value)?,
            other => return Err(format!("in_order has an unknown entry {other}")),
        }
    }
    Ok(())
}

fn per_row(source: &HfSource, hashes: &Value) -> Result<(), String> {
    for (id, hash) in hashes
        .as_array()
        .ok_or("no list of row hashes")?
        .iter()
        .enumerate()
    {
        let got = sha256_i32(&row(source, id as u64)?);
        equal(
            &format!("hash of row {id}"),
            &hash.as_str().unwrap_or(""),
            &got.as_str(),
        )?;
    }
    Ok(())
}

/// The table that `Dataset.shuffle(seed)` left: applied when named, and then the same as the shuffle itself.
fn indices_cache(dir: &Path, plain: &HfSource, cache: &Value) -> Result<(), String> {
    let seed = number(cache, "seed")?;
    let options = SourceOptions {
        indices: Some(dir.join(text(cache, "indices_file")?)),
        ..SourceOptions::default()
    };
    let source = HfSource::open(dir, &options).map_err(|e| e.to_string())?;
    let rows: Vec<u64> = (0..source.num_samples())
        .map(|id| source.stored_row(id))
        .collect();
    check_digest(&cache["indices"], &rows)?;
    equal(
        "rows of the shuffle",
        &shuffled(plain.num_samples(), seed)?,
        &rows,
    )?;
    let through = sha256_of_rows(&source, 0..source.num_samples())?;
    equal(
        "tokens through the indices table",
        &sha256_of_rows(plain, rows)?,
        &through,
    )
}

#[test]
fn fla_folders() {
    let Some(prepare) = load_family("fla_prepare.json") else {
        return;
    };
    let cases = prepare["cases"].as_array().cloned().unwrap_or_default();
    run_folders("fla", |dir| {
        let name = format!("fla/{}", dir.file_name().unwrap_or_default().to_string_lossy());
        let case = cases
            .iter()
            .find(|c| c["folder"] == name.as_str())
            .ok_or_else(|| format!("fla_prepare.json has no case for {name}"))?;
        let source = open(dir)?;
        let n = source.num_samples();
        equal("samples", &number(case, "samples")?, &n)?;
        equal("column_type", &text(case, "column_type")?, &source.token_type())?;
        equal(
            "seq_len",
            &Some(number(case, "seq_len")? as usize),
            &source.sample_length(),
        )?;
        let rows_per_file: Vec<u64> =
            serde_json::from_value(case["rows_per_file"].clone()).map_err(|e| e.to_string())?;
        let mut counted = vec![0; rows_per_file.len()];
        let files = source.files();
        for id in 0..n {
            let file = source.file_of(id).ok_or("a sample without a file")?;
            let index = files
                .iter()
                .position(|f| *f == file)
                .ok_or("a sample of an unknown file")?;
            *counted.get_mut(index).ok_or("more files than recorded")? += 1;
        }
        equal("rows_per_file", &rows_per_file, &counted)?;
        equal("first_row", &tokens(&case["first_row"])?, &row(&source, 0)?)?;
        equal("last_row", &tokens(&case["last_row"])?, &row(&source, n - 1)?)?;
        per_row(&source, &case["row_sha256_first8"])?;
        let got = sha256_of_rows(&source, 0..n)?;
        equal(
            "tokens_sha256_i32_in_saved_order",
            &text(case, "tokens_sha256_i32_in_saved_order")?,
            &got.as_str(),
        )
    });
}

/// The recorded token blocks, read at the recorded rows; the rows themselves are the orders' own test.
#[test]
fn token_blocks_of_fla_order() {
    run_family("fla_order.json", |case| {
        let source = open(&golden_dir().join(text(case, "data")?))?;
        equal("samples", &number(case, "samples")?, &source.num_samples())?;
        let mut blocks = 0;
        for step in case["steps"].as_array().ok_or("no steps")? {
            for rank in step["ranks"].as_array().ok_or("no ranks")? {
                if rank.is_null() {
                    continue;
                }
                let rows: Vec<u64> =
                    serde_json::from_value(rank["rows"].clone()).map_err(|e| e.to_string())?;
                let got = sha256_of_rows(&source, rows)?;
                equal(
                    &format!("step {}", step["step"]),
                    &text(rank, "tokens_sha256")?,
                    &got.as_str(),
                )?;
                blocks += 1;
            }
        }
        if blocks == 0 {
            Err("no block was recorded".to_owned())
        } else {
            Ok(())
        }
    });
}
