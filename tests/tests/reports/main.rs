//! Tests made from what people report in public, named by report id; one module per subject.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod ingestion;
mod megatron;
mod mixing;
mod orders;
mod provenance;
mod resume;
mod runtime;
#[path = "../pipeline/toy.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod toy;
mod training;
