//! Every size of heads, at every length: the six gradients; and what is refused.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ceteris_kernels::conformance::{Case, DEVICE_LENGTHS, DeltaCase, delta_rule, relative_error};
use ceteris_kernels::cuda::{KEY_DIMS, Precision, units};
use ceteris_kernels::ops::DeltaRuleShape;
use ceteris_kernels::plan::Geometry;
use rayon::prelude::*;

use super::{name, on_device};
use crate::common::device::{device, stored};

const MODES: [(Precision, f64); 2] = [(Precision::Fp32, 1e-4), (Precision::Amp, 1e-2)];

fn case(length: usize, key_dim: usize, value_dim: usize, states: bool) -> Case {
    let geometry = Geometry::unpacked(2, length);
    let case = DeltaCase {
        geometry,
        documents: geometry.unpacked_cu_seqlens(),
        shape: DeltaRuleShape {
            key_heads: 4,
            value_heads: 4,
            key_dim,
            value_dim,
        },
        states,
        recompute: false,
        decay: 0.5,
        beta: 1.0,
    };
    delta_rule(&case, 63).unwrap()
}

#[test]
fn v63_every_gradient_is_right_at_every_head_size() {
    if device().is_none() {
        return;
    }
    let mut jobs = Vec::new();
    for length in DEVICE_LENGTHS {
        for key_dim in KEY_DIMS {
            for value_dim in [key_dim, 2 * key_dim] {
                jobs.extend(MODES.map(|mode| (length, key_dim, value_dim, mode)));
            }
        }
    }
    // The largest first: their oracles take longest.
    jobs.reverse();
    let worst = Mutex::new(BTreeMap::new());
    let failures = Mutex::new(Vec::new());
    jobs.par_iter()
        .for_each(|&(length, key_dim, value_dim, (precision, limit))| {
            let case = stored(case(length, key_dim, value_dim, true), precision);
            let want = case.oracle().unwrap();
            for (i, (got, want)) in on_device(&case, precision).iter().zip(&want).enumerate() {
                let error = relative_error(got, want);
                let output = format!("{} {i}", name(&case, i));
                let mut worst = worst.lock().unwrap();
                let seen = worst
                    .entry((format!("{precision:?}"), key_dim, value_dim, output.clone()))
                    .or_insert(0f64);
                *seen = seen.max(error);
                if error.is_nan() || error > limit {
                    failures.lock().unwrap().push(format!(
                        "{precision:?} {length} tokens, heads {key_dim} x {value_dim}: {output} is off by {error:.2e}"
                    ));
                }
            }
        });
    for ((precision, key_dim, value_dim, output), error) in worst.into_inner().unwrap() {
        println!("{precision:5} heads {key_dim:3} x {value_dim:3} {output:20} {error:.2e}");
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Needs no device.
#[test]
fn v63_other_head_sizes_are_refused_at_once() {
    for key_dim in [48, 96, 100, 192, 1024] {
        for value_dim in [key_dim, 2 * key_dim] {
            let case = case(65, key_dim, value_dim, false);
            for (precision, _) in MODES {
                let start = Instant::now();
                let why = units(&case.plan, precision).unwrap_err().to_string();
                assert!(start.elapsed() < Duration::from_secs(1), "{why}");
                assert!(
                    why.contains(&format!("{key_dim}")) && why.contains("allowed: head_dim [64, 128, 256]"),
                    "{why}"
                );
            }
        }
    }
}
