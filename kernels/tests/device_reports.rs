//! User reports about kernels, by their ids, on a CUDA device. Without one they say so and pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod common;
#[path = "device_reports/heads.rs"]
mod heads;
#[path = "device_reports/products.rs"]
mod products;
#[path = "device_reports/repeated.rs"]
mod repeated;

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::{
    Case, ConvCase, DeltaCase, add_rms_norm, delta_rule, documents_of, relative_error, short_conv,
};
use ceteris_kernels::cuda::{AlgorithmRecord, CudaExecutor, Device, Precision};
use ceteris_kernels::ops::DeltaRuleShape;
use ceteris_kernels::plan::{Geometry, Role};
use common::device::{alone, device, stored};
use common::{set, value};

/// Outputs of a case on the device, over memory full of NaN.
fn on_device(case: &Case, precision: Precision) -> Vec<Vec<f64>> {
    let _alone = alone();
    let device = Device::open(0).unwrap();
    let mut executor =
        CudaExecutor::new(case.plan.clone(), precision, device, AlgorithmRecord::new()).unwrap();
    executor.poison();
    case.run(&mut executor).unwrap()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn name(case: &Case, output: usize) -> &str {
    &case.plan.buffer(case.outputs[output].buffer).name
}

fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

fn delta(lengths: &[usize], states: bool, seed: u64) -> Case {
    let (geometry, documents) = documents_of(lengths);
    let case = DeltaCase {
        geometry,
        documents,
        shape: DeltaRuleShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 64,
            value_dim: 64,
        },
        states,
        recompute: false,
        decay: 0.5,
        beta: 1.0,
    };
    delta_rule(&case, seed).unwrap()
}

#[test]
fn v62_extreme_keys_gates_and_betas_stay_finite_and_right() {
    if device().is_none() {
        return;
    }
    for length in [64, 200, 1000, 4096] {
        let plain = delta(&[length], false, 62);
        let rows = length;
        let width = value(&plain, "qkv").len() / rows;
        let keys = |fill: f64| {
            let mut qkv = value(&plain, "qkv").to_vec();
            for row in qkv.chunks_exact_mut(width) {
                row[128..256].fill(fill);
            }
            qkv
        };
        let variants: [(&str, Option<f64>, f64); 3] = [
            ("equal keys of norm 1, beta 1, gate 0", Some(0.125), 0.0),
            ("keys of zero", Some(0.0), -0.1),
            ("gate -50", None, -50.0),
        ];
        for (what, key, gate) in variants {
            let mut case = plain.clone();
            if let Some(key) = key {
                set(&mut case, "qkv", keys(key));
            }
            set(&mut case, "g", vec![gate; rows * 4]);
            set(&mut case, "beta", vec![1.0; rows * 4]);
            for (precision, limit) in [(Precision::Fp32, 1e-5), (Precision::Amp, 2e-2)] {
                let case = stored(case.clone(), precision);
                let want = case.oracle().unwrap();
                let largest = want.iter().map(|w| norm(w)).fold(0.0, f64::max);
                for (i, (got, want)) in on_device(&case, precision).iter().zip(&want).enumerate() {
                    assert!(
                        got.iter().all(|x| x.is_finite()),
                        "{what}, {length} tokens, {precision:?}: {} is not finite",
                        name(&case, i)
                    );
                    let off: Vec<f64> = got.iter().zip(want).map(|(a, b)| a - b).collect();
                    // A gradient that is zero but for rounding is held against the largest output.
                    let size = if norm(want) < 1e-9 * largest {
                        largest
                    } else {
                        norm(want)
                    };
                    let error = norm(&off) / size;
                    assert!(
                        error <= limit,
                        "{what}, {length} tokens, {precision:?}: {} is off by {error:.1e}",
                        name(&case, i)
                    );
                }
            }
        }
    }
}

/// Documents packed in a row and each alone: outputs, states and input gradients of the two operators that mix positions.
#[test]
fn v64_packed_documents_have_the_bits_they_have_alone() {
    if device().is_none() {
        return;
    }
    let conv = |lengths: &[usize]| {
        let (geometry, documents) = documents_of(lengths);
        let case = ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 64,
            rest: 64,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        short_conv(&case, 64).unwrap()
    };
    for lengths in [vec![1, 3, 4, 63, 64, 65, 500], vec![500, 64, 3, 65, 1, 63, 4]] {
        let total: usize = lengths.iter().sum();
        for precision in [Precision::Fp32, Precision::Amp] {
            type Maker<'a> = &'a dyn Fn(&[usize]) -> Case;
            let makers: [Maker<'_>; 2] = [&|l| delta(l, true, 64), &conv];
            for make in makers {
                let packed = stored(make(&lengths), precision);
                let whole = on_device(&packed, precision);
                let mut first = 0;
                for (document, &length) in lengths.iter().enumerate() {
                    // Where this document's values lie among `len` that belong to rows or to documents.
                    let place = |extent: usize, len: usize| {
                        if extent == total {
                            first * (len / total)..(first + length) * (len / total)
                        } else {
                            let each = len / lengths.len();
                            document * each..(document + 1) * each
                        }
                    };
                    let mut single = make(&[length]);
                    for i in 0..single.values.len() {
                        let id = single.values[i].0;
                        let b = single.plan.buffer(id).clone();
                        let source = value(&packed, &b.name);
                        single.values[i].1 = match b.role {
                            Role::Parameter | Role::Gradient => source.to_vec(),
                            _ => {
                                let of = packed.plan.buffer(packed.plan.find(&b.name).unwrap()).shape[0];
                                source[place(of, source.len())].to_vec()
                            }
                        };
                    }
                    for (i, got) in on_device(&single, precision).iter().enumerate() {
                        let b = packed.plan.buffer(packed.outputs[i].buffer);
                        if b.role == Role::Gradient {
                            continue;
                        }
                        let want = &whole[i][place(b.shape[0], whole[i].len())];
                        assert!(
                            same_bits(got, want),
                            "{precision:?} {}: document {document} of {length} has other bits packed",
                            b.name
                        );
                    }
                    first += length;
                }
            }
        }
    }
}

#[test]
fn v68_the_norm_of_queries_and_keys_is_flas_at_every_amplitude() {
    if device().is_none() {
        return;
    }
    for amplitude in [1.0, 1e-2, 1e-3, 1e-4, 0.0] {
        let case = ConvCase {
            geometry: Geometry::unpacked(2, 65),
            documents: vec![0, 65, 130],
            norm_heads: 4,
            head_dim: 64,
            rest: 0,
            taps: None,
            scale: amplitude,
            silu: false,
        };
        let case = stored(short_conv(&case, 68).unwrap(), Precision::Fp32);
        let want = case.oracle().unwrap();
        for (i, (got, want)) in on_device(&case, Precision::Fp32).iter().zip(&want).enumerate() {
            let error = relative_error(got, want);
            assert!(
                error <= 1e-6,
                "amplitude {amplitude}: {} is off by {error:.1e}",
                name(&case, i)
            );
        }
    }
}

/// A row has the same bits in any batch, at any place: RMSNorm forward and its input gradient.
#[test]
fn v72_a_row_of_the_norm_has_the_same_bits_in_any_batch() {
    if device().is_none() {
        return;
    }
    for hidden in [512, 2048, 4096, 8192] {
        let mut bits: Option<Vec<Vec<f64>>> = None;
        for rows in [1usize, 2, 255, 256, 257, 4096] {
            for place in [0, rows / 2, rows - 1] {
                let mut case = add_rms_norm(Geometry::unpacked(1, rows), hidden, 1, 72).unwrap();
                let fixed = add_rms_norm(Geometry::unpacked(1, 1), hidden, 1, 8).unwrap();
                for input in ["x", "branch", "dout", "dresidual"] {
                    let mut values = value(&case, input).to_vec();
                    values[place * hidden..][..hidden].copy_from_slice(value(&fixed, input));
                    set(&mut case, input, values);
                }
                set(&mut case, "weight", value(&fixed, "weight").to_vec());
                let case = stored(case, Precision::Amp);
                let row: Vec<Vec<f64>> = on_device(&case, Precision::Amp)
                    .iter()
                    .zip(&case.outputs)
                    .filter(|(_, c)| case.plan.buffer(c.buffer).role != Role::Gradient)
                    .map(|(v, _)| v[place * (v.len() / rows)..][..v.len() / rows].to_vec())
                    .collect();
                match &bits {
                    None => bits = Some(row),
                    Some(first) => assert!(
                        first.iter().zip(&row).all(|(a, b)| same_bits(a, b)),
                        "hidden {hidden}: the row has other bits at {place} of {rows}"
                    ),
                }
            }
        }
    }
}
