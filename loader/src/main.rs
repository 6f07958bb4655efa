//! `loader`: streams, prints and checks data orders.

use std::process::ExitCode;

// Tokenizers allocate for every word. Only this program takes it: the libraries leave the choice to who links them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ceteris_loader::cli::run(std::env::args_os())
}
