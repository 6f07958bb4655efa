//! The same bits from every process, beside load, under every policy of recomputation.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{Device, Load};
use ceteris_trainer::config::{RecomputeSetting, RunConfig};
use ceteris_trainer::run::selftest;
use tempfile::TempDir;

use crate::common::{batches, device, engine, layers_of_300m, sequence};

const VOCAB: usize = 8192;

/// One line a step with the bits of loss and gradient norm, then the hash of every tensor.
fn trace(config: &RunConfig, steps: usize, learning_rate: f64) -> Vec<String> {
    let mut rng = Rng::new(70);
    let per_step = config.geometry().unwrap().global_batch_size() as usize;
    let rows: Vec<Vec<i32>> = (0..steps * per_step)
        .map(|_| {
            // A short period: something to learn.
            let period = 3 + rng.below(40);
            let part = sequence(&mut rng, period, VOCAB);
            part.iter()
                .copied()
                .cycle()
                .take(config.data.seq_length)
                .collect()
        })
        .collect();
    let mut batches = batches(config, &rows);
    let mut engine = engine(config);
    let mut lines = Vec::new();
    let mut ends = (0.0, 0.0);
    for step in 0..steps {
        let batch = batches.next_batch().unwrap().unwrap();
        let result = engine.step(&batch, step as u64 + 1, learning_rate).unwrap();
        assert!(result.loss.is_finite() && result.grad_norm.is_finite());
        lines.push(format!(
            "{:016x} {:016x}",
            result.loss.to_bits(),
            result.grad_norm.to_bits()
        ));
        if step == 0 {
            ends.0 = result.loss;
        }
        ends.1 = result.loss;
    }
    for (name, hash) in engine.weights_sha256().unwrap() {
        lines.push(format!("{name} {hash}"));
    }
    let memory = engine.memory();
    println!(
        "{steps} steps, loss {:.4} -> {:.4}; {:.1} MiB for weights and optimizer, {:.1} MiB for the step",
        ends.0,
        ends.1,
        memory.persistent as f64 / f64::from(1 << 20),
        memory.arena as f64 / f64::from(1 << 20)
    );
    lines
}

fn v70_run() -> RunConfig {
    let mut config = layers_of_300m(512, VOCAB);
    config.batch.micro_batch_size = 4;
    config.batch.gradient_accumulation_steps = Some(2);
    config
}

/// What the processes of the test below run; on its own it does nothing.
#[test]
fn v70_one_process() {
    let Some(out) = std::env::var_os("CETERIS_V70_OUT") else {
        println!("skipped: run by v70_two_processes_give_the_same_bits");
        return;
    };
    if device().is_none() {
        return;
    }
    let lines = trace(&v70_run(), 200, 1e-3);
    std::fs::write(out, lines.join("\n")).unwrap();
}

fn process(out: &Path) -> Vec<String> {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bits::v70_one_process", "--nocapture"])
        .env("CETERIS_V70_OUT", out)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(out).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn v70_two_processes_give_the_same_bits() {
    let Some(_turn) = device() else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let first = process(&folder.path().join("first"));
    // The second one shares the device with this process, which keeps it busy.
    let load = Load::start(&Device::open(0).unwrap()).unwrap();
    let second = process(&folder.path().join("second"));
    let rounds = load.end().unwrap();
    assert!(rounds > 0, "the load did not run");
    assert!(first.len() > 200 && first.len() == second.len());
    let other = first.iter().zip(&second).position(|(a, b)| a != b);
    assert_eq!(
        other, None,
        "line {other:?} of 200 steps and the tensors' hashes differs"
    );
    println!(
        "200 steps in two processes, one beside {rounds} rounds of load: the same bits; {}",
        first[199]
    );
}

#[test]
fn v71_the_self_test_passes() {
    let Some(_turn) = device() else {
        return;
    };
    let report = selftest::run("cuda", &mut |what| println!("{what}")).unwrap();
    for check in &report.checks {
        println!("{:5} {}: {}", check.same, check.name, check.detail);
    }
    println!("{:.1} s", report.seconds);
    assert!(report.passed());
    assert!(report.checks.iter().any(|c| c.name.contains("batch_invariant")));
}

#[test]
fn v74_recomputation_changes_no_bit() {
    let Some(_turn) = device() else {
        return;
    };
    let mut config = layers_of_300m(512, VOCAB);
    config.batch.micro_batch_size = 4;
    let mut traces = Vec::new();
    for recompute in [
        RecomputeSetting::None,
        RecomputeSetting::Cheap,
        RecomputeSetting::Block,
    ] {
        println!("{recompute:?}");
        config.train.recompute = recompute;
        traces.push(trace(&config, 50, 1e-3));
    }
    for other in &traces[1..] {
        let at = traces[0].iter().zip(other).position(|(a, b)| a != b);
        assert_eq!(
            at, None,
            "line {at:?} of 50 steps and the tensors' hashes differs"
        );
        assert_eq!(traces[0].len(), other.len());
    }
}

#[test]
fn v62_five_hundred_steps_stay_finite() {
    let Some(_turn) = device() else {
        return;
    };
    let start = Instant::now();
    let mut config = layers_of_300m(512, VOCAB);
    config.batch.micro_batch_size = 4;
    // Every loss and gradient norm is checked on the way.
    let lines = trace(&config, 500, 3e-4);
    assert!(lines.len() > 500);
    println!("{:.1} s", start.elapsed().as_secs_f64());
}
