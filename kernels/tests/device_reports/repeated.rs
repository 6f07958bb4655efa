//! The same bits again and again, beside other work.

use std::time::Instant;

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::{
    Case, ConvCase, DeltaCase, LossCase, adamw, add_rms_norm, cross_entropy, delta_rule, embedding,
    gated_rms_norm, gates, global_norm, linear, relative_error, short_conv, swiglu,
};
use ceteris_kernels::cuda::{AlgorithmRecord, CudaExecutor, Device, Load, Precision};
use ceteris_kernels::ops::{Access, DeltaRuleShape, GateActivation, Zero};
use ceteris_kernels::plan::{BufferId, Geometry, Section};

use super::{name, on_device};
use crate::common::device::{alone, device, stored};

/// Calls of each kernel.
const CALLS: usize = 1000;

/// The case with everything that its operators add to cleared by `Begin`, so that it can run again.
fn repeatable(mut case: Case) -> Case {
    let mut added = Vec::new();
    for section in [Section::Forward, Section::Backward] {
        for op in case.plan.ops(section) {
            op.visit(&mut |id, access| {
                if access == Access::Update && !added.contains(&id) {
                    added.push(id);
                }
            });
        }
    }
    if !added.is_empty() {
        let mut b = case.plan.into_builder();
        b.push(Section::Begin, Zero { buffers: added });
        case.plan = b.finish().unwrap();
    }
    case
}

/// Every operator at the sizes of a layer of gdn-300m, and the delta rule with the heads of larger models.
fn training_shapes() -> Vec<(&'static str, Case)> {
    let g = Geometry::unpacked(2, 2048);
    let documents = g.unpacked_cu_seqlens();
    let delta = |key_dim: usize, value_dim: usize, recompute: bool| {
        let case = DeltaCase {
            geometry: g,
            documents: documents.clone(),
            shape: DeltaRuleShape {
                key_heads: 4,
                value_heads: 8,
                key_dim,
                value_dim,
            },
            states: false,
            recompute,
            decay: 0.5,
            beta: 1.0,
        };
        delta_rule(&case, 71).unwrap()
    };
    let conv = ConvCase {
        geometry: g,
        documents: documents.clone(),
        norm_heads: 8,
        head_dim: 64,
        rest: 512,
        taps: Some(4),
        scale: 1.0,
        silu: true,
    };
    let loss = LossCase {
        geometry: g,
        hidden: 1024,
        vocab: 16_384,
        chunk_rows: 2048,
        ignored: 0.1,
        scale: 0.02,
    };
    vec![
        ("embedding", embedding(g, 8192, 1024, 71).unwrap()),
        ("in_proj", linear(g, 1024, 1552, 71).unwrap()),
        ("gate_up", linear(g, 1024, 8192, 71).unwrap()),
        ("rms norm", add_rms_norm(g, 1024, 1, 71).unwrap()),
        ("gates", gates(g, 8, 1.0, 71).unwrap()),
        (
            "gated rms norm",
            gated_rms_norm(g, 8, 64, Some(GateActivation::Swish), 71).unwrap(),
        ),
        ("swiglu", swiglu(g, 4096, 72).unwrap()),
        ("cross entropy", cross_entropy(&loss, 71).unwrap()),
        ("short conv", short_conv(&conv, 71).unwrap()),
        ("delta rule 64 x 64", delta(64, 64, false)),
        ("delta rule 128 x 128", delta(128, 128, true)),
        ("delta rule 256 x 512", delta(256, 512, false)),
        (
            "global norm",
            global_norm(&[1 << 20, 4096, 300_000], Some(1.0), 71).unwrap(),
        ),
        ("adamw", adamw(3 << 17, 1e-3, 3, 71).unwrap()),
    ]
}

#[test]
fn v71_every_kernel_gives_one_result_in_a_thousand_calls_beside_load() {
    let Some(device) = device() else {
        return;
    };
    let _alone = alone();
    let mut failures = Vec::new();
    for (what, case) in training_shapes() {
        let case = repeatable(stored(case, Precision::Amp));
        let start = Instant::now();
        let mut executor = CudaExecutor::new(
            case.plan.clone(),
            Precision::Amp,
            Device::open(0).unwrap(),
            AlgorithmRecord::new(),
        )
        .unwrap();
        executor.poison();
        case.load(&mut executor).unwrap();
        let mut watched: Vec<BufferId> = case.outputs.iter().map(|c| c.buffer).collect();
        watched.sort();
        watched.dedup();
        // What an update changes in place is written again before each call.
        let again = !case.plan.ops(Section::Update).is_empty();
        let load = Load::start(&device).unwrap();
        let mut digests = Vec::new();
        for _ in 0..CALLS {
            if again {
                case.load(&mut executor).unwrap();
            }
            for section in &Section::ALL[..4] {
                executor.run(*section).unwrap();
            }
            digests.push(executor.digest(&watched).unwrap());
        }
        let rounds = load.end().unwrap();
        assert!(rounds > 0, "{what}: the load did not run");
        let other = digests.iter().filter(|d| **d != digests[0]).count();
        println!(
            "{what:22} digest {:016x}, {other} of {CALLS} calls differ, {rounds} rounds of load, {:.1} s",
            digests[0],
            start.elapsed().as_secs_f64()
        );
        if other > 0 {
            failures.push(format!("{what}: {other} of {CALLS} calls have other bits"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// One token 10,000 times in a batch: its row of the table's gradient is a long sum.
#[test]
fn v70_a_token_that_is_repeated_ten_thousand_times_has_one_gradient() {
    let Some(device) = device() else {
        return;
    };
    let mut case = embedding(Geometry::unpacked(1, 10_240), 37, 1024, 70).unwrap();
    let tokens = &mut case.ids[0].1;
    for (at, token) in tokens.iter_mut().enumerate() {
        // The other 240 lie between them.
        *token = if at % 128 < 125 { 5 } else { (at % 37) as i32 };
    }
    assert!(tokens.iter().filter(|t| **t == 5).count() >= 10_000);
    let case = stored(case, Precision::Amp);
    let want = case.oracle().unwrap();
    let first = on_device(&case, Precision::Amp);
    for (i, (got, want)) in first.iter().zip(&want).enumerate() {
        let error = relative_error(got, want);
        println!("{} is off by {error:.1e}", name(&case, i));
        assert!(error <= 1e-5, "{} is off by {error:.1e}", name(&case, i));
    }
    let load = Load::start(&device).unwrap();
    for _ in 0..20 {
        let again = on_device(&case, Precision::Amp);
        let same = first.iter().flatten().zip(again.iter().flatten());
        assert!(same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    assert!(load.end().unwrap() > 0);
}
