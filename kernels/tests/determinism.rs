//! The same bits for every number of threads, every repetition, and every batch around a row.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod common;

use ceteris_kernels::conformance::{self, Case, LossCase, add_rms_norm, cross_entropy, linear, swiglu};
use ceteris_kernels::cpu::Float;
use ceteris_kernels::plan::{Geometry, Role};
use common::{outputs, value};

fn bits(case: &Case, float: Float, threads: usize) -> Vec<(String, Vec<u64>)> {
    let values = outputs(case, float, threads);
    values
        .into_iter()
        .map(|(name, v)| (name, v.iter().map(|x| x.to_bits()).collect()))
        .collect()
}

#[test]
fn every_operator_has_the_same_bits_for_any_number_of_threads() {
    for case in conformance::all().unwrap() {
        for float in [Float::F32, Float::F64] {
            let one = bits(&case, float, 1);
            for threads in [2, 3, 8] {
                assert!(
                    one == bits(&case, float, threads),
                    "{} {float:?} {threads} threads",
                    case.name
                );
            }
        }
    }
}

/// Larger products, which are split into tasks in different ways.
#[test]
fn large_products_have_the_same_bits_for_any_number_of_threads() {
    let geometry = Geometry::unpacked(2, 300);
    let case = linear(geometry, 600, 700, 1).unwrap();
    let one = bits(&case, Float::F32, 1);
    for threads in [2, 5, 16] {
        assert!(one == bits(&case, Float::F32, threads), "{threads} threads");
    }
}

/// The rows of one sequence, cut out of a batch, give the bits they give inside it; parameter gradients of a batch
/// are the chain of those of its sequences.
fn assert_sequences_are_independent(make: &dyn Fn(Geometry) -> Case, batch: usize, len: usize) {
    let whole = make(Geometry::unpacked(batch, len));
    let all = outputs(&whole, Float::F32, 2);
    let mut chained: Vec<(String, Vec<f64>)> = Vec::new();
    for sequence in 0..batch {
        let mut one = make(Geometry::unpacked(1, len));
        for i in 0..one.values.len() {
            let b = one.plan.buffer(one.values[i].0).clone();
            let source = value(&whole, &b.name).to_vec();
            one.values[i].1 = match b.role {
                Role::Gradient if sequence > 0 => chained
                    .iter()
                    .find(|(name, _)| *name == b.name)
                    .unwrap()
                    .1
                    .clone(),
                Role::Parameter | Role::Gradient | Role::Scalar => source,
                _ => source[sequence * source.len() / batch..][..source.len() / batch].to_vec(),
            };
        }
        for i in 0..one.ids.len() {
            let source = &whole.ids[i].1;
            one.ids[i].1 = source[sequence * len..(sequence + 1) * len].to_vec();
        }
        chained.clear();
        for (name, got) in outputs(&one, Float::F32, 1) {
            let b = whole.plan.buffer(whole.plan.find(&name).unwrap());
            match b.role {
                Role::Gradient => chained.push((name, got)),
                Role::Scalar => {}
                _ => {
                    let want = &all[&name][sequence * got.len()..][..got.len()];
                    assert_eq!(got, want, "{}: {name} of sequence {sequence}", whole.name);
                }
            }
        }
    }
    for (name, got) in chained {
        assert_eq!(got, all[&name], "{}: {name}", whole.name);
    }
}

#[test]
fn sequences_have_the_same_bits_in_any_batch() {
    for len in [1, 7, 64, 130] {
        assert_sequences_are_independent(&|g| linear(g, 300, 40, 1).unwrap(), 5, len);
        assert_sequences_are_independent(&|g| add_rms_norm(g, 100, true, 1).unwrap(), 5, len);
        assert_sequences_are_independent(&|g| swiglu(g, 50, 1).unwrap(), 5, len);
        let loss = |geometry| {
            let case = LossCase {
                geometry,
                hidden: 30,
                vocab: 200,
                chunk_rows: 48,
                ignored: 0.3,
                scale: 0.3,
            };
            cross_entropy(&case, 1).unwrap()
        };
        assert_sequences_are_independent(&loss, 5, len);
    }
}
