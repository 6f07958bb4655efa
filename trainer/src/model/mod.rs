//! The models: their configuration, their tensors and the plans they emit.

pub mod config;
pub mod gdn;
pub mod parameters;

pub use config::{GateActivation, ModelConfig, ModelConfigError};
