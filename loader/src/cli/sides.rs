//! What a side of `loader diff` may be: an order by name, a configuration or manifest, a log, token files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceteris_samplers::{Geometry, Order, orders};
use serde_json::{Map, json};

use super::config::Config;
use super::data_args::{DataArgs, DataChoice};
use super::failure::{Failure, OrFix};
use super::order_args::{OrderArgs, OrderChoice};
use super::plan::Plan;
use super::progress::Progress;
use super::ranges::StepRange;
use super::token_files::{array, stored};
use crate::diff::lines::Lines;
use crate::diff::side::{Part, Side, planned};
use crate::provenance::log::RunLog;
use crate::provenance::manifest::Manifest;
use crate::source::megatron::{Check, IndexedDataset, idx_path};
use crate::source::{FingerprintMode, HfSource, SourceOptions};

/// Flags that both sides share.
pub struct Shared<'a> {
    /// Order options and layout.
    pub order: &'a OrderArgs,
    /// The dataset.
    pub data: &'a DataArgs,
    /// Rows of the dataset, where there is none.
    pub num_samples: Option<u64>,
    /// First epoch, number of epochs, steps.
    pub epoch: Option<u64>,
    /// Number of epochs.
    pub epochs: Option<u64>,
    /// Optimizer steps.
    pub steps: Option<StepRange>,
    /// Nothing on stderr but errors.
    pub quiet: bool,
}

/// A side, named but not opened.
pub enum Named {
    /// An order.
    Order(Box<NamedOrder>),
    /// A log.
    Log(PathBuf),
    /// A table of rows in stored sequence.
    Table(PathBuf),
    /// Sequences of a Megatron dataset in stored sequence.
    Indexed(PathBuf),
    /// Rows of tokens in an array.
    Array(PathBuf),
}

/// An order named as a side: what it says of itself, and the shared flags that remain.
pub struct NamedOrder {
    config: Config,
    order: OrderArgs,
    data: DataArgs,
    /// Epoch, epochs, steps and number of samples by flag.
    part: (Option<u64>, Option<u64>, Option<StepRange>, Option<u64>),
    label: String,
}

impl NamedOrder {
    /// `own` keys are those of the side alone: a shared flag does not touch them.
    fn new(config: Config, label: &str, own: &[&str], shared: &Shared<'_>) -> Self {
        let has = |key: &str| own.contains(&key);
        Self {
            config,
            order: shared.order.without(own),
            data: shared.data.without(own),
            part: (
                shared.epoch.filter(|_| !has("epoch")),
                shared.epochs.filter(|_| !has("epochs")),
                shared.steps.filter(|_| !has("steps")),
                shared.num_samples.filter(|_| {
                    !["num_samples", "cache_dir", "data_path"]
                        .iter()
                        .any(|key| has(key))
                }),
            ),
            label: label.to_owned(),
        }
    }
}

/// Geometry keys that a side may set for itself.
const RUN_KEYS: &[&str] = &[
    "world_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "epoch",
    "epochs",
    "steps",
];
/// Keys of the dataset that a side may set for itself.
const DATA_KEYS: &[&str] = &[
    "cache_dir",
    "split",
    "column",
    "indices",
    "seq_length",
    "on_ragged",
    "truncate",
    "pad_id",
    "num_samples",
    "data_path",
    "data_split",
];

impl Named {
    /// Reads what a side names.
    ///
    /// # Errors
    /// A failure that lists what a side may be.
    pub fn parse(text: &str, shared: &Shared<'_>) -> Result<Self, Failure> {
        let mut parts = split_commas(text).into_iter();
        let name = parts.next().unwrap_or_default();
        if orders::entry(&name).is_some() {
            return Self::inline(&name, parts, text, shared);
        }
        let path = PathBuf::from(text);
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if idx_path(&path).is_file() || (matches!(ending, "bin" | "idx") && path.is_file()) {
            return Ok(Self::Indexed(path));
        }
        if !path.exists() {
            let names: Vec<&str> = orders::REGISTRY.iter().map(|entry| entry.name).collect();
            return Err(Failure::new(format!("`{text}` is no order and no file that is there")).fix(format!(
                "a side is an order ({}) with its own options behind commas, as in fla,seed=43; a run as .yaml; a manifest; a \
                 log (.jsonl or a folder of them); a dataset folder, a Megatron prefix or an .npy file",
                names.join(", ")
            )));
        }
        match ending {
            "jsonl" => Ok(Self::Log(path)),
            "npy" => Ok(Self::Array(path)),
            "yaml" | "yml" => Ok(Self::order(Config::read(&path)?, text, &[], shared)),
            "json" => {
                let manifest = Manifest::read(&path)?;
                let config = Config::from_json(&path, manifest.config())?;
                Ok(Self::order(config, text, &[], shared))
            }
            _ if path.is_dir() && holds_logs(&path) => Ok(Self::Log(path)),
            _ => Ok(Self::Table(path)),
        }
    }

    /// `NAME,key=value,…`: what the side says of itself wins over the shared flags.
    fn inline(
        name: &str,
        pairs: impl Iterator<Item = String>,
        text: &str,
        shared: &Shared<'_>,
    ) -> Result<Self, Failure> {
        let (mut data, mut order, mut run) = (Map::new(), Map::new(), Map::new());
        order.insert("name".to_owned(), name.into());
        for pair in pairs {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Failure::new(format!("`{pair}` in `{text}` is no option"))
                    .fix("write key=value, as in fla,seed=43")
            })?;
            let key = key.trim().replace('-', "_");
            let yaml: serde_yaml::Value = serde_yaml::from_str(value)?;
            let value = serde_json::to_value(yaml)?;
            let section = if RUN_KEYS.contains(&key.as_str()) {
                &mut run
            } else if DATA_KEYS.contains(&key.as_str()) {
                &mut data
            } else {
                &mut order
            };
            if section.insert(key.clone(), value).is_some() {
                return Err(Failure::new(format!("`{text}` gives {key} twice")));
            }
        }
        let config = json!({"data": data.clone(), "order": order.clone(), "run": run.clone()});
        let config = Config::from_json(Path::new(text), config)?;
        let keys = order.keys().chain(run.keys()).chain(data.keys());
        let own: Vec<&str> = keys.map(String::as_str).collect();
        Ok(Self::order(config, text, &own, shared))
    }

    fn order(config: Config, label: &str, own: &[&str], shared: &Shared<'_>) -> Self {
        Self::Order(Box::new(NamedOrder::new(config, label, own, shared)))
    }

    /// Opens the side. `covering` is a log that the other side is: an order is then listed where the log has lines, a log
    /// is taken to have steps of as many samples.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(self, shared: &Shared<'_>, covering: Option<&RunLog>) -> Result<Side, Failure> {
        match self {
            Self::Order(order) => open_order(*order, shared.quiet, covering),
            Self::Log(path) => {
                let log = RunLog::read(&path, true)?;
                open_log(log, covering, shared)
            }
            Self::Table(path) => {
                let mut config = Config::default();
                let options = shared.data.table_options(&mut config)?;
                let source = HfSource::open(&path, &options)?;
                let fingerprint = source.fingerprint(FingerprintMode::Sampled, &|_| {})?;
                let seq_length = source.sample_length();
                let identity = identity(&fingerprint.hash, &options);
                stored(
                    path,
                    Arc::new(source),
                    seq_length,
                    identity,
                    shared.order.layout_asked(),
                )
            }
            Self::Indexed(path) => {
                let source = IndexedDataset::open(&path, Check::Full)?;
                let identity = format!("{} stored", path.display());
                stored(
                    path,
                    Arc::new(source),
                    None,
                    identity,
                    shared.order.layout_asked(),
                )
            }
            Self::Array(path) => array(path, shared.order.layout_asked()),
        }
    }

    /// The order and the dataset this is, where it is an order over a dataset and the other side is `log`.
    ///
    /// # Errors
    /// A failure naming the option at fault.
    pub fn order_over_data(self, log: &RunLog) -> Result<Option<(OrderChoice, DataChoice)>, Failure> {
        let Self::Order(mut named) = self else {
            return Ok(None);
        };
        let choice = choice_of(&mut named.config, &named.order, Some(log))?;
        Ok(Some((choice, named.data.resolve(&mut named.config)?)))
    }

    /// The log this is, read; `None` for anything else.
    ///
    /// # Errors
    /// What is wrong with the log.
    pub fn log(&self) -> Result<Option<RunLog>, Failure> {
        match self {
            Self::Log(path) => Ok(Some(RunLog::read(path, false)?)),
            _ => Ok(None),
        }
    }
}

/// Commas outside of brackets and quotes part the text.
fn split_commas(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0i32, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 && !quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

fn holds_logs(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|ending| ending == "jsonl"))
    })
}

/// What two datasets must share for their ids to mean the same samples.
fn identity(fingerprint: &str, options: &SourceOptions) -> String {
    format!(
        "{fingerprint} {} {:?} {:?} {} {:?}",
        options.column, options.seq_length, options.on_ragged, options.truncate, options.pad_id
    )
}

fn open_order(named: NamedOrder, quiet: bool, covering: Option<&RunLog>) -> Result<Side, Failure> {
    let NamedOrder {
        mut config,
        order,
        data,
        part,
        label,
    } = named;
    let config = &mut config;
    let choice = choice_of(config, &order, covering)?;
    let epoch = config.choose("run", "epoch", part.0)?.unwrap_or(0);
    let epochs = config.choose("run", "epochs", part.1)?;
    let steps = config.choose("run", "steps", part.2)?.unwrap_or(StepRange::ALL);
    let num_samples = config.choose("data", "num_samples", part.3)?;
    let (order, source, identity) = if let Some(num_samples) = num_samples {
        let order = choice.build(num_samples, None)?;
        (order, None, format!("{num_samples} samples"))
    } else {
        let data = data
            .resolve(config)
            .or_fix("give --cache-dir DIR, or --num-samples N to compare orders without any dataset")?;
        let opened = data.open(&choice.spec, quiet)?;
        let order = choice.build(opened.source.num_samples(), opened.megatron)?;
        let mut identity = identity(&opened.fingerprint, &data.options);
        if !data.is_table() {
            // Ids are entries of indices, which the order's options shape.
            identity.push_str(&choice.spec.to_string());
        }
        (order, Some((opened.source, opened.seq_length)), identity)
    };
    let (parts, lines) = match covering {
        Some(log) => {
            let (parts, lines) = parts_of(log, &*order)?;
            (parts, Some(lines))
        }
        None => {
            let plan = Plan::new(&*order, epoch, epochs, steps)?;
            let parts = plan.epochs().map(|epoch| Part {
                epoch,
                micro_steps: plan.micro_steps_of(epoch),
            });
            (parts.collect(), None)
        }
    };
    let planned = planned(&parts, order.geometry());
    let progress = Progress::samples("listing the order", planned, quiet);
    let side = Side::of_order(
        label,
        &*order,
        source,
        identity,
        (&parts, lines.as_ref()),
        &|more| progress.add(more),
    );
    progress.finish();
    Ok(side?)
}

/// The order a side names; its layout is the run's, where a log is compared and nothing else is said.
fn choice_of(
    config: &mut Config,
    order: &OrderArgs,
    covering: Option<&RunLog>,
) -> Result<OrderChoice, Failure> {
    match covering {
        Some(log) => order.resolve_with(
            config,
            Geometry {
                world_size: log.world_size,
                micro_batch_size: log.micro_batch_size().unwrap_or(1),
                gradient_accumulation_steps: 1,
            },
        ),
        None => order.resolve(config),
    }
}

/// The stretches of an order that a log has lines of, and these lines.
fn parts_of(log: &RunLog, order: &dyn Order) -> Result<(Vec<Part>, Lines), Failure> {
    let mut parts: Vec<Part> = Vec::new();
    let mut lines = Lines::of_ranks(&log.ranks);
    for batch in &log.batches {
        let (epoch, micro_step) = match batch.epoch {
            Some(epoch) => (epoch, batch.micro_step),
            None => order.locate(batch.micro_step)?,
        };
        lines.push(epoch, micro_step, batch.rank);
        match parts.last_mut() {
            Some(part)
                if part.epoch == epoch
                    && (part.micro_steps.start..=part.micro_steps.end).contains(&micro_step) =>
            {
                part.micro_steps.end = part.micro_steps.end.max(micro_step + 1);
            }
            _ => parts.push(Part {
                epoch,
                micro_steps: micro_step..micro_step + 1,
            }),
        }
    }
    lines.close();
    Ok((parts, lines))
}

/// Opens a log. Beside another log and without being told, it accumulates as its lines say, else up to the samples of the
/// other one's steps.
fn open_log(log: RunLog, beside: Option<&RunLog>, shared: &Shared<'_>) -> Result<Side, Failure> {
    let asked = shared.order.layout_asked().gradient_accumulation_steps;
    let accumulation = match beside {
        Some(other) if !shared.order.asks_for_accumulation() => {
            let of_a_step = |log: &RunLog| {
                let micro_steps = log.gradient_accumulation_steps().unwrap_or(1);
                log.samples_per_micro_step()?.checked_mul(micro_steps)
            };
            log.gradient_accumulation_steps().unwrap_or_else(|| {
                match (of_a_step(other), log.samples_per_micro_step()) {
                    (Some(whole), Some(part)) if part > 0 && whole % part == 0 => (whole / part).max(1),
                    _ => 1,
                }
            })
        }
        _ => asked,
    };
    let label = log.path.display().to_string();
    Ok(Side::of_log(label, log, accumulation)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_brackets_belong_to_a_value() {
        assert_eq!(
            split_commas(
                "fla,seed=1,dataset=[{shuffle: {seed: 2}}, {shard: {num_shards: 2, index: 0}}],world_size=2"
            ),
            [
                "fla",
                "seed=1",
                "dataset=[{shuffle: {seed: 2}}, {shard: {num_shards: 2, index: 0}}]",
                "world_size=2"
            ]
        );
        assert_eq!(split_commas("fla"), ["fla"]);
    }
}
