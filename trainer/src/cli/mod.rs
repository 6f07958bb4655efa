//! The command line. Exit codes: 0 done, 1 not as it should be (a run stopped before its end, a failed self-test, a gap
//! beyond its tolerance), 2 error.

mod compare;
mod config;
mod groups;
mod init;
mod isolate;
mod pairs;
mod profile;
mod replay;
mod selftest;
mod settings;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Trains gated delta networks so that data order, data seed, weight seed and model move one at a time.
#[derive(Debug, Parser)]
#[command(name = "trainer", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains, or goes on from the newest checkpoint of the run's folder.
    Train(train::Args),
    /// Holds the loss curves of several runs against each other.
    ///
    /// Logs are metrics.jsonl (or a run's folder), the output or trainer_state.json of the HF Trainer and of FLA on it,
    /// Megatron-LM's and Primus' output, or CSV. The first log is A, the next B, and so on; (B - A) / A is the gap. Exit
    /// code 0: done, 1: a gap exceeds --tolerance, 2: an error.
    Compare(Box<compare::Args>),
    /// Shows settings.
    Config(config::Args),
    /// Lists every tensor with its weight decay, under each preset or the settings'.
    Groups(groups::Args),
    /// Makes initial weights: prints their hashes, or writes them as safetensors.
    Init(init::Args),
    /// Says how much of a difference in loss each factor explains, by runs that differ in one thing each.
    Isolate(isolate::Args),
    /// Prints which target each input token of a step is trained on.
    Pairs(pairs::Args),
    /// Shows where the time of a step goes on the run's device.
    Profile(profile::Args),
    /// Repeats a run with another order, or with another order from a step on; scores a checkpoint on two orders' batches.
    Replay(replay::Args),
    /// Proves on this machine that a run's bits depend on its settings alone.
    Selftest(selftest::Args),
}

/// Runs the command line, `args` with the program's name first, and reports what went wrong.
pub fn run(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with code 0, everything else to stderr with code 2.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match cli.command {
        Command::Train(args) => train::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Groups(args) => groups::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Isolate(args) => isolate::run(&args),
        Command::Pairs(args) => pairs::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Selftest(args) => selftest::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trainer: error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whoever read our output has seen enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Writes to standard output; a closed pipe is an error of its own.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
