//! `loader audit`: begin and end tokens, empty documents, ids, padding, duplicates; and what an order takes from each
//! dataset of a mix.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::composition::Composition;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::config::Config;
use super::data_args::DataArgs;
use super::failure::{Failure, OrFix};
use super::header::{Sheet, count, group};
use super::order_args::OrderArgs;
use super::output::Output;
use super::progress::Progress;
use super::select_args::eprint;
use super::{CONFIG_HELP, read_config};
use crate::provenance::audit::{Audit, Frequency, SpecialIds, audit};
use crate::provenance::document_mix::{DocumentShare, documents_taken};
use crate::provenance::mix::Mix;
use crate::provenance::special_ids;
use crate::report::words::percent;
use crate::source::megatron::{Check, IndexedDataset, idx_path};
use crate::source::{HfSource, Source};

/// Flags of `loader audit`.
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// The corpus: a dataset folder, .arrow or .parquet files, or the prefix of a Megatron dataset. Each row (or stored
    /// sequence) is a document. With --order the data is named by --cache-dir or --data-path instead.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Token that begins a document (default: the tokenizer's, else what most documents start with).
    #[arg(long, value_name = "ID")]
    bos_id: Option<i32>,
    /// Token that ends a document (default: the tokenizer's, else what most documents end with).
    #[arg(long, value_name = "ID")]
    eos_id: Option<i32>,
    /// tokenizer.json, or the folder that holds it: names begin, end and padding tokens and the vocabulary's size.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// With --order: epochs to go through (default 1).
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Write nothing to stderr but errors.
    #[arg(long, short)]
    quiet: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// Runs the command; `false` when tokens lie outside the vocabulary.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &AuditArgs, out: &mut Output) -> Result<bool, Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let with_order = args.order.is_named() || !config.order_options().is_empty();
    let (found, parts) = match (&args.path, with_order) {
        (Some(path), false) => (Some(corpus(args, path, &mut config)?), None),
        (None, true) => (None, Some(mix(args, &mut config)?)),
        (Some(path), true) => {
            return Err(Failure::new(format!(
                "{} is a corpus, and --order asks what an order takes of a dataset",
                path.display()
            ))
            .fix("audit the corpus without --order, or name the data with --cache-dir or --data-path"));
        }
        (None, false) => {
            return Err(Failure::new("no corpus is named").fix(
                "loader audit PATH, or --order NAME with --cache-dir DIR for what an order takes of a mix",
            ));
        }
    };
    if !args.quiet {
        for note in config.take_notes() {
            eprint(&format!("note: {note}\n"));
        }
    }
    if args.json {
        let report = json!({"ceteris_audit": 1, "corpus": found, "composition": parts});
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        if let Some(found) = &found {
            write!(out, "{}", text(found))?;
        }
        if let Some(parts) = &parts {
            write!(out, "{}", mix_text(parts))?;
        }
    }
    out.flush()?;
    Ok(found.is_none_or(|found| found.outside_vocabulary.unwrap_or(0) == 0))
}

fn corpus(args: &AuditArgs, path: &std::path::Path, config: &mut Config) -> Result<Audit, Failure> {
    let mut options = args.data.table_options(config)?;
    let mut ids = match &args.tokenizer {
        Some(path) => special_ids::read(path).or_fix("give tokenizer.json, or the folder that holds it")?,
        None => SpecialIds::default(),
    };
    ids.bos = args.bos_id.or(ids.bos);
    ids.eos = args.eos_id.or(ids.eos);
    let pad = options.pad_id.and_then(|id| i32::try_from(id).ok());
    ids.pad = pad.or(ids.pad);
    ids.vocab_size = options.vocab_size.or(ids.vocab_size);
    // Ids outside the vocabulary are to be counted, not to end the audit.
    (options.vocab_size, options.pad_id) = (None, None);
    let indexed = idx_path(path).is_file() || path.extension().is_some_and(|e| e == "bin" || e == "idx");
    let source: Arc<dyn Source> = if indexed {
        Arc::new(IndexedDataset::open(path, Check::Full)?)
    } else {
        Arc::new(HfSource::open(path, &options)?)
    };
    let progress = Progress::samples("reading documents", source.num_samples(), args.quiet);
    let found = audit(&*source, ids, &|more| progress.add(more));
    progress.finish();
    Ok(found?)
}

/// The datasets of a mix and what the order takes of them.
#[derive(Serialize)]
struct Taken {
    datasets: Vec<String>,
    #[serde(flatten)]
    composition: Composition,
    /// Of each dataset, where samples are cut out of documents.
    documents: Option<Vec<DocumentShare>>,
}

fn mix(args: &AuditArgs, config: &mut Config) -> Result<Taken, Failure> {
    let choice = args.order.resolve(config)?;
    let data = args.data.resolve(config)?;
    let epochs = config.choose("run", "epochs", args.epochs)?.unwrap_or(1);
    let opened = data.open(&choice.spec, args.quiet)?;
    let samples = opened.source.num_samples();
    let order = choice.build(samples, opened.megatron.clone())?;
    let mix = Mix::of(Some(&*opened.source), Some(order.spec()), samples)
        .ok_or_else(|| Failure::new("the parts of this dataset are not ranges of its samples"))?;
    let progress = Progress::samples(
        "going through the order",
        order.num_positions() * epochs,
        args.quiet,
    );
    let composition = mix.composition(&*order, 0..epochs, &|more| progress.add(more));
    progress.finish();
    let progress = Progress::samples(
        "going through the documents",
        order.num_positions() * epochs,
        args.quiet,
    );
    let documents = documents_taken(&*opened.source, &*order, 0..epochs, &|more| progress.add(more));
    progress.finish();
    Ok(Taken {
        datasets: mix.names().to_vec(),
        composition: composition?,
        documents: documents?,
    })
}

fn text(found: &Audit) -> String {
    let mut sheet = Sheet::default();
    let whole = found.documents - found.empty_documents;
    sheet.line(
        "documents",
        format!(
            "{}, {}, {} to {} tokens each; {} empty",
            group(found.documents),
            count(found.tokens, "token"),
            group(found.shortest),
            group(found.longest),
            group(found.empty_documents)
        ),
    );
    let id = |id: Option<i32>, inferred: bool| match id {
        Some(id) if inferred => format!("{id} (what most documents have there)"),
        Some(id) => id.to_string(),
        None => "none known".to_owned(),
    };
    sheet.line(
        "begin token",
        format!(
            "{}: {} of documents start with it, {} hold it inside",
            id(found.ids.bos, found.bos_inferred),
            percent(found.start_with_bos, whole),
            group(found.bos_inside)
        ),
    );
    sheet.line(
        "end token",
        format!(
            "{}: {} of documents end with it, {} hold it inside",
            id(found.ids.eos, found.eos_inferred),
            percent(found.end_with_eos, whole),
            group(found.eos_inside)
        ),
    );
    sheet.line("convention", found.convention.in_words());
    let frequent = |most: &[Frequency]| {
        let words: Vec<String> = most
            .iter()
            .map(|f| format!("{} ({})", f.id, percent(f.documents, whole)))
            .collect();
        words.join(", ")
    };
    sheet.line("first tokens", frequent(&found.first_tokens));
    sheet.line("last tokens", frequent(&found.last_tokens));
    if let Some((largest, document)) = found.largest_id {
        let vocabulary = match (found.ids.vocab_size, found.outside_vocabulary) {
            (Some(size), Some(0)) => format!("; all are inside the vocabulary of {}", group(size.into())),
            (Some(size), Some(outside)) => format!(
                "; {} outside the vocabulary of {}",
                count(outside, "token"),
                group(size.into())
            ),
            _ => String::new(),
        };
        sheet.line(
            "largest id",
            format!("{largest} (first in document {document}){vocabulary}"),
        );
    }
    if let Some(padding) = found.padding {
        sheet.line(
            "padding",
            format!(
                "{} ({} of all tokens)",
                count(padding, "token"),
                percent(padding, found.tokens)
            ),
        );
    }
    let mut duplicates = format!(
        "{} repeat an earlier one, token by token",
        count(found.duplicate_documents, "document")
    );
    if let Some(most) = found.duplicate_groups.first() {
        duplicates.push_str(&format!(
            "; the most frequent comes {} times (documents {}, …)",
            group(most.count),
            super::header::some_of(&most.documents)
        ));
    }
    sheet.line("duplicates", duplicates);
    for warning in &found.warnings {
        sheet.line("warning", warning.clone());
    }
    sheet.text()
}

fn mix_text(taken: &Taken) -> String {
    let mut sheet = Sheet::default();
    for (which, (name, share)) in taken.datasets.iter().zip(&taken.composition.sources).enumerate() {
        if let Some(documents) = taken.documents.as_ref().and_then(|all| all.get(which)) {
            sheet.line(
                "dataset",
                format!(
                    "{name}: {} consumed ({:.2} % of the run), {} of {}, {:.2} epochs of them",
                    count(share.drawn, "sample"),
                    100.0 * share.share,
                    count(documents.tokens, "token"),
                    count(documents.documents, "document"),
                    documents.epochs
                ),
            );
            sheet.line(
                "",
                match (documents.first_repeat_document, documents.first_repeat_step) {
                    (Some(document), Some(step)) => {
                        format!(
                            "first document to start a second time: {document}, in step {}",
                            group(step)
                        )
                    }
                    _ => "no document starts a second time".to_owned(),
                },
            );
            continue;
        }
        sheet.line(
            "dataset",
            format!(
                "{name}: {} consumed of {}, {:.2} epochs, {:.2} % of the run",
                group(share.drawn),
                count(share.rows, "sample"),
                share.epochs,
                100.0 * share.share
            ),
        );
        sheet.line(
            "",
            match (share.first_repeat_draw, share.first_repeat_step) {
                (Some(draw), Some(step)) => format!(
                    "first sample consumed a second time: sample {} of the run, in step {}",
                    group(draw),
                    group(step)
                ),
                _ => "no sample is consumed a second time".to_owned(),
            },
        );
    }
    sheet.text()
}
