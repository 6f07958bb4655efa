//! The sections of a run that belong to no other module.

use std::path::PathBuf;

use ceteris_kernels::cuda::{KEY_DIMS, VALUE_DIMS};
use ceteris_samplers::Geometry;
use serde::{Deserialize, Serialize};

use super::SettingError;
use crate::device::{Compute, DeviceError, DeviceSetting, Target};
use crate::model::ModelConfig;

pub use crate::device::{Arithmetic as Precision, RecomputeSetting};

pub(super) fn refuse<T>(key: &str, problem: impl Into<String>) -> Result<T, SettingError> {
    Err(SettingError::new(key, problem))
}

/// The two seeds of a run. Neither reaches what the other decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedsConfig {
    /// Decides the order of the data, where the order has a seed.
    pub data: i64,
    /// Decides the initial weights.
    pub init: u64,
}

impl Default for SeedsConfig {
    fn default() -> Self {
        SeedsConfig { data: 42, init: 42 }
    }
}

/// How a global batch is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// Data-parallel ranks; one device plays all of them in turn.
    pub world_size: u64,
    /// Rows of one forward pass on one rank.
    pub micro_batch_size: u64,
    /// Micro-steps of an optimizer step; from `global_batch_size` when absent.
    pub gradient_accumulation_steps: Option<u64>,
    /// Rows of an optimizer step; the product of the other three when absent.
    pub global_batch_size: Option<u64>,
    /// Rows the device computes at once, whatever the ranks; `micro_batch_size` when absent. Changes memory and speed, no
    /// result.
    pub device_micro_batch_size: Option<u64>,
}

impl Default for BatchConfig {
    fn default() -> Self {
        BatchConfig {
            world_size: 1,
            micro_batch_size: 1,
            gradient_accumulation_steps: None,
            global_batch_size: None,
            device_micro_batch_size: None,
        }
    }
}

impl BatchConfig {
    pub(super) fn geometry(&self) -> Result<Geometry, SettingError> {
        const MOST: u64 = 1 << 20;
        for (key, value) in [
            ("batch.world_size", Some(self.world_size)),
            ("batch.micro_batch_size", Some(self.micro_batch_size)),
            (
                "batch.gradient_accumulation_steps",
                self.gradient_accumulation_steps,
            ),
            ("batch.global_batch_size", self.global_batch_size),
            ("batch.device_micro_batch_size", self.device_micro_batch_size),
        ] {
            if let Some(value) = value
                && !(1..=MOST).contains(&value)
            {
                return refuse(key, format!("{value}; allowed: 1 to {MOST}"));
            }
        }
        let micro = self.world_size * self.micro_batch_size;
        let accumulation = match (self.gradient_accumulation_steps, self.global_batch_size) {
            (None, None) => 1,
            (Some(a), None) => a,
            (None, Some(global)) if global.is_multiple_of(micro) => global / micro,
            (Some(a), Some(global)) if micro * a == global => a,
            (None, Some(global)) => {
                return refuse(
                    "batch.global_batch_size",
                    format!("{global} is not a multiple of world_size x micro_batch_size = {micro}"),
                );
            }
            (Some(a), Some(global)) => {
                return refuse(
                    "batch.global_batch_size",
                    format!(
                        "{global} is not world_size x micro_batch_size x gradient_accumulation_steps = {}; leave one of \
                         them out",
                        micro * a
                    ),
                );
            }
        };
        Ok(Geometry {
            world_size: self.world_size,
            micro_batch_size: self.micro_batch_size,
            gradient_accumulation_steps: accumulation,
        })
    }
}

/// Length and arithmetic of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimizer steps; from `epochs` when absent.
    pub steps: Option<u64>,
    /// Passes over the data; the run ends there even when `steps` is larger.
    pub epochs: Option<u64>,
    /// `auto` (the first CUDA device if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Arithmetic: `auto` (`amp` on CUDA, `f32` on the CPU), `amp`, `f32` or `f64` (CPU).
    pub precision: Precision,
    /// What the backward pass computes again: `auto` (`cheap` on CUDA, `none` on the CPU), `none`, `cheap` or `block`.
    /// Changes memory and speed, no result.
    pub recompute: RecomputeSetting,
    /// Forward results of a row depend neither on the rows around it nor on their number: log-probabilities of a sequence have
    /// the same bits alone, in any batch and packed. On CUDA slower (`trainer profile` says by how much); the CPU is so in any
    /// case.
    pub batch_invariant: bool,
    /// Threads that compute, all cores when absent; changes no result.
    pub threads: Option<usize>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            steps: None,
            epochs: None,
            device: "auto".into(),
            precision: Precision::Auto,
            recompute: RecomputeSetting::Auto,
            batch_invariant: false,
            threads: None,
        }
    }
}

impl TrainConfig {
    fn device_setting(&self) -> Result<DeviceSetting, SettingError> {
        self.device
            .parse()
            .or_else(|error: DeviceError| refuse("train.device", error.to_string()))
    }

    /// Whether the program chooses the device.
    pub fn chooses_device(&self) -> bool {
        self.device_setting().is_ok_and(|d| d == DeviceSetting::Auto)
    }

    /// The device that this machine has for `device`.
    ///
    /// # Errors
    /// [`SettingError`]: a name that means nothing.
    pub fn target(&self) -> Result<Target, SettingError> {
        Ok(self.device_setting()?.resolve())
    }

    /// How an executor of the run computes.
    pub fn compute(&self) -> Compute {
        Compute {
            arithmetic: self.precision,
            threads: self.threads.unwrap_or(0),
            batch_invariant: self.batch_invariant,
        }
    }

    /// The heads that the kernels of the device cover, where the device is a CUDA one asked for by name.
    pub(super) fn validate_heads(&self, model: &ModelConfig) -> Result<(), SettingError> {
        let DeviceSetting::Of(Target::Cuda(_)) = self.device_setting()? else {
            return Ok(());
        };
        let (keys, values) = (KEY_DIMS, VALUE_DIMS);
        if !keys.contains(&model.head_dim) {
            let problem = format!(
                "{} is not supported on CUDA; allowed there: {keys:?}",
                model.head_dim
            );
            return refuse("model.head_dim", problem);
        }
        if !values.contains(&model.head_v_dim()) {
            let problem = format!(
                "gives value heads of {}, which are not supported on CUDA; allowed there: {values:?}",
                model.head_v_dim()
            );
            return refuse("model.expand_v", problem);
        }
        Ok(())
    }

    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if let DeviceSetting::Of(target) = self.device_setting()?
            && let Err(error) = target.arithmetic(self.precision)
        {
            return refuse("train.precision", error.to_string());
        }
        if self.steps.is_none() && self.epochs.is_none() {
            return refuse("train.steps", "is not given; give train.steps or train.epochs");
        }
        if self.steps == Some(0) || self.epochs == Some(0) {
            return refuse("train.steps", "a run of 0 steps does nothing; allowed: 1 or more");
        }
        if self.threads == Some(0) || self.threads.is_some_and(|n| n > 4096) {
            return refuse("train.threads", "allowed: 1 to 4096, or null for all cores");
        }
        Ok(())
    }
}

/// The loss: mean over the counted tokens of the global batch.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossConfig {
    /// Parts the rows of a micro-batch are cut into for the head and the cross entropy; more parts need less memory.
    /// As many as keep a part at about 4 million logits when absent.
    pub chunks: Option<usize>,
    /// Whether the model shifts the labels by one token; what the collator leaves to do when absent. A collator and a
    /// model that would both shift, or neither, are refused.
    pub shift_in_model: Option<bool>,
}

impl LossConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if let Some(chunks) = self.chunks
            && !(1..=1 << 16).contains(&chunks)
        {
            return refuse("loss.chunks", format!("{chunks}; allowed: 1 to 65536"));
        }
        Ok(())
    }
}

/// Evaluation on held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Folder of the held-out rows; absent: no evaluation.
    pub cache_dir: Option<PathBuf>,
    /// Split of that folder.
    pub split: Option<String>,
    /// Evaluate after each so many steps, and at the end.
    pub every: u64,
    /// Rows at most, from the first one; all when absent.
    pub samples: Option<u64>,
}

impl Default for EvalConfig {
    fn default() -> Self {
        EvalConfig {
            cache_dir: None,
            split: None,
            every: 100,
            samples: None,
        }
    }
}

impl EvalConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.every == 0 || self.samples == Some(0) {
            return refuse(
                "eval.every",
                "0 is no interval; allowed: 1 or more (no eval.cache_dir: no evaluation)",
            );
        }
        if self.cache_dir.is_none() && self.split.is_some() {
            return refuse("eval.split", "names a split of nothing; give eval.cache_dir too");
        }
        Ok(())
    }
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Save after each so many steps; absent: only at the end and on SIGTERM.
    pub every: Option<u64>,
    /// Checkpoints kept, the newest ones.
    pub keep_last: usize,
    /// `auto`: go on from the newest valid checkpoint of the run's folder if there is one; `never`: start anew, which
    /// refuses a folder that holds a run; `must`: refuse to start without one.
    pub resume: Resume,
    /// Save at the end of the run.
    pub at_end: bool,
    /// Go on with another global batch than the checkpoint's: what repeats and what is left out is reported. Another
    /// layout of the same global batch needs no permission.
    pub allow_global_batch_change: bool,
}

/// What to do with checkpoints found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// Go on if there is one.
    #[default]
    Auto,
    /// Start anew.
    Never,
    /// Refuse to start without one.
    Must,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig {
            every: None,
            keep_last: 2,
            resume: Resume::Auto,
            at_end: true,
            allow_global_batch_change: false,
        }
    }
}

impl CheckpointConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.every == Some(0) {
            return refuse(
                "checkpoint.every",
                "0 is no interval; allowed: 1 or more, or null",
            );
        }
        if self.keep_last == 0 {
            return refuse("checkpoint.keep_last", "allowed: 1 or more");
        }
        Ok(())
    }
}

/// Logs of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Print a line each so many steps when there is no progress bar.
    pub every: u64,
    /// Write TensorBoard event files.
    pub tensorboard: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            every: 10,
            tensorboard: true,
        }
    }
}

impl LogConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.every == 0 {
            return refuse("log.every", "allowed: 1 or more");
        }
        Ok(())
    }
}

/// Threads that read ahead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Threads; 0 reads in the training thread.
    pub workers: usize,
    /// Batches ahead.
    pub prefetch: usize,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        LoaderConfig {
            workers: ceteris_loader::pipeline::DEFAULT_WORKERS,
            prefetch: ceteris_loader::pipeline::DEFAULT_PREFETCH,
        }
    }
}

impl LoaderConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.prefetch == 0 || self.prefetch > 1 << 16 || self.workers > 1 << 12 {
            return refuse(
                "loader.prefetch",
                "allowed: workers 0 to 4096, prefetch 1 to 65536",
            );
        }
        Ok(())
    }
}
