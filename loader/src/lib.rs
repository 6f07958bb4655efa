//! Token sources, collators and the deterministic loader.

pub mod source;
