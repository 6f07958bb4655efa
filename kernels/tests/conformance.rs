//! The CPU executor against central differences (f64), against itself in f32, and against the token recurrence.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use ceteris_kernels::backend::{ExecError, Executor};
use ceteris_kernels::conformance::{self, Case, OutputError};
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::Plan;

fn make(plan: Plan, float: Float) -> Result<Box<dyn Executor>, ExecError> {
    let mut executor = cpu::executor(plan, float, 2)?;
    executor.poison();
    Ok(executor)
}

fn f64_cpu(plan: Plan) -> Result<Box<dyn Executor>, ExecError> {
    make(plan, Float::F64)
}

fn f32_cpu(plan: Plan) -> Result<Box<dyn Executor>, ExecError> {
    make(plan, Float::F32)
}

fn assert_below(case: &Case, errors: &[OutputError], limit: f64) {
    for e in errors {
        assert!(
            e.relative <= limit,
            "{}: {} is off by {:e}",
            case.name,
            e.output,
            e.relative
        );
    }
}

#[test]
fn gradients_of_every_operator_match_central_differences() {
    for case in conformance::all().unwrap() {
        assert_below(&case, &case.check_gradients(&f64_cpu, 12).unwrap(), 1e-6);
    }
}

#[test]
fn f32_is_close_to_f64_for_every_operator() {
    for case in conformance::all().unwrap() {
        let case = case.rounded(|x| f64::from(x as f32));
        assert_below(&case, &case.compare(&f32_cpu).unwrap(), 2e-5);
    }
}
