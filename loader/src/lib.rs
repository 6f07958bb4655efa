//! Token sources, collators and the deterministic loader.

pub mod collate;
pub mod emit;
pub mod fingerprint;
pub mod pipeline;
pub mod source;
