//! `loader`: streams, prints and checks data orders.

use std::process::ExitCode;

fn main() -> ExitCode {
    ceteris_loader::cli::run(std::env::args_os())
}
