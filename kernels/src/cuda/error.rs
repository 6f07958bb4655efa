//! What can go wrong with the device and its libraries, with what to do about it.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;

use crate::backend::ExecError;

/// Why the CUDA executor cannot be made or failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// `libcuda` is not there.
    #[error("no CUDA driver: libcuda.so was not found; install the NVIDIA driver, or use `--device cpu`")]
    NoDriver,
    /// `libnvrtc` is not there.
    #[error(
        "no CUDA compiler: libnvrtc.so was not found; install it \
         (`pip install nvidia-cuda-nvrtc==13.0.88`) and put its lib folder on LD_LIBRARY_PATH"
    )]
    NoNvrtc,
    /// `libcublasLt` is not there.
    #[error(
        "no cuBLASLt: libcublasLt.so was not found; install it (`pip install nvidia-cublas`) and put its lib folder on \
         LD_LIBRARY_PATH"
    )]
    NoCublasLt,
    /// The ordinal is past the last device.
    #[error("there is no CUDA device {ordinal}: this machine has {count}")]
    NoDevice {
        /// What was asked for.
        ordinal: usize,
        /// What the driver sees.
        count: usize,
    },
    /// The device is older than the kernels.
    #[error("{name} has compute capability {major}.{minor}; bf16 tensor cores need 8.0 or later")]
    TooOld {
        /// The device's name.
        name: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
    },
    /// A driver call failed.
    #[error("CUDA driver, {what}: {source}")]
    Driver {
        /// What was being done.
        what: String,
        /// The driver's answer.
        source: DriverError,
    },
    /// A cuBLASLt call failed.
    #[error("cuBLASLt, {what}: {source:?}")]
    CublasLt {
        /// What was being done.
        what: String,
        /// The library's answer.
        source: CublasError,
    },
    /// A kernel does not compile.
    #[error("NVRTC, {file} for {arch}: {log}")]
    Compile {
        /// Kernel source.
        file: &'static str,
        /// Target.
        arch: String,
        /// Compiler log.
        log: String,
    },
    /// A plan asks for sizes the kernels do not cover.
    #[error("{0}")]
    Unsupported(String),
    /// Out of device memory before the first step.
    #[error(
        "the plan needs {needed} bytes of device memory, {free} are free: lower micro_batch_size or raise recompute"
    )]
    Memory {
        /// What the plan needs.
        needed: u64,
        /// What the device has.
        free: u64,
    },
}

impl From<CudaError> for ExecError {
    fn from(e: CudaError) -> Self {
        match e {
            CudaError::Unsupported(why) => ExecError::Unsupported(why),
            other => ExecError::Device(other.to_string()),
        }
    }
}

/// Names what a driver call was for.
pub(super) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError> {
        self.map_err(|source| CudaError::Driver { what: what(), source })
    }
}

impl<T> Doing<T> for Result<T, CublasError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError> {
        self.map_err(|source| CudaError::CublasLt { what: what(), source })
    }
}
