//! Curves of several runs side by side: losses at the same steps or tokens, where they cross, when a gap closes, and
//! whether it is more than run-to-run noise. Logs are read whichever program wrote them.

pub mod align;
pub mod comparison;
pub mod curve;
pub mod gap;
pub mod html;
pub mod json;
pub mod log_error;
pub mod noise;
mod read;
pub mod rows;
pub mod summary;
pub mod table;
pub mod text;
pub mod throughput;
mod words;
