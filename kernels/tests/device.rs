//! The CUDA executor against the CPU in f64, operator by operator: both get the same inputs, rounded to what the device
//! stores. Without a device these tests say so and pass; what needs none (every case is lowered to launches) always runs.
//!
//! `CETERIS_DEVICE_REPORT=FILE` writes every error measured, one line an output.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod common;

use std::fmt::Write as _;
use std::sync::Mutex;

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::{self, Case, relative_error};
use ceteris_kernels::cuda::{
    AlgorithmRecord, CudaExecutor, Device, Precision, compile_all, nvrtc_present, units,
};
use ceteris_kernels::plan::Section;
use common::device::{alone, device, stored};
use rayon::prelude::*;

const MODES: [Precision; 2] = [Precision::Fp32, Precision::Amp];

/// Largest `‖x - ref‖ / ‖ref‖` of an output.
fn limit(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 1e-4,
        Precision::Amp => 1e-2,
    }
}

/// The oracle's weights: products read bf16 copies of the parameters, everything else the parameters.
fn oracle(case: &Case, precision: Precision) -> Vec<Vec<f64>> {
    let mut case = case.clone();
    if precision == Precision::Amp {
        let products: Vec<_> = Section::ALL
            .iter()
            .flat_map(|&s| case.plan.ops(s))
            .filter_map(|op| match op {
                ceteris_kernels::ops::Op::Linear(o) => Some(o.weight),
                ceteris_kernels::ops::Op::LinearCrossEntropy(o) => Some(o.weight),
                _ => None,
            })
            .collect();
        for (id, values) in &mut case.values {
            if products.contains(id) {
                values
                    .iter_mut()
                    .for_each(|x| *x = half::bf16::from_f64(*x).to_f64());
            }
        }
    }
    case.oracle().unwrap()
}

fn bits(values: &[Vec<f64>]) -> Vec<Vec<u64>> {
    values
        .iter()
        .map(|v| v.iter().map(|x| x.to_bits()).collect())
        .collect()
}

#[test]
fn every_case_is_lowered_without_a_device() {
    for case in conformance::device().unwrap() {
        for precision in MODES {
            let found = units(&case.plan, precision).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            assert!(!found.is_empty(), "{}", case.name);
        }
    }
}

#[test]
#[ignore = "minutes: compiles every kernel of these tests for CETERIS_ARCH (default sm_90a) into the cache"]
fn fill_the_kernel_cache() {
    assert!(nvrtc_present(), "libnvrtc.so is not on the library path");
    let arch = std::env::var("CETERIS_ARCH").unwrap_or_else(|_| "sm_90a".into());
    let cases = conformance::device().unwrap();
    let all = cases
        .iter()
        .flat_map(|c| MODES.iter().flat_map(|&p| units(&c.plan, p).unwrap()))
        .collect();
    compile_all(&all, &arch).unwrap_or_else(|e| panic!("{e}"));
}

/// Every operator, forward and backward, at every length and size of the list: errors against the oracle, over memory
/// full of NaN; and the same bits from a second run, which is a captured graph.
#[test]
fn operators_match_the_f64_oracle() {
    if device().is_none() {
        return;
    }
    let report = Mutex::new(String::new());
    let failures = Mutex::new(Vec::new());
    let cases = conformance::device().unwrap();
    let jobs: Vec<(&Case, Precision)> = cases.iter().flat_map(|c| MODES.map(|p| (c, p))).collect();
    jobs.par_iter().for_each(|&(case, precision)| {
        let case = stored(case.clone(), precision);
        let want = oracle(&case, precision);
        let fail = |why: String| {
            failures
                .lock()
                .unwrap()
                .push(format!("{precision:?} {}: {why}", case.name))
        };
        let run = || -> Result<[Vec<Vec<f64>>; 2], String> {
            // One at a time: the oracles are what takes long.
            let _alone = alone();
            if std::env::var_os("CETERIS_DEVICE_VERBOSE").is_some() {
                println!("{precision:?} {}", case.name);
            }
            let device = Device::open(0).map_err(|e| e.to_string())?;
            let mut executor =
                CudaExecutor::new(case.plan.clone(), precision, device, AlgorithmRecord::new())
                    .map_err(|e| e.to_string())?;
            let mut once = || {
                executor.poison();
                case.run(&mut executor).map_err(|e| e.to_string())
            };
            let first = once()?;
            Ok([first, once()?])
        };
        match run() {
            Err(why) => fail(why),
            Ok([first, second]) => {
                if bits(&first) != bits(&second) {
                    fail("a second run has other bits".into());
                }
                for ((columns, got), want) in case.outputs.iter().zip(&first).zip(&want) {
                    let name = &case.plan.buffer(columns.buffer).name;
                    let error = relative_error(got, want);
                    writeln!(
                        report.lock().unwrap(),
                        "{precision:?}\t{}\t{name}\t{error:.2e}",
                        case.name
                    )
                    .unwrap();
                    if error.is_nan() || error > limit(precision) {
                        fail(format!("{name} is off by {error:.2e}"));
                    }
                }
            }
        }
    });
    if let Some(file) = std::env::var_os("CETERIS_DEVICE_REPORT") {
        let mut lines: Vec<String> = report.into_inner().unwrap().lines().map(Into::into).collect();
        lines.sort();
        std::fs::write(file, lines.join("\n")).unwrap();
    }
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
