//! `loader diff A B`: where two runs' data part, and how.

use std::io::Write;
use std::path::PathBuf;

use ceteris_samplers::OrderSpec;
use clap::Args;
use serde_json::Value;

use super::data_args::DataArgs;
use super::failure::Failure;
use super::order_args::OrderArgs;
use super::output::Output;
use super::progress::Progress;
use super::ranges::StepRange;
use super::sides::{Named, Shared};
use super::verify::find_order;
use crate::atomic;
use crate::diff::classify::Class;
use crate::diff::compare::{CompareError, compare};
use crate::diff::keys::KeysError;
use crate::diff::outcome::Comparison;
use crate::provenance::log::RunLog;
use crate::report;
use crate::report::decode::{Decoder, decode};

/// Flags of `loader diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// The first side: an order by name with options of its own behind commas (fla,seed=43), a run as .yaml, a manifest, a
    /// log, a dataset folder, a Megatron prefix or an .npy file of tokens.
    #[arg(value_name = "A")]
    a: String,
    /// The second side.
    #[arg(value_name = "B")]
    b: String,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Rows of the dataset, to compare orders without any.
    #[arg(long, value_name = "N")]
    num_samples: Option<u64>,
    /// First epoch (default 0; with a log, what the log holds).
    #[arg(long, value_name = "E", help_heading = "Which part")]
    epoch: Option<u64>,
    /// Epochs to compare, from --epoch on (default 1).
    #[arg(long, value_name = "N", help_heading = "Which part")]
    epochs: Option<u64>,
    /// Optimizer steps to compare, counted from the start of --epoch.
    #[arg(long, value_name = "A..B", help_heading = "Which part")]
    steps: Option<StepRange>,
    /// tokenizer.json, or the folder that holds it: shows the text around differences.
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    tokenizer: Option<PathBuf>,
    /// The second side's tokenizer, where it has another one.
    #[arg(long, value_name = "PATH", requires = "tokenizer", help_heading = "Output")]
    tokenizer_b: Option<PathBuf>,
    /// Also write a page for people: one file, nothing loaded from elsewhere.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Write JSON (docs/diff.md says what it holds).
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write nothing to stderr but errors.
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command; `false` when the sides differ.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &DiffArgs, out: &mut Output) -> Result<bool, Failure> {
    let shared = Shared {
        order: &args.order,
        data: &args.data,
        num_samples: args.num_samples,
        epoch: args.epoch,
        epochs: args.epochs,
        steps: args.steps,
        quiet: args.quiet,
    };
    let (a, b) = (Named::parse(&args.a, &shared)?, Named::parse(&args.b, &shared)?);
    let (log_a, log_b) = (a.log()?, b.log()?);
    let in_words = |which: &str, failure: Failure| failure.context(format!("side {which}"));
    let a = a.open(&shared, log_b.as_ref()).map_err(|e| in_words("A", e))?;
    let b = b.open(&shared, log_a.as_ref()).map_err(|e| in_words("B", e))?;
    let samples = a.layout.len() as u64;
    let progress = Progress::samples("comparing", 2 * samples, args.quiet);
    let compared = compare(a, b, &|what, more| {
        if what != "fingerprinting samples" {
            progress.add(more);
        }
    });
    progress.finish();
    let mut compared = match compared {
        Err(error @ CompareError::Keys(KeysError::Divided { .. })) => {
            return Err(Failure::from(error).fix(
                "log a fingerprint of each sample (python/ceteris_log.py does unless samples=False) or sample ids; or hold \
                 each log against an order: `loader verify --log` takes any division",
            ));
        }
        compared => compared?,
    };
    name_order(args, &shared, (log_a.as_ref(), log_b.as_ref()), &mut compared)?;
    if let Some(path) = &args.tokenizer {
        let of_a = Decoder::open(path)?;
        let of_b = args.tokenizer_b.as_deref().map(Decoder::open).transpose()?;
        decode(&mut compared, &of_a, of_b.as_ref().unwrap_or(&of_a));
    }
    if let Some(path) = &args.html {
        atomic::write(path, report::html::page(&compared).as_bytes())
            .map_err(|e| Failure::from(e).context(format!("{}: cannot write the page", path.display())))?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report::json::report(&compared)?)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", report::text::report(&compared))?;
    }
    out.flush()?;
    Ok(compared.class.is_equal())
}

/// Where a log is another order of the samples than the order it is held against, says which order it is.
fn name_order(
    args: &DiffArgs,
    shared: &Shared<'_>,
    logs: (Option<&RunLog>, Option<&RunLog>),
    compared: &mut Comparison,
) -> Result<(), Failure> {
    let searched = matches!(
        compared.class,
        Class::OtherOrder | Class::PartlyOtherSamples { .. } | Class::OtherData
    );
    let (log, other, log_is_second) = match logs {
        (Some(log), None) => (log, &args.b, false),
        (None, Some(log)) => (log, &args.a, true),
        _ => return Ok(()),
    };
    if !searched {
        return Ok(());
    }
    let Some((choice, data)) = Named::parse(other, shared)?.order_over_data(log)? else {
        return Ok(());
    };
    let Some(found) = find_order(log, &data, &choice, args.quiet)? else {
        return Ok(());
    };
    let options = |spec: &OrderSpec, name: bool| -> Vec<(String, Value)> {
        let name = name.then(|| ("order".to_owned(), spec.name().into()));
        let options = spec
            .options()
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value));
        name.into_iter().chain(options).collect()
    };
    let renamed = choice.spec.name() != found.spec.name();
    let (of_order, mut of_log) = (options(&choice.spec, renamed), options(&found.spec, renamed));
    let differing = |mine: &[(String, Value)], theirs: &[(String, Value)]| -> Vec<(String, Value)> {
        mine.iter()
            .filter(|option| !theirs.contains(option))
            .cloned()
            .collect()
    };
    let of_order_only = differing(&of_order, &of_log);
    of_log = differing(&of_log, &of_order);
    if let Some(words) = found.alignment.in_words() {
        of_log.push(("alignment".to_owned(), words.into()));
    }
    let (a, b) = if log_is_second {
        (of_order_only, of_log)
    } else {
        (of_log, of_order_only)
    };
    // An order that differs in nothing named would explain nothing.
    if !a.is_empty() || !b.is_empty() {
        compared.class = Class::OtherSeed { a, b };
    }
    Ok(())
}
