//! The keys of an order spec as written, before they become an order's options.

use std::fmt;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::SpecError;
use crate::orders::{self, OrderEntry};

/// A JSON value read with duplicate keys refused at every depth.
#[derive(Clone, Debug)]
pub(super) struct Strict(pub(super) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrictVisitor;
        impl<'de> Visitor<'de> for StrictVisitor {
            type Value = Strict;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_bool<E>(self, v: bool) -> Result<Strict, E> {
                Ok(Strict(v.into()))
            }

            fn visit_i64<E>(self, v: i64) -> Result<Strict, E> {
                Ok(Strict(v.into()))
            }

            fn visit_u64<E>(self, v: u64) -> Result<Strict, E> {
                Ok(Strict(v.into()))
            }

            fn visit_f64<E>(self, v: f64) -> Result<Strict, E> {
                Ok(Strict(v.into()))
            }

            fn visit_str<E>(self, v: &str) -> Result<Strict, E> {
                Ok(Strict(v.into()))
            }

            fn visit_unit<E>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }

            fn visit_none<E>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }

            fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Strict, D::Error> {
                Strict::deserialize(d)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
                let mut list = Vec::new();
                while let Some(Strict(v)) = seq.next_element()? {
                    list.push(v);
                }
                Ok(Strict(Value::Array(list)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                let mut object = serde_json::Map::new();
                while let Some(key) = map.next_key::<String>()? {
                    if object.contains_key(&key) {
                        return Err(de::Error::custom(SpecError::DuplicateKey { key }));
                    }
                    let Strict(value) = map.next_value()?;
                    object.insert(key, value);
                }
                Ok(Strict(Value::Object(object)))
            }
        }
        deserializer.deserialize_any(StrictVisitor)
    }
}

/// The keys of one spec, handed to its order's `parse`, which takes each key it knows.
#[derive(Debug)]
pub struct Fields {
    entry: &'static OrderEntry,
    values: Vec<(String, Value)>,
}

impl Fields {
    /// Checks that each key belongs to the order and is given once.
    pub(super) fn new(entry: &'static OrderEntry, values: Vec<(String, Value)>) -> Result<Self, SpecError> {
        for (at, (key, _)) in values.iter().enumerate() {
            if values[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(SpecError::DuplicateKey { key: key.clone() });
            }
            if entry.option(key).is_some() {
                continue;
            }
            let valid: Vec<&str> = entry.options.iter().map(|o| o.key).collect();
            let hint = nearest(key, &valid);
            let owners: Vec<&str> = orders::REGISTRY
                .iter()
                .filter(|e| e.option(key).is_some())
                .map(|e| e.name)
                .collect();
            return Err(if owners.is_empty() {
                SpecError::UnknownKey {
                    order: entry.name,
                    key: key.clone(),
                    hint,
                    valid: valid.join(", "),
                }
            } else {
                SpecError::ForeignKey {
                    order: entry.name,
                    key: key.clone(),
                    owners: owners.join(", "),
                    hint,
                    valid: valid.join(", "),
                }
            });
        }
        Ok(Fields { entry, values })
    }

    /// The order the keys belong to.
    pub fn order(&self) -> &'static str {
        self.entry.name
    }

    /// The value of `key`; not given and `null` are both `None`.
    ///
    /// # Errors
    /// [`SpecError::Value`] when it has another type.
    pub fn take<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<Option<T>, SpecError> {
        debug_assert!(
            self.entry.option(key).is_some(),
            "{key} is not in the table of {}",
            self.entry.name
        );
        let Some(at) = self.values.iter().position(|(k, _)| k == key) else {
            return Ok(None);
        };
        let (_, value) = self.values.swap_remove(at);
        if value.is_null() {
            return Ok(None);
        }
        serde_json::from_value(value)
            .map(Some)
            .map_err(|why| self.refuse(key, why.to_string()))
    }

    /// The value of `key`, or `default` when it is not given.
    ///
    /// # Errors
    /// As [`Fields::take`].
    pub fn or<T: DeserializeOwned>(&mut self, key: &'static str, default: T) -> Result<T, SpecError> {
        Ok(self.take(key)?.unwrap_or(default))
    }

    /// The error for a value of `key` that cannot be used.
    pub fn refuse(&self, key: &'static str, why: impl Into<String>) -> SpecError {
        SpecError::Value {
            order: self.entry.name,
            key,
            why: why.into(),
        }
    }

    /// The error for a missing seed.
    pub fn no_seed(&self) -> SpecError {
        SpecError::NoSeed {
            order: self.entry.name,
        }
    }
}

/// The candidate most like `word`, as the end of a sentence: a question when it is likely meant, else a plain hint.
pub(crate) fn nearest(word: &str, candidates: &[&str]) -> String {
    let score = |c: &str| strsim::jaro_winkler(&word.to_lowercase().replace('-', "_"), &c.replace('-', "_"));
    // The first of equals wins, so the answer does not depend on anything but the table.
    let best = candidates
        .iter()
        .map(|c| (score(c), *c))
        .fold(None, |best: Option<(f64, &str)>, next| match best {
            Some(b) if b.0 >= next.0 => Some(b),
            _ => Some(next),
        });
    match best {
        Some((score, key)) if score > 0.7 => format!("; did you mean `{key}`?"),
        Some((_, key)) => format!("; nearest here: `{key}`"),
        None => String::new(),
    }
}
