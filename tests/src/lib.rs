//! What the cross-crate tests share: where recorded data lies, and how its digests are defined.

pub mod datasets;
pub mod golden;
pub mod orders;
pub mod tokens;
