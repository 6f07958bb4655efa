//! What the tests on a CUDA device share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ceteris_kernels::conformance::Case;
use ceteris_kernels::cuda::{Device, Precision, device_count};
use ceteris_kernels::plan::Role;

static TURN: Mutex<()> = Mutex::new(());

/// One executor at a time: the device is one, and what takes long are the oracles.
pub fn alone() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first device; where there is none, says so.
pub fn device() -> Option<Device> {
    match device_count() {
        Ok(n) if n > 0 => Some(Device::open(0).unwrap()),
        Ok(_) => {
            println!("skipped: no CUDA device");
            None
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// The case with its inputs as the device stores them.
pub fn stored(mut case: Case, precision: Precision) -> Case {
    for (id, values) in &mut case.values {
        match (case.plan.buffer(*id).role, precision) {
            (Role::Scalar, _) => {}
            (Role::Activation, Precision::Amp) => values
                .iter_mut()
                .for_each(|x| *x = half::bf16::from_f64(*x).to_f64()),
            _ => values.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
        }
    }
    case
}
