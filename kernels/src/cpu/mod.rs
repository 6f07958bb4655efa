//! The CPU executor: f32 for training, f64 as the oracle, from one code.
//!
//! Parallelism only decides which worker computes an element, never how it is computed: every sum has one order that
//! the shapes of the plan fix. The same plan and inputs therefore give the same bits for every number of threads and,
//! except for `exp`, `ln` and powers of the platform's mathematics library in f64, on every machine. On x86-64 it needs AVX2
//! and FMA.

mod cross_entropy;
mod delta_rule;
pub(crate) mod documents;
mod elementwise;
mod executor;
mod gemm;
mod linear;
mod matrix;
mod norm;
mod optimizer;
mod real;
mod short_conv;
mod softmax;
mod store;
mod tile;
mod work;

pub use executor::{Float, executor};
