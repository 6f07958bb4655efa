//! Token sources, collators and the deterministic loader.

pub mod atomic;
pub mod cli;
pub mod collate;
pub mod diff;
pub mod emit;
pub mod fingerprint;
pub mod index;
pub mod inspect;
pub mod order_file;
pub mod pipeline;
pub mod prepare;
pub mod provenance;
pub mod report;
pub mod source;
