//! Where initial weights come from: flash-linear-attention's own draws, Megatron's scaled rule, or a checkpoint.
//!
//! The init seed reaches nothing else, and no other seed reaches the weights. Weights are handed out tensor by tensor,
//! so that at most one tensor is held beside the model.

mod fla;
mod gates;
mod megatron;

use std::path::{Path, PathBuf};

use ceteris_samplers::rng::torch_fill::CpuCapability;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::safetensors::{self, SafetensorsError};
use crate::model::ModelConfig;
use crate::model::parameters::named_parameters;

/// Source of the initial weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitFrom {
    /// Bit for bit what `torch.manual_seed(seed)` and `AutoModelForCausalLM.from_config(config)` give on a CPU.
    #[default]
    Fla,
    /// Megatron-Core's rule: normal with `initializer_range`, output projections scaled down by
    /// `sqrt(2 · num_hidden_layers)`.
    Megatron,
    /// Hugging Face safetensors at `path`.
    Checkpoint,
}

/// How initial weights are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InitConfig {
    /// Source.
    pub from: InitFrom,
    /// Folder or file of the checkpoint.
    pub path: Option<PathBuf>,
    /// Build of torch's CPU kernels that is reproduced (`fla`): `avx2` (what `avx512` gives too) or `default`.
    pub torch_cpu_capability: String,
}

impl Default for InitConfig {
    fn default() -> Self {
        InitConfig {
            from: InitFrom::Fla,
            path: None,
            torch_cpu_capability: "avx2".into(),
        }
    }
}

/// Why initial weights cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Settings that do not fit.
    #[error("init.{key}: {problem}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] SafetensorsError),
    /// What receives the weights refused.
    #[error("cannot store the initial weights: {0}")]
    Sink(String),
}

/// Receives the weights: name of a tensor, index of the first value in it, values. Every value of every tensor of
/// [`named_parameters`] is handed out once, tensors in any order. An error is a reason in words.
pub type Sink<'a> = dyn FnMut(&str, usize, &[f32]) -> Result<(), String> + 'a;

impl InitConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`InitError::Config`].
    pub fn validate(&self) -> Result<(), InitError> {
        self.capability()?;
        match (self.from, &self.path) {
            (InitFrom::Checkpoint, None) => Err(InitError::Config {
                key: "path",
                problem: "init.from: checkpoint needs the folder or file of the checkpoint".into(),
            }),
            (InitFrom::Fla | InitFrom::Megatron, Some(path)) => Err(InitError::Config {
                key: "path",
                problem: format!("{} is not read unless init.from is checkpoint", path.display()),
            }),
            _ => Ok(()),
        }
    }

    fn capability(&self) -> Result<CpuCapability, InitError> {
        CpuCapability::from_name(&self.torch_cpu_capability).ok_or_else(|| InitError::Config {
            key: "torch_cpu_capability",
            problem: format!("'{}'; allowed: default, avx2, avx512", self.torch_cpu_capability),
        })
    }

    /// Makes the weights of `model` and hands each tensor to `sink`.
    ///
    /// # Errors
    /// Settings that do not fit, a checkpoint that does not, or what `sink` returns.
    pub fn run(&self, model: &ModelConfig, seed: u64, sink: &mut Sink<'_>) -> Result<(), InitError> {
        self.validate()?;
        match (self.from, &self.path) {
            (InitFrom::Fla, _) => fla::initialise(model, seed, self.capability()?, sink),
            (InitFrom::Megatron, _) => megatron::initialise(model, seed, sink),
            (InitFrom::Checkpoint, path) => {
                let path = path.as_deref().unwrap_or(Path::new("."));
                Ok(safetensors::read_f32(path, &named_parameters(model), sink)?)
            }
        }
    }
}

/// SHA-256 over the bytes of a tensor (float32, little endian), as hexadecimal text.
pub fn tensor_sha256(values: &[f32]) -> String {
    let mut hasher = Sha256::new();
    let mut bytes = [0u8; 1 << 14];
    for chunk in values.chunks(bytes.len() / 4) {
        let used = &mut bytes[..chunk.len() * 4];
        for (out, value) in used.chunks_exact_mut(4).zip(chunk) {
            out.copy_from_slice(&value.to_le_bytes());
        }
        hasher.update(&*used);
    }
    crate::hex(&hasher.finalize())
}
