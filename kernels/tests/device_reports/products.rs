//! Products whose rows do not depend on the batch.

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{
    AlgorithmRecord, CudaExecutor, CudaOptions, Device, Precision, check_batch_invariance,
};
use ceteris_kernels::ops::{Linear, LinearCrossEntropy};
use ceteris_kernels::plan::{BufferId, Geometry, Plan, PlanBuilder, Role, Section};
use rayon::prelude::*;

use crate::common::device::{alone, device};

/// Rows of a batch; the first is what the others are held against.
const ROWS: [usize; 8] = [65_536, 1, 2, 255, 256, 257, 1000, 4096];
/// Rows of random numbers, over and over in a batch.
const PERIOD: usize = 1024;

fn random(count: usize, scale: f32, seed: u64) -> Vec<f32> {
    let mut values = vec![0f32; count];
    values.par_chunks_mut(1 << 14).enumerate().for_each(|(i, part)| {
        let mut rng = Rng::new(seed * 1_000_003 + i as u64);
        part.iter_mut().for_each(|v| *v = scale * rng.normal() as f32);
    });
    values
}

fn open(plan: &Plan, precision: Precision) -> CudaExecutor {
    let options = CudaOptions {
        precision,
        batch_invariant: true,
    };
    let device = Device::open(0).unwrap();
    let mut executor = CudaExecutor::new(plan.clone(), options, device, AlgorithmRecord::new()).unwrap();
    executor.poison();
    executor
}

fn product(rows: usize, n: usize, k: usize) -> (Plan, [BufferId; 3]) {
    let mut b = PlanBuilder::new(Geometry::unpacked(1, rows));
    let x = b.buffer("x", &[rows, k], Role::Activation);
    b.input(x);
    let weight = b.buffer("weight", &[n, k], Role::Parameter);
    let out = b.buffer("out", &[rows, n], Role::Activation);
    b.keep(out);
    let (columns, out_columns) = (b.columns(x), b.columns(out));
    let linear = Linear {
        x: columns,
        weight,
        out: out_columns,
    };
    b.push(Section::Forward, linear);
    (b.finish().unwrap(), [x, weight, out])
}

/// The forward products of gdn-300m's layers: a fixed row inside batches of other sizes, at the first, a middle and the last
/// place.
#[test]
fn v72_a_row_of_a_product_has_the_same_bits_in_any_batch() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for precision in [Precision::Amp, Precision::Fp32] {
        for (n, k) in [(1552, 1024), (1024, 512), (8192, 1024), (1024, 4096)] {
            let around = random(PERIOD * k, 1.0, 1);
            let (fixed, weight) = (random(k, 1.0, 2), random(n * k, 0.05, 3));
            let mut bits: Option<Vec<u32>> = None;
            for rows in ROWS {
                let (plan, [x, w, out]) = product(rows, n, k);
                let mut executor = open(&plan, precision);
                executor.write_f32(w, 0, &weight).unwrap();
                for first in (0..rows).step_by(PERIOD) {
                    let count = PERIOD.min(rows - first) * k;
                    executor.write_f32(x, first * k, &around[..count]).unwrap();
                }
                for place in [0, rows / 2, rows - 1] {
                    executor.write_f32(x, place * k, &fixed).unwrap();
                    executor.run(Section::Forward).unwrap();
                    let mut row = vec![0f32; n];
                    executor.read_f32(out, place * n, &mut row).unwrap();
                    assert!(row.iter().all(|v| v.is_finite() && *v != 0.0));
                    let row: Vec<u32> = row.iter().map(|v| v.to_bits()).collect();
                    let first = bits.get_or_insert_with(|| row.clone());
                    assert!(
                        *first == row,
                        "{precision:?} [{n}, {k}]: the row has other bits at {place} of {rows}"
                    );
                }
            }
        }
    }
}

/// The head, chunk by chunk of logits, with its cross entropy.
#[test]
fn v72_the_loss_of_a_row_has_the_same_bits_in_any_batch() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    let (vocab, hidden) = (32_000, 1024);
    let around = random(PERIOD * hidden, 1.0, 4);
    let (fixed, weight) = (random(hidden, 1.0, 5), random(vocab * hidden, 0.05, 6));
    let mut bits: Option<u32> = None;
    for rows in [4096usize, 1, 2, 255, 256, 257, 1000] {
        let mut b = PlanBuilder::new(Geometry::unpacked(1, rows));
        let x = b.buffer("x", &[rows, hidden], Role::Activation);
        b.input(x);
        let w = b.buffer("weight", &[vocab, hidden], Role::Parameter);
        let labels = b.buffer("labels", &[rows], Role::Ids);
        let nll = b.buffer("nll", &[rows], Role::Statistic);
        b.keep(nll);
        let loss_sum = b.buffer("loss_sum", &[1], Role::Scalar);
        // A number that is no multiple of any tile.
        let logits = b.buffer("logits", &[rows.min(700), vocab], Role::Activation);
        let op = LinearCrossEntropy {
            x,
            weight: w,
            labels,
            nll,
            loss_sum,
            logits,
            gradients: None,
        };
        b.push(Section::Forward, op);
        let plan = b.finish().unwrap();
        let mut executor = open(&plan, Precision::Amp);
        executor.write_f32(w, 0, &weight).unwrap();
        executor.write_ids(labels, &vec![77; rows]).unwrap();
        for first in (0..rows).step_by(PERIOD) {
            let count = PERIOD.min(rows - first) * hidden;
            executor.write_f32(x, first * hidden, &around[..count]).unwrap();
        }
        for place in [0, rows / 2, rows - 1] {
            executor.write_f32(x, place * hidden, &fixed).unwrap();
            executor.run(Section::Forward).unwrap();
            let mut loss = [0f32];
            executor.read_f32(nll, place, &mut loss).unwrap();
            assert!(loss[0].is_finite() && loss[0] != 0.0);
            let first = *bits.get_or_insert(loss[0].to_bits());
            assert_eq!(first, loss[0].to_bits(), "row {place} of {rows}");
        }
    }
}

/// What the executor and the self-test rely on: every candidate is held against a large batch, at several sizes and places.
#[test]
fn v72_every_product_of_a_plan_is_checked() {
    let Some(device) = device() else {
        return;
    };
    let _alone = alone();
    for (n, k) in [(1552, 1024), (8192, 1024), (128_256, 1024)] {
        let (plan, _) = product(300, n, k);
        let found = check_batch_invariance(&plan, Precision::Amp, &device).unwrap();
        assert_eq!(found.len(), 1);
        println!(
            "[{n}, {k}]: {} calls compared with a batch of {} rows, refused: {:?}",
            found[0].compared, found[0].rows, found[0].refused
        );
        assert!(found[0].rows >= 4096 && found[0].compared >= 12);
        // The same choice every time: it is no measurement.
        let again = check_batch_invariance(&plan, Precision::Amp, &device).unwrap();
        assert_eq!(again[0].algorithm, found[0].algorithm);
    }
}
