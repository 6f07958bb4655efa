//! Reading fields of a recorded case.

use ceteris_tests::golden::check_digest_of;
use serde_json::Value;

/// A field that is a number from 0 on.
pub fn number(case: &Value, key: &str) -> Result<u64, String> {
    case[key]
        .as_u64()
        .ok_or_else(|| format!("`{key}` is {}, not a number", case[key]))
}

/// A field that is true or false.
pub fn boolean(case: &Value, key: &str) -> Result<bool, String> {
    case[key]
        .as_bool()
        .ok_or_else(|| format!("`{key}` is {}, not a boolean", case[key]))
}

/// A field that is text.
pub fn text<'a>(case: &'a Value, key: &str) -> Result<&'a str, String> {
    case[key]
        .as_str()
        .ok_or_else(|| format!("`{key}` is {}, not text", case[key]))
}

/// A value that is a list.
pub fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{value} is not a list"))
}

/// A value that is a list of numbers from 0 on.
pub fn numbers(value: &Value) -> Result<Vec<u64>, String> {
    list(value)?
        .iter()
        .map(|v| v.as_u64().ok_or_else(|| format!("{v} is not a number")))
        .collect()
}

/// Fails unless both are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, want: T, got: T) -> Result<(), String> {
    if want == got {
        Ok(())
    } else {
        Err(format!("{what}: expected {want:?}, got {got:?}"))
    }
}

/// A value that is a list of numbers.
pub fn floats(value: &Value) -> Result<Vec<f64>, String> {
    list(value)?
        .iter()
        .map(|v| v.as_f64().ok_or_else(|| format!("{v} is not a number")))
        .collect()
}

/// Checks the digest of an array together with its numpy type and shape.
pub fn check_array(
    what: &str,
    recorded: &Value,
    dtype: &str,
    shape: &[u64],
    values: impl Iterator<Item = u64>,
) -> Result<(), String> {
    same(&format!("{what} dtype"), text(recorded, "array_dtype")?, dtype)?;
    same(
        &format!("{what} shape"),
        numbers(&recorded["shape"])?,
        shape.to_vec(),
    )?;
    check_digest_of(recorded, values).map_err(|e| format!("{what}: {e}"))
}
