//! `loader verify`: whether a logged run consumed the order claimed, and which one it did if not.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::{Geometry, OrderSpec};
use clap::Args;

use super::data_args::{DataArgs, DataChoice};
use super::failure::{Failure, OrFix};
use super::order_args::{OrderArgs, OrderChoice};
use super::output::Output;
use super::progress::Progress;
use super::ranges::StepRange;
use super::select_args::eprint;
use super::{CONFIG_HELP, read_config};
use crate::provenance::agreement::Replay;
use crate::provenance::candidates::{likely_seeds, seed_of};
use crate::provenance::digests::Digests;
use crate::provenance::log::RunLog;
use crate::provenance::search::{Found, Outcome, SearchSpace, search};
use crate::provenance::verify::{Verification, presence};

/// Tokens of a dataset up to which all its samples are hashed before a search: a few seconds' work.
const HASHED_WHOLE: u64 = 1 << 31;

/// Seeds of a search: each is an epoch's permutation, of every order.
const MOST_SEEDS: u64 = 1 << 20;

/// Flags of `loader verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The log: a .jsonl file or the folder that python/ceteris_log.py wrote (lines of `loader --format jsonl` do too).
    #[arg(long, value_name = "PATH")]
    log: PathBuf,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Seeds to try where the claim does not hold, besides the claimed one and those people use.
    #[arg(long, value_name = "A..B", default_value = "0..100", help_heading = "Search")]
    seeds: StepRange,
    /// Say only whether the claim holds.
    #[arg(long, help_heading = "Search")]
    no_search: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Write nothing to stderr but errors.
    #[arg(long, short)]
    quiet: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// Opens orders over the dataset; tables of rows are opened once.
struct Opener<'a> {
    data: &'a DataChoice,
    geometry: Geometry,
    shared: Option<Arc<Digests>>,
}

impl Opener<'_> {
    fn open(&self, spec: &OrderSpec, quiet: bool) -> Result<Replay, Failure> {
        let choice = OrderChoice {
            spec: spec.clone(),
            geometry: self.geometry,
        };
        if let Some(digests) = &self.shared {
            let order = choice.build(digests.source().num_samples(), None)?;
            return Ok(Replay {
                order,
                digests: Arc::clone(digests),
            });
        }
        let opened = self.data.open(spec, quiet)?;
        let order = choice.build(opened.source.num_samples(), opened.megatron)?;
        let digests = Arc::new(Digests::lazy(opened.source, opened.seq_length));
        Ok(Replay { order, digests })
    }
}

impl Opener<'_> {
    /// Searches for the order of a log.
    fn find(
        &self,
        log: &RunLog,
        claimed: &OrderSpec,
        seeds: std::ops::Range<u64>,
        quiet: bool,
    ) -> Result<Outcome, Failure> {
        let space = SearchSpace {
            claimed: claimed.clone(),
            seeds: likely_seeds(seed_of(claimed), seeds),
            world_size: log.world_size,
            other_orders: self.data.is_table(),
        };
        let progress = Progress::samples("trying orders and seeds", 0, quiet);
        let outcome = search(
            log,
            &space,
            &|spec| self.open(spec, true).ok(),
            &|planned| progress.set("trying orders and seeds", 0, planned),
            &|| progress.add(1),
        );
        progress.finish();
        Ok(outcome?)
    }
}

/// The order that a log is of, looked for around `claimed` over a table of rows.
///
/// # Errors
/// A dataset that cannot be read.
pub fn find_order(
    log: &RunLog,
    data: &DataChoice,
    claimed: &OrderChoice,
    quiet: bool,
) -> Result<Option<Found>, Failure> {
    if !data.is_table() {
        return Ok(None);
    }
    let mut opener = Opener {
        data,
        geometry: claimed.geometry,
        shared: None,
    };
    let digests = opener.open(&claimed.spec, true)?.digests;
    opener.shared = Some(hashed(digests, quiet)?);
    Ok(opener.find(log, &claimed.spec, 0..100, quiet)?.found)
}

/// Runs the command; `false` when the run did not consume what was claimed.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &VerifyArgs, out: &mut Output) -> Result<bool, Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let end = args.seeds.end.unwrap_or(args.seeds.start.saturating_add(1));
    if end - args.seeds.start > MOST_SEEDS {
        return Err(Failure::new(format!(
            "--seeds {} asks for {} seeds: a search tries up to {MOST_SEEDS}",
            args.seeds,
            end - args.seeds.start
        ))
        .fix("search a part of the range at a time"));
    }
    let log = RunLog::read(&args.log, false)?;
    let choice = args.order.resolve_with(
        &mut config,
        Geometry {
            world_size: log.world_size,
            micro_batch_size: log.micro_batch_size().unwrap_or(1),
            gradient_accumulation_steps: 1,
        },
    )?;
    if log.micro_batch_size().is_none() && choice.geometry.micro_batch_size == 1 && !args.quiet {
        eprint(
            "note: the log does not tell the size of its micro-batches; --micro-batch-size is taken as 1\n",
        );
    }
    let data = args.data.resolve(&mut config)?;
    if !args.quiet {
        for note in config.take_notes() {
            eprint(&format!("note: {note}\n"));
        }
    }
    let mut opener = Opener {
        data: &data,
        geometry: choice.geometry,
        shared: None,
    };
    let replay = opener.open(&choice.spec, args.quiet)?;
    let samples = replay.digests.source().num_samples();
    if let Some((batch, slot, id)) = log.first_id_from(samples) {
        let epoch = batch.epoch.map(|e| format!("epoch {e} ")).unwrap_or_default();
        return Err(Failure::new(format!(
            "{}: sample {id} at {epoch}micro_step {} rank {} slot {slot}, and the dataset has {samples} samples, numbered from 0",
            log.path.display(),
            batch.micro_step,
            batch.rank
        ))
        .fix("name the dataset of the run; if this is it, the line is damaged"));
    }
    let mut verification = Verification::of_claim(&log, &replay)?;
    if !verification.holds() && !args.no_search {
        // The run's own layout, whatever was claimed.
        opener.geometry = Geometry {
            world_size: log.world_size,
            micro_batch_size: log.micro_batch_size().unwrap_or(choice.geometry.micro_batch_size),
            ..choice.geometry
        };
        let Replay { order, digests } = replay;
        drop(order);
        if data.is_table() {
            opener.shared = Some(hashed(digests, args.quiet)?);
        }
        let outcome = opener.find(&log, &choice.spec, args.seeds.start..end, args.quiet)?;
        if outcome.found.is_none() {
            let replay = opener.open(&choice.spec, true)?;
            let spinner = Progress::spinner("looking for the logged samples in the dataset", args.quiet);
            verification.presence = presence(&log, &replay.digests)?;
            spinner.finish();
        }
        verification.outcome = Some(outcome);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &verification.json())?;
        writeln!(out)?;
    } else {
        write!(out, "{}", verification.text())?;
    }
    out.flush()?;
    Ok(verification.holds())
}

/// The digests, all of them computed where that is a few seconds' work.
fn hashed(digests: Arc<Digests>, quiet: bool) -> Result<Arc<Digests>, Failure> {
    let source = Arc::clone(digests.source());
    let first = if source.num_samples() == 0 {
        0
    } else {
        source.sample_len(0)?
    };
    let mut digests = Digests::lazy(Arc::clone(&source), digests.seq_length());
    if source.num_samples().saturating_mul(first as u64) <= HASHED_WHOLE {
        let progress = Progress::samples("fingerprinting samples", source.num_samples(), quiet);
        let done = digests.complete(&|more| progress.add(more));
        progress.finish();
        done.or_fix("repair the dataset, or use --no-search to compare the claimed order only")?;
    }
    Ok(Arc::new(digests))
}
