//! Operators of gated delta networks and the executors that run them.
//!
//! A model emits a [`plan::Plan`] once: fused operators ([`ops`]) over buffers of fixed shape. An executor
//! ([`backend::Executor`]) walks it. The CPU executor ([`cpu`]) computes in f32 or f64 with the same code; its results
//! have the same bits for every number of threads, and it is the oracle for every other executor. The CUDA executor
//! ([`cuda`]) lowers the same plan to launches on an NVIDIA device.

pub mod arena;
pub mod backend;
pub mod conformance;
pub mod cpu;
pub mod cuda;
mod ids;
pub mod ops;
pub mod plan;
pub mod recompute;
