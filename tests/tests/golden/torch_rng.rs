//! torch CPU generator: word streams, state bytes, `randint`, `random_`, `randperm`.

use ceteris_samplers::rng::torch::{RandomDtype, TorchGenerator};
use ceteris_tests::golden::{check_digest, check_digest_of, run_family, sha256_hex};
use serde_json::Value;

/// A seed of the file as the Python integer it was.
pub fn seed_of(case: &Value) -> Result<i128, String> {
    let seed = &case["seed"];
    let small = seed.as_i64().map(i128::from);
    small
        .or(seed.as_u64().map(i128::from))
        .ok_or_else(|| format!("seed {seed} is no 64-bit integer"))
}

fn generator(case: &Value) -> Result<TorchGenerator, String> {
    TorchGenerator::from_seed(seed_of(case)?).map_err(|e| e.to_string())
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, got {got:?}"))
    }
}

#[test]
fn torch_mt19937() {
    run_family("torch_mt19937.json", |case| {
        let fresh = generator(case)?;
        equal(
            "initial_seed",
            case["initial_seed"].as_u64(),
            Some(fresh.initial_seed()),
        )?;
        let count = case["u32"]["len"].as_u64().ok_or("u32 has no len")? as usize;
        let mut single = fresh.clone();
        let words: Vec<u32> = (0..count).map(|_| single.next_u32()).collect();
        check_digest_of(&case["u32"], words.iter().map(|&w| u64::from(w)))
            .map_err(|e| format!("u32: {e}"))?;
        let mut filled = vec![0; count];
        let mut bulk = fresh.clone();
        bulk.fill_u32(&mut filled);
        equal(
            "bulk words equal single ones",
            true,
            filled == words && bulk == single,
        )?;

        let count = case["u64"]["len"].as_u64().ok_or("u64 has no len")?;
        let mut double = fresh.clone();
        check_digest_of(&case["u64"], (0..count).map(|_| double.next_u64()))
            .map_err(|e| format!("u64: {e}"))?;
        let mut ranged = vec![0; count as usize];
        fresh
            .clone()
            .randint_into(i64::MIN, 1 << 63, &mut ranged)
            .map_err(|e| e.to_string())?;
        check_digest_of(&case["u64"], ranged.iter().map(|&v| v as u64 ^ (1 << 63)))
            .map_err(|e| format!("random_(-2**63, None): {e}"))?;

        for (field, state) in [
            ("state_after_manual_seed_sha256", fresh.state()),
            ("state_after_the_u64_draws_sha256", double.state()),
        ] {
            equal(field, case[field].as_str(), Some(sha256_hex(&state).as_str()))?;
            let back = TorchGenerator::from_state(&state).map_err(|e| e.to_string())?;
            equal(&format!("{field} read back"), state, back.state())?;
        }
        equal(
            "state_bytes",
            case["state_bytes"].as_u64(),
            Some(fresh.state().len() as u64),
        )?;
        let head: String = fresh.state()[..32].iter().map(|b| format!("{b:02x}")).collect();
        equal(
            "state_first_32_bytes_hex",
            case["state_first_32_bytes_hex"].as_str(),
            Some(head.as_str()),
        )
    });
}

#[test]
fn torch_randperm() {
    run_family("torch_randperm.json", |case| {
        let n = case["n"].as_u64().ok_or("no n")?;
        let mut generator = generator(case)?;
        for _ in 1..case["call"].as_u64().unwrap_or(1) {
            generator.randperm(n).map_err(|e| e.to_string())?;
        }
        let perm = generator.randperm(n).map_err(|e| e.to_string())?;
        check_digest_of(case, perm.iter())
    });
}

#[test]
fn torch_randint() {
    run_family("torch_randint.json", |case| {
        let mut generator = generator(case)?;
        let count = case["len"].as_u64().ok_or("no len")?;
        if case["base_seed"].as_bool() == Some(true) {
            return check_digest_of(case, (0..count).map(|_| generator.base_seed()));
        }
        if let Some(name) = case["random_"].as_str() {
            let dtype = RandomDtype::from_name(name).ok_or_else(|| format!("unknown dtype {name}"))?;
            return check_digest_of(case, (0..count).map(|_| generator.random(dtype)));
        }
        let low = case["low"]
            .as_i64()
            .ok_or("neither base_seed nor random_ nor low: unknown kind of case")?;
        let high = case["high"]
            .as_i64()
            .map(i128::from)
            .or(case["high"].as_u64().map(i128::from))
            .ok_or("no high")?;
        let mut values = vec![0; count as usize];
        let mut singly = generator.clone();
        generator
            .randint_into(low, high, &mut values)
            .map_err(|e| e.to_string())?;
        let again: Result<Vec<i64>, _> = (0..count).map(|_| singly.randint(low, high)).collect();
        equal(
            "a call of n values equals n calls",
            true,
            again.as_ref() == Ok(&values) && generator == singly,
        )?;
        check_digest(case, &values.iter().map(|&v| v as u64).collect::<Vec<_>>())
    });
}
