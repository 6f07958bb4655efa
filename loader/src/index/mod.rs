//! Indices of Megatron datasets on disk: Megatron's own cache files, ours, and their audit.

pub mod build;
pub mod description;
pub mod npy;
pub mod plan;
pub mod python_json;
