//! The trainer against values recorded from torch, transformers and flash-linear-attention, and as a program.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod configs;
mod documents;
mod hf;
mod init;
mod optimizer;
mod runs;
mod settings;

use std::path::{Path, PathBuf};

/// Values recorded by `golden/generate/training.py`.
fn recorded(file: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden/training")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn cases(file: &str) -> Vec<serde_json::Value> {
    let cases = recorded(file)["cases"].as_array().cloned().unwrap_or_default();
    assert!(!cases.is_empty(), "{file} holds no case");
    cases
}

/// The top of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Python's `float.hex()`.
fn float_of_hex(text: &str) -> f64 {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let rest = rest.strip_prefix("0x").expect("a hexadecimal float");
    let (digits, exponent) = rest.split_once('p').expect("an exponent");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut value = u64::from_str_radix(whole, 16).expect("digits") as f64;
    let mut place = 1.0 / 16.0;
    for digit in fraction.chars() {
        value += f64::from(digit.to_digit(16).expect("a digit")) * place;
        place /= 16.0;
    }
    sign * value * 2f64.powi(exponent.parse().expect("an exponent"))
}
