//! Which device computes a run: the CPU, or an NVIDIA device whose libraries are found at run time.
//!
//! The same plan runs on both. On CUDA the branches' gradients are handed on in the activations' type, logits exist
//! 2 GiB at a time, and cheap operators are computed again in the backward pass, unless the settings say otherwise; none
//! of that changes the model.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use ceteris_kernels::backend::{ExecError, Executor, Memory};
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::cuda::{self, AlgorithmRecord, CudaError, CudaExecutor, CudaOptions, device_count};
use ceteris_kernels::plan::{Geometry, Plan, Role};
use ceteris_kernels::recompute::Recompute;
use serde::{Deserialize, Serialize};

/// Logits of a micro-batch that exist at once on CUDA, 4 GiB of them in bf16: one part needs no sums into the head's
/// gradient.
const CUDA_LOGITS_WHOLE: usize = 1 << 31;
/// Logits of a part of a larger micro-batch: 3 GiB.
const CUDA_LOGITS_PART: usize = 3 << 29;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Unknown name.
    #[error("'{0}' names no device; allowed: auto, cpu, cuda, cuda:N (N from 0)")]
    Name(String),
    /// A list of devices.
    #[error(
        "{count} GPUs ('{text}') are not supported: a run computes on one device; allowed: auto, cpu, cuda, cuda:N (the ranks of \
         batch.world_size are virtual: one device plays all of them)"
    )]
    Several {
        /// Devices named.
        count: usize,
        /// What was given.
        text: String,
    },
    /// An arithmetic that the device does not have.
    #[error("precision {precision} does not run on {device}; allowed there: {allowed}")]
    Precision {
        /// Asked for.
        precision: Arithmetic,
        /// Device.
        device: Target,
        /// Allowed.
        allowed: &'static str,
    },
    /// The device or its libraries.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The CPU executor.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceSetting {
    /// The first CUDA device if there is one and it runs the model, else the CPU.
    #[default]
    Auto,
    /// This one.
    Of(Target),
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All cores of the machine, or as many as the settings say.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cpu => f.write_str("cpu"),
            Target::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl FromStr for DeviceSetting {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let count = text.split(',').count();
        if count > 1 {
            return Err(DeviceError::Several {
                count,
                text: text.to_owned(),
            });
        }
        let cuda = |n: &str| n.parse().ok().map(|n| DeviceSetting::Of(Target::Cuda(n)));
        match text {
            "auto" => Some(DeviceSetting::Auto),
            "cpu" => Some(DeviceSetting::Of(Target::Cpu)),
            "cuda" => Some(DeviceSetting::Of(Target::Cuda(0))),
            other => other.strip_prefix("cuda:").and_then(cuda),
        }
        .ok_or_else(|| DeviceError::Name(text.to_owned()))
    }
}

impl DeviceSetting {
    /// The device that this machine has for it. A machine whose driver shows a device but lacks the libraries does not
    /// fall back to the CPU: opening the device says what to install.
    pub fn resolve(self) -> Target {
        match self {
            DeviceSetting::Of(target) => target,
            DeviceSetting::Auto if device_count().is_ok_and(|n| n > 0) => Target::Cuda(0),
            DeviceSetting::Auto => Target::Cpu,
        }
    }
}

/// Arithmetic of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// `amp` on CUDA, `f32` on the CPU.
    #[default]
    Auto,
    /// fp32 weights and residual stream, bf16 activations and products with fp32 sums: the HF Trainer's `--bf16`. CUDA.
    Amp,
    /// Single precision, without TF32.
    F32,
    /// Double precision, for checks. CPU.
    F64,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arithmetic::Auto => "auto",
            Arithmetic::Amp => "amp",
            Arithmetic::F32 => "f32",
            Arithmetic::F64 => "f64",
        })
    }
}

/// What the backward pass computes again; changes memory and time, no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputeSetting {
    /// `cheap` on CUDA, `none` on the CPU.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// Normed inputs, convolution outputs and SwiGLU activations.
    Cheap,
    /// Whole blocks.
    Block,
}

/// How an executor computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Compute {
    /// Arithmetic.
    pub arithmetic: Arithmetic,
    /// Threads of the CPU; 0 means all cores.
    pub threads: usize,
    /// See `train.batch_invariant`.
    pub batch_invariant: bool,
}

/// How a plan is emitted for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanChoices {
    /// See `PlanOptions::branch_gradient_copies`.
    pub branch_gradient_copies: bool,
    /// See `PlanOptions::shared_tied_gradient`.
    pub shared_tied_gradient: bool,
    /// Rows of logits at a time where the settings do not say.
    pub logits_chunk_rows: Option<usize>,
    /// See [`Recompute`].
    pub recompute: Recompute,
}

/// Rows of logits at a time: all of them where there is room, else parts of one size.
fn cuda_logits_rows(rows: usize, vocab: usize) -> usize {
    let most = |logits: usize| (logits / vocab.max(1)).max(128);
    if rows <= most(CUDA_LOGITS_WHOLE) {
        return rows;
    }
    let parts = rows.div_ceil(most(CUDA_LOGITS_PART));
    // Products are made of tiles of 128 rows.
    rows.div_ceil(parts).next_multiple_of(128).min(rows)
}

impl Target {
    /// The choices for this device.
    pub fn choices(self, recompute: RecomputeSetting, geometry: Geometry, vocab: usize) -> PlanChoices {
        let cuda = matches!(self, Target::Cuda(_));
        PlanChoices {
            branch_gradient_copies: cuda,
            // Sums there follow the split into micro-batches anyway.
            shared_tied_gradient: cuda,
            logits_chunk_rows: cuda.then(|| cuda_logits_rows(geometry.rows(), vocab)),
            recompute: match recompute {
                RecomputeSetting::Auto if cuda => Recompute::Cheap,
                RecomputeSetting::Auto | RecomputeSetting::None => Recompute::None,
                RecomputeSetting::Cheap => Recompute::Cheap,
                RecomputeSetting::Block => Recompute::Block,
            },
        }
    }

    /// The arithmetic that runs here for a setting.
    ///
    /// # Errors
    /// [`DeviceError::Precision`].
    pub fn arithmetic(self, setting: Arithmetic) -> Result<Arithmetic, DeviceError> {
        let refuse = |allowed| {
            Err(DeviceError::Precision {
                precision: setting,
                device: self,
                allowed,
            })
        };
        match (self, setting) {
            (Target::Cpu, Arithmetic::Auto) => Ok(Arithmetic::F32),
            (Target::Cuda(_), Arithmetic::Auto) => Ok(Arithmetic::Amp),
            (Target::Cpu, Arithmetic::Amp) => refuse("f32, f64"),
            (Target::Cuda(_), Arithmetic::F64) => refuse("amp, f32"),
            (_, other) => Ok(other),
        }
    }

    /// Why this device does not run a plan, if it does not: sizes its kernels do not cover, with the allowed values. Needs
    /// no device.
    pub fn refuses(self, plan: &Plan, arithmetic: Arithmetic) -> Option<String> {
        match self {
            Target::Cpu => None,
            Target::Cuda(_) => cuda::units(plan, precision_of(arithmetic))
                .err()
                .map(|e| e.to_string()),
        }
    }

    /// What a user should know about forward results that are independent of the batch here.
    pub fn batch_invariance(self) -> &'static str {
        match self {
            Target::Cpu => {
                "batch_invariant: on the CPU the forward results of a row never depend on the batch around it; nothing changes"
            }
            Target::Cuda(_) => {
                "batch_invariant: forward results of a row depend neither on the rows around it nor on their number (`trainer \
                 profile` prints the cost; gradients still follow device_micro_batch_size); the same bits from a rollout, token \
                 by token from recurrent states: not available"
            }
        }
    }

    /// Makes an executor for a plan. `products` are the algorithms of an earlier process of the run, if any.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn executor(
        self,
        plan: Plan,
        compute: Compute,
        products: AlgorithmRecord,
    ) -> Result<OpenDevice, DeviceError> {
        let threads = compute.threads;
        match (self, self.arithmetic(compute.arithmetic)?) {
            (Target::Cpu, arithmetic) => {
                let float = match arithmetic {
                    Arithmetic::F64 => Float::F64,
                    Arithmetic::F32 | Arithmetic::Auto | Arithmetic::Amp => Float::F32,
                };
                let executor = cpu::executor(plan, float, threads)?;
                Ok(OpenDevice {
                    target: self,
                    name: format!("cpu, {arithmetic}"),
                    products: None,
                    notes: Vec::new(),
                    memory: executor.memory(),
                    element_bytes: match float {
                        Float::F32 => |role| if role == Role::Scalar { 8 } else { 4 },
                        Float::F64 => |role| if role == Role::Ids { 4 } else { 8 },
                    },
                    executor,
                })
            }
            (Target::Cuda(ordinal), arithmetic) => {
                let precision = precision_of(arithmetic);
                let options = CudaOptions {
                    precision,
                    batch_invariant: compute.batch_invariant,
                };
                let device = cuda::Device::open(ordinal)?;
                let mut name = format!("cuda:{ordinal} ({}), {arithmetic}", device.name());
                if compute.batch_invariant {
                    name.push_str(", batch_invariant");
                }
                let executor = CudaExecutor::new(plan, options, device, products)?;
                Ok(OpenDevice {
                    target: self,
                    name,
                    products: Some(executor.algorithms().clone()),
                    notes: executor.notes().to_vec(),
                    memory: executor.memory(),
                    element_bytes: match precision {
                        cuda::Precision::Amp => |role| cuda::Precision::Amp.bytes(role) as usize,
                        cuda::Precision::Fp32 => |role| cuda::Precision::Fp32.bytes(role) as usize,
                    },
                    executor: Box::new(executor),
                })
            }
        }
    }
}

fn precision_of(arithmetic: Arithmetic) -> cuda::Precision {
    match arithmetic {
        Arithmetic::F32 => cuda::Precision::Fp32,
        Arithmetic::Amp | Arithmetic::Auto | Arithmetic::F64 => cuda::Precision::Amp,
    }
}

/// An executor with what a run notes about it.
pub struct OpenDevice {
    /// The executor.
    pub executor: Box<dyn Executor>,
    /// The device.
    pub target: Target,
    /// Device and arithmetic, for messages and manifests.
    pub name: String,
    /// Algorithms of the matrix products, which decide their bits; none on the CPU.
    pub products: Option<AlgorithmRecord>,
    /// What a user should be told.
    pub notes: Vec<String>,
    /// Bytes held.
    pub memory: Memory,
    /// Bytes of an element of a role.
    pub element_bytes: fn(Role) -> usize,
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The products' algorithms that a run's folder holds; empty where it holds none.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn load_products(path: &Path) -> std::io::Result<AlgorithmRecord> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(std::io::Error::other),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(AlgorithmRecord::new()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        assert_eq!("auto".parse::<DeviceSetting>().unwrap(), DeviceSetting::Auto);
        assert_eq!(
            "cuda:3".parse::<DeviceSetting>().unwrap(),
            DeviceSetting::Of(Target::Cuda(3))
        );
        for bad in ["gpu", "cuda:", "cuda:-1", "CPU", ""] {
            let why = bad.parse::<DeviceSetting>().unwrap_err().to_string();
            assert!(why.contains("allowed: auto, cpu, cuda, cuda:N"), "{why}");
        }
        for (several, count) in [("cuda:0,cuda:1", "2 GPUs"), ("cuda:0,1,2,3", "4 GPUs")] {
            let why = several.parse::<DeviceSetting>().unwrap_err().to_string();
            assert!(
                why.starts_with(count) && why.contains("allowed: auto, cpu"),
                "{why}"
            );
        }
    }

    #[test]
    fn arithmetic_that_a_device_lacks_is_refused() {
        assert_eq!(Target::Cpu.arithmetic(Arithmetic::Auto).unwrap(), Arithmetic::F32);
        assert_eq!(
            Target::Cuda(0).arithmetic(Arithmetic::Auto).unwrap(),
            Arithmetic::Amp
        );
        assert!(Target::Cpu.arithmetic(Arithmetic::Amp).is_err());
        assert!(Target::Cuda(0).arithmetic(Arithmetic::F64).is_err());
    }

    #[test]
    fn logits_on_cuda_are_whole_or_in_even_parts() {
        let geometry = Geometry::unpacked(32, 2048);
        let choices = Target::Cuda(0).choices(RecomputeSetting::Auto, geometry, 128_256);
        assert_eq!(choices.logits_chunk_rows, Some(11_008));
        assert_eq!(cuda_logits_rows(8 * 2048, 128_256), 8 * 2048);
        assert_eq!(cuda_logits_rows(1000, 1 << 32), 128);
        assert_eq!(choices.recompute, Recompute::Cheap);
        let small = Target::Cuda(0).choices(RecomputeSetting::None, Geometry::unpacked(2, 64), 256);
        assert_eq!(small.logits_chunk_rows, Some(128));
        assert_eq!(
            Target::Cpu
                .choices(RecomputeSetting::Auto, geometry, 256)
                .logits_chunk_rows,
            None
        );
    }
}
