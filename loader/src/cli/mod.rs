//! The command line: one file a subcommand, one place where errors become text and exit codes.
//!
//! Exit codes: 0 done (or the reader of the output went away), 1 the comparison a command makes came out different,
//! 2 an error. With a machine format stdout holds the data alone; header, notes, progress and summary go to stderr.

mod audit;
mod bench;
mod check;
mod config;
mod data_args;
mod diff;
mod failure;
mod header;
mod ids;
mod index;
mod inspect;
mod manifest;
mod megatron_args;
mod order_args;
mod orders;
mod output;
mod plan;
mod prepare;
mod progress;
mod ranges;
mod select_args;
mod sides;
mod stream;
mod token_files;
mod verify;
mod where_;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::Config;
use failure::Failure;
use output::Output;

const CONFIG_HELP: &str =
    "Options from a file, with sections data, order and run; flags win over it and say so";

/// Examples shown by --help; the tests run every one of them from the root of the repository.
pub const EXAMPLES: &[(&str, &str)] = &[
    (
        "The run that an FLA training job made of this dataset, fingerprinted",
        "loader --order fla --cache-dir tests/data/shakespeare --seed 42 --world-size 8 --micro-batch-size 4 --seq-length 128",
    ),
    (
        "What rank 3 got in its first five steps, as today's transformers Trainer deals it",
        "loader --order hf-trainer --cache-dir tests/data/shakespeare --seed 42 --world-size 8 --micro-batch-size 4 \
         --seq-length 128 --steps 0..5 --rank 3",
    ),
    (
        "The same for a program: one JSON object for each micro-step and rank, with the tokens' SHA-256",
        "loader --order fla --cache-dir tests/data/shakespeare --seed 42 --world-size 8 --micro-batch-size 4 --seq-length 128 \
         --epoch 1 --steps 0..5 --emit sha256 --format jsonl",
    ),
    (
        "An order without any dataset",
        "loader ids --order torch-distributed --num-samples 10 --world-size 4 --seed 0 --epochs 3",
    ),
    (
        "What a Megatron run with this blend consumed",
        "loader --order megatron --data-path 0.3 tests/golden/megatron/u16/data 0.7 tests/golden/megatron/multiseq/data \
         --split 969,30,1 --seq-length 16 --seed 1234 --samples 400 --world-size 4 --micro-batch-size 2",
    ),
    (
        "What a folder holds",
        "loader inspect --cache-dir tests/data/shakespeare",
    ),
    ("Which order a run had", "loader orders"),
];

/// Replays the data order of other training stacks, bit for bit.
///
/// Without a subcommand it streams an order over a dataset: which rows and tokens each rank consumes at each step, and a
/// fingerprint of the run. Two runs that print the same fingerprint consumed the same tokens in the same order.
#[derive(Parser, Debug)]
#[command(
    name = "loader",
    version,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = examples_text()
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    stream: stream::StreamArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Looks through a corpus: begin and end tokens, ids, padding, duplicates.
    #[command(
        after_help = "Examples:\n  loader audit tests/data/shakespeare --tokenizer tests/golden/text\n  loader audit --order fla --seed 42 --cache-dir tests/data/shakespeare --epochs 2"
    )]
    Audit(Box<audit::AuditArgs>),
    /// Measures how fast an order comes off this machine, beside what the machine allows.
    #[command(
        after_help = "Example:\n  loader bench --cache-dir tests/data/shakespeare --order fla --seed 42 --micro-batch-size 32 --seq-length 128 --consumer-ms 1"
    )]
    Bench(Box<bench::BenchArgs>),
    /// Says where two runs' data part, and what kind of difference it is.
    #[command(
        after_help = "Examples:\n  loader diff fla hf-trainer --cache-dir tests/data/shakespeare --seed 42 \\\n    --micro-batch-size 4\n  loader diff fla,seed=42 fla,seed=43 --num-samples 50000000 --world-size 8\n  loader diff hf-trainer,seed=7 runs/a/consumed --cache-dir DATASET"
    )]
    Diff(Box<diff::DiffArgs>),
    /// Prints an order without any dataset.
    #[command(
        after_help = "Example:\n  loader ids --order hf-trainer --num-samples 103 --world-size 2 --micro-batch-size 4 --seed 1"
    )]
    Ids(ids::IdsArgs),
    /// Builds, audits and lists indices of Megatron data.
    #[command(
        after_help = "Example:\n  loader index build --data-path tests/golden/megatron/u16/data --split 969,30,1 \\\n    \
                      --seq-length 16 --seed 1234 --data-cache-path target/index-cache"
    )]
    Index(index::IndexArgs),
    /// Tokenizes text, converts and joins token datasets.
    #[command(
        after_help = "Example:\n  loader prepare convert --cache-dir tests/data/shakespeare --vocab-size 4096 \\\n    \
                      --out target/shakespeare --overwrite"
    )]
    Prepare(prepare::PrepareArgs),
    /// Writes an order down in less than 10 kB; regenerates and checks it elsewhere.
    #[command(
        after_help = "Examples:\n  loader manifest write --order fla --seed 42 --cache-dir tests/data/shakespeare --world-size 8\n  loader manifest check --manifest run.manifest.json --cache-dir DATASET_ELSEWHERE"
    )]
    Manifest(manifest::ManifestArgs),
    /// Says what a dataset folder holds.
    #[command(after_help = "Example:\n  loader inspect --cache-dir tests/data/shakespeare")]
    Inspect(inspect::InspectArgs),
    /// Lists the orders: whose behaviour each is, who needs it, its options.
    #[command(after_help = "Example:\n  loader orders hf-trainer")]
    Orders(orders::OrdersArgs),
    /// Says whether a logged run consumed the order claimed, and which one it did if not.
    #[command(
        after_help = "Example:\n  loader verify --log tests/data/run_logs/trainer --order hf-trainer --seed 7 \\\n    --cache-dir tests/data/shakespeare"
    )]
    Verify(Box<verify::VerifyArgs>),
    /// Says which documents a step consumed, and where a sample or document was consumed.
    #[command(
        after_help = "Examples:\n  loader where --step 17 --rank 3 --order fla --seed 42 --cache-dir tests/data/shakespeare \\\n    --world-size 8 --bos-id 1\n  loader where --sample 471 --epochs 3 --order fla --seed 42 --cache-dir tests/data/shakespeare \\\n    --world-size 8"
    )]
    Where(Box<where_::WhereArgs>),
}

fn examples_text() -> String {
    let mut text = String::from("Examples:\n");
    for (what, command) in EXAMPLES {
        text.push_str(&format!("  {what}:\n    {}\n", continued(command)));
    }
    text
}

/// A command line broken at its flags, as a shell takes it, so that help does not break it elsewhere.
fn continued(command: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for (i, part) in command.split(" --").enumerate() {
        let part = if i == 0 {
            part.to_string()
        } else {
            format!(" --{part}")
        };
        if column + part.len() > 80 {
            text.push_str(" \\\n     ");
            column = 0;
        }
        column += part.len();
        text.push_str(&part);
    }
    text
}

/// Runs the command line `args` (the program's name first) and says how it went.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for and go to stdout with code 0; a usage error is 2.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let mut out = Output::stdout();
    let done = match &cli.command {
        None => stream::run(&cli.stream, &mut out).map(|()| true),
        Some(Command::Audit(args)) => audit::run(args, &mut out),
        Some(Command::Bench(args)) => bench::run(args, &mut out).map(|()| true),
        Some(Command::Diff(args)) => diff::run(args, &mut out),
        Some(Command::Ids(args)) => ids::run(args, &mut out).map(|()| true),
        Some(Command::Index(args)) => index::run(args, &mut out),
        Some(Command::Prepare(args)) => prepare::run(args, &mut out).map(|()| true),
        Some(Command::Inspect(args)) => inspect::run(args, &mut out).map(|()| true),
        Some(Command::Orders(args)) => orders::run(args, &mut out).map(|()| true),
        Some(Command::Manifest(args)) => manifest::run(args, &mut out),
        Some(Command::Verify(args)) => verify::run(args, &mut out),
        Some(Command::Where(args)) => where_::run(args, &mut out).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            out.discard();
            ExitCode::from(failure.report("loader"))
        }
    }
}

fn read_config(path: Option<&Path>) -> Result<Config, Failure> {
    Ok(path.map(Config::read).transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// An option of a new order must not take a flag that means something else.
    #[test]
    fn flags_are_unambiguous() {
        Cli::command().debug_assert();
    }
}
