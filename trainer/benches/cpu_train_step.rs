//! Tokens per second of the CPU training step, beside the same model in PyTorch (`peer_gdn.py`) in the same run.
//!
//!     CETERIS_PYTHON=python3 cargo bench -p ceteris-trainer --bench cpu_train_step
//!
//! Prints both rates, the ratio, and what share of this machine's single-precision product rate the step reaches when
//! its work is counted as 6 floating-point operations per parameter and token. The product rate is the better of
//! PyTorch's and ours for a square product. Settings: `CETERIS_BENCH_SECONDS` (per side, default 20),
//! `CETERIS_BENCH_PROFILE=1` (time per operator), `CETERIS_BENCH_PEER=0` (ours only),
//! `CETERIS_BENCH_CHUNK` (rows of logits at a time).

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ceteris_kernels::backend::{Executor, read_all};
use ceteris_kernels::conformance::{Rng, linear};
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_STEP, IGNORE_INDEX};
use ceteris_kernels::plan::{Geometry, Role, Section};
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::model::gdn::{LanguageModel, Optimizer, PlanOptions, emit};
use serde_json::{Value, json};

const THREADS: usize = 2;
const BATCH: usize = 4;
const LENGTH: usize = 512;

fn main() {
    let seconds: f64 = setting("CETERIS_BENCH_SECONDS").map_or(20.0, |s| s.parse().unwrap());
    for (name, config) in configs() {
        let peer = (setting("CETERIS_BENCH_PEER").as_deref() != Some("0")).then(|| peer(&config, seconds));
        let ours = ours(&config, seconds);
        let product = product_rate();
        report(&name, &ours, product, peer.as_ref());
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The model sizes that are measured: `configs/tiny.yaml`'s, and one whose layers weigh more than its head.
fn configs() -> Vec<(String, ModelConfig)> {
    let shared = json!({"expand_v": 1.0, "tie_word_embeddings": true, "vocab_size": 4096});
    let with = |sizes: Value| {
        let mut config = shared.clone();
        config
            .as_object_mut()
            .unwrap()
            .extend(sizes.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    };
    let tiny = json!({
        "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 384, "num_heads": 2, "num_v_heads": 4,
        "head_dim": 32,
    });
    let small = json!({
        "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768, "num_heads": 4, "num_v_heads": 4,
        "head_dim": 64,
    });
    vec![("tiny".into(), with(tiny)), ("small".into(), with(small))]
}

/// Figures of one side.
struct Rate {
    tokens_per_s: f64,
    steps: usize,
    parameters: usize,
}

fn ours(config: &ModelConfig, seconds: f64) -> Rate {
    let options = PlanOptions {
        optimizer: Some(Optimizer {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            max_grad_norm: Some(1.0),
            weight_decay: &|_| 0.01,
        }),
        logits_chunk_rows: setting("CETERIS_BENCH_CHUNK").map(|s| s.parse().unwrap()),
        ..PlanOptions::new(Geometry::unpacked(BATCH, LENGTH))
    };
    let model = emit(config, &options).unwrap();
    let parameters = model.plan.parameter_count();
    let mut executor = cpu::executor(model.plan.clone(), Float::F32, THREADS).unwrap();
    let executor = executor.as_mut();
    prepare(executor, &model, config.vocab_size);
    let mut times = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end || times.len() < 4 {
        let start = Instant::now();
        executor
            .write_f64(model.hyper, HYPER_STEP, &[times.len() as f64 + 1.0])
            .unwrap();
        for section in &Section::ALL[..4] {
            executor.run(*section).unwrap();
        }
        times.push(start.elapsed().as_secs_f64());
    }
    let loss = read_all(executor, model.loss_sum).unwrap()[0] / (BATCH * (LENGTH - 1)) as f64;
    assert!(loss.is_finite());
    if setting("CETERIS_BENCH_PROFILE").is_some() {
        profile(executor);
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    let tokens_per_s = (BATCH * LENGTH) as f64 / times[times.len() / 2];
    Rate {
        tokens_per_s,
        steps: times.len(),
        parameters,
    }
}

/// Random weights of the size they start with, and a batch.
fn prepare(executor: &mut dyn Executor, model: &LanguageModel, vocab: usize) {
    let mut rng = Rng::new(1);
    for view in &model.plan.views {
        let matrix = view.shape.len() > 1;
        let value = |rng: &mut Rng| if matrix { 0.02 * rng.normal() } else { 1.0 };
        let values: Vec<f64> = (0..view.len()).map(|_| value(&mut rng)).collect();
        executor
            .write_f64(model.plan.parameters[view.parameter].value, view.offset, &values)
            .unwrap();
    }
    let rows = BATCH * LENGTH;
    let tokens: Vec<i32> = (0..rows).map(|_| rng.below(vocab) as i32).collect();
    let label = |r: usize| {
        if (r + 1).is_multiple_of(LENGTH) {
            IGNORE_INDEX
        } else {
            tokens[r + 1]
        }
    };
    executor.write_ids(model.tokens, &tokens).unwrap();
    executor
        .write_ids(model.labels, &(0..rows).map(label).collect::<Vec<_>>())
        .unwrap();
    executor
        .write_f64(model.grad_scale, 0, &[1.0 / (rows - BATCH) as f64])
        .unwrap();
    executor
        .write_f64(model.hyper, HYPER_LEARNING_RATE, &[1e-4])
        .unwrap();
}

/// Time per operator, summed over the step's operators of that name.
fn profile(executor: &mut dyn Executor) {
    let mut times: BTreeMap<&'static str, (Duration, usize, u64)> = BTreeMap::new();
    let repeats = 5;
    for _ in 0..repeats {
        for section in &Section::ALL[..4] {
            for time in executor.profile(*section).unwrap() {
                let op = &executor.plan().ops(*section)[time.index];
                let entry = times.entry(op.name()).or_default();
                entry.0 += time.time;
                entry.1 += 1;
                entry.2 += op.flops(executor.plan());
            }
        }
    }
    let mut rows: Vec<_> = times.into_iter().collect();
    rows.sort_by_key(|(_, (time, ..))| std::cmp::Reverse(*time));
    for (name, (time, count, flops)) in rows {
        let seconds = time.as_secs_f64();
        println!(
            "    {name:22} {:8.2} ms a step, {:4} calls, {:6.1} GFLOP/s",
            seconds * 1e3 / f64::from(repeats),
            count / repeats as usize,
            flops as f64 / seconds / 1e9
        );
    }
}

/// FLOP/s of our square product.
fn product_rate() -> f64 {
    const N: usize = 2048;
    let case = linear(Geometry::unpacked(1, N), N, N, 1).unwrap();
    let mut executor = cpu::executor(case.plan.clone(), Float::F32, THREADS).unwrap();
    case.load(executor.as_mut()).unwrap();
    let time = |executor: &mut dyn Executor| {
        let start = Instant::now();
        executor.run(Section::Forward).unwrap();
        start.elapsed().as_secs_f64()
    };
    debug_assert!(case.plan.buffers.iter().any(|b| b.role == Role::Parameter));
    let best = (0..8)
        .map(|_| time(executor.as_mut()))
        .fold(f64::INFINITY, f64::min);
    2.0 * (N * N * N) as f64 / best
}

/// What `peer_gdn.py` printed.
fn peer(config: &ModelConfig, seconds: f64) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer_gdn.py");
    let file = std::env::temp_dir().join(format!("ceteris-bench-{}.json", std::process::id()));
    let mut sizes = serde_json::to_value(config).unwrap();
    sizes["num_v_heads"] = config.value_heads().into();
    sizes["intermediate_size"] = config.mlp_size().into();
    std::fs::write(&file, sizes.to_string()).unwrap();
    let python = setting("CETERIS_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(&python)
        .arg(&script)
        .arg("--config")
        .arg(&file)
        .args(["--batch", &BATCH.to_string(), "--length", &LENGTH.to_string()])
        .args([
            "--threads",
            &THREADS.to_string(),
            "--seconds",
            &seconds.to_string(),
        ])
        // Freed tensors stay mapped; without this PyTorch spends much of the step in page faults.
        .envs([
            ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
            ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
        ])
        .output()
        .unwrap_or_else(|e| panic!("can't start '{python}' (set CETERIS_PYTHON): {e}"));
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "the peer failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(text.trim()).unwrap()
}

fn report(name: &str, ours: &Rate, product: f64, peer: Option<&Value>) {
    let peers_product = peer.map_or(0.0, |p| p["product_flops"].as_f64().unwrap());
    let best = product.max(peers_product);
    let share = ours.tokens_per_s * 6.0 * ours.parameters as f64 / best;
    println!(
        "{name}: {} parameters, {BATCH} x {LENGTH} tokens, f32, {THREADS} threads",
        ours.parameters
    );
    println!(
        "    ceteris   {:9.0} tokens/s ({} steps)",
        ours.tokens_per_s, ours.steps
    );
    if let Some(peer) = peer {
        let rate = peer["tokens_per_s"].as_f64().unwrap();
        println!(
            "    pytorch   {rate:9.0} tokens/s ({} steps, torch {}, {} parameters): {:.2}x",
            peer["steps"],
            peer["torch"].as_str().unwrap(),
            peer["parameters"],
            ours.tokens_per_s / rate
        );
    }
    println!(
        "    product rate {:.1} GFLOP/s (ours {:.1}, pytorch's {:.1}); the step, as 6N a token: {:.1} %",
        best / 1e9,
        product / 1e9,
        peers_product / 1e9,
        100.0 * share
    );
}
