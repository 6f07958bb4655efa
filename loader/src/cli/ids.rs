//! `loader ids`: an order without any dataset, for those who audit another stack.

use std::io::Write;

use clap::Args;

use super::failure::{Failure, OrFix};
use super::header::{EpochEnds, Sheet, count, describe_order, group};
use super::order_args::OrderArgs;
use super::output::Output as Stdout;
use super::plan::{Places, Plan};
use super::progress::Progress;
use super::select_args::{Output, SelectArgs};
use super::{CONFIG_HELP, read_config};
use crate::emit::{Emit, Emitter, Layout, Record, emitter};

/// Flags of `loader ids`.
#[derive(Args, Debug)]
pub struct IdsArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// Rows of the dataset whose order is asked for.
    #[arg(long, value_name = "N")]
    num_samples: Option<u64>,
    #[command(flatten)]
    select: SelectArgs,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<std::path::PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &IdsArgs, out: &mut Stdout) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let choice = args.order.resolve(&mut config)?;
    let num_samples = config.choose("data", "num_samples", args.num_samples)?;
    let num_samples = num_samples.ok_or_else(|| {
        Failure::new("the number of rows is not known")
            .fix("give --num-samples N (or use --cache-dir without `ids`)")
    })?;
    let output = args.select.output(&mut config, Emit::Rows)?;
    if output.emit != Emit::Rows && output.emit != Emit::Summary {
        return Err(Failure::new(format!(
            "--emit {} needs tokens, and `ids` reads no dataset",
            output.emit
        ))
        .fix("use --emit rows here, or give --cache-dir without `ids`"));
    }
    let building = Progress::spinner("building the order", output.quiet);
    let order = choice.build(num_samples, None)?;
    let plan = Plan::new(&*order, output.epoch, output.epochs, output.steps)?;
    let ranks = output
        .ranks
        .resolve(order.geometry().world_size)
        .map_err(Failure::new)?;
    let layout = Layout {
        micro_steps: plan.micro_steps(),
        ranks: ranks.len() as u64,
        micro_batch_size: order.geometry().micro_batch_size,
        seq_length: 0,
    };
    let mut emitter =
        emitter(output.format, output.emit, layout).or_fix("use --format json, or --emit rows")?;

    let mut sheet = Sheet::default();
    sheet.line("samples", group(num_samples));
    sheet.entry("samples", num_samples);
    describe_order(&mut sheet, &choice, &*order, &plan)?;
    building.finish();
    output.start(&config.take_notes(), &order.spec().warnings(), &sheet);
    emitter.begin(out, &sheet.json(), &sheet.text())?;
    out.show()?;

    let (summary, text) = write_ids(out, &mut *emitter, &*order, &plan, &ranks, &output)?;
    emitter.finish(out, &summary, &text)?;
    out.flush()?;
    output.end(&text);
    Ok(())
}

fn write_ids(
    out: &mut Stdout,
    emitter: &mut dyn Emitter,
    order: &dyn ceteris_samplers::Order,
    plan: &Plan,
    ranks: &[u64],
    output: &Output,
) -> Result<(serde_json::Value, String), Failure> {
    let micro_batch_size = order.geometry().micro_batch_size;
    let per_micro_step = ranks.len() as u64 * micro_batch_size;
    let progress = Progress::samples("listing", plan.micro_steps() * per_micro_step, output.quiet);
    let (mut places, mut samples, mut ends) = (Places::default(), 0u64, Vec::new());
    for epoch in plan.epochs() {
        let index = order.epoch(epoch)?;
        ends.push(EpochEnds::of(&index));
        for micro_step in plan.micro_steps_of(epoch) {
            for &rank in ranks {
                places.fill(&index, micro_step, rank, micro_batch_size);
                samples += places.samples.len() as u64;
                if output.emit == Emit::Summary {
                    continue;
                }
                let record = Record {
                    epoch,
                    micro_step,
                    step: index.step_of(micro_step),
                    global_micro_step: epoch * plan.per_epoch + micro_step,
                    rank,
                    rows: &places.samples,
                    positions: &places.positions,
                    tokens: &[],
                    fingerprint: None,
                };
                out.suspending(&progress, |out| emitter.record(out, &record))?;
            }
            progress.add(per_micro_step);
        }
    }
    progress.finish();
    let mut sheet = Sheet::default();
    sheet.line(
        "listed",
        format!(
            "{}, {}",
            count(plan.micro_steps(), "micro-step"),
            count(samples, "sample")
        ),
    );
    for line in EpochEnds::lines_of_later(&ends) {
        sheet.line("", line);
    }
    sheet.entry("micro_steps", plan.micro_steps());
    sheet.entry("samples", samples);
    sheet.entry("epochs", ends.iter().map(EpochEnds::json).collect::<Vec<_>>());
    Ok((sheet.json(), sheet.text()))
}
