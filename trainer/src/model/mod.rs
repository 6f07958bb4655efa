//! The models: their configuration and the plans they emit.

pub mod config;
pub mod gdn;

pub use config::{GateActivation, ModelConfig, ModelConfigError};
