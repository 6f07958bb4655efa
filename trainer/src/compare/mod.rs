//! Curves of several runs side by side.

pub mod curve;
pub mod log_error;
mod read;
