//! Reading golden data: values recorded from the real torch, numpy, datasets, accelerate and Megatron-Core.
//!
//! The set is the folder named by `CETERIS_GOLDEN_DIR`, else the copies under `tests/golden`. Every case of
//! every file that the set holds is run: a test reports how many cases passed and fails on the first case kind
//! it does not know. A file the set lacks is skipped by name; a set that holds no known file is an error.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Family files a set may hold.
pub const FAMILIES: &[&str] = &[
    "accelerate_batch_sampler_shard.json",
    "accelerate_iterable_shard.json",
    "accelerate_prepared_loader.json",
    "fla_order.json",
    "fla_prepare.json",
    "fla_trainer_runs.json",
    "hf_iterable.json",
    "hf_order.json",
    "megatron_blend.json",
    "megatron_builder.json",
    "megatron_gpt_dataset.json",
    "megatron_masks.json",
    "megatron_sample_idx.json",
    "megatron_samplers.json",
    "megatron_splits.json",
    "numpy_generator_draws.json",
    "numpy_generator_permutation.json",
    "numpy_randomstate.json",
    "numpy_seedsequence_pcg64.json",
    "torch_distributed_sampler.json",
    "torch_init.json",
    "torch_mt19937.json",
    "torch_randint.json",
    "torch_random_sampler.json",
    "torch_randperm.json",
    "trainer_runs.json",
    "trainer_runs_more.json",
];

/// Family folders a set may hold: one sub-folder with an `expected.json` (or a dataset) per case.
pub const FOLDERS: &[&str] = &["hf", "megatron", "fla"];

/// The folder of the golden set in use.
pub fn golden_dir() -> PathBuf {
    match std::env::var_os("CETERIS_GOLDEN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"),
    }
}

/// Panics unless the set in use holds at least one known file or folder.
///
/// # Panics
/// When it does not: a mistyped `CETERIS_GOLDEN_DIR` would otherwise pass every test by skipping it.
pub fn assert_set_is_known() {
    let dir = golden_dir();
    let known = FAMILIES
        .iter()
        .chain(FOLDERS)
        .filter(|name| dir.join(name).exists())
        .count();
    assert!(
        known > 0,
        "the golden set {} holds no known family file or folder",
        dir.display()
    );
}

/// Reads one family file, `None` (with a line saying so) when the set lacks it.
///
/// # Panics
/// When the set holds no known file, or the file is not an object with a list `cases`.
pub fn load_family(file: &str) -> Option<Value> {
    assert!(FAMILIES.contains(&file), "{file} is not listed in FAMILIES");
    assert_set_is_known();
    let path = golden_dir().join(file);
    if !path.exists() {
        println!(
            "golden {file}: skipped, the set {} lacks it",
            golden_dir().display()
        );
        return None;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(value["cases"].is_array(), "{}: no list `cases`", path.display());
    Some(value)
}

/// Runs `check` on every case of a family file and fails naming each case that differs.
///
/// # Panics
/// When a case fails, the file holds no case, or the set is not a golden set at all.
pub fn run_family(file: &str, mut check: impl FnMut(&Value) -> Result<(), String>) {
    let Some(family) = load_family(file) else { return };
    let cases = family["cases"].as_array().map(Vec::as_slice).unwrap_or_default();
    report(
        file,
        cases
            .iter()
            .enumerate()
            .map(|(i, case)| (format!("case {i} {}", head(case)), check(case))),
    );
}

/// Runs `check` on every case folder of a family folder (`hf`, `megatron`, `fla`).
///
/// # Panics
/// As [`run_family`].
pub fn run_folders(folder: &str, mut check: impl FnMut(&Path) -> Result<(), String>) {
    assert!(FOLDERS.contains(&folder), "{folder} is not listed in FOLDERS");
    assert_set_is_known();
    let root = golden_dir().join(folder);
    if !root.exists() {
        println!(
            "golden {folder}/: skipped, the set {} lacks it",
            golden_dir().display()
        );
        return;
    }
    let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.is_dir())
        .collect();
    dirs.sort();
    report(
        &format!("{folder}/"),
        dirs.iter().map(|dir| (dir.display().to_string(), check(dir))),
    );
}

fn report(name: &str, results: impl Iterator<Item = (String, Result<(), String>)>) {
    let (mut run, mut failed, mut text) = (0usize, 0usize, String::new());
    for (case, result) in results {
        run += 1;
        if let Err(why) = result {
            failed += 1;
            if failed <= 10 {
                let _ = writeln!(text, "  {case}: {why}");
            }
        }
    }
    println!("golden {name}: {} of {run} cases passed", run - failed);
    assert!(run > 0, "golden {name}: holds no case");
    assert!(
        failed == 0,
        "golden {name}: {failed} of {run} cases differ\n{text}"
    );
}

/// The start of a case's JSON, enough to find it in the file.
fn head(case: &Value) -> String {
    let text = case.to_string();
    text.chars().take(160).collect()
}

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Lower-case hex SHA-256 of bytes.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The goldens' digest of integers: SHA-256 over them as little-endian u64, concatenated.
pub fn sha256_u64(values: impl IntoIterator<Item = u64>) -> String {
    let mut hasher = Sha256::new();
    let mut buffer = Vec::with_capacity(1 << 16);
    for v in values {
        buffer.extend_from_slice(&v.to_le_bytes());
        if buffer.len() >= (1 << 16) {
            hasher.update(&buffer);
            buffer.clear();
        }
    }
    hasher.update(&buffer);
    hex(&hasher.finalize())
}

/// The goldens' digest of token blocks: SHA-256 over the tokens as little-endian i32, concatenated.
pub fn sha256_i32<'a>(values: impl IntoIterator<Item = &'a i32>) -> String {
    let bytes: Vec<u8> = values.into_iter().flat_map(|v| v.to_le_bytes()).collect();
    sha256_hex(&bytes)
}

/// Checks a list against a case's digest fields `len`, `first`, `last`, `sha256` (all that are present).
///
/// Signed values (`"dtype": "<i8"`) are passed as their two's complement.
///
/// # Errors
/// The first field that differs, with both values.
pub fn check_digest(case: &Value, values: &[u64]) -> Result<(), String> {
    check_digest_of(case, values.iter().copied())
}

/// [`check_digest`] of values that need not lie in memory as u64.
///
/// # Errors
/// The first field that differs, with both values.
pub fn check_digest_of(case: &Value, mut values: impl Iterator<Item = u64>) -> Result<(), String> {
    let want = |key: &str| -> Result<Option<Vec<u64>>, String> {
        let Some(list) = case[key].as_array() else {
            return Ok(None);
        };
        let word = |v: &Value| v.as_u64().or_else(|| Some(v.as_i64()? as u64));
        let words: Option<Vec<u64>> = list.iter().map(word).collect();
        Ok(Some(words.ok_or_else(|| {
            format!("{key} holds something besides integers")
        })?))
    };
    let (first, last) = (want("first")?, want("last")?);
    let keep_first = first.as_ref().map_or(0, Vec::len);
    let keep_last = last.as_ref().map_or(0, Vec::len);
    // Block by block: the largest recorded list has hundreds of millions of entries.
    let mut hasher = Sha256::new();
    let (mut got_first, mut tail, mut len) = (Vec::<u64>::new(), Vec::<u64>::new(), 0u64);
    let mut block: Vec<u64> = Vec::with_capacity(1 << 14);
    let mut bytes = Vec::with_capacity(8 << 14);
    loop {
        block.clear();
        block.extend(values.by_ref().take(1 << 14));
        if block.is_empty() {
            break;
        }
        len += block.len() as u64;
        got_first.extend(block.iter().take(keep_first - got_first.len()));
        tail.extend_from_slice(&block[block.len().saturating_sub(keep_last)..]);
        tail.drain(..tail.len().saturating_sub(keep_last));
        bytes.clear();
        for value in &block {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        hasher.update(&bytes);
    }
    let got_sha = hex(&hasher.finalize());
    if let Some(want_len) = case["len"].as_u64()
        && want_len != len
    {
        return Err(format!("len: expected {want_len}, got {len}"));
    }
    if let Some(first) = first
        && got_first != first
    {
        return Err(format!("first: expected {first:?}, got {got_first:?}"));
    }
    if let Some(last) = last
        && tail != last
    {
        return Err(format!("last: expected {last:?}, got {tail:?}"));
    }
    let sha = case["sha256"].as_str().ok_or("the case has no sha256")?;
    if sha == got_sha {
        Ok(())
    } else {
        Err(format!("sha256: expected {sha}, got {got_sha}"))
    }
}
