//! Random generators, permutations and data orders of other training stacks, reproduced bit for bit.
//!
//! Pure code: no I/O, and nothing of the other crates. See `order.rs` for the contract.

pub mod batch_table;
pub mod composed;
pub mod composition;
pub mod dataset;
pub mod deal;
pub mod interleave;
pub mod iterable;
pub mod order;
pub mod orders;
pub mod permute;
pub mod place;
mod prefetch;
pub mod rng;
pub mod sampler;
pub mod spec;

pub use order::{Epoch, Order};
pub use permute::Permutation;
pub use place::{Geometry, Place, SampleId};
pub use spec::{OrderError, OrderInput, OrderSpec, Seed, SpecError};
