//! Trains gated delta networks so that data order, data seed, weight seed and model move one at a time.

pub mod checkpoint;
pub mod cli;
pub mod compare;
pub mod config;
pub mod data;
pub mod device;
pub mod init;
pub mod isolate;
pub mod model;
pub mod optim;
pub mod replay;
pub mod run;
pub mod schedule;
pub mod tensorboard;

/// Bytes as lower-case hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}
