//! Random generators, permutations and data orders of other training stacks, reproduced bit for bit.
//!
//! Pure code: no I/O, and nothing of the other crates. See `order.rs` for the contract.

pub mod order;
pub mod permute;
pub mod place;
pub mod rng;
pub mod spec;

pub use order::{Epoch, Order};
pub use permute::Permutation;
pub use place::{Geometry, Place, SampleId};
pub use spec::{OrderError, OrderSpec};
