//! The loader runtime over a toy source and a toy order: what is delivered, in what order, and what happens when
//! something goes wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod elastic;
mod failures;
mod groups;
mod outputs;
mod resume;
mod soak;
mod stream;
mod toy;
