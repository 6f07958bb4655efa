//! `loader manifest`: writes an order down in less than 10 kB, and regenerates and checks it elsewhere.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::config::Config;
use super::data_args::DataArgs;
use super::failure::{Failure, OrFix};
use super::header::group;
use super::order_args::{OrderArgs, OrderChoice};
use super::output::Output;
use super::progress::Progress;
use super::select_args::eprint;
use super::{CONFIG_HELP, read_config};
use crate::provenance::manifest::{Dataset, Epochs, MANIFEST_VERSION, Manifest};
use crate::source::{DatasetFingerprint, FingerprintMode, Source};

/// Places of an order that one command goes through: hours of work.
const MOST_PLACES: u64 = 1 << 40;

/// Flags of `loader manifest`.
#[derive(Args, Debug)]
pub struct ManifestArgs {
    #[command(subcommand)]
    command: ManifestCommand,
}

#[derive(Subcommand, Debug)]
enum ManifestCommand {
    /// Writes a manifest: spec, seeds, dataset fingerprint and the hash of the whole order.
    #[command(
        after_help = "Example:\n  loader manifest write --out run.manifest.json --order fla --seed 42 --cache-dir tests/data/shakespeare --world-size 8"
    )]
    Write(Box<WriteArgs>),
    /// Regenerates the order of a manifest over the data that lies here, and compares. Exit code 1 when anything differs.
    #[command(
        after_help = "Example:\n  loader manifest check --manifest run.manifest.json --cache-dir tests/data/shakespeare"
    )]
    Check(Box<CheckArgs>),
}

/// How much of each file is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Hash {
    /// 1 MiB of each file.
    Sampled,
    /// Every byte.
    Full,
}

#[derive(Args, Debug)]
struct WriteArgs {
    /// The file to write (default: stdout).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Epochs to hash.
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// How much of each data file is hashed: sampled reads 1 MiB of each, full every byte.
    #[arg(long, value_name = "MODE", default_value = "sampled")]
    hash: Hash,
    /// Write nothing to stderr but errors.
    #[arg(long, short)]
    quiet: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// The manifest.
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Write nothing to stderr but errors.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command; `false` when a check found a difference.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &ManifestArgs, out: &mut Output) -> Result<bool, Failure> {
    match &args.command {
        ManifestCommand::Write(args) => write(args, out).map(|()| true),
        ManifestCommand::Check(args) => check(args, out),
    }
}

fn write(args: &WriteArgs, out: &mut Output) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let choice = args.order.resolve(&mut config)?;
    let data = args.data.resolve(&mut config)?;
    let epochs = config.choose("run", "epochs", args.epochs)?.unwrap_or(1);
    let opened = data.open(&choice.spec, args.quiet)?;
    let order = choice.build(opened.source.num_samples(), opened.megatron.clone())?;
    if order.num_epochs().is_some_and(|known| epochs > known) || epochs == 0 {
        return Err(Failure::new(format!(
            "--epochs {epochs}: the order has {} epoch(s) to hash",
            order
                .num_epochs()
                .map_or("1 or more".to_owned(), |n| n.to_string())
        )));
    }
    let mode = match args.hash {
        Hash::Sampled => FingerprintMode::Sampled,
        Hash::Full => FingerprintMode::Full,
    };
    bounded(&*order, epochs)?;
    let dataset = record(&*opened.source, opened.seq_length, mode, args.quiet)?;
    let hashed = hash_epochs(&*order, epochs, args.quiet)?;
    let (geometry, mut run) = (choice.geometry, Map::new());
    run.insert("world_size".into(), geometry.world_size.into());
    run.insert("micro_batch_size".into(), geometry.micro_batch_size.into());
    run.insert(
        "gradient_accumulation_steps".into(),
        geometry.gradient_accumulation_steps.into(),
    );
    let manifest = Manifest {
        ceteris_manifest: MANIFEST_VERSION,
        ceteris: env!("CARGO_PKG_VERSION").to_owned(),
        data: data.config_entries()?,
        order: object(serde_json::to_value(order.spec())?),
        run,
        dataset,
        epochs: hashed,
    };
    let Some(path) = &args.out else {
        write!(out, "{}", manifest.checked_text()?)?;
        out.flush()?;
        return Ok(());
    };
    manifest.write(path)?;
    writeln!(
        out,
        "{}: {} bytes; dataset {} ({}), order {} over {} epoch(s) of {} samples",
        path.display(),
        manifest.text().len(),
        short(&manifest.dataset.hash),
        mode,
        short(&manifest.epochs.order_hash),
        epochs,
        group(manifest.epochs.samples_per_epoch)
    )?;
    out.flush()?;
    Ok(())
}

fn check(args: &CheckArgs, out: &mut Output) -> Result<bool, Failure> {
    let manifest = Manifest::read(&args.manifest)?;
    let mut config = Config::from_json(&args.manifest, manifest.config())?;
    let order_args = OrderArgs::default();
    let choice: OrderChoice = order_args.resolve(&mut config)?;
    let data = args.data.resolve(&mut config)?;
    // What differs from the recorded paths is what a check elsewhere is about.
    config.take_notes();
    let opened = data
        .open(&choice.spec, args.quiet)
        .or_fix("name the data of this machine with --cache-dir DIR (or --data-path for Megatron data)")?;
    let found = record(
        &*opened.source,
        opened.seq_length,
        manifest.dataset.mode,
        args.quiet,
    )?;
    let dataset = manifest.dataset.difference(&found);
    let mut order_difference = None;
    let mut order_hash = None;
    if dataset.is_none() {
        let order = choice.build(opened.source.num_samples(), opened.megatron.clone())?;
        let count = manifest.epochs.count;
        if count == 0 || order.num_epochs().is_some_and(|known| count > known) {
            return Err(Failure::new(format!(
                "{}: epochs.count is {count}, and the order has {} epochs",
                args.manifest.display(),
                order
                    .num_epochs()
                    .map_or("1 or more".to_owned(), |n| n.to_string())
            )));
        }
        bounded(&*order, count)
            .map_err(|e| e.context(format!("{}: epochs.count", args.manifest.display())))?;
        let hashed = hash_epochs(&*order, count, args.quiet)?;
        order_difference = manifest.epochs.difference(&hashed);
        order_hash = Some(hashed.order_hash);
    }
    let same = dataset.is_none() && order_difference.is_none();
    if manifest.ceteris != env!("CARGO_PKG_VERSION") && !args.quiet {
        eprint(&format!(
            "note: written by version {} of Ceteris, checked by {}\n",
            manifest.ceteris,
            env!("CARGO_PKG_VERSION")
        ));
    }
    if args.json {
        let report = serde_json::json!({
            "ceteris_manifest_check": 1,
            "same": same,
            "dataset_difference": dataset,
            "order_difference": order_difference,
            "dataset_hash": found.hash,
            "order_hash": order_hash,
        });
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        match (&dataset, &order_difference) {
            (Some(difference), _) => writeln!(out, "refused      other data: {difference}")?,
            (None, Some(difference)) => writeln!(
                out,
                "refused      the data is the recorded one, the order is not: {difference}"
            )?,
            (None, None) => writeln!(
                out,
                "same         dataset {} ({} file(s), {}) and order {} ({} epoch(s) of {} samples) are those recorded",
                short(&found.hash),
                found.num_files,
                found.mode,
                short(&manifest.epochs.order_hash),
                manifest.epochs.count,
                group(manifest.epochs.samples_per_epoch)
            )?,
        }
    }
    out.flush()?;
    Ok(same)
}

fn record(
    source: &dyn Source,
    seq_length: Option<usize>,
    mode: FingerprintMode,
    quiet: bool,
) -> Result<Dataset, Failure> {
    let bar = Progress::bytes("hashing", quiet);
    let found = DatasetFingerprint::compute(&source.files(), mode, &|bytes| bar.add(bytes));
    bar.finish();
    Ok(Dataset::new(source.num_samples(), seq_length, &found?))
}

/// Refuses more epochs than a command can go through.
///
/// # Errors
/// A failure naming the limit.
pub(super) fn bounded(order: &dyn ceteris_samplers::Order, epochs: u64) -> Result<(), Failure> {
    let most = (MOST_PLACES / order.num_positions().max(1)).max(1);
    if epochs > most {
        return Err(Failure::new(format!(
            "{epochs} epochs are more than are gone through at once: up to {most} of {} places each",
            group(order.num_positions())
        )));
    }
    Ok(())
}

fn hash_epochs(order: &dyn ceteris_samplers::Order, epochs: u64, quiet: bool) -> Result<Epochs, Failure> {
    let samples = order.num_positions().saturating_mul(epochs);
    let progress = Progress::samples("hashing the order", samples, quiet);
    let hashed = Epochs::of(order, epochs, &|more| progress.add(more));
    progress.finish();
    Ok(hashed?)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}
