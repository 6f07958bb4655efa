//! `loader index`: builds indices of Megatron data ahead of a run, audits and lists caches.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ceteris_samplers::orders::blend::DEFAULT_SURPLUS;
use ceteris_samplers::orders::split::Split;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::failure::{Failure, OrFix};
use super::header::group;
use super::megatron_args::{MegatronArgs, rule_in_words};
use super::progress::Progress;
use super::{CONFIG_HELP, read_config};
use crate::index::build::{BuildOptions, BuiltSplit, build_split, open_split};
use crate::index::described::{Content, in_folder};
use crate::index::description::RunDescription;
use crate::index::megatron_cache::{default_folder, names, write_blend, write_gpt};
use crate::index::npy::NpyFile;
use crate::index::overlap::overlap;
use crate::index::plan::{DataSpec, MegatronConfig};
use crate::index::python_json::PyJson;
use crate::index::verify::{VerifyOptions, audit};

/// `loader index`.
#[derive(Args, Debug)]
pub struct IndexArgs {
    #[command(subcommand)]
    command: IndexCommand,
}

#[derive(Subcommand, Debug)]
enum IndexCommand {
    /// Builds the indices of all splits, for this program or for Megatron, on any machine without a GPU.
    #[command(
        after_help = "Examples:\n  loader index build --data-path 0.3 A 0.7 B --split 969,30,1 --seq-length 4096 --seed 1234 \\\n    \
                      --train-samples 1000000 --valid-samples 20000 --data-cache-path cache\n  \
                      loader index build --data-path A --split 100,0,0 --seq-length 4096 --seed 1234 --format megatron \\\n    \
                      --tokenizer-identifiers '{\"class\": \"HuggingFaceTokenizer\"}'"
    )]
    Build(Box<BuildArgs>),
    /// Audits a folder of Megatron's cache: every value against what the data gives. Exit code 1 when something differs.
    #[command(after_help = "Example:\n  loader index verify --data-cache-path data/cache/GPTDataset_indices")]
    Verify(VerifyArgs),
    /// What going on at another sequence length does to the order: refused, unless --allow-change, which reports how many
    /// tokens come again and how many never.
    #[command(
        after_help = "Example:\n  loader index change --data-path A --split 100,0,0 --seed 1234 --seq-length 4096 \\\n    \
                      --consumed-samples 50 --new-seq-length 8192 --allow-change"
    )]
    Change(Box<ChangeArgs>),
    /// Lists what a cache folder holds.
    #[command(after_help = "Example:\n  loader index show --data-cache-path cache")]
    Show(ShowArgs),
}

/// Whose cache is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheFormat {
    /// This program's: tied to the data's content.
    Ceteris,
    /// Megatron's, under the MD5 name it computes.
    Megatron,
}

#[derive(Args, Debug)]
struct BuildArgs {
    #[command(flatten)]
    data: MegatronArgs,
    /// How --data-path is cut into train, valid and test.
    #[arg(long, value_name = "A,B,C")]
    split: Option<String>,
    /// Tokens of a sample.
    #[arg(long, value_name = "T")]
    seq_length: Option<u64>,
    /// Seed of the run (Megatron's default is 1234).
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Samples asked of the train split (train_samples, or train_iters times the global batch). Default: one epoch.
    #[arg(long, value_name = "N")]
    train_samples: Option<u64>,
    /// Samples asked of the valid split.
    #[arg(long, value_name = "N")]
    valid_samples: Option<u64>,
    /// Samples asked of the test split.
    #[arg(long, value_name = "N")]
    test_samples: Option<u64>,
    /// Samples without the extra token (add_extra_token_to_sequence false).
    #[arg(long)]
    no_add_extra_token_to_sequence: bool,
    /// Keep what is left behind the last whole sample of the valid split.
    #[arg(long)]
    no_drop_last_partial_validation_sequence: bool,
    /// Margin built above what a blend asks of a dataset (default 0.005).
    #[arg(long, value_name = "X")]
    mid_level_dataset_surplus: Option<f64>,
    /// Whose cache to write.
    #[arg(long, value_name = "WHOSE", default_value = "ceteris")]
    format: CacheFormat,
    /// What the run's tokenizer calls itself (its unique_identifiers), as JSON or a file of it: part of the MD5 name.
    /// A description of an earlier cache shows it.
    #[arg(long, value_name = "JSON")]
    tokenizer_identifiers: Option<String>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct VerifyArgs {
    /// The folder.
    #[arg(long, value_name = "DIR")]
    data_cache_path: PathBuf,
    /// Where relative prefixes in the descriptions start: the folder Megatron was run in (default: this one).
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The run has no extra token.
    #[arg(long)]
    no_add_extra_token_to_sequence: bool,
    /// The run keeps the partial last sample of its valid split.
    #[arg(long)]
    no_drop_last_partial_validation_sequence: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ChangeArgs {
    #[command(flatten)]
    data: MegatronArgs,
    /// How --data-path is cut into train, valid and test.
    #[arg(long, value_name = "A,B,C")]
    split: Option<String>,
    /// Seed of the run.
    #[arg(long, value_name = "SEED")]
    seed: u64,
    /// Tokens of a sample so far.
    #[arg(long, value_name = "T")]
    seq_length: u64,
    /// Samples consumed so far.
    #[arg(long, value_name = "N")]
    consumed_samples: u64,
    /// Tokens of a sample from now on.
    #[arg(long, value_name = "T")]
    new_seq_length: u64,
    /// Samples asked of the split so far.
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Samples asked of the split from now on.
    #[arg(long, value_name = "N")]
    new_samples: Option<u64>,
    /// Go on in another order all the same, and say what that does.
    #[arg(long)]
    allow_change: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// The folder.
    #[arg(long, value_name = "DIR")]
    data_cache_path: PathBuf,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command. `Ok(false)`: an audit found something that differs.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &IndexArgs, out: &mut dyn Write) -> Result<bool, Failure> {
    match &args.command {
        IndexCommand::Build(args) => build(args, out).map(|()| true),
        IndexCommand::Verify(args) => verify(args, out),
        IndexCommand::Change(args) => change(args, out).map(|()| true),
        IndexCommand::Show(args) => show(args, out).map(|()| true),
    }
}

fn build(args: &BuildArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let split = config.choose("data", "split", args.split.clone())?;
    let seq_length = config.choose("data", "seq_length", args.seq_length)?;
    let choice = args.data.resolve(&mut config, split.as_deref())?.ok_or_else(|| {
        Failure::new("no Megatron data is named")
            .fix("give --data-path PREFIX, or --train-data-path and the like")
    })?;
    let need = |what: &str, value: Option<u64>| {
        value.ok_or_else(|| Failure::new(format!("{what} is not given")).fix(format!("give {what}")))
    };
    let (seq_length, seed) = (need("--seq-length", seq_length)?, need("--seed", args.seed)?);
    let tokenizer = match (&args.tokenizer_identifiers, args.format) {
        (None, CacheFormat::Ceteris) => None,
        (None, CacheFormat::Megatron) => {
            return Err(Failure::new(
                "Megatron's file names hash what the tokenizer calls itself, which is not given",
            )
            .fix(
                "give --tokenizer-identifiers, as it stands under \"tokenizer\" in a description of that run",
            ));
        }
        (Some(text), _) => Some(read_identifiers(text)?),
    };
    let mut run = MegatronConfig::new(choice.data().clone(), seq_length, seed);
    run.num_samples = [args.train_samples, args.valid_samples, args.test_samples];
    run.add_extra_token_to_sequence = !args.no_add_extra_token_to_sequence;
    run.drop_last_partial_validation_sequence = !args.no_drop_last_partial_validation_sequence;
    run.mid_level_dataset_surplus = args.mid_level_dataset_surplus.unwrap_or(DEFAULT_SURPLUS);
    let store = match (args.format, choice.store()) {
        (CacheFormat::Ceteris, None) => {
            return Err(Failure::new("where the cache lies is not given").fix("give --data-cache-path DIR"));
        }
        (CacheFormat::Ceteris, Some(store)) => Some(store),
        (CacheFormat::Megatron, _) => None,
    };
    let wanted: Vec<Split> = match choice.split_asked() {
        Some(split) => vec![split],
        None => Split::ALL.to_vec(),
    };
    let checking = BuildOptions {
        store,
        ..BuildOptions::default()
    };
    let mut opened = Vec::new();
    for split in wanted {
        let one = open_split(&run, split, &checking);
        let one = one.map_err(|e| Failure::from(e).context(format!("{split} split")))?;
        opened.extend(one.map(|one| (split, one)));
    }
    let mut built = Vec::new();
    for (split, one) in opened {
        let datasets = run.blend_of(split)?.map_or(0, |(blend, _)| blend.prefixes.len());
        let bar = Progress::datasets("building the indices", datasets as u64, args.json);
        let options = BuildOptions {
            store,
            done: &|| bar.add(1),
            ..BuildOptions::default()
        };
        let one = one.build(&run, &options);
        bar.finish();
        let one = one.map_err(|e| Failure::from(e).context(format!("{split} split")))?;
        if let Some(tokenizer) = &tokenizer
            && args.format == CacheFormat::Megatron
        {
            write_for_megatron(&run, seed, tokenizer, choice.store().map(|s| s.folder()), &one)?;
        }
        built.push(one);
    }
    if built.is_empty() {
        return Err(Failure::new("no split has data").fix("give a split a weight in --split"));
    }
    if args.json {
        let splits: Vec<Value> = built.iter().map(to_json).collect();
        serde_json::to_writer_pretty(&mut *out, &json!({ "splits": splits }))?;
        writeln!(out)?;
    } else {
        for one in &built {
            write_text(out, one, seed)?;
        }
    }
    Ok(out.flush()?)
}

fn read_identifiers(text: &str) -> Result<PyJson, Failure> {
    let json = if text.trim_start().starts_with('{') {
        text.to_owned()
    } else {
        fs::read_to_string(text).map_err(|e| {
            Failure::from(e).context(format!(
                "--tokenizer-identifiers {text}: neither JSON nor a readable file"
            ))
        })?
    };
    serde_json::from_str(&json).or_fix("give the tokenizer's unique_identifiers as a JSON object")
}

/// Megatron's own files; without a folder each dataset's lie beside its data, as Megatron does it (and no blend's).
fn write_for_megatron(
    run: &MegatronConfig,
    seed: u64,
    tokenizer: &PyJson,
    folder: Option<&Path>,
    built: &BuiltSplit,
) -> Result<(), Failure> {
    let description = RunDescription {
        random_seed: seed,
        sequence_length: run.sequence_length,
        split: match &run.data {
            DataSpec::Cut { split, .. } => Some(split.clone()),
            DataSpec::PerSplit(_) => None,
        },
        tokenizer: tokenizer.clone(),
    };
    let (parts, blend) = names(&description, built);
    let bar = Progress::datasets("writing", parts.len() as u64, false);
    for (part, name) in built.parts.iter().zip(&parts) {
        let folder = folder.map_or_else(|| default_folder(Path::new(&part.prefix)), Path::to_owned);
        write_gpt(&folder, name, &part.index)?;
        bar.add(1);
    }
    if let (Some(folder), Some(name), Some(blend)) = (folder, &blend, built.dataset.blend()) {
        write_blend(folder, name, blend)?;
    }
    bar.finish();
    Ok(())
}

fn to_json(built: &BuiltSplit) -> Value {
    let blend = built.dataset.blend();
    let parts: Vec<Value> = built
        .parts
        .iter()
        .enumerate()
        .map(|(i, part)| {
            json!({
                "prefix": part.prefix,
                "first_sequence": part.sequences.start,
                "end_sequence": part.sequences.end,
                "num_samples_asked": part.num_samples,
                "samples": part.index.len(),
                "epochs_laid_out": part.index.rule.num_epochs,
                "tokens_per_epoch": part.index.rule.tokens_per_epoch,
                "separate_final_epoch": part.index.rule.separate_final_epoch,
                "draws": blend.map_or(part.index.len(), |blend| blend.counts()[i]),
                "cache": part.outcome,
                "index_hash": part.index_hash,
            })
        })
        .collect();
    json!({
        "split": built.split.name(),
        "samples": built.dataset.len(),
        "blend": built.blend_outcome,
        "datasets": parts,
    })
}

fn write_text(out: &mut dyn Write, built: &BuiltSplit, seed: u64) -> io::Result<()> {
    writeln!(out, "{}: {} samples", built.split, group(built.dataset.len()))?;
    for part in &built.parts {
        writeln!(out, "  {}: {}", part.prefix, rule_in_words(part, seed))?;
        let hash = part
            .index_hash
            .as_deref()
            .map(|hash| format!(", index {hash}"))
            .unwrap_or_default();
        writeln!(out, "    {}{hash}", part.outcome)?;
    }
    Ok(())
}

fn verify(args: &VerifyArgs, out: &mut dyn Write) -> Result<bool, Failure> {
    let described = in_folder(&args.data_cache_path)?;
    if described.is_empty() {
        return Err(Failure::new(format!(
            "{}: no description of Megatron's is there (…-description.txt)",
            args.data_cache_path.display()
        ))
        .fix("give the folder Megatron caches in: --data-cache-path of the run, else PREFIX/cache/GPTDataset_indices"));
    }
    let options = VerifyOptions {
        root: args.root.clone(),
        add_extra_token_to_sequence: !args.no_add_extra_token_to_sequence,
        drop_last_partial_validation_sequence: !args.no_drop_last_partial_validation_sequence,
    };
    let bar = Progress::datasets("auditing", described.len() as u64, args.json);
    let audited: Vec<_> = described
        .iter()
        .map(|described| {
            let audited = audit(described, &options);
            bar.add(1);
            audited
        })
        .collect();
    bar.finish();
    let same = audited.iter().filter(|a| a.is_same()).count();
    let note =
        "a change of tokens that leaves all sequence lengths as they were cannot be seen in these files";
    if args.json {
        let report = json!({ "same": same, "datasets": audited, "note": note });
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        for one in &audited {
            write!(out, "{one}")?;
        }
        writeln!(out, "{same} of {} are what the data gives; {note}", audited.len())?;
    }
    out.flush()?;
    Ok(same == audited.len())
}

fn change(args: &ChangeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let choice = args
        .data
        .resolve(&mut read_config(None)?, args.split.as_deref())?
        .ok_or_else(|| {
            Failure::new("no Megatron data is named")
                .fix("give --data-path PREFIX, or --train-data-path and the like")
        })?;
    if !args.allow_change && args.seq_length != args.new_seq_length {
        return Err(Failure::new(format!(
            "going on at {} tokens a sample after {} samples of {} changes the order: the new one cuts and shuffles the \
             same tokens differently, so some come again and some never",
            args.new_seq_length, args.consumed_samples, args.seq_length
        ))
        .fix("keep the sequence length, or give --allow-change to see how many tokens that is"));
    }
    let build_at = |seq_length: u64, samples: Option<u64>| -> Result<BuiltSplit, Failure> {
        let mut run = MegatronConfig::new(choice.data().clone(), seq_length, args.seed);
        run.num_samples[choice.split.index()] = samples;
        let built = build_split(&run, choice.split, &BuildOptions::default())?;
        built.ok_or_else(|| Failure::new(format!("the {} split has no data", choice.split)))
    };
    let (old, new) = (
        build_at(args.seq_length, args.samples)?,
        build_at(args.new_seq_length, args.new_samples)?,
    );
    let mut reports = Vec::new();
    for (i, (before, after)) in old.parts.iter().zip(&new.parts).enumerate() {
        // In a blend each dataset is consumed in its own order, as far as the blend drew on it.
        let draws_of = |built: &BuiltSplit, upto: u64| match built.dataset.blend() {
            None => upto.min(built.dataset.len()),
            Some(blend) => (0..upto.min(blend.len()))
                .filter(|&k| blend.get(k).is_some_and(|(d, _)| d == i))
                .count() as u64,
        };
        let consumed = draws_of(&old, args.consumed_samples);
        let coming = draws_of(&new, args.consumed_samples)..draws_of(&new, new.dataset.len());
        let report = overlap(
            &before.data.index().lengths()?,
            before.sequences.clone(),
            (&before.index, 0..consumed),
            (&after.index, coming),
        )?;
        reports.push((before.prefix.clone(), report));
    }
    if args.json {
        let datasets: Vec<Value> = reports
            .iter()
            .map(|(prefix, report)| json!({ "prefix": prefix, "overlap": report }))
            .collect();
        serde_json::to_writer_pretty(&mut *out, &json!({ "datasets": datasets }))?;
        writeln!(out)?;
    } else {
        for (prefix, report) in &reports {
            writeln!(
                out,
                "{prefix}: of {} tokens {} were consumed; {} of them come again, {} others never come",
                group(report.tokens),
                group(report.consumed),
                group(report.again),
                group(report.never)
            )?;
        }
    }
    Ok(out.flush()?)
}

fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut listed = Vec::new();
    for described in in_folder(&args.data_cache_path)? {
        let (class, about, arrays): (&str, Value, &[&str]) = match &described.content {
            Ok(Content::Gpt(gpt)) => (
                "GPTDataset",
                json!({
                    "dataset_path": gpt.dataset_path,
                    "split": gpt.index_split.name(),
                    "num_samples": gpt.num_samples,
                    "sequence_length": gpt.sequence_length,
                    "random_seed": gpt.random_seed,
                    "split_string": gpt.split,
                }),
                &["document_index.npy", "sample_index.npy", "shuffle_index.npy"],
            ),
            Ok(Content::Blend {
                datasets,
                split,
                shares,
            }) => (
                "BlendedDataset",
                json!({ "datasets": datasets.len(), "split": split.name(), "draws": shares.size() }),
                &["dataset_index.npy", "dataset_sample_index.npy"],
            ),
            Err(reason) => ("unknown", json!({ "problem": reason }), &[]),
        };
        let shapes: Vec<Value> = arrays
            .iter()
            .map(|&what| match NpyFile::open(&described.path(what)) {
                Ok(array) => json!({ "file": what, "shape": array.header().shape, "type": array.header().element.descr() }),
                Err(e) => json!({ "file": what, "problem": e.to_string() }),
            })
            .collect();
        listed.push(json!({
            "name": described.name(),
            "whose": "megatron",
            "class": class,
            "md5_fits": described.md5_fits,
            "about": about,
            "arrays": shapes,
        }));
    }
    for (name, record) in crate::index::store::records(&args.data_cache_path)? {
        listed.push(json!({ "name": name, "whose": "ceteris", "about": record }));
    }
    if listed.is_empty() {
        return Err(Failure::new(format!(
            "{}: holds no index cache",
            args.data_cache_path.display()
        )));
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &listed)?;
        writeln!(out)?;
    } else {
        for one in &listed {
            writeln!(out, "{} ({})", text_of(&one["name"]), text_of(&one["whose"]))?;
            for key in ["class", "md5_fits", "about"] {
                match &one[key] {
                    Value::Null => {}
                    Value::Object(fields) => {
                        for (field, value) in fields {
                            writeln!(out, "  {field}: {}", text_of(value))?;
                        }
                    }
                    value => writeln!(out, "  {key}: {}", text_of(value))?,
                }
            }
            for array in one["arrays"].as_array().into_iter().flatten() {
                let what = if array["problem"].is_null() {
                    format!("{} of shape {}", text_of(&array["type"]), array["shape"])
                } else {
                    text_of(&array["problem"])
                };
                writeln!(out, "  {}: {what}", text_of(&array["file"]))?;
            }
        }
    }
    Ok(out.flush()?)
}

/// A JSON value as a reader wants it: text without quotes.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
