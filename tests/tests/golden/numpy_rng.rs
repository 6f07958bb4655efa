//! numpy random: SeedSequence and PCG64, `Generator` draws and permutations, legacy `RandomState`.

use ceteris_samplers::rng::numpy::{Generator, NumpyInt, Pcg64, RandomState, SeedSequence};
use ceteris_tests::golden::{check_digest, check_digest_of, run_family, sha256_hex};
use serde_json::Value;

use crate::torch_rng::seed_of;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn u64_of(case: &Value, key: &str) -> Result<u64, String> {
    case[key].as_u64().ok_or_else(|| format!("{key} is no u64"))
}

fn list_of(value: &Value) -> Result<Vec<u64>, String> {
    let list = value.as_array().ok_or_else(|| format!("{value} is no list"))?;
    list.iter()
        .map(|v| v.as_u64().ok_or_else(|| format!("{v} is no u64")))
        .collect()
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, got {got:?}"))
    }
}

/// An integer bound that is a number or, above 64 bits, text.
fn bound(value: &Value) -> Result<i128, String> {
    let number = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    number
        .or_else(|| value.as_str().and_then(|t| t.parse().ok()))
        .ok_or_else(|| format!("{value} is no integer bound"))
}

/// Checks `first_bits`, `last_bits`, `len` and the hash of the raw storage.
fn check_floats(case: &Value, bits: &[u64], width: usize) -> Result<(), String> {
    equal("len", u64_of(case, "len")?, bits.len() as u64)?;
    let (first, last) = (list_of(&case["first_bits"])?, list_of(&case["last_bits"])?);
    equal("first_bits", &first[..], &bits[..first.len()])?;
    equal("last_bits", &last[..], &bits[bits.len() - last.len()..])?;
    let bytes: Vec<u8> = bits
        .iter()
        .flat_map(|b| b.to_le_bytes()[..width].to_vec())
        .collect();
    equal(
        "sha256",
        case["sha256"].as_str(),
        Some(sha256_hex(&bytes).as_str()),
    )
}

fn default_rng(case: &Value) -> Result<Generator, String> {
    Ok(Generator::default_rng(u64_of(case, "seed")?))
}

fn random_state(case: &Value) -> Result<RandomState, String> {
    RandomState::from_seed(seed_of(case)?).map_err(text)
}

#[test]
fn numpy_seedsequence_pcg64() {
    run_family("numpy_seedsequence_pcg64.json", |case| {
        let mut seed = match &case["entropy"] {
            Value::String(one) => SeedSequence::from_decimal(one).map_err(text)?,
            Value::Array(many) => {
                let texts: Option<Vec<&str>> = many.iter().map(Value::as_str).collect();
                SeedSequence::from_decimals(&texts.ok_or("entropy list holds something besides text")?)
                    .map_err(text)?
            }
            other => return Err(format!("entropy {other} is neither text nor a list of texts")),
        };
        let wide = |words: &[u32]| words.iter().map(|&w| u64::from(w)).collect::<Vec<_>>();
        equal("pool", list_of(&case["pool"])?, wide(&seed.pool()))?;
        let expected = list_of(&case["state_u32"])?;
        equal("state_u32", &expected, &wide(&seed.generate_u32(expected.len())))?;
        let expected = list_of(&case["state_u64"])?;
        equal("state_u64", &expected, &seed.generate_u64(expected.len()))?;

        let mut pcg = Pcg64::new(&seed);
        equal(
            "state",
            case["pcg64_state_hex"].as_str(),
            Some(format!("{:#x}", pcg.seeded_state()).as_str()),
        )?;
        equal(
            "inc",
            case["pcg64_inc_hex"].as_str(),
            Some(format!("{:#x}", pcg.increment()).as_str()),
        )?;
        let count = u64_of(&case["pcg64_raw"], "len")?;
        check_digest_of(&case["pcg64_raw"], (0..count).map(|_| pcg.next_u64()))?;

        let pools = case["spawn2_pools"].as_array().ok_or("no spawn2_pools")?;
        let states = case["spawn2_state_u64"].as_array().ok_or("no spawn2_state_u64")?;
        for (i, child) in seed.spawn(pools.len() as u64).iter().enumerate() {
            equal("pool of a child", list_of(&pools[i])?, wide(&child.pool()))?;
            let expected = list_of(&states[i])?;
            equal("state of a child", &expected, &child.generate_u64(expected.len()))?;
        }
        Ok(())
    });
}

#[test]
fn numpy_generator_permutation() {
    run_family("numpy_generator_permutation.json", |case| {
        let mut rng = default_rng(case)?;
        let n = u64_of(case, "n")?;
        match case["call"].as_str().unwrap_or_default() {
            "default_rng(seed).permutation(n)" => {
                check_digest_of(case, rng.permutation(n).map_err(text)?.iter())
            }
            "default_rng(seed).shuffle(np.arange(n, dtype=int64))" => {
                let mut x: Vec<u64> = (0..n).collect();
                let mut other = rng.clone();
                rng.shuffle(&mut x);
                let perm = other.permutation(n).map_err(text)?;
                equal(
                    "equal_to_permutation",
                    case["equal_to_permutation"].as_bool(),
                    Some(perm.iter().eq(x.iter().copied())),
                )?;
                equal(
                    "next word",
                    u64_of(case, "next_u64_after_permutation")?,
                    other.bits_mut().next_u64(),
                )?;
                check_digest(case, &x)
            }
            "default_rng(seed).shuffle(list(range(n)))" => {
                let mut x: Vec<u64> = (0..n).collect();
                rng.shuffle(&mut x);
                check_digest(case, &x)
            }
            "default_rng(seed).shuffle(np.arange(2n).reshape(n,2)) column0/2" => {
                let mut x: Vec<[u64; 2]> = (0..n).map(|i| [2 * i, 2 * i + 1]).collect();
                rng.shuffle(&mut x);
                check_digest_of(case, x.iter().map(|row| row[0] / 2))
            }
            other => Err(format!("unknown kind of case {other:?}")),
        }
    });
}

/// `integers` of one element type: the call of many values, single calls, and the generator afterwards.
fn integers<T: NumpyInt>(case: &Value, low: i128, high: i128, word: impl Fn(T) -> u64) -> Result<(), String> {
    let mut rng = default_rng(case)?;
    let size = u64_of(case, "len")? as usize;
    let values: Vec<u64> = rng
        .integers::<T>(low, high, size)
        .map_err(text)?
        .into_iter()
        .map(&word)
        .collect();
    equal(
        "next_raw_u64",
        u64_of(case, "next_raw_u64")?,
        rng.bits_mut().next_u64(),
    )?;
    let mut rng = default_rng(case)?;
    let singly: Result<Vec<u64>, _> = (0..200.min(size))
        .map(|_| rng.integer::<T>(low, high).map(&word))
        .collect();
    let singly = singly.map_err(text)?;
    let same = singly[..] == values[..singly.len()];
    equal(
        "scalar_calls_equal_vector",
        case["scalar_calls_equal_vector"].as_bool(),
        Some(same),
    )?;
    if !case["scalar_calls_first"].is_null() {
        let expected = list_of(&case["scalar_calls_first"])?;
        equal("scalar_calls_first", &expected[..], &singly[..expected.len()])?;
    }
    check_digest(case, &values)
}

#[test]
fn numpy_generator_draws() {
    run_family("numpy_generator_draws.json", |case| {
        match case["call"].as_str().unwrap_or_default() {
            "default_rng(seed).integers(low, high, size=1000, dtype)" => {
                let (low, high) = (bound(&case["low"])?, bound(&case["high"])?);
                match case["dtype_arg"].as_str().unwrap_or_default() {
                    "bool" => integers::<bool>(case, low, high, u64::from),
                    "int8" => integers::<i8>(case, low, high, |x| x as u64),
                    "uint8" => integers::<u8>(case, low, high, u64::from),
                    "int16" => integers::<i16>(case, low, high, |x| x as u64),
                    "uint16" => integers::<u16>(case, low, high, u64::from),
                    "int32" => integers::<i32>(case, low, high, |x| x as u64),
                    "uint32" => integers::<u32>(case, low, high, u64::from),
                    "int64" => integers::<i64>(case, low, high, |x| x as u64),
                    "uint64" => integers::<u64>(case, low, high, |x| x),
                    other => Err(format!("unknown dtype {other:?}")),
                }
            }
            "default_rng(seed).choice(len(p), size=n, p=p)" => {
                let p: Option<Vec<f64>> = case["p"]
                    .as_array()
                    .and_then(|p| p.iter().map(Value::as_f64).collect());
                let size = u64_of(case, "n")? as usize;
                check_digest(
                    case,
                    &default_rng(case)?
                        .choice_weighted(&p.ok_or("no p")?, size)
                        .map_err(text)?,
                )
            }
            "default_rng(seed).choice(n, size=k, replace=False)" => {
                let (n, k) = (u64_of(case, "n")?, u64_of(case, "k")?);
                check_digest(case, &default_rng(case)?.choice_distinct(n, k).map_err(text)?)
            }
            "default_rng(seed).choice(n, size=k)" => {
                let (n, k) = (u64_of(case, "n")?, u64_of(case, "k")? as usize);
                check_digest(case, &default_rng(case)?.choice(n, k).map_err(text)?)
            }
            "default_rng(seed).random(1000)" => {
                let (mut rng, size) = (default_rng(case)?, u64_of(case, "len")?);
                let bits: Vec<u64> = (0..size).map(|_| rng.random().to_bits()).collect();
                check_floats(case, &bits, 8)
            }
            "default_rng(seed).random(1000, dtype=float32)" => {
                let (mut rng, size) = (default_rng(case)?, u64_of(case, "len")?);
                let bits: Vec<u64> = (0..size).map(|_| u64::from(rng.random_f32().to_bits())).collect();
                check_floats(case, &bits, 4)
            }
            other => Err(format!("unknown kind of case {other:?}")),
        }
    });
}

#[test]
fn numpy_randomstate() {
    run_family("numpy_randomstate.json", |case| {
        let mut rng = random_state(case)?;
        let shuffled = |rng: &mut RandomState| -> Result<Vec<u64>, String> {
            let mut x: Vec<u64> = (0..u64_of(case, "n")?).collect();
            rng.shuffle(&mut x);
            Ok(x)
        };
        match case["call"].as_str().unwrap_or_default() {
            "RandomState(seed).get_state()" => {
                equal("pos", u64_of(case, "pos")?, rng.position() as u64)?;
                check_digest_of(case, rng.words().iter().map(|&w| u64::from(w)))
            }
            "RandomState(seed).tomaxint-free raw: randint(0, 2**32, size=1000, dtype=np.uint32)" => {
                let size = u64_of(case, "len")? as usize;
                let values: Vec<u32> = rng.randint(0, 1 << 32, size).map_err(text)?;
                check_digest_of(case, values.into_iter().map(u64::from))
            }
            "RandomState(seed).rand(1000)" => {
                let size = u64_of(case, "len")? as usize;
                check_floats(
                    case,
                    &rng.rand(size).iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                    8,
                )
            }
            "RandomState(seed).permutation(n)" => {
                check_digest_of(case, rng.permutation(u64_of(case, "n")?).map_err(text)?.iter())
            }
            "RandomState(seed).shuffle(np.arange(n))" => check_digest(case, &shuffled(&mut rng)?),
            "RandomState(seed).shuffle(np.arange(n, dtype=int32))" => {
                check_digest_of(case, rng.permutation(u64_of(case, "n")?).map_err(text)?.iter())
            }
            "the second shuffle(np.arange(n)) of the same RandomState" => {
                shuffled(&mut rng)?;
                check_digest(case, &shuffled(&mut rng)?)
            }
            "RandomState(seed).randint(low, high, size=1000) (int64)" => {
                let (low, high) = (bound(&case["low"])?, bound(&case["high"])?);
                let size = u64_of(case, "len")? as usize;
                let values: Vec<i64> = rng.randint(low, high, size).map_err(text)?;
                check_digest_of(case, values.into_iter().map(|v| v as u64))
            }
            other => Err(format!("unknown kind of case {other:?}")),
        }
    });
}
