//! JSON values that keep the order of keys, written as Python's `json.dumps(value, indent=4)` writes them.
//!
//! Megatron names its cache files by the MD5 of such a text, so every byte counts: ASCII only, numbers as Python's
//! `repr`, an integer 0 apart from a float 0.0.

use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value with its keys in order.
#[derive(Clone, Debug, PartialEq)]
pub enum PyJson {
    /// `None`.
    Null,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string.
    Str(String),
    /// A list or tuple.
    List(Vec<PyJson>),
    /// A dictionary, in insertion order.
    Object(Vec<(String, PyJson)>),
}

impl PyJson {
    /// The text of `json.dumps(self, indent=4)`.
    pub fn dumps(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0);
        text
    }

    /// The value under `key`, `None` when this is no object or has no such key.
    pub fn get(&self, key: &str) -> Option<&PyJson> {
        match self {
            PyJson::Object(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, value)| value),
            _ => None,
        }
    }

    fn write(&self, text: &mut String, depth: usize) {
        match self {
            PyJson::Null => text.push_str("null"),
            PyJson::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            PyJson::Int(value) => push(text, value),
            PyJson::Float(value) => text.push_str(&float_repr(*value)),
            PyJson::Str(value) => quote(text, value),
            PyJson::List(values) if values.is_empty() => text.push_str("[]"),
            PyJson::Object(entries) if entries.is_empty() => text.push_str("{}"),
            PyJson::List(values) => {
                text.push('[');
                for (i, value) in values.iter().enumerate() {
                    new_line(text, i > 0, depth + 1);
                    value.write(text, depth + 1);
                }
                new_line(text, false, depth);
                text.push(']');
            }
            PyJson::Object(entries) => {
                text.push('{');
                for (i, (key, value)) in entries.iter().enumerate() {
                    new_line(text, i > 0, depth + 1);
                    quote(text, key);
                    text.push_str(": ");
                    value.write(text, depth + 1);
                }
                new_line(text, false, depth);
                text.push('}');
            }
        }
    }
}

fn push(text: &mut String, value: impl fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
}

fn new_line(text: &mut String, comma: bool, depth: usize) {
    if comma {
        text.push(',');
    }
    text.push('\n');
    for _ in 0..depth {
        text.push_str("    ");
    }
}

/// Python's `ensure_ascii` quoting: everything outside printable ASCII as `\uXXXX`, in UTF-16 units.
fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    push(text, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    text.push('"');
}

/// Python's `repr(float)`, and JSON's names for what is no number.
fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Both languages print the shortest digits that read back to the same float; they differ in where an exponent
    // starts and how it looks.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |m| ("-", m));
    let digits = mantissa.replace('.', "");
    if !(-4..16).contains(&exponent) {
        let (head, tail) = digits.split_at(1);
        let point = if tail.is_empty() { "" } else { "." };
        return format!(
            "{sign}{head}{point}{tail}e{}{:02}",
            if exponent < 0 { '-' } else { '+' },
            exponent.abs()
        );
    }
    if exponent < 0 {
        return format!(
            "{sign}0.{}{digits}",
            "0".repeat(exponent.unsigned_abs() as usize - 1)
        );
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}.0", "0".repeat(whole - digits.len()));
    }
    let (head, tail) = digits.split_at(whole);
    format!("{sign}{head}.{tail}")
}

impl<'de> Deserialize<'de> for PyJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = PyJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }

            fn visit_unit<E: Error>(self) -> Result<PyJson, E> {
                Ok(PyJson::Null)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<PyJson, E> {
                Ok(PyJson::Bool(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<PyJson, E> {
                Ok(PyJson::Int(value.into()))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<PyJson, E> {
                Ok(PyJson::Int(value.into()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<PyJson, E> {
                Ok(PyJson::Float(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<PyJson, E> {
                Ok(PyJson::Str(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PyJson, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element()? {
                    values.push(value);
                }
                Ok(PyJson::List(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PyJson, A::Error> {
                let mut entries: Vec<(String, PyJson)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, PyJson>()? {
                    match entries.iter_mut().find(|(k, _)| *k == key) {
                        // As in Python, a key given again keeps its place and takes the new value.
                        Some((_, old)) => *old = value,
                        None => entries.push((key, value)),
                    }
                }
                Ok(PyJson::Object(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Left column from CPython 3.11: `repr(x)`.
    #[test]
    fn floats_look_as_in_python() {
        for (text, value) in [
            ("0.0", 0.0),
            ("-0.0", -0.0),
            ("1.0", 1.0),
            ("0.969", 0.969),
            ("0.1", 0.1),
            ("0.0001", 1e-4),
            ("1e-05", 1e-5),
            ("1.2345e-07", 1.2345e-7),
            ("123456.789", 123456.789),
            ("1000000000000000.0", 1e15),
            ("1e+16", 1e16),
            ("1.2345678901234568e+17", 123456789012345678.0),
            ("1e+100", 1e100),
            ("0.30000000000000004", 0.1 + 0.2),
            ("1.7976931348623157e+308", f64::MAX),
            ("5e-324", 5e-324),
            ("NaN", f64::NAN),
            ("-Infinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(float_repr(value), text);
        }
    }

    /// From CPython 3.11: `json.dumps({"a": [1, 2.5, None], "e": [], "o": {}, "s": "ü\n\U0001F600\x7f"}, indent=4)`.
    #[test]
    fn text_is_pythons() {
        let value: PyJson =
            serde_json::from_str(r#"{"a": [1, 2.5, null], "e": [], "o": {}, "s": "ü\n😀\u007f"}"#).unwrap();
        let expected = "{\n    \"a\": [\n        1,\n        2.5,\n        null\n    ],\n    \"e\": [],\n    \"o\": {},\n    \
                        \"s\": \"\\u00fc\\n\\ud83d\\ude00\\u007f\"\n}";
        assert_eq!(value.dumps(), expected);
    }
}
