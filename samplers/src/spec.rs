//! Order specs: an order is data.

use serde::{Deserialize, Serialize};

/// Everything that decides an order besides the dataset and the [`crate::Geometry`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderSpec {}

/// Why an order cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {}
