//! A run as data: everything that decides what a run does, from YAML files, `--set` and the environment.
//!
//! Layers, the later ones winning: defaults, the files a file `extends` (in order), the file, `--set key=value` (in
//! order), legacy environment variables. Nothing is dropped: a key that no setting has, a key given twice, a value of
//! another type and a setting that contradicts another are errors that name the place. [`compose`] does the layers,
//! [`legacy`] the names of other stacks.

pub mod compose;
mod data;
pub mod legacy;
mod model_json;
mod origin;
mod sections;

use std::path::PathBuf;

use ceteris_samplers::{Geometry, OrderSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::init::InitConfig;
use crate::model::ModelConfig;
use crate::optim::OptimizerConfig;
use crate::schedule::{Schedule, ScheduleConfig};

pub use compose::{ConfigError, load};
pub use data::{Collate, DataConfig, DocumentMarker};
pub use model_json::read_model_json;
pub use origin::{Composed, Origin};
pub use sections::{
    BatchConfig, CheckpointConfig, EvalConfig, LoaderConfig, LogConfig, LossConfig, Precision,
    RecomputeSetting, Resume, SeedsConfig, TrainConfig,
};

/// A run. Every section and key is described where its type is defined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// The network.
    pub model: ModelConfig,
    /// Where weights come from.
    pub init: InitConfig,
    /// What is read.
    pub data: DataConfig,
    /// In which order: a name and the options of that order (`loader orders` lists both). A seed is taken from
    /// `seeds.data`.
    pub order: Map<String, Value>,
    /// The two seeds.
    pub seeds: SeedsConfig,
    /// Layout of a global batch.
    pub batch: BatchConfig,
    /// Length and arithmetic of the run.
    pub train: TrainConfig,
    /// Loss.
    pub loss: LossConfig,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// Learning rate over time.
    pub schedule: ScheduleConfig,
    /// Evaluation.
    pub eval: EvalConfig,
    /// Checkpoints and resuming.
    pub checkpoint: CheckpointConfig,
    /// Logs.
    pub log: LogConfig,
    /// Threads that read; changes no result.
    pub loader: LoaderConfig,
    /// Folder of the run.
    pub output_dir: PathBuf,
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            model: ModelConfig::default(),
            init: InitConfig::default(),
            data: DataConfig::default(),
            order: Map::from_iter([("name".to_owned(), Value::from("sequential"))]),
            seeds: SeedsConfig::default(),
            batch: BatchConfig::default(),
            train: TrainConfig::default(),
            loss: LossConfig::default(),
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            eval: EvalConfig::default(),
            checkpoint: CheckpointConfig::default(),
            log: LogConfig::default(),
            loader: LoaderConfig::default(),
            output_dir: "runs/unnamed".into(),
        }
    }
}

/// A setting that does not fit the others.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SettingError {
    /// Full key.
    pub key: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl SettingError {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        SettingError {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

/// Errors of a section carry the section's name in their text: `model.num_heads: …`.
fn of_section(error: impl std::fmt::Display) -> SettingError {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((key, problem)) => SettingError::new(key, problem),
        None => SettingError::new("", text),
    }
}

impl RunConfig {
    /// Checks every setting and every combination that can be checked without opening data.
    ///
    /// # Errors
    /// The first setting that is out of range or contradicts another, with what is allowed.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.model.validate().map_err(of_section)?;
        self.init.validate().map_err(of_section)?;
        self.optimizer.validate().map_err(of_section)?;
        self.data.validate()?;
        self.eval.validate()?;
        self.train.validate()?;
        self.train.validate_heads(&self.model)?;
        self.loss.validate()?;
        self.checkpoint.validate()?;
        self.log.validate()?;
        self.loader.validate()?;
        self.geometry()?;
        self.order_spec()?;
        if self.output_dir.as_os_str().is_empty() {
            return Err(SettingError::new(
                "output_dir",
                "is empty; name the folder of the run",
            ));
        }
        Ok(())
    }

    /// The layout of a global batch.
    ///
    /// # Errors
    /// Sizes of 0, or a global batch that is not a product of the others.
    pub fn geometry(&self) -> Result<Geometry, SettingError> {
        self.batch.geometry()
    }

    /// Rows the device computes at once.
    pub fn device_rows(&self) -> usize {
        let rows = self
            .batch
            .device_micro_batch_size
            .unwrap_or(self.batch.micro_batch_size);
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// The order, with its seed from `seeds.data`.
    ///
    /// # Errors
    /// An order or option that does not exist, or a seed given twice.
    pub fn order_spec(&self) -> Result<OrderSpec, SettingError> {
        let mut options = self.order.clone();
        let name = match options.remove("name") {
            Some(Value::String(name)) => name,
            Some(other) => {
                return Err(SettingError::new(
                    "order.name",
                    format!("{other} is not the name of an order"),
                ));
            }
            None => {
                return Err(SettingError::new(
                    "order.name",
                    "an order needs a name; `loader orders` lists them",
                ));
            }
        };
        let seed = Value::from(self.seeds.data);
        let takes_seed = ceteris_samplers::orders::entry(&name).is_some_and(|e| e.option("seed").is_some());
        match options.get("seed") {
            Some(given) if *given != seed => {
                return Err(SettingError::new(
                    "order.seed",
                    format!(
                        "{given} contradicts seeds.data {seed}; give the seed of the order as seeds.data alone"
                    ),
                ));
            }
            _ if takes_seed => {
                options.insert("seed".into(), seed);
            }
            _ => {}
        }
        OrderSpec::from_options(&name, options).map_err(|e| SettingError::new("order", e.to_string()))
    }

    /// The learning rates of a run of `steps` steps.
    ///
    /// # Errors
    /// Options that do not fit the schedule.
    pub fn learning_rates(&self, steps: u64) -> Result<Schedule, SettingError> {
        self.schedule.build(self.optimizer.lr, steps).map_err(of_section)
    }

    /// The settings as YAML that reads back to the same settings.
    ///
    /// # Errors
    /// Never for settings that were read; a float that YAML cannot hold.
    pub fn to_yaml(&self) -> Result<String, SettingError> {
        serde_yaml::to_string(self).map_err(|e| SettingError::new("", e.to_string()))
    }

    /// Digest of the settings that decide the weights after training, given order and init: the model alone.
    pub fn model_hash(&self) -> String {
        let text = serde_json::to_string(&self.model).unwrap_or_default();
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}
