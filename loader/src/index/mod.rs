//! Indices of Megatron datasets on disk: Megatron's own cache files, ours, and their audit.

pub mod build;
pub mod described;
pub mod description;
pub mod import;
pub mod megatron_cache;
pub mod npy;
pub mod overlap;
pub mod plan;
pub mod python_json;
pub mod store;
pub mod verify;
