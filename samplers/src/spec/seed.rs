//! Seeds: one type for the ranges torch and numpy accept.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use super::OrderError;

/// A seed as a user writes it: any integer of `-2^63 ..= 2^64-1`, what `torch.Generator.manual_seed` takes.
///
/// numpy's `SeedSequence` takes the non-negative part of it ([`Seed::numpy`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed(i128);

const MIN: i128 = i64::MIN as i128;
const MAX: i128 = u64::MAX as i128;

impl Seed {
    /// The integer as written.
    pub fn get(self) -> i128 {
        self.0
    }

    /// A seed from any integer, `None` outside `-2^63 ..= 2^64-1`.
    pub fn new(value: i128) -> Option<Self> {
        (MIN..=MAX).contains(&value).then_some(Seed(value))
    }

    /// `seed + epoch` as `torch.Generator.manual_seed` takes it, modulo 2^64 (of which only the low 32 bits
    /// reach the engine).
    ///
    /// # Errors
    /// [`OrderError::SeedRange`] when the sum is above 2^64-1: torch raises there.
    pub fn torch(self, epoch: u64) -> Result<u64, OrderError> {
        let sum = self.0 + i128::from(epoch);
        if sum > MAX {
            return Err(OrderError::SeedRange { seed: self, epoch });
        }
        // A negative seed is taken modulo 2^64 (torch 2.15.0, `Generator.manual_seed`).
        Ok(sum as u64)
    }

    /// The seed as `torch.initial_seed()` returns it after `torch.manual_seed(seed)`: modulo 2^64.
    pub fn initial(self) -> Self {
        Seed(i128::from(self.0 as u64))
    }

    /// The seed as `numpy.random.SeedSequence` takes it.
    ///
    /// # Errors
    /// [`OrderError::NegativeSeed`] when negative: numpy raises there.
    pub fn numpy(self) -> Result<u64, OrderError> {
        u64::try_from(self.0).map_err(|_| OrderError::NegativeSeed { seed: self })
    }
}

impl From<u64> for Seed {
    fn from(value: u64) -> Self {
        Seed(value.into())
    }
}

impl From<i64> for Seed {
    fn from(value: i64) -> Self {
        Seed(value.into())
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: Option<i128> = text.trim().parse().ok();
        value
            .and_then(Seed::new)
            .ok_or_else(|| format!("`{text}` is not a seed: an integer from -2^63 to 2^64-1 is needed"))
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(value) => serializer.serialize_u64(value),
            Err(_) => serializer.serialize_i64(self.0 as i64),
        }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SeedVisitor;
        impl Visitor<'_> for SeedVisitor {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a seed (an integer from -2^63 to 2^64-1)")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seed, E> {
                Ok(value.into())
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seed, E> {
                Ok(value.into())
            }
        }
        deserializer.deserialize_any(SeedVisitor)
    }
}
