//! `trainer`: trains, resumes and inspects runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    ceteris_trainer::cli::run(std::env::args_os())
}
