//! User reports about whole runs, by their ids, on a CUDA device. Without one they say so and pass; what needs none always
//! runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod bits;
mod common;
mod loader;
mod parity;
mod scoring;
mod settings;
