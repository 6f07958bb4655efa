//! Flags that say which dataset, and how its rows become samples.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::OrderSpec;
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::Config;
use super::failure::Failure;
use super::header::{Sheet, count, group};
use super::megatron_args::{MegatronArgs, MegatronChoice, OpenedMegatron};
use super::progress::Progress;
use super::select_args::eprint;
use crate::source::options::DEFAULT_COLUMN;
use crate::source::{FingerprintMode, HfSource, OnRagged, Source, SourceOptions};

/// The dataset.
#[derive(Args, Clone, Debug, Default)]
pub struct DataArgs {
    /// The Hugging Face dataset: a save_to_disk folder, a datasets cache folder, or .arrow or .parquet files.
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    cache_dir: Option<PathBuf>,
    /// Split, where the folder holds several; with --data-path how the data is cut into train, valid and test.
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    split: Option<String>,
    /// Token column (default input_ids).
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    column: Option<String>,
    /// An indices table (cache-*.arrow) to apply, as a dataset has after .shuffle() or .select(). `loader inspect` lists
    /// those in a folder; like load_from_disk, nothing applies them unasked.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    indices: Option<PathBuf>,
    /// Tokens of a sample (default: the rows' own length, if all have the same). Rows of another length are refused
    /// unless --on-ragged or --truncate say otherwise.
    #[arg(long, value_name = "T", help_heading = "Data")]
    seq_length: Option<usize>,
    /// What to do with rows of another length: error (the default), drop (leave them out and number the others anew)
    /// or pad (fill short ones up with --pad-id).
    #[arg(long, value_name = "WHAT", help_heading = "Data")]
    on_ragged: Option<Ragged>,
    /// Use the first --seq-length tokens of longer rows.
    #[arg(long, help_heading = "Data")]
    truncate: bool,
    /// Token that fills short rows.
    #[arg(long, value_name = "ID", help_heading = "Data")]
    pad_id: Option<u32>,
    /// Refuse token ids from V on; every row to be used is checked before the first output.
    #[arg(long, value_name = "V", help_heading = "Data")]
    vocab_size: Option<u32>,
    /// Folder for decoded copies of parquet and compressed arrow files (default $CETERIS_CACHE, else the user's cache).
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    decode_cache: Option<PathBuf>,
    #[command(flatten)]
    megatron: MegatronArgs,
}

/// [`OnRagged`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ragged {
    /// Refuse the dataset, naming the first such row.
    Error,
    /// Leave such rows out.
    Drop,
    /// Fill short rows up.
    Pad,
}

impl fmt::Display for Ragged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ragged::Error => "error",
            Ragged::Drop => "drop",
            Ragged::Pad => "pad",
        })
    }
}

/// A path in a file or flag.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct FilePath(pub(super) PathBuf);

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Where a dataset lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// A table of rows.
    Table(PathBuf),
    /// Megatron data.
    Megatron(Box<MegatronChoice>),
}

/// The dataset asked for, by flags and file together.
#[derive(Clone, Debug)]
pub struct DataChoice {
    /// Where it lies.
    pub place: Place,
    /// How to read it.
    pub options: SourceOptions,
}

impl DataArgs {
    /// The same flags but for those that set one of `keys`; another dataset leaves out what names this one.
    #[must_use]
    pub fn without(&self, keys: &[&str]) -> Self {
        let mut args = self.clone();
        let has = |key: &str| keys.contains(&key);
        if has("cache_dir") || has("data_path") {
            args.cache_dir = None;
            args.megatron = MegatronArgs::default();
        }
        if has("split") {
            args.split = None;
        }
        if has("column") {
            args.column = None;
        }
        if has("indices") {
            args.indices = None;
        }
        if has("seq_length") {
            args.seq_length = None;
        }
        if has("on_ragged") {
            args.on_ragged = None;
        }
        args.truncate &= !has("truncate");
        if has("pad_id") {
            args.pad_id = None;
        }
        args
    }

    /// Flags and file together.
    ///
    /// # Errors
    /// A failure when no dataset is named or a value has the wrong type.
    pub fn resolve(&self, config: &mut Config) -> Result<DataChoice, Failure> {
        let path =
            |config: &mut Config, key: &str, flag: &Option<PathBuf>| -> Result<Option<PathBuf>, Failure> {
                Ok(config
                    .choose("data", key, flag.clone().map(FilePath))?
                    .map(|path| path.0))
            };
        let cache_dir = path(config, "cache_dir", &self.cache_dir)?;
        let options = self.table_options(config)?;
        let place = match (
            cache_dir,
            self.megatron.resolve(config, options.split.as_deref())?,
        ) {
            (Some(_), Some(_)) => {
                return Err(Failure::new("a table of rows and Megatron data are both named")
                    .fix("give --cache-dir or --data-path, not both"));
            }
            (Some(cache_dir), None) => Place::Table(cache_dir),
            (None, Some(megatron)) => {
                refuse_table_options(&options)?;
                Place::Megatron(Box::new(megatron))
            }
            (None, None) => {
                return Err(Failure::new("no dataset is named").fix(
                    "give --cache-dir DIR (or --data-path for Megatron data), or `data: { cache_dir: … }` in a --config \
                     file; `loader ids` needs no dataset",
                ));
            }
        };
        Ok(DataChoice { place, options })
    }

    /// How a table of rows is to be read.
    ///
    /// # Errors
    /// A failure when a value has the wrong type.
    pub fn table_options(&self, config: &mut Config) -> Result<SourceOptions, Failure> {
        let path =
            |config: &mut Config, key: &str, flag: &Option<PathBuf>| -> Result<Option<PathBuf>, Failure> {
                Ok(config
                    .choose("data", key, flag.clone().map(FilePath))?
                    .map(|path| path.0))
            };
        let on_ragged = config.choose("data", "on_ragged", self.on_ragged)?;
        Ok(SourceOptions {
            split: config.choose("data", "split", self.split.clone())?,
            column: config
                .choose("data", "column", self.column.clone())?
                .unwrap_or_else(|| DEFAULT_COLUMN.to_string()),
            indices: path(config, "indices", &self.indices)?,
            seq_length: config.choose("data", "seq_length", self.seq_length)?,
            on_ragged: match on_ragged {
                None | Some(Ragged::Error) => OnRagged::Error,
                Some(Ragged::Drop) => OnRagged::Drop,
                Some(Ragged::Pad) => OnRagged::Pad,
            },
            truncate: config
                .choose("data", "truncate", self.truncate.then_some(true))?
                .unwrap_or(false),
            pad_id: config.choose("data", "pad_id", self.pad_id)?,
            vocab_size: config.choose("data", "vocab_size", self.vocab_size)?,
            decode_cache: path(config, "decode_cache", &self.decode_cache)?,
        })
    }
}

/// An opened dataset and what the header says of it.
pub struct OpenedData {
    /// The rows.
    pub source: Arc<dyn Source>,
    /// Lines and entries of the header.
    pub sheet: Sheet,
    /// Content fingerprint of its files.
    pub fingerprint: String,
    /// Tokens of a sample: as asked for, else the common length of all rows.
    pub seq_length: Option<usize>,
    /// What a Megatron order goes through, where the data is Megatron's.
    pub megatron: Option<Arc<MegatronDataset>>,
}

/// Options that only tables of rows have, given with Megatron data.
fn refuse_table_options(options: &SourceOptions) -> Result<(), Failure> {
    let given = [
        (options.column != DEFAULT_COLUMN, "--column"),
        (options.indices.is_some(), "--indices"),
        (options.truncate, "--truncate"),
        (options.on_ragged == OnRagged::Drop, "--on-ragged drop"),
    ];
    match given.iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::new(format!(
            "{option} is about tables of rows, and the data is Megatron's"
        ))
        .fix(format!("leave {option} out"))),
    }
}

impl DataChoice {
    /// The choice as the `data` section of a configuration.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn config_entries(&self) -> Result<Map<String, Value>, Failure> {
        let mut entries = match serde_json::to_value(&self.options)? {
            Value::Object(entries) => entries,
            _ => Map::new(),
        };
        // Where copies are kept is not a property of the run.
        entries.remove("decode_cache");
        match &self.place {
            Place::Table(cache_dir) => {
                entries.insert("cache_dir".to_owned(), serde_json::to_value(cache_dir)?);
            }
            Place::Megatron(choice) => {
                // Those of a table's options that have values of their own are refused beside Megatron data.
                for key in ["column", "on_ragged", "truncate", "split"] {
                    entries.remove(key);
                }
                entries.extend(choice.config_entries());
            }
        }
        Ok(entries)
    }

    /// The dataset is a table of rows, the same under every order.
    pub fn is_table(&self) -> bool {
        matches!(self.place, Place::Table(_))
    }

    /// Opens the dataset and describes it; Megatron data is indexed for `order`. Warnings about it go to stderr unless
    /// `quiet`.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn open(&self, order: &OrderSpec, quiet: bool) -> Result<OpenedData, Failure> {
        let cache_dir = match &self.place {
            Place::Table(cache_dir) => cache_dir,
            Place::Megatron(choice) => {
                let OpenedMegatron {
                    source,
                    dataset,
                    sheet,
                    fingerprint,
                } = choice.open(order, self.options.seq_length, self.options.vocab_size, quiet)?;
                return Ok(OpenedData {
                    source,
                    sheet,
                    fingerprint,
                    seq_length: self.options.seq_length,
                    megatron: Some(dataset),
                });
            }
        };
        let bar = Progress::bytes("opening", quiet);
        let opened = HfSource::open_with(cache_dir, &self.options, &|what, done, of| {
            bar.set(what, done, of)
        });
        bar.finish();
        let source = opened?;
        for warning in source.warnings().iter().filter(|_| !quiet) {
            eprint(&format!("warning: {warning}\n"));
        }
        let bar = Progress::bytes("fingerprinting", quiet);
        let fingerprint = source.fingerprint(FingerprintMode::Sampled, &|bytes| bar.add(bytes))?;
        bar.finish();
        let sheet = describe(&source, &fingerprint.hash);
        Ok(OpenedData {
            seq_length: source.sample_length(),
            source: Arc::new(source),
            sheet,
            megatron: None,
            fingerprint: fingerprint.hash,
        })
    }
}

fn describe(source: &HfSource, fingerprint: &str) -> Sheet {
    let mut sheet = Sheet::default();
    let files = count(source.files().len() as u64, "file");
    let split = source
        .split()
        .map(|split| format!(", split {split}"))
        .unwrap_or_default();
    let options = source.options();
    sheet.line(
        "dataset",
        format!("{}: {}{split}", source.root().display(), source.kind().describe()),
    );
    sheet.line(
        "",
        format!(
            "{files}, {}, column {} of {}",
            count(source.stored_rows(), "row"),
            options.column,
            source.token_type()
        ),
    );
    sheet.line("", format!("fingerprint of the files {fingerprint} (sampled)"));
    if let Some(indices) = &options.indices {
        sheet.line("", format!("through the indices table {}", indices.display()));
    }
    let (samples, lengths) = (source.num_samples(), source.row_lengths());
    let mut text = group(samples);
    match source.sample_length() {
        Some(length) => text.push_str(&format!(" of {} tokens", group(length as u64))),
        None => text.push_str(&format!(
            " of {} to {} tokens",
            group(lengths.min),
            group(lengths.max)
        )),
    }
    if options.truncate && lengths.max > options.seq_length.unwrap_or(usize::MAX) as u64 {
        text.push_str(&format!(
            "; rows have up to {}, what is beyond is never used",
            group(lengths.max)
        ));
    }
    if source.dropped_rows() > 0 {
        text.push_str(&format!(
            "; {} rows of another length are left out",
            group(source.dropped_rows())
        ));
    }
    if options.on_ragged == OnRagged::Pad {
        text.push_str(&format!(
            "; shorter rows are filled up with {}",
            options.pad_id.unwrap_or(0)
        ));
    }
    sheet.line("samples", text);
    sheet.entry("dataset", source.root().display().to_string());
    sheet.entry("dataset_kind", source.kind().describe());
    sheet.entry("split", source.split());
    sheet.entry("column", options.column.clone());
    sheet.entry("column_type", source.token_type());
    sheet.entry(
        "indices",
        options.indices.as_ref().map(|path| path.display().to_string()),
    );
    sheet.entry("samples", samples);
    sheet.entry("stored_rows", source.stored_rows());
    sheet.entry("dropped_rows", source.dropped_rows());
    sheet.entry("seq_length", source.sample_length());
    sheet.entry("dataset_fingerprint", fingerprint);
    sheet
}
