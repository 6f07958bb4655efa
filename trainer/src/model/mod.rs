//! The models: their configuration and the plans they emit.

pub mod config;

pub use config::{GateActivation, ModelConfig, ModelConfigError};
