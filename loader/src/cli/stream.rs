//! The bare form: streams an order over a dataset, says what it is, and fingerprints what came out.
//!
//! Nothing reaches stdout before the input has been checked: with per-step output, or with --vocab-size, every row
//! to be used is read once beforehand; a summary is held back until the stream has ended, unless stdout is a
//! terminal.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ceteris_samplers::Order;
use clap::Args;
use serde_json::Value;

use super::check::check_rows;
use super::data_args::{DataArgs, OpenedData};
use super::failure::{Failure, OrFix};
use super::header::{EpochEnds, Sheet, count, describe_order, group};
use super::order_args::OrderArgs;
use super::output::Output as Stdout;
use super::plan::Plan;
use super::progress::{Progress, rate};
use super::ranges::{Ranks, StepRange};
use super::select_args::{SelectArgs, eprint};
use super::{CONFIG_HELP, read_config};
use crate::emit::{Emit, Emitter, Layout, Record, emitter};
use crate::fingerprint::{self, Fingerprint, RunFingerprint};
use crate::pipeline::{
    self, DEFAULT_PREFETCH, DEFAULT_WORKERS, Loader, LoaderError, LoaderOptions, LoaderState, MicroBatch,
    Notice, NoticeSink, StopSignal,
};

/// Flags of the bare form.
#[derive(Args, Debug)]
pub struct StreamArgs {
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    select: SelectArgs,
    /// Threads that assemble batches (default 8; 0 assembles in the main thread). Changes nothing but speed.
    #[arg(long, value_name = "N", help_heading = "Speed")]
    workers: Option<usize>,
    /// Batches assembled ahead (default 16). Changes nothing but speed.
    #[arg(long, value_name = "N", help_heading = "Speed")]
    prefetch: Option<usize>,
    /// Where the stream stands is written here when it ends, also when it is interrupted: a small JSON for --resume.
    #[arg(long, value_name = "FILE", help_heading = "Going on later")]
    save_state: Option<PathBuf>,
    /// Go on where a state stands, up to the end of --epochs (counted from epoch 0). A state of another order or dataset is
    /// refused; another layout of the same global batch is not.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["epoch", "steps"], help_heading = "Going on later")]
    resume: Option<PathBuf>,
    /// Resume also under another global batch: what repeats and what is skipped is printed.
    #[arg(long, requires = "resume", help_heading = "Going on later")]
    allow_global_batch_change: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &StreamArgs, out: &mut Stdout) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let choice = args.order.resolve(&mut config)?;
    let data = args.data.resolve(&mut config)?;
    let output = args.select.output(&mut config, Emit::Summary)?;
    let workers = config
        .choose("run", "workers", args.workers)?
        .unwrap_or(DEFAULT_WORKERS);
    let prefetch = config
        .choose("run", "prefetch", args.prefetch)?
        .unwrap_or(DEFAULT_PREFETCH);

    let OpenedData {
        source,
        mut sheet,
        fingerprint,
        seq_length,
        megatron,
    } = data.open(&choice.spec, output.quiet)?;
    let seq_length = seq_length.ok_or_else(|| {
        Failure::new("rows differ in length, and the length of a sample is not given")
            .fix("give --seq-length T, and with --on-ragged what to do with other rows")
    })?;
    let building = Progress::spinner("building the order", output.quiet);
    let order = choice.build(source.num_samples(), megatron)?;
    let base = LoaderOptions {
        workers,
        prefetch,
        pad_token: data
            .options
            .pad_id
            .and_then(|id| i32::try_from(id).ok())
            .unwrap_or(0),
        fingerprints: true,
        positions: output.emit != Emit::Summary,
        dataset_fingerprint: fingerprint,
        allow_global_batch_change: args.allow_global_batch_change,
        ..LoaderOptions::new(seq_length)
    };
    let state = args.resume.as_deref().map(LoaderState::load).transpose()?;
    let plan = match &state {
        None => Plan::new(&*order, output.epoch, output.epochs, output.steps)?,
        Some(_) if output.epoch != 0 || output.steps != StepRange::ALL => {
            return Err(Failure::new(
                "--resume goes on where its state stands: `epoch` and `steps` cannot be given with it",
            ));
        }
        Some(state) => {
            let first = Loader::resume_point(&*source, &*order, &base, state)?;
            Plan::from(&*order, first, output.epochs)?
        }
    };
    let ranks = output
        .ranks
        .resolve(order.geometry().world_size)
        .map_err(Failure::new)?;
    describe_order(&mut sheet, &choice, &*order, &plan)?;
    building.finish();
    let layout = Layout {
        micro_steps: plan.micro_steps(),
        ranks: ranks.len() as u64,
        micro_batch_size: order.geometry().micro_batch_size,
        seq_length: seq_length as u64,
    };
    let mut emitter =
        emitter(output.format, output.emit, layout).or_fix("use --format json, or another --emit")?;
    if output.emit != Emit::Summary || data.options.vocab_size.is_some() {
        check_rows(&*source, &*order, &plan, &ranks, seq_length, output.quiet)?;
    }

    output.start(&config.take_notes(), &order.spec().warnings(), &sheet);
    emitter.begin(out, &sheet.json(), &sheet.text())?;
    out.show()?;
    let per_micro_step = layout.ranks * layout.micro_batch_size * layout.seq_length;
    let progress = Progress::tokens("streaming", plan.micro_steps() * per_micro_step, output.quiet);
    let options = LoaderOptions {
        ranks: pipeline::Ranks::Some(ranks.clone()),
        start: plan.first,
        epochs: Some(plan.last.0 + 1),
        max_micro_steps: Some(plan.micro_steps()),
        stop: Some(StopSignal::install()?),
        notices: notices(&progress, output.quiet),
        ..base
    };
    let started = Instant::now();
    let mut loader = match &state {
        None => Loader::new(source, Arc::clone(&order), options)?,
        Some(state) => Loader::resume(source, Arc::clone(&order), options, state)?,
    };
    let streamed = stream(out, &mut *emitter, &mut loader, &plan, output.emit, &progress);
    // After a signal all batches taken have been written, so the position is worth keeping; after a failure it is not.
    if let Some(path) = &args.save_state
        && streamed.as_ref().map_or_else(Failure::is_interruption, |_| true)
    {
        out.flush()?;
        loader.state()?.save(path).map_err(LoaderError::from)?;
    }
    let streamed = streamed?;
    drop(loader);
    progress.finish();
    let seconds = started.elapsed().as_secs_f64();
    let sheet = summary(&streamed, &*order, &plan, &output.ranks, seq_length)?;
    emitter.finish(out, &sheet.json(), &sheet.text())?;
    out.flush()?;
    output.end(&sheet.text());
    if !output.quiet {
        let tokens = streamed.tokens;
        eprint(&format!(
            "{} tokens in {seconds:.3} s, {}\n",
            group(tokens),
            rate(tokens as f64 / seconds)
        ));
    }
    Ok(())
}

/// What came out of the loader.
struct Streamed {
    run: RunFingerprint,
    tokens: u64,
    ends: Vec<EpochEnds>,
}

/// Stall lines and other notices of the loader, on stderr beside the progress bar.
fn notices(progress: &Progress, quiet: bool) -> NoticeSink {
    let progress = progress.clone();
    NoticeSink::new(move |notice| {
        // The header has said what the order has to say.
        if !quiet && !matches!(notice, Notice::Order(_)) {
            progress.suspend(|| eprint(&format!("note: {notice}\n")));
        }
    })
}

fn stream(
    out: &mut Stdout,
    emitter: &mut dyn Emitter,
    loader: &mut Loader,
    plan: &Plan,
    emit: Emit,
    progress: &Progress,
) -> Result<Streamed, Failure> {
    let order = Arc::clone(loader.order());
    let mut streamed = Streamed {
        run: RunFingerprint::new(),
        tokens: 0,
        ends: Vec::new(),
    };
    let mut epochs = plan.epochs();
    while let Some(batch) = loader.next_batch()? {
        let step = batch.step();
        if epochs.start <= step.epoch && epochs.next().is_some() {
            streamed.ends.push(EpochEnds::of(&order.epoch(step.epoch)?));
        }
        for micro_batch in batch.micro_batches() {
            let digests = digests_in_deal_order(&micro_batch);
            for &(deal_index, digest) in &digests {
                streamed.run.push(step.epoch, step.step, deal_index, digest);
            }
            streamed.tokens += (0..micro_batch.valid_rows)
                .map(|slot| u64::from(micro_batch.lens[slot]))
                .sum::<u64>();
            if emit == Emit::Summary {
                continue;
            }
            let rows = micro_batch.valid_rows;
            let record = Record {
                epoch: step.epoch,
                micro_step: step.micro_step,
                step: step.step,
                global_micro_step: step.epoch * plan.per_epoch + step.micro_step,
                rank: micro_batch.rank,
                rows: &micro_batch.rows[..rows],
                positions: micro_batch.positions.map_or(&[], |positions| &positions[..rows]),
                tokens: &micro_batch.tokens[..rows * micro_batch.seq_length],
                fingerprint: Some(Fingerprint::combine(digests.iter().map(|&(_, digest)| digest))),
            };
            out.suspending(progress, |out| emitter.record(out, &record))?;
        }
        progress.add(batch.shape().tokens() as u64);
    }
    streamed.run.close_step();
    Ok(streamed)
}

/// Digests of a micro-batch's samples with their deal indices, ascending.
fn digests_in_deal_order(micro_batch: &MicroBatch<'_>) -> Vec<(u64, Fingerprint)> {
    let digests = micro_batch.fingerprints.unwrap_or_default().iter().copied();
    let mut pairs: Vec<_> = micro_batch
        .deal_indices
        .iter()
        .copied()
        .zip(digests)
        .take(micro_batch.valid_rows)
        .collect();
    pairs.sort_unstable_by_key(|&(deal_index, _)| deal_index);
    pairs
}

fn summary(
    streamed: &Streamed,
    order: &dyn Order,
    plan: &Plan,
    ranks: &Ranks,
    seq_length: usize,
) -> Result<Sheet, Failure> {
    let run = &streamed.run;
    let mut sheet = Sheet::default();
    let epochs = plan.epochs();
    let which = if epochs.end - epochs.start == 1 {
        format!("epoch {}", epochs.start)
    } else {
        format!("epochs {} to {}", epochs.start, epochs.end - 1)
    };
    let part = if plan.is_whole() { "" } else { "a part of " };
    let of_ranks = match ranks {
        Ranks::All => String::new(),
        Ranks::Some(ranks) => format!(", rank {} only", super::header::some_of(ranks)),
    };
    sheet.line(
        "streamed",
        format!(
            "{part}{which}{of_ranks}: {}, {}, {}",
            count(run.steps(), "step"),
            count(run.samples(), "sample"),
            count(streamed.tokens, "token")
        ),
    );
    for line in EpochEnds::lines_of_later(&streamed.ends) {
        sheet.line("", line);
    }
    sheet.line(
        "fingerprint",
        format!(
            "{} (run, definition {})",
            run.fingerprint(),
            fingerprint::DEFINITION
        ),
    );
    sheet.line("set", format!("{} (the same samples in any order)", run.set()));
    sheet.entry("order", serde_json::to_value(order.spec())?);
    sheet.entry("first_epoch", epochs.start);
    sheet.entry("last_epoch", epochs.end - 1);
    sheet.entry("micro_steps", plan.micro_steps());
    sheet.entry("steps", run.steps());
    sheet.entry("samples", run.samples());
    sheet.entry("tokens", streamed.tokens);
    sheet.entry("seq_length", seq_length as u64);
    sheet.entry(
        "ranks",
        match ranks {
            Ranks::All => Value::from("all"),
            Ranks::Some(ranks) => Value::from(ranks.clone()),
        },
    );
    sheet.entry(
        "epochs",
        streamed.ends.iter().map(EpochEnds::json).collect::<Vec<_>>(),
    );
    sheet.entry("fingerprint_definition", fingerprint::DEFINITION);
    sheet.entry("fingerprint", run.fingerprint().to_string());
    sheet.entry("set_fingerprint", run.set().to_string());
    Ok(sheet)
}
