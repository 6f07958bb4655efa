//! `loader prepare`: tokenizes text, and converts and joins token datasets.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::failure::{Failure, OrFix};
use super::header::{count, group};
use super::progress::Progress;
use crate::pipeline::StopSignal;
use crate::prepare::convert::{Unit, to_megatron, to_saved_folder};
use crate::prepare::encoder::Encoder;
use crate::prepare::tokenize::{EmptyDocuments, Target, TokenizeOptions, tokenize};
use crate::source::megatron::{Check, IndexedDataset, bin_path, idx_path};
use crate::source::megatron_idx::TokenType;
use crate::source::megatron_writer::merge;
use crate::source::options::DEFAULT_COLUMN;
use crate::source::{HfSource, SourceOptions};

/// `loader prepare`.
#[derive(Args, Debug)]
pub struct PrepareArgs {
    #[command(subcommand)]
    command: PrepareCommand,
}

#[derive(Subcommand, Debug)]
enum PrepareCommand {
    /// Text to tokens: rows as flash-linear-attention's preprocessing makes them, or a Megatron dataset. A killed run goes
    /// on where it stood when the command is given again.
    #[command(
        after_help = "Examples:\n  loader prepare tokenize --input speeches.parquet --tokenizer tokenizer.json --seq-length 128 --seed 42 \\\n    \
                      --num-proc 4 --out rows\n  loader prepare tokenize --input texts.jsonl.zst --tokenizer tokenizer.json \\\n    \
                      --format megatron --append-eod '</s>' --out data/mine"
    )]
    Tokenize(Box<TokenizeArgs>),
    /// A saved Hugging Face dataset to Megatron's .bin/.idx, or the other way round; what was written is read back and
    /// compared.
    #[command(
        after_help = "Examples:\n  loader prepare convert --cache-dir rows --vocab-size 32000 --out data/mine\n  \
                      loader prepare convert --data-path data/mine --out rows"
    )]
    Convert(ConvertArgs),
    /// Joins Megatron datasets of one token type, in the order given.
    #[command(after_help = "Example:\n  loader prepare merge --data-path part0 part1 part2 --out data/all")]
    Merge(MergeArgs),
}

/// Reads a vocabulary size. Token ids are 31 bits wide, so no model has a larger one.
fn vocabulary(text: &str) -> Result<u64, String> {
    let size = text
        .parse::<u64>()
        .ok()
        .filter(|size| (1..=1 << 31).contains(size));
    size.ok_or_else(|| {
        "a vocabulary size counts token ids: a whole number from 1 to 2147483648, the model's, padding included".to_owned()
    })
}

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A saved Hugging Face folder of rows of equal length.
    Hf,
    /// A Megatron dataset, .bin and .idx.
    Megatron,
}

/// What becomes of documents without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Empty {
    /// A document bound without a sequence, as Megatron's own script writes.
    Keep,
    /// Left out.
    Skip,
    /// The end token alone.
    EndToken,
}

#[derive(Args, Debug)]
struct TokenizeArgs {
    /// Files or folders of text: parquet, JSON lines (also .gz, .zst), Arrow.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    input: Vec<PathBuf>,
    /// Column or field that holds the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_column: String,
    /// tokenizer.json, or a folder with one.
    #[arg(long, value_name = "PATH")]
    tokenizer: PathBuf,
    /// Leave out the tokens that the tokenizer puts around each text.
    #[arg(long)]
    no_special_tokens: bool,
    /// The folder to make, or the prefix of the .bin and .idx files.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// What to make.
    #[arg(long, value_name = "FORMAT", default_value = "hf")]
    format: Format,
    /// Rows: their tokens.
    #[arg(long, value_name = "T", help_heading = "Rows (--format hf)")]
    seq_length: Option<usize>,
    /// Rows: seed of the shuffle of documents; without it they stay in order.
    #[arg(long, value_name = "SEED", help_heading = "Rows (--format hf)")]
    seed: Option<u64>,
    /// Rows: num_proc of the preprocessing to reproduce. It changes the rows: documents are cut into that many parts first.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Rows (--format hf)"
    )]
    num_proc: u64,
    /// Rows: documents of a batch. The tokens left over behind a batch's last whole row are dropped.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        help_heading = "Rows (--format hf)"
    )]
    batch_size: u64,
    /// Megatron: token put behind each document, by its text or id.
    #[arg(
        long,
        value_name = "TOKEN",
        allow_negative_numbers = true,
        help_heading = "Megatron (--format megatron)"
    )]
    append_eod: Option<String>,
    /// Megatron: vocabulary size that decides the width of a token (16 bits below 65500); default the tokenizer's.
    #[arg(
        long,
        value_name = "V",
        value_parser = vocabulary,
        allow_negative_numbers = true,
        help_heading = "Megatron (--format megatron)"
    )]
    vocab_size: Option<u64>,
    /// Megatron: what becomes of documents without a token.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "keep",
        help_heading = "Megatron (--format megatron)"
    )]
    empty_documents: Empty,
    /// Memory to stay within, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u64,
    /// Threads (default: all cores). They do not change the result.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Replace what is there.
    #[arg(long)]
    overwrite: bool,
    /// Throw an unfinished job away and start over.
    #[arg(long)]
    restart: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ConvertArgs {
    /// A Hugging Face dataset to turn into a Megatron one.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "data_path",
        required_unless_present = "data_path"
    )]
    cache_dir: Option<PathBuf>,
    /// Its split.
    #[arg(long, value_name = "NAME", requires = "cache_dir")]
    split: Option<String>,
    /// Its token column (default input_ids).
    #[arg(long, value_name = "NAME", requires = "cache_dir")]
    column: Option<String>,
    /// Vocabulary size that decides the width of a token: 16 bits below 65500, else 32. A larger id is refused.
    #[arg(
        long,
        value_name = "V",
        value_parser = vocabulary,
        allow_negative_numbers = true,
        requires = "cache_dir"
    )]
    vocab_size: Option<u64>,
    /// Id put behind each row.
    #[arg(
        long,
        value_name = "ID",
        requires = "cache_dir",
        allow_negative_numbers = true
    )]
    append_eod: Option<i32>,
    /// A Megatron dataset to turn into a saved folder: its path without .bin or .idx.
    #[arg(long, value_name = "PREFIX")]
    data_path: Option<PathBuf>,
    /// Rows are whole documents instead of stored sequences.
    #[arg(long, requires = "data_path")]
    documents: bool,
    /// The folder or prefix to make.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Replace what is there.
    #[arg(long)]
    overwrite: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct MergeArgs {
    /// The datasets, without ending.
    #[arg(long, value_name = "PREFIX", num_args = 1.., required = true)]
    data_path: Vec<PathBuf>,
    /// The prefix to make.
    #[arg(long, value_name = "PREFIX")]
    out: PathBuf,
    /// Replace what is there.
    #[arg(long)]
    overwrite: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &PrepareArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match &args.command {
        PrepareCommand::Tokenize(args) => run_tokenize(args, out),
        PrepareCommand::Convert(args) => run_convert(args, out),
        PrepareCommand::Merge(args) => run_merge(args, out),
    }
}

/// Shows one bar for each stage of the work, and stops it when the user asks for that.
struct Stages {
    bars: std::sync::Mutex<Option<(&'static str, Progress)>>,
    stop: StopSignal,
    quiet: bool,
}

impl Stages {
    fn new(quiet: bool) -> Result<Self, Failure> {
        Ok(Stages {
            bars: std::sync::Mutex::new(None),
            stop: StopSignal::install()?,
            quiet,
        })
    }

    fn set(&self, stage: &'static str, done: u64, of: u64) -> bool {
        let mut bars = self
            .bars
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if bars.as_ref().is_none_or(|(name, _)| *name != stage) {
            if let Some((_, bar)) = bars.take() {
                bar.finish();
            }
            *bars = Some((stage, Progress::of(stage, self.quiet)));
        }
        if let Some((_, bar)) = &*bars {
            bar.set(stage, done, of);
        }
        self.stop.requested().is_none()
    }

    fn finish(&self) {
        if let Some((_, bar)) = self
            .bars
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
        {
            bar.finish();
        }
    }
}

fn run_tokenize(args: &TokenizeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let target = match args.format {
        Format::Hf => {
            if args.append_eod.is_some() || args.vocab_size.is_some() || args.empty_documents != Empty::Keep {
                return Err(Failure::new(
                    "--append-eod, --vocab-size and --empty-documents are for --format megatron",
                )
                .fix("leave them out: rows hold what the tokenizer gives, end tokens included"));
            }
            let seq_length = args
                .seq_length
                .ok_or_else(|| Failure::new("the length of a row is not given").fix("give --seq-length T"))?;
            Target::Rows {
                seq_length,
                seed: args.seed,
                num_proc: args.num_proc,
                batch_size: args.batch_size,
            }
        }
        Format::Megatron => {
            if args.seq_length.is_some() || args.seed.is_some() || args.num_proc != 1 {
                return Err(Failure::new("--seq-length, --seed and --num-proc are for --format hf").fix(
                    "leave them out: Megatron's documents stay whole and in order, it cuts and shuffles when it trains",
                ));
            }
            let append_eod = match &args.append_eod {
                None => None,
                // A number is an id, checked with the other options; anything else is a token's text.
                Some(text) => Some(match text.parse::<i32>() {
                    Ok(id) => id,
                    _ => Encoder::open(&args.tokenizer, true)?.token_id(text)?,
                }),
            };
            Target::Megatron {
                append_eod,
                vocab_size: args.vocab_size,
                empty: match args.empty_documents {
                    Empty::Keep => EmptyDocuments::Keep,
                    Empty::Skip => EmptyDocuments::Skip,
                    Empty::EndToken => EmptyDocuments::EndToken,
                },
            }
        }
    };
    let options = TokenizeOptions {
        inputs: args.input.clone(),
        text_column: args.text_column.clone(),
        tokenizer: args.tokenizer.clone(),
        special_tokens: !args.no_special_tokens,
        out: args.out.clone(),
        target,
        memory: args.memory.saturating_mul(1 << 20),
        overwrite: args.overwrite,
        restart: args.restart,
    };
    let stages = Stages::new(args.json)?;
    let work = || tokenize(&options, &|stage, done, of| stages.set(stage, done, of));
    let done = match args.threads {
        None => work(),
        Some(threads) => rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .or_fix("give a smaller --threads")?
            .install(work),
    };
    stages.finish();
    let done = done?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &done)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    let counts = done.counts;
    writeln!(
        out,
        "{}, {}",
        count(counts.documents, "document"),
        count(counts.tokens, "token")
    )?;
    match options.target {
        Target::Rows { seq_length, .. } => writeln!(
            out,
            "{} of {seq_length} tokens; {} left over behind the batches' last rows are dropped",
            count(counts.rows, "row"),
            count(counts.dropped_tail_tokens, "token")
        )?,
        Target::Megatron { empty, .. } => {
            let rule = match empty {
                EmptyDocuments::Keep => "kept as document bounds without a sequence",
                EmptyDocuments::Skip => "left out",
                EmptyDocuments::EndToken => "kept as their end token alone",
            };
            writeln!(
                out,
                "{} written as {}; documents without a token: {}, {rule}",
                count(counts.rows, "document"),
                done.token_type,
                group(counts.empty_documents)
            )?;
        }
    }
    if done.resumed_units > 0 {
        writeln!(
            out,
            "went on with an interrupted job ({} done before)",
            count(done.resumed_units, "unit")
        )?;
    }
    for file in &done.files {
        writeln!(out, "{}", file.display())?;
    }
    Ok(out.flush()?)
}

/// Options of the other direction do nothing, so they are refused.
fn refuse_other_direction(args: &ConvertArgs) -> Result<(), Failure> {
    let (direction, given): (&str, &[(bool, &str)]) = if args.data_path.is_some() {
        (
            "--cache-dir, which makes a Megatron dataset",
            &[
                (args.split.is_some(), "--split"),
                (args.column.is_some(), "--column"),
                (args.vocab_size.is_some(), "--vocab-size"),
                (args.append_eod.is_some(), "--append-eod"),
            ],
        )
    } else {
        (
            "--data-path, which makes a saved Hugging Face folder",
            &[(args.documents, "--documents")],
        )
    };
    match given.iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, option)) => {
            Err(Failure::new(format!("{option} is for {direction}")).fix(format!("leave {option} out")))
        }
    }
}

fn run_convert(args: &ConvertArgs, out: &mut dyn Write) -> Result<(), Failure> {
    refuse_other_direction(args)?;
    let stages = Stages::new(args.json)?;
    let progress = |stage: &'static str, done, of| stages.set(stage, done, of);
    let (rows, tokens, kind, files) = if let Some(prefix) = &args.data_path {
        let data = IndexedDataset::open(prefix, Check::Full)?;
        let unit = if args.documents {
            Unit::Document
        } else {
            Unit::Sequence
        };
        let tokens = data.validate()?.tokens;
        let (rows, files) = to_saved_folder(&data, unit, &args.out, args.overwrite, &progress)?;
        (rows, tokens, "int32", files)
    } else {
        let folder = args.cache_dir.as_deref().unwrap_or(Path::new("."));
        let vocab_size = args.vocab_size.ok_or_else(|| {
            Failure::new("the vocabulary size decides the width of a token, and is not given")
                .fix("give --vocab-size V (the model's, padding included)")
        })?;
        if let Some(id) = args.append_eod
            && u64::try_from(id).map_or(true, |id| id >= vocab_size)
        {
            return Err(Failure::new(format!(
                "--append-eod {id} lies outside the vocabulary of {vocab_size} (ids 0 to {})",
                vocab_size - 1
            ))
            .fix("give the tokenizer's end-of-document id, or the --vocab-size of the model that has it"));
        }
        let options = SourceOptions {
            split: args.split.clone(),
            column: args.column.clone().unwrap_or_else(|| DEFAULT_COLUMN.to_owned()),
            vocab_size: u32::try_from(vocab_size).ok(),
            ..SourceOptions::default()
        };
        let source = HfSource::open(folder, &options)?;
        let token_type = TokenType::for_vocab(vocab_size);
        let written = to_megatron(
            &source,
            &args.out,
            token_type,
            args.append_eod,
            args.overwrite,
            &progress,
        )?;
        let files = vec![bin_path(&args.out), idx_path(&args.out)];
        (written.documents, written.tokens, token_type.name(), files)
    };
    stages.finish();
    report(out, args.json, "verified", rows, tokens, kind, &files)
}

fn run_merge(args: &MergeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let bar = Progress::bytes("joining", args.json);
    let written = merge(&args.data_path, &args.out, args.overwrite, |bytes| bar.add(bytes))?;
    bar.finish();
    let kind = IndexedDataset::open(&args.out, Check::Quick)?
        .index()
        .token_type()
        .name();
    let files = [bin_path(&args.out), idx_path(&args.out)];
    report(
        out,
        args.json,
        "joined",
        written.documents,
        written.tokens,
        kind,
        &files,
    )
}

fn report(
    out: &mut dyn Write,
    as_json: bool,
    what: &str,
    rows: u64,
    tokens: u64,
    kind: &str,
    files: &[PathBuf],
) -> Result<(), Failure> {
    if as_json {
        let value = json!({ "result": what, "documents": rows, "tokens": tokens, "token_type": kind, "files": files });
        serde_json::to_writer_pretty(&mut *out, &value)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "{what}: {}, {}, {kind}",
            count(rows, "document"),
            count(tokens, "token")
        )?;
        for file in files {
            writeln!(out, "{}", file.display())?;
        }
    }
    Ok(out.flush()?)
}
