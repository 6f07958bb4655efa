//! `loader inspect`: what a dataset folder holds, without opening it for streaming.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::progress::Progress;
use crate::inspect::{InspectOptions, inspect};
use crate::source::FingerprintMode;

/// Flags of `loader inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The folder or file to look at.
    #[arg(long, value_name = "DIR")]
    cache_dir: PathBuf,
    /// Only this split.
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Column whose row lengths are counted (default input_ids, else the first list of integers).
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// Fingerprint the files: sampled reads 1 MiB of each, full every byte.
    #[arg(long, value_name = "MODE", default_value = "sampled")]
    fingerprint: Mode,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// How much of each file is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Nothing.
    None,
    /// 1 MiB of each file.
    Sampled,
    /// Every byte.
    Full,
}

/// Runs the command.
///
/// # Errors
/// The path is no dataset, or what keeps it from being opened; the report stands on stdout then as well.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let options = InspectOptions {
        split: args.split.clone(),
        column: args.column.clone(),
        fingerprint: match args.fingerprint {
            Mode::None => None,
            Mode::Sampled => Some(FingerprintMode::Sampled),
            Mode::Full => Some(FingerprintMode::Full),
        },
    };
    let bar = Progress::bytes("hashing", false);
    let found = inspect(&args.cache_dir, &options, &|bytes| bar.add(bytes));
    bar.finish();
    let found = found?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &found)?;
        writeln!(out)?;
    } else {
        write!(out, "{found}")?;
    }
    out.flush()?;
    let problems: usize = found.splits.iter().map(|split| split.problems.len()).sum();
    if problems > 0 {
        return Err(Failure::new(format!(
            "{}: cannot be opened as it stands ({problems} listed above)",
            args.cache_dir.display()
        )));
    }
    Ok(())
}
