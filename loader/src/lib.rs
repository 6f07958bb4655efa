//! Token sources, collators and the deterministic loader.

pub mod cli;
pub mod collate;
pub mod emit;
pub mod fingerprint;
pub mod index;
pub mod inspect;
pub mod order_file;
pub mod pipeline;
pub mod source;
