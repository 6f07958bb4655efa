//! Order specs: an order is data.
//!
//! A spec is a `name` and the options of that order, the same in a CLI flag, a YAML block, a run log and a
//! report. It reads back to itself, lists every option with its value (defaults included), and refuses what it
//! does not know: an unknown key, a key of another order and a key given twice are three different errors.

mod fields;
mod seed;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::iterable::IterableError;
use crate::order::Order;
use crate::orders::megatron_dataset::MegatronDataset;
use crate::orders::megatron_index::GptIndexError;
use crate::orders::megatron_sampler::SamplerError;
use crate::orders::{self, OrderEntry};
use crate::permute::{ComposeError, Permutation};
use crate::place::Geometry;
use crate::rng::RngError;

pub use fields::Fields;
use fields::{Strict, nearest};
pub use seed::Seed;

/// Everything that decides an order besides the dataset and the [`Geometry`].
///
/// Serialises as one map: `name` first, then the order's options in the order of its table.
#[derive(Clone)]
pub struct OrderSpec {
    options: Arc<dyn OrderOptions>,
}

/// The options of one order. Each order implements this in its own file.
pub trait OrderOptions: Any + Send + Sync + fmt::Debug {
    /// The order's line in the registry.
    fn entry(&self) -> &'static OrderEntry;

    /// The options as a JSON object; keys that do not apply are left out.
    fn to_json(&self) -> Value;

    /// Every seed in effect, with the key it comes from: `("seed", 42), ("sampler seed", 42)`.
    fn seeds(&self) -> Vec<(&'static str, Seed)>;

    /// What a user should be told once before a run with these options.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Builds the order. `spec` is the spec that holds these options.
    ///
    /// # Errors
    /// [`OrderError`] when the input does not fit the options.
    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError>;
}

/// What an order is built over.
#[derive(Clone, Debug)]
pub struct OrderInput {
    /// Rows of the stored table (or what the order's description says it permutes).
    pub num_samples: u64,
    /// Layout over ranks as the user gave it; the order may use another micro-batch ([`Order::geometry`]).
    pub geometry: Geometry,
    /// The list of an order given as a file ([`crate::orders::file`]), already read.
    pub list: Option<Arc<Permutation>>,
    /// The dataset of a Megatron order over `.bin/.idx` data, already built; its ids are then what the order permutes.
    pub megatron: Option<Arc<MegatronDataset>>,
}

impl OrderInput {
    /// An input without any list.
    pub fn new(num_samples: u64, geometry: Geometry) -> Self {
        OrderInput {
            num_samples,
            geometry,
            list: None,
            megatron: None,
        }
    }
}

impl OrderSpec {
    /// A spec from an order's own options.
    pub fn new(options: impl OrderOptions) -> Self {
        OrderSpec {
            options: Arc::new(options),
        }
    }

    /// A spec from an order's name and its options as key and JSON value, in any sequence.
    ///
    /// # Errors
    /// [`SpecError`] naming the key at fault.
    pub fn from_options(
        name: &str,
        options: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Self, SpecError> {
        let entry = orders::entry(name).ok_or_else(|| {
            let names: Vec<&str> = orders::REGISTRY.iter().map(|e| e.name).collect();
            SpecError::UnknownOrder {
                name: name.to_string(),
                hint: nearest(name, &names),
                valid: names.join(", "),
            }
        })?;
        let mut fields = Fields::new(entry, options.into_iter().collect())?;
        (entry.parse)(&mut fields)
    }

    /// The order's name.
    pub fn name(&self) -> &'static str {
        self.entry().name
    }

    /// The order's line in the registry: its source, its options, whom it is for.
    pub fn entry(&self) -> &'static OrderEntry {
        self.options.entry()
    }

    /// The options in effect, defaults included, in the order of the registry's table.
    pub fn options(&self) -> Vec<(&'static str, Value)> {
        let mut object = self.options.to_json();
        self.entry()
            .options
            .iter()
            .filter_map(|o| Some((o.key, object.get_mut(o.key).map(Value::take)?)))
            .filter(|(_, value)| !value.is_null())
            .collect()
    }

    /// Every seed in effect and where it comes from.
    pub fn seeds(&self) -> Vec<(&'static str, Seed)> {
        self.options.seeds()
    }

    /// What a user should be told once before a run with this spec.
    pub fn warnings(&self) -> Vec<String> {
        self.options.warnings()
    }

    /// The options as the type of one order, `None` when the spec is of another.
    pub fn downcast<T: OrderOptions>(&self) -> Option<&T> {
        let any: &dyn Any = self.options.as_ref();
        any.downcast_ref()
    }

    /// Builds the order over a dataset.
    ///
    /// # Errors
    /// [`OrderError`] when geometry or dataset do not fit the spec.
    pub fn build(&self, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        input.geometry.check()?;
        self.options.build(self, input)
    }
}

impl PartialEq for OrderSpec {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.options() == other.options()
    }
}

impl fmt::Debug for OrderSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

/// One line, for headers and reports: `fla seed=42 shuffle=true …`.
impl fmt::Display for OrderSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (key, value) in self.options() {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

impl Serialize for OrderSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let options = self.options();
        let mut map = serializer.serialize_map(Some(options.len() + 1))?;
        map.serialize_entry("name", self.name())?;
        for (key, value) in &options {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for OrderSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpecVisitor;
        impl<'de> Visitor<'de> for SpecVisitor {
            type Value = OrderSpec;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an order: a map with a `name` and its options, or a name alone")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<OrderSpec, E> {
                OrderSpec::from_options(name, []).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderSpec, A::Error> {
                let mut name: Option<String> = None;
                let mut options: Vec<(String, Value)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if (key == "name" && name.is_some()) || options.iter().any(|(k, _)| *k == key) {
                        return Err(de::Error::custom(SpecError::DuplicateKey { key }));
                    }
                    if key == "name" {
                        name = Some(map.next_value()?);
                    } else {
                        let Strict(value) = map.next_value()?;
                        options.push((key, value));
                    }
                }
                let name = name.ok_or_else(|| de::Error::custom(SpecError::no_name()))?;
                OrderSpec::from_options(&name, options).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(SpecVisitor)
    }
}

/// Why a spec cannot be read. Each names the key and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// No `name`.
    #[error("an order needs a `name`, one of: {valid}")]
    NoName {
        /// The names there are.
        valid: String,
    },
    /// No order has this name.
    #[error("there is no order `{name}`{hint} (there are: {valid})")]
    UnknownOrder {
        /// The name as given.
        name: String,
        /// The nearest name, as the end of a sentence.
        hint: String,
        /// The names there are.
        valid: String,
    },
    /// No order has this option.
    #[error("unknown option `{key}` of order `{order}`{hint} (its options: {valid})")]
    UnknownKey {
        /// The order's name.
        order: &'static str,
        /// The key as given.
        key: String,
        /// The nearest key, as the end of a sentence.
        hint: String,
        /// The order's keys.
        valid: String,
    },
    /// The option exists, for other orders.
    #[error("`{key}` is an option of {owners}, not of order `{order}`{hint} (its options: {valid})")]
    ForeignKey {
        /// The order's name.
        order: &'static str,
        /// The key as given.
        key: String,
        /// The orders that have it.
        owners: String,
        /// The nearest key, as the end of a sentence.
        hint: String,
        /// The order's keys.
        valid: String,
    },
    /// A key stands twice in one map.
    #[error("`{key}` is given twice: keep one `{key}`")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value cannot be used.
    #[error("order `{order}`, option `{key}`: {why}")]
    Value {
        /// The order's name.
        order: &'static str,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Something random without a seed.
    #[error("order `{order}` needs a `seed`: nothing random is drawn without one that is recorded")]
    NoSeed {
        /// The order's name.
        order: &'static str,
    },
}

impl SpecError {
    fn no_name() -> Self {
        let names: Vec<&str> = orders::REGISTRY.iter().map(|e| e.name).collect();
        SpecError::NoName {
            valid: names.join(", "),
        }
    }
}

/// Why an order cannot be built, or an epoch of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OrderError {
    /// The spec is at fault.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The layout over ranks is at fault.
    #[error("{0}")]
    Geometry(String),
    /// The indices of a Megatron dataset cannot be built.
    #[error(transparent)]
    MegatronIndex(#[from] GptIndexError),
    /// Megatron's sampler cannot start.
    #[error(transparent)]
    MegatronSampler(#[from] SamplerError),
    /// `seed + epoch` is no seed of torch.
    #[error(
        "seed {seed} + epoch {epoch} is above 2^64-1, which torch's manual_seed refuses: use a smaller seed"
    )]
    SeedRange {
        /// The seed.
        seed: Seed,
        /// The epoch.
        epoch: u64,
    },
    /// numpy takes no negative seed.
    #[error("seed {seed} is negative, which numpy's default_rng refuses: use a seed from 0 to 2^64-1")]
    NegativeSeed {
        /// The seed.
        seed: Seed,
    },
    /// The emulated code refuses a dataset without samples.
    #[error("the dataset has no samples: {refuses} refuses that")]
    Empty {
        /// Which function.
        refuses: &'static str,
    },
    /// A dataset-level step cannot be applied.
    #[error("dataset step {index} ({step}): {why}")]
    Dataset {
        /// Which step, from 0.
        index: usize,
        /// Its name.
        step: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The order needs something the input lacks.
    #[error("order `{order}` needs {what}")]
    Input {
        /// The order's name.
        order: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// A list of rows does not fit the dataset.
    #[error("order `{order}`: entry {index}: {why}")]
    List {
        /// The order's name.
        order: &'static str,
        /// Which entry, from 0.
        index: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The order has no such epoch.
    #[error("there is no epoch {epoch}: {why}")]
    Epoch {
        /// The epoch asked for.
        epoch: u64,
        /// Why not.
        why: String,
    },
    /// A generator refuses.
    #[error(transparent)]
    Rng(#[from] RngError),
    /// A stream of an iterable dataset cannot be made.
    #[error(transparent)]
    Iterable(#[from] IterableError),
    /// A list points outside what it is applied to.
    #[error(transparent)]
    Compose(#[from] ComposeError),
    /// A file the order looks samples up in does not hold what it must.
    #[error("{0}")]
    Damaged(String),
    /// A size above what the machine or the emulated code can hold.
    #[error("{0}")]
    TooLarge(String),
}
