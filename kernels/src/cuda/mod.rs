//! The CUDA executor: walks the same plan as the CPU, on one NVIDIA device.
//!
//! At start every operator is lowered to launches and cuBLASLt products with fixed arguments (module `lower`); memory is one
//! persistent block, one arena (reused by buffers that do not live at the same time) and one scratch block. A section
//! runs once as it is and from then on as a captured graph. Nothing is allocated after the start.
//!
//! Determinism: no atomics on floats, every reduction has a fixed tree whose shape depends on sizes only, and a
//! product's algorithm is chosen once and recorded ([`AlgorithmRecord`]).
//!
//! Libraries (driver, NVRTC, cuBLASLt) are found at run time; a machine without them gets a [`CudaError`].

mod algorithm_cache;
mod batch_invariant;
mod call;
mod compile;
mod device;
mod documents;
mod error;
mod executor;
mod listing;
mod load;
mod lower;
mod page_locked;
mod placement;
mod product;
mod source;
mod staging;

pub use batch_invariant::{ProductCheck, check_batch_invariance};
pub use compile::{Compiled, compilations, compile, compile_all, nvrtc_present};
pub use device::{Device, device_count};
pub use error::CudaError;
pub use executor::CudaExecutor;
pub use listing::units;
pub use load::Load;
pub use lower::delta_rule::{KEY_DIMS, VALUE_DIMS};
pub use page_locked::PageLocked;
pub use product::AlgorithmRecord;
pub use source::{Source, Unit};

use crate::plan::Role;

/// Which types buffers have on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// fp32 parameters, gradients, optimizer state and residual stream; bf16 activations and products with fp32
    /// accumulation: what flash-linear-attention does under the HF Trainer's `--bf16` autocast.
    Amp,
    /// Everything in fp32, no TF32: for finding faults.
    Fp32,
}

/// How an executor computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// Types of buffers.
    pub precision: Precision,
    /// Forward results of a row depend neither on the rows around it nor on their number: products of the forward pass are
    /// computed by one checked algorithm each, whatever the batch. Slower; gradients are as they are without.
    pub batch_invariant: bool,
}

impl From<Precision> for CudaOptions {
    fn from(precision: Precision) -> Self {
        CudaOptions {
            precision,
            batch_invariant: false,
        }
    }
}

impl Precision {
    /// Bytes of an element of a role.
    pub fn bytes(self, role: Role) -> u64 {
        match (role, self) {
            (Role::Activation, Precision::Amp) => 2,
            (Role::Scalar, _) => 8,
            _ => 4,
        }
    }

    fn defines(self) -> Vec<String> {
        match self {
            Precision::Amp => Vec::new(),
            Precision::Fp32 => vec!["ELEM_F32".into()],
        }
    }
}
