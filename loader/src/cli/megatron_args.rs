//! Flags that name Megatron data (`.bin/.idx`) as Megatron's own do, and what the header says of it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ceteris_samplers::OrderSpec;
use ceteris_samplers::orders::blend::Shares;
use ceteris_samplers::orders::megatron::{DatasetOptions, MegatronOrder};
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_random::MegatronRandom;
use ceteris_samplers::orders::split::Split;
use clap::Args;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::config::Config;
use super::data_args::FilePath;
use super::failure::Failure;
use super::header::{Sheet, count, group};
use super::progress::Progress;
use super::select_args::eprint;
use crate::index::build::{BuildOptions, BuiltPart, BuiltSplit, build_split};
use crate::index::import::MegatronCaches;
use crate::index::plan::{BlendSpec, DataSpec, MegatronConfig};
use crate::index::store::{Outcome, Store};
use crate::source::megatron_gpt::GptSource;
use crate::source::{DatasetFingerprint, FingerprintMode, Source};

/// Megatron data.
#[derive(Args, Clone, Debug, Default)]
pub struct MegatronArgs {
    /// Megatron data in place of --cache-dir: a prefix (the path without .bin or .idx), several, or weights and prefixes
    /// in turn (0.3 A 0.7 B). --split then cuts each into train, valid and test ("969,30,1").
    #[arg(long, value_name = "WEIGHT PREFIX", num_args = 1.., allow_negative_numbers = true, help_heading = "Megatron data")]
    data_path: Vec<String>,
    /// The same for the train split alone, in place of --data-path and --split.
    #[arg(long, value_name = "WEIGHT PREFIX", num_args = 1.., allow_negative_numbers = true, help_heading = "Megatron data")]
    train_data_path: Vec<String>,
    /// The same for the valid split.
    #[arg(long, value_name = "WEIGHT PREFIX", num_args = 1.., allow_negative_numbers = true, help_heading = "Megatron data")]
    valid_data_path: Vec<String>,
    /// The same for the test split.
    #[arg(long, value_name = "WEIGHT PREFIX", num_args = 1.., allow_negative_numbers = true, help_heading = "Megatron data")]
    test_data_path: Vec<String>,
    /// The split to stream: train (the default), valid or test.
    #[arg(long, value_name = "NAME", help_heading = "Megatron data")]
    data_split: Option<Split>,
    /// Folder for built indices, tied to the content of the data: a second start with the same data builds nothing.
    #[arg(long, value_name = "DIR", help_heading = "Megatron data")]
    data_cache_path: Option<PathBuf>,
    /// With --data-cache-path: an error where indices would have to be built.
    #[arg(long, help_heading = "Megatron data")]
    no_rebuild: bool,
    /// Take the indices from a folder of Megatron's own cache as they are, checked against the data's lengths and bounds,
    /// to replay exactly what a run used. `loader index verify` says whether the data would give the same.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "data_cache_path",
        help_heading = "Megatron data"
    )]
    megatron_cache: Option<PathBuf>,
}

/// A data path in a file: a list, or one text with spaces.
#[derive(Clone, Debug, PartialEq)]
struct Items(Vec<String>);

impl fmt::Display for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |value: &Value| {
            serde::de::Error::custom(format!(
                "{value} is no data path: a text, or a list of weights and prefixes"
            ))
        };
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Items(text.split_whitespace().map(str::to_owned).collect())),
            Value::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text),
                    Value::Number(number) => Ok(number.to_string()),
                    other => Err(wrong(&other)),
                })
                .collect::<Result<_, _>>()
                .map(Items),
            other => Err(wrong(&other)),
        }
    }
}

/// Megatron data asked for, by flags and file together.
#[derive(Clone, Debug)]
pub struct MegatronChoice {
    data: DataSpec,
    split_asked: Option<Split>,
    /// The split to stream.
    pub split: Split,
    store: Option<Store>,
    import: Option<PathBuf>,
}

impl MegatronArgs {
    /// Flags and file together; `None` where no Megatron data is named. `split` is the value of --split.
    ///
    /// # Errors
    /// A failure naming what contradicts what.
    pub fn resolve(
        &self,
        config: &mut Config,
        split: Option<&str>,
    ) -> Result<Option<MegatronChoice>, Failure> {
        let mut items = |key: &str, flag: &[String]| -> Result<Option<BlendSpec>, Failure> {
            let flag = (!flag.is_empty()).then(|| Items(flag.to_vec()));
            let Some(items) = config.choose("data", key, flag)? else {
                return Ok(None);
            };
            let blend = BlendSpec::parse(&items.0).map_err(|e| Failure::new(format!("{key}: {e}")))?;
            if let Some(weight) = blend.lone_weight() {
                return Err(Failure::new(format!(
                    "{key}: {weight:?} is a weight without a path: {} items are all taken for prefixes, and no dataset \
                     has that name",
                    items.0.len()
                ))
                .fix("give a weight and a path in turn (0.3 A 0.7 B), or paths only"));
            }
            Ok(Some(blend))
        };
        let whole = items("data_path", &self.data_path)?;
        let parts = [
            items("train_data_path", &self.train_data_path)?,
            items("valid_data_path", &self.valid_data_path)?,
            items("test_data_path", &self.test_data_path)?,
        ];
        let split_asked = config.choose("data", "data_split", self.data_split)?;
        let folder =
            |config: &mut Config, key: &str, flag: &Option<PathBuf>| -> Result<Option<PathBuf>, Failure> {
                Ok(config
                    .choose("data", key, flag.clone().map(FilePath))?
                    .map(|path| path.0))
            };
        let cache = folder(config, "data_cache_path", &self.data_cache_path)?;
        let import = folder(config, "megatron_cache", &self.megatron_cache)?;
        let no_rebuild = config
            .choose("data", "no_rebuild", self.no_rebuild.then_some(true))?
            .unwrap_or(false);
        let data = match (whole, parts.iter().any(Option::is_some)) {
            (None, false) => return Ok(None),
            (Some(_), true) => {
                return Err(Failure::new("--data-path and a data path per split are both given").fix(
                    "give --data-path with --split, or --train-data-path, --valid-data-path and --test-data-path",
                ));
            }
            (Some(blend), false) => {
                let split = split.ok_or_else(|| {
                    Failure::new("--data-path needs --split, which cuts the data into train, valid and test")
                        .fix("give the run's --split (Megatron's default is 969,30,1; 100,0,0 is all for training)")
                })?;
                let odd = |c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | ' ' | '/'));
                if let Some(c) = split.chars().find(|&c| odd(c)) {
                    return Err(Failure::new(format!(
                        "--split {split}: {c:?} would be skipped by Megatron, which reads digits and points only"
                    ))
                    .fix("write three plain weights, as in 969,30,1"));
                }
                DataSpec::Cut {
                    blend,
                    split: split.to_owned(),
                }
            }
            (None, true) => {
                if let Some(split) = split {
                    return Err(Failure::new(format!(
                        "--split {split} and a data path per split are both given"
                    ))
                    .fix("leave --split out; --data-split says which split is streamed"));
                }
                DataSpec::PerSplit(parts)
            }
        };
        if no_rebuild && cache.is_none() {
            return Err(Failure::new("--no-rebuild is about a cache, and none is named")
                .fix("give --data-cache-path DIR"));
        }
        if cache.is_some() && import.is_some() {
            return Err(
                Failure::new("data_cache_path and megatron_cache are both given").fix("keep one of them")
            );
        }
        let store = cache.map(|folder| Store::new(&folder, no_rebuild));
        let split = split_asked.unwrap_or(Split::Train);
        Ok(Some(MegatronChoice {
            data,
            split_asked,
            split,
            store,
            import,
        }))
    }
}

/// Opened Megatron data.
pub struct OpenedMegatron {
    /// The samples.
    pub source: Arc<GptSource>,
    /// What the order goes through.
    pub dataset: Arc<MegatronDataset>,
    /// Lines and entries of the header.
    pub sheet: Sheet,
    /// Fingerprint of files, blend and split.
    pub fingerprint: String,
}

/// The dataset options of a Megatron order, `None` for any other order.
pub fn dataset_options(spec: &OrderSpec) -> Option<&DatasetOptions> {
    spec.downcast::<MegatronOrder>()
        .map(MegatronOrder::dataset_options)
        .or_else(|| {
            spec.downcast::<MegatronRandom>()
                .map(MegatronRandom::dataset_options)
        })
}

impl MegatronChoice {
    /// The datasets and how they are cut.
    pub fn data(&self) -> &DataSpec {
        &self.data
    }

    /// The data as the `data` section of a configuration; caches are left out.
    pub fn config_entries(&self) -> serde_json::Map<String, Value> {
        let items = |blend: &BlendSpec| -> Value {
            let weights = blend
                .weights
                .iter()
                .flatten()
                .map(|weight| Some(weight.to_string()));
            let weights = weights.chain(std::iter::repeat(None));
            let items = blend.prefixes.iter().zip(weights);
            items
                .flat_map(|(prefix, weight)| weight.into_iter().chain([prefix.clone()]))
                .collect()
        };
        let mut entries = serde_json::Map::new();
        match &self.data {
            DataSpec::Cut { blend, split } => {
                entries.insert("data_path".to_owned(), items(blend));
                entries.insert("split".to_owned(), split.clone().into());
            }
            DataSpec::PerSplit(blends) => {
                for (key, blend) in ["train_data_path", "valid_data_path", "test_data_path"]
                    .iter()
                    .zip(blends)
                {
                    if let Some(blend) = blend {
                        entries.insert((*key).to_owned(), items(blend));
                    }
                }
            }
        }
        entries.insert("data_split".to_owned(), self.split.name().into());
        entries
    }

    /// The split that was asked for.
    pub fn split_asked(&self) -> Option<Split> {
        self.split_asked
    }

    /// The cache that was asked for.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// The run's configuration, with the order's options.
    ///
    /// # Errors
    /// A failure for an order that is not Megatron's.
    pub fn config(&self, order: &OrderSpec, seq_length: u64) -> Result<MegatronConfig, Failure> {
        let options = dataset_options(order).ok_or_else(|| {
            Failure::new(format!("order {} goes over tables of rows, not over Megatron data", order.name()))
                .fix("use --order megatron or megatron-random, or turn the data into rows with `loader prepare convert`")
        })?;
        let seed = u64::try_from(options.seed().get()).unwrap_or(0);
        let mut config = MegatronConfig::new(self.data.clone(), seq_length, seed);
        config.num_samples[self.split.index()] = options.samples();
        config.add_extra_token_to_sequence = options.add_extra_token();
        config.drop_last_partial_validation_sequence = options.drop_last_partial_validation_sequence();
        config.mid_level_dataset_surplus = options.mid_level_dataset_surplus();
        Ok(config)
    }

    /// Opens the data and builds (or finds) its indices.
    ///
    /// # Errors
    /// What is wrong with the data or the configuration.
    pub fn open(
        &self,
        order: &OrderSpec,
        seq_length: Option<usize>,
        vocab_size: Option<u32>,
        quiet: bool,
    ) -> Result<OpenedMegatron, Failure> {
        let seq_length = seq_length
            .ok_or_else(|| Failure::new("the length of a sample is not given").fix("give --seq-length T"))?
            as u64;
        let config = self.config(order, seq_length)?;
        let datasets = config
            .blend_of(self.split)?
            .map_or(0, |(blend, _)| blend.prefixes.len());
        let import = self.import.as_deref().map(MegatronCaches::open).transpose()?;
        let bar = Progress::datasets("building the indices", datasets as u64, quiet);
        let options = BuildOptions {
            store: self.store.as_ref(),
            import: import.as_ref(),
            vocab_size,
            done: &|| bar.add(1),
        };
        let built = build_split(&config, self.split, &options);
        bar.finish();
        let built = built?.ok_or_else(|| {
            Failure::new(format!("the {} split has no data", self.split))
                .fix("choose another one with --data-split, or give it a weight in --split")
        })?;
        if built.dataset.is_empty() {
            return Err(Failure::new(format!(
                "the {} split holds no sample of {seq_length} tokens",
                self.split
            ))
            .fix("use a smaller --seq-length, or give the split more data"));
        }
        if !quiet {
            report_cache(&built);
        }
        let data = built.parts.iter().map(|part| Arc::clone(&part.data)).collect();
        let source = GptSource::new(
            data,
            Arc::clone(&built.dataset),
            seq_length,
            config.add_extra_token_to_sequence,
        )?;
        let bar = Progress::bytes("fingerprinting", quiet);
        let files =
            DatasetFingerprint::compute(&source.files(), FingerprintMode::Sampled, &|bytes| bar.add(bytes))?;
        bar.finish();
        let fingerprint = identity(&config, &built, &files.hash);
        let sheet = describe(&config, &built, &fingerprint, seq_length);
        Ok(OpenedMegatron {
            source: Arc::new(source),
            dataset: Arc::clone(&built.dataset),
            sheet,
            fingerprint,
        })
    }
}

/// What the cache came to, on stderr, where it is worth a word.
fn report_cache(built: &BuiltSplit) {
    for part in &built.parts {
        if let Outcome::Rebuilt { reason } = &part.outcome {
            eprint(&format!(
                "note: the cached index of {} is stale ({reason}); built anew\n",
                part.prefix
            ));
        }
    }
}

/// Fingerprint of the files together with how they are cut and blended, so that another blend of the same files is
/// another dataset. Folders are left out.
fn identity(config: &MegatronConfig, built: &BuiltSplit, files: &str) -> String {
    let (weights, size) = match &built.shares {
        None => (Value::Null, Value::Null),
        Some(Shares::Weighted { weights, size }) => (json!(weights), json!(size)),
        Some(Shares::Exhaustive { lengths }) => (json!(lengths), Value::Null),
    };
    let parts: Vec<Value> = built
        .parts
        .iter()
        .map(|part| json!([part.sequences.start, part.sequences.end, part.num_samples]))
        .collect();
    let about = json!([
        "ceteris megatron 1",
        built.split.name(),
        config.sequence_length,
        config.add_extra_token_to_sequence,
        config.drop_last_partial_validation_sequence,
        weights,
        size,
        parts,
        files,
    ]);
    blake3::hash(about.to_string().as_bytes()).to_hex().to_string()
}

/// Epochs' worth of samples that `draws` are of a part, one decimal digit beyond the point being enough.
fn epochs_drawn(part: &BuiltPart, draws: u64, config: &MegatronConfig) -> f64 {
    let extra = u64::from(config.add_extra_token_to_sequence);
    let per_epoch = part.index.rule.tokens_per_epoch.saturating_sub(extra) / config.sequence_length.max(1);
    if per_epoch == 0 {
        0.0
    } else {
        draws as f64 / per_epoch as f64
    }
}

fn describe(config: &MegatronConfig, built: &BuiltSplit, fingerprint: &str, seq_length: u64) -> Sheet {
    const SHOWN: usize = 12;
    let mut sheet = Sheet::default();
    let cut = match &config.data {
        DataSpec::Cut { split, .. } => format!("{} part of split {split}", built.split),
        DataSpec::PerSplit(_) => format!("{} data", built.split),
    };
    sheet.line(
        "dataset",
        format!(
            "Megatron data, {}, {cut}",
            count(built.parts.len() as u64, "dataset")
        ),
    );
    let blend = built.dataset.blend();
    let mut entries = Vec::new();
    for (i, part) in built.parts.iter().enumerate() {
        let draws = blend.map_or(part.index.len(), |blend| blend.counts()[i]);
        let epochs = epochs_drawn(part, draws, config);
        let share = match &built.shares {
            Some(Shares::Weighted { weights, .. }) => Some(weights[i]),
            Some(Shares::Exhaustive { lengths }) => {
                Some(lengths[i] as f64 / lengths.iter().sum::<u64>().max(1) as f64)
            }
            None => None,
        };
        if i < SHOWN {
            let share = share
                .map(|w| format!(", {:.4} % of the draws", w * 100.0))
                .unwrap_or_default();
            sheet.line(
                "",
                format!(
                    "{}: sequences {}..{} ({}), {}, {} ({epochs:.2} epochs) drawn{share}",
                    part.prefix,
                    part.sequences.start,
                    part.sequences.end,
                    part.data.index().token_type().name(),
                    count(part.index.rule.tokens_per_epoch, "token"),
                    count(draws, "sample"),
                ),
            );
            sheet.line("", rule_in_words(part, config.random_seed));
        }
        let rule = &part.index.rule;
        entries.push(json!({
            "prefix": part.prefix,
            "share": share,
            "first_sequence": part.sequences.start,
            "end_sequence": part.sequences.end,
            "token_type": part.data.index().token_type().name(),
            "num_samples_asked": part.num_samples,
            "samples": part.index.len(),
            "tokens_per_epoch": rule.tokens_per_epoch,
            "epochs_laid_out": rule.num_epochs,
            "separate_final_epoch": rule.separate_final_epoch,
            "draws": draws,
            "epochs_drawn": epochs,
            "cache": part.outcome,
            "index_hash": part.index_hash,
        }));
    }
    if built.parts.len() > SHOWN {
        sheet.line("", format!("and {} more", built.parts.len() - SHOWN));
    }
    let hits = built
        .parts
        .iter()
        .filter(|part| !matches!(part.outcome, Outcome::Built | Outcome::Rebuilt { .. }));
    if built.parts.iter().any(|part| part.index_hash.is_some()) {
        sheet.line(
            "cache",
            format!("{} of {} indices found there", hits.count(), built.parts.len()),
        );
    }
    sheet.line(
        "",
        format!("fingerprint of files, split and blend {fingerprint} (sampled)"),
    );
    let extra = if config.add_extra_token_to_sequence {
        ", each with one token more that the next one starts with"
    } else {
        ""
    };
    sheet.line(
        "samples",
        format!(
            "{} of {} tokens{extra}",
            group(built.dataset.len()),
            group(seq_length)
        ),
    );
    sheet.entry(
        "dataset",
        built
            .parts
            .iter()
            .map(|part| Value::from(part.prefix.clone()))
            .collect::<Vec<_>>(),
    );
    sheet.entry("dataset_kind", "megatron");
    sheet.entry("split", built.split.name());
    sheet.entry(
        "split_string",
        match &config.data {
            DataSpec::Cut { split, .. } => Value::from(split.clone()),
            DataSpec::PerSplit(_) => Value::Null,
        },
    );
    sheet.entry("datasets", entries);
    sheet.entry("samples", built.dataset.len());
    sheet.entry("seq_length", seq_length);
    sheet.entry("add_extra_token_to_sequence", config.add_extra_token_to_sequence);
    sheet.entry("dataset_fingerprint", fingerprint);
    sheet
}

/// Which shuffle rule was applied to the epochs of a dataset.
pub fn rule_in_words(part: &BuiltPart, seed: u64) -> String {
    let rule = &part.index.rule;
    let samples = group(part.index.len());
    match (rule.num_epochs, rule.separate_final_epoch) {
        (1, _) => format!("documents and their {samples} samples shuffled with seed {seed}, one epoch"),
        (n, Some(true)) => format!(
            "{n} epochs, {samples} samples, seed {seed}: the first {} are shuffled together, the last one on its own \
             (fewer than 80 % of its samples are needed)",
            n - 1
        ),
        (n, _) => format!(
            "{n} epochs, {samples} samples, seed {seed}: shuffled all together, so a document may come twice before \
             another comes once"
        ),
    }
}
