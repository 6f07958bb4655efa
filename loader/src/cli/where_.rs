//! `loader where`: from a step to documents and token spans, and from a sample or document to every place it is consumed.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::data_args::DataArgs;
use super::failure::{Failure, OrFix};
use super::header::{count, group};
use super::order_args::OrderArgs;
use super::output::Output;
use super::progress::Progress;
use super::ranges::{Ranks, StepRange};
use super::select_args::eprint;
use super::{CONFIG_HELP, read_config};
use crate::diff::layout::At;
use crate::provenance::documents::{Documents, Mark};
use crate::provenance::lookup::{Consumed, Packing, of_steps, places_of};
use crate::source::DocumentSpan;

/// Flags of `loader where`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("question").required(true).args(["step", "sample", "doc"])))]
pub struct WhereArgs {
    /// The documents and token spans that this optimizer step (or range of steps, 0..6) of --epoch consumes.
    #[arg(long, value_name = "S")]
    step: Option<StepRange>,
    /// Every place that consumes this sample, in --epochs epochs.
    #[arg(long, value_name = "ID")]
    sample: Option<u64>,
    /// Every place that consumes a part of this document.
    #[arg(long, value_name = "D")]
    doc: Option<u64>,
    /// With --step: one rank, a list, or all (the default).
    #[arg(long, value_name = "R")]
    rank: Option<Ranks>,
    /// First epoch (default 0).
    #[arg(long, value_name = "E")]
    epoch: Option<u64>,
    /// With --sample and --doc: epochs to look through (default 1).
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Documents end behind this token id.
    #[arg(long, value_name = "ID", conflicts_with = "bos_id")]
    eos_id: Option<i32>,
    /// Documents start with this token id.
    #[arg(long, value_name = "ID")]
    bos_id: Option<i32>,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Write one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Write nothing to stderr but errors.
    #[arg(long, short)]
    quiet: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &WhereArgs, out: &mut Output) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let choice = args.order.resolve(&mut config)?;
    let data = args.data.resolve(&mut config)?;
    let epoch = config.choose("run", "epoch", args.epoch)?.unwrap_or(0);
    let epochs = config.choose("run", "epochs", args.epochs)?.unwrap_or(1);
    if !args.quiet {
        for note in config.take_notes() {
            eprint(&format!("note: {note}\n"));
        }
    }
    let opened = data.open(&choice.spec, args.quiet)?;
    let order = choice.build(opened.source.num_samples(), opened.megatron.clone())?;
    let mark = args.eos_id.map(Mark::End).or(args.bos_id.map(Mark::Begin));
    let bar = Progress::samples("looking for documents", opened.source.num_samples(), args.quiet);
    let documents = Documents::new(Arc::clone(&opened.source), opened.seq_length, mark, &|rows| {
        bar.add(rows)
    });
    bar.finish();
    let documents = documents?;
    if let Some(steps) = args.step {
        let ranks = args.rank.clone().unwrap_or(Ranks::All);
        let ranks = ranks.resolve(order.geometry().world_size).map_err(Failure::new)?;
        let end = steps.end.unwrap_or(order.steps_per_epoch());
        let consumed = of_steps(&*order, Some(&documents), epoch, steps.start..end, &ranks)
            .or_fix("--epoch E chooses another epoch; steps restart at each epoch")?;
        return write_steps(args, &documents, &consumed, out);
    }
    let samples = match (args.sample, args.doc) {
        (Some(sample), _) if sample >= opened.source.num_samples() => {
            return Err(Failure::new(format!(
                "sample {sample} does not exist: the dataset has {} samples",
                opened.source.num_samples()
            )));
        }
        (Some(sample), _) => vec![sample],
        (None, Some(doc)) => {
            let samples = documents.samples_of(doc)?;
            if samples.is_empty() {
                return Err(Failure::new(format!(
                    "no sample holds a part of document {doc} ({})",
                    documents.in_words()
                )));
            }
            samples
        }
        (None, None) => return Err(Failure::new("nothing is asked for")),
    };
    if epochs == 0 || epoch.checked_add(epochs).is_none() {
        return Err(Failure::new(format!(
            "--epoch {epoch} with --epochs {epochs} names no epochs there can be"
        )));
    }
    super::manifest::bounded(&*order, epochs).map_err(|e| e.context("--epochs"))?;
    if order.num_epochs().is_some_and(|known| epoch + epochs > known) {
        return Err(Failure::new(format!(
            "epoch {} does not exist: the order has {} epoch(s)",
            epoch + epochs - 1,
            order.num_epochs().unwrap_or(0)
        )));
    }
    let bar = Progress::samples(
        "looking through the order",
        order.num_positions() * epochs,
        args.quiet,
    );
    let places = places_of(&*order, &samples, epoch..epoch + epochs, &|places| {
        bar.add(places)
    });
    bar.finish();
    let places = places?;
    if !args.json {
        if !args.quiet {
            writeln!(out, "documents    {}", documents.in_words())?;
        }
        writeln!(
            out,
            "found        {} in {} from epoch {epoch} on",
            count(places.len() as u64, "place"),
            count(epochs, "epoch")
        )?;
    }
    for (at, sample) in &places {
        let mut spans = documents.of_sample(*sample)?;
        if let Some(doc) = args.doc {
            spans.retain(|span| span.document == doc);
        }
        write_one(args.json, at, *sample, &spans, out)?;
    }
    out.flush()?;
    Ok(())
}

fn write_steps(
    args: &WhereArgs,
    documents: &Documents,
    consumed: &[Consumed],
    out: &mut Output,
) -> Result<(), Failure> {
    let packing = Packing::of(consumed);
    if args.json {
        let about = json!({
            "documents": documents.in_words(),
            "documents_cut": packing.cut,
            "documents_packed": packing.packed,
            "state_reset": false,
        });
        writeln!(out, "{about}")?;
    } else {
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        writeln!(out, "documents    {}", documents.in_words())?;
        writeln!(
            out,
            "packing      documents cut at the ends of samples: {}; several documents in a sample: {}",
            yes(packing.cut),
            yes(packing.packed)
        )?;
        writeln!(
            out,
            "             state, attention and positions reset at documents: no (an order moves samples only; a collator \
             with cu_seqlens or reset masks does that)"
        )?;
    }
    for sample in consumed {
        write_one(args.json, &sample.at, sample.sample, &sample.documents, out)?;
    }
    out.flush()?;
    Ok(())
}

fn write_one(
    json: bool,
    at: &At,
    sample: u64,
    documents: &[DocumentSpan],
    out: &mut Output,
) -> Result<(), Failure> {
    if json {
        let one = Consumed {
            at: *at,
            sample,
            documents: documents.to_vec(),
        };
        serde_json::to_writer(&mut *out, &one)?;
        writeln!(out)?;
        return Ok(());
    }
    let spans: Vec<String> = documents
        .iter()
        .map(|span| {
            let whole = span.start == 0 && span.end == span.sequence_len;
            let sequence = if span.sequence == span.document {
                String::new()
            } else {
                format!(" sequence {}", span.sequence)
            };
            let part = if span.part == 0 {
                String::new()
            } else {
                format!("dataset {} ", span.part)
            };
            format!(
                "{part}doc {}{sequence} {}",
                span.document,
                if whole {
                    format!("whole ({} tokens)", group(span.sequence_len))
                } else {
                    format!(
                        "tokens {}..{} of {}",
                        span.start,
                        span.end,
                        group(span.sequence_len)
                    )
                }
            )
        })
        .collect();
    writeln!(
        out,
        "epoch {} step {} micro_step {} rank {} slot {}  sample {sample}  {}",
        at.epoch,
        at.step,
        at.micro_step,
        at.rank,
        at.slot,
        spans.join(", ")
    )?;
    Ok(())
}
