//! The JSON report of a comparison; `docs/diff.md` says what each key holds.

use serde_json::{Value, json};

use super::words;
use crate::diff::outcome::Comparison;

/// Version of the JSON report; it moves with every key that changes its meaning.
pub const REPORT_VERSION: u32 = 1;

/// The report.
///
/// # Errors
/// None that a comparison can cause.
pub fn report(comparison: &Comparison) -> Result<Value, serde_json::Error> {
    let mut value = json!({
        "ceteris_diff": REPORT_VERSION,
        "ceteris": env!("CARGO_PKG_VERSION"),
        "equal": comparison.class.is_equal(),
        "headline": words::headline(comparison),
        "explanation": words::explanation(comparison),
    });
    if let (Value::Object(report), Value::Object(found)) = (&mut value, serde_json::to_value(comparison)?) {
        report.extend(found);
    }
    Ok(value)
}
