//! The `trainer` binary, built with this crate so that `cargo test -p ceteris-tests` alone finds it beside the tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    ceteris_trainer::cli::run(std::env::args_os())
}
