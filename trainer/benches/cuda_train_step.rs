//! The training step of gdn-300m on a CUDA device: time, time per operator, memory, loss curves.
//!
//!     cuda_train_step kernels sm_90a              compiles every kernel into the cache; needs NVRTC, no device
//!     cuda_train_step profile [MICRO_BATCH_SIZE]  32 by default, sequences of 2048 tokens, `amp`
//!     cuda_train_step curve TOKENS WEIGHTS ORDER OUT [STEPS]
//!     cuda_train_step accuracy TOKENS WEIGHTS [SCALE]
//!
//! `curve` trains with micro-batch size 8 on TOKENS (little-endian i32, rows of 2048) in the order of ORDER (a JSON list
//! of rows) from WEIGHTS (safetensors, f32) and writes loss, grad_norm and the hash of the final weights to OUT (JSON):
//! AdamW 0.9 / 0.95 / 1e-8, decay 0.01 by the Hugging Face rule, clip 1.0, 20 steps of warm-up, cosine to a tenth of
//! 2e-4 over 200 steps. `accuracy` compares loss and gradients of 2 x 256 tokens, a tenth of the labels ignored, with the
//! CPU in f64: `‖x - ref‖ / ‖ref‖` over all parameters, and by kind; SCALE multiplies the matrices of the layers.
//! Settings: `CETERIS_RECOMPUTE` (none, cheap, block), `CETERIS_CHUNK_ROWS` (rows of logits at a
//! time, 8192), `CETERIS_PRECISION` (amp, fp32).

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first failure")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ceteris_kernels::backend::{Executor, read_all};
use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{AlgorithmRecord, CudaExecutor, Device, Precision, compile_all, units};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_STEP, IGNORE_INDEX};
use ceteris_kernels::plan::{Geometry, Role, Section};
use ceteris_kernels::recompute::Recompute;
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::model::gdn::{LanguageModel, Optimizer, PlanOptions, emit};
use rayon::prelude::*;
use serde_json::{Value, json};

const LENGTH: usize = 2048;
/// Bytes a second that a device-to-device copy moves on an H200, read plus write.
const COPY: f64 = 4.27e12;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match text[..] {
        ["kernels", arch] => kernels(arch),
        ["profile"] => profile(32),
        ["profile", size] => profile(size.parse().unwrap()),
        ["accuracy", tokens, weights] => accuracy(tokens, weights, 1.0),
        ["accuracy", tokens, weights, scale] => accuracy(tokens, weights, scale.parse().unwrap()),
        ["curve", tokens, weights, order, out] => curve(tokens, weights, order, out, 200),
        ["curve", tokens, weights, order, out, steps] => {
            curve(tokens, weights, order, out, steps.parse().unwrap());
        }
        _ => println!("usage: see the head of benches/cuda_train_step.rs; nothing measured"),
    }
}

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.into())
}

fn precision() -> Precision {
    match setting("CETERIS_PRECISION", "amp").as_str() {
        "fp32" => Precision::Fp32,
        _ => Precision::Amp,
    }
}

fn model(batch: usize) -> LanguageModel {
    let decay = |name: &str| {
        if name.contains("norm") || name.contains("bias") {
            0.0
        } else {
            0.01
        }
    };
    let options = PlanOptions {
        optimizer: Some(Optimizer {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            max_grad_norm: Some(1.0),
            weight_decay: &decay,
        }),
        logits_chunk_rows: Some(
            setting("CETERIS_CHUNK_ROWS", if batch > 8 { "11008" } else { "16384" })
                .parse()
                .unwrap(),
        ),
        branch_gradient_copies: true,
        shared_tied_gradient: true,
        recompute: match setting("CETERIS_RECOMPUTE", "cheap").as_str() {
            "none" => Recompute::None,
            "block" => Recompute::Block,
            _ => Recompute::Cheap,
        },
        ..PlanOptions::new(Geometry::unpacked(batch, LENGTH))
    };
    emit(&ModelConfig::gdn_300m(), &options).unwrap()
}

fn kernels(arch: &str) {
    let plan = model(8).plan;
    let all: BTreeSet<_> = [Precision::Amp, Precision::Fp32]
        .into_iter()
        .flat_map(|p| units(&plan, p).unwrap())
        .collect();
    compile_all(&all, arch).unwrap();
    println!("{} modules are in the cache", all.len());
}

fn open(model: &LanguageModel) -> CudaExecutor {
    let start = Instant::now();
    let device = Device::open(0).unwrap();
    let name = device.name().to_owned();
    let before = device.free_memory().unwrap();
    let executor =
        CudaExecutor::new(model.plan.clone(), precision(), device, AlgorithmRecord::new()).unwrap();
    let taken = before - executor.device().free_memory().unwrap();
    let memory = executor.memory();
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    println!(
        "{name}: {:.2} GiB taken ({:.2} persistent, {:.2} arena; {:.2} without reuse); ready in {:.1} s",
        gib(taken as usize),
        gib(memory.persistent),
        gib(memory.arena),
        gib(memory.arena_without_reuse),
        start.elapsed().as_secs_f64()
    );
    executor
}

/// Weights of the size they start with.
fn random_weights(executor: &mut CudaExecutor, model: &LanguageModel) {
    for (i, view) in model.plan.views.iter().enumerate() {
        let mut values = vec![1.0f32; view.len()];
        if view.shape.len() > 1 {
            values.par_chunks_mut(1 << 16).enumerate().for_each(|(j, chunk)| {
                let mut rng = Rng::new((i * 100_003 + j) as u64);
                chunk.iter_mut().for_each(|x| *x = 0.02 * rng.normal() as f32);
            });
        }
        executor
            .write_f32(model.plan.parameters[view.parameter].value, view.offset, &values)
            .unwrap();
    }
}

/// Labels: each row's next token within its sequence.
fn labels(tokens: &[i32]) -> Vec<i32> {
    let mut labels = tokens[1..].to_vec();
    labels.push(IGNORE_INDEX);
    labels
        .chunks_mut(LENGTH)
        .for_each(|row| row[LENGTH - 1] = IGNORE_INDEX);
    labels
}

fn write(executor: &mut CudaExecutor, model: &LanguageModel, tokens: &[i32]) {
    executor.write_ids(model.tokens, tokens).unwrap();
    executor.write_ids(model.labels, &labels(tokens)).unwrap();
}

fn launch(executor: &mut CudaExecutor, model: &LanguageModel, lr: f64, step: usize) {
    executor
        .write_f64(model.hyper, HYPER_LEARNING_RATE, &[lr])
        .unwrap();
    executor
        .write_f64(model.hyper, HYPER_STEP, &[step as f64 + 1.0])
        .unwrap();
    for section in &Section::ALL[..4] {
        executor.run(*section).unwrap();
    }
}

fn scalar(executor: &mut CudaExecutor, id: ceteris_kernels::plan::BufferId) -> f64 {
    read_all(executor, id).unwrap()[0]
}

fn profile(batch: usize) {
    const STEPS: usize = 12;
    let model = model(batch);
    let mut executor = open(&model);
    random_weights(&mut executor, &model);
    let rows = batch * LENGTH;
    let scale = 1.0 / (batch * (LENGTH - 1)) as f64;
    executor.write_f64(model.grad_scale, 0, &[scale]).unwrap();
    let mut rng = Rng::new(5);
    let batches: Vec<Vec<i32>> = (0..4)
        .map(|_| (0..rows).map(|_| rng.below(128_256) as i32).collect())
        .collect();
    write(&mut executor, &model, &batches[0]);
    let mut times = Vec::new();
    let mut last = Instant::now();
    for step in 0..STEPS + 3 {
        launch(&mut executor, &model, 1e-4, step);
        // The next batch is sorted while this step runs; its copy waits for the step.
        write(&mut executor, &model, &batches[(step + 1) % 4]);
        let (loss, norm) = (
            scalar(&mut executor, model.loss_sum),
            scalar(&mut executor, model.grad_norm),
        );
        assert!(
            loss.is_finite() && norm.is_finite(),
            "step {step}: loss {loss}, grad_norm {norm}"
        );
        if step < 3 || step == STEPS + 2 {
            println!("step {step}: loss {:.6} grad_norm {norm:.6}", loss * scale);
        }
        times.push(last.elapsed());
        last = Instant::now();
    }
    times.drain(..3);
    times.sort();
    let milliseconds = |d: Duration| d.as_secs_f64() * 1e3;
    let median = milliseconds(times[times.len() / 2]);
    let all: Vec<String> = times.iter().map(|&t| format!("{:.1}", milliseconds(t))).collect();
    println!("steps, sorted: {}", all.join(" "));
    println!(
        "micro-batch {batch} x {LENGTH}: {median:.2} ms a step ({:.2}..{:.2}), {:.0} tokens/s",
        milliseconds(times[0]),
        milliseconds(times[times.len() - 1]),
        rows as f64 / median * 1e3
    );
    table(&mut executor, &model);
}

/// Time per operator of a step, with what it has to move and to multiply.
fn table(executor: &mut CudaExecutor, model: &LanguageModel) {
    #[derive(Default)]
    struct Line {
        time: f64,
        calls: usize,
        bytes: u64,
        flops: u64,
    }
    let element = |role: Role| precision().bytes(role) as usize;
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for round in 0..2 {
        for section in &Section::ALL[..4] {
            for time in executor.profile(*section).unwrap() {
                if round == 0 {
                    continue;
                }
                let op = &model.plan.ops(*section)[time.index];
                let line = lines
                    .entry(format!("{section:?} {}", label(op, model)))
                    .or_default();
                line.time += time.time.as_secs_f64() * 1e3;
                line.calls += 1;
                line.bytes += op.bytes(&model.plan, &element);
                line.flops += op.flops(&model.plan);
            }
        }
    }
    let total: f64 = lines.values().map(|l| l.time).sum();
    let mut sorted: Vec<_> = lines.into_iter().collect();
    sorted.sort_by(|a, b| b.1.time.total_cmp(&a.1.time));
    println!(
        "{:58} {:>8} {:>5} {:>8} {:>7} {:>8} {:>8}",
        "operator", "ms", "calls", "ms each", "TB/s", "of copy", "TFLOP/s"
    );
    for (name, l) in sorted {
        let rate = l.bytes as f64 / l.time * 1e3;
        println!(
            "{name:58} {:8.3} {:5} {:8.4} {:7.2} {:7.0}% {:8.0}",
            l.time,
            l.calls,
            l.time / l.calls as f64,
            rate / 1e12,
            rate / COPY * 100.0,
            l.flops as f64 / l.time / 1e9
        );
    }
    println!("sum of operators {total:.2} ms");
    calls(executor, model);
}

/// Time per kernel within the operators that are several.
fn calls(executor: &mut CudaExecutor, model: &LanguageModel) {
    let mut lines: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for section in &Section::ALL[..4] {
        for (index, name, time) in executor.call_times(*section).unwrap() {
            let op = model.plan.ops(*section)[index].name();
            let line = lines.entry(format!("{section:?} {op} {name}")).or_default();
            line.0 += time.as_secs_f64() * 1e3;
            line.1 += 1;
        }
    }
    for (name, (time, count)) in lines.into_iter().filter(|(_, l)| l.0 > 0.05) {
        println!("{name:70} {time:8.3} {count:5} {:8.4}", time / count as f64);
    }
}

/// An operator's name, for products with the weight's shape.
fn label(op: &ceteris_kernels::ops::Op, model: &LanguageModel) -> String {
    use ceteris_kernels::ops::Op;
    let weight = match op {
        Op::Linear(o) => Some(o.weight),
        Op::LinearBackwardInput(o) => Some(o.weight),
        Op::LinearBackwardWeight(o) => Some(o.dweight),
        _ => None,
    };
    match weight {
        Some(id) => format!("{} {:?}", op.name(), model.plan.buffer(id).shape),
        None => op.name().to_owned(),
    }
}

fn lr_at(step: usize, total: usize) -> f64 {
    const WARMUP: usize = 20;
    let peak = 2e-4;
    if step < WARMUP {
        return peak * step as f64 / WARMUP as f64;
    }
    let p = (step - WARMUP) as f64 / (total - WARMUP).max(1) as f64;
    peak * (0.5 * (1.0 + (std::f64::consts::PI * p).cos()) * 0.9 + 0.1)
}

fn curve(tokens: &str, weights: &str, order: &str, out: &str, steps: usize) {
    const BATCH: usize = 8;
    let model = model(BATCH);
    let mut executor = open(&model);
    load(&mut executor, &model, weights, 1.0);
    let tokens = read_tokens(tokens);
    let order: Vec<usize> = serde_json::from_slice(&std::fs::read(order).unwrap()).unwrap();
    let scale = 1.0 / (BATCH * (LENGTH - 1)) as f64;
    executor.write_f64(model.grad_scale, 0, &[scale]).unwrap();
    let batch = |step: usize| -> Vec<i32> {
        order[step * BATCH..(step + 1) * BATCH]
            .iter()
            .flat_map(|&row| &tokens[row * LENGTH..(row + 1) * LENGTH])
            .copied()
            .collect()
    };
    write(&mut executor, &model, &batch(0));
    let mut log: Vec<Value> = Vec::new();
    let start = Instant::now();
    for step in 0..steps {
        launch(&mut executor, &model, lr_at(step, 200), step);
        if step + 1 < steps {
            write(&mut executor, &model, &batch(step + 1));
        }
        let loss = scalar(&mut executor, model.loss_sum) * scale;
        let norm = scalar(&mut executor, model.grad_norm);
        log.push(json!({"step": step, "lr": lr_at(step, 200), "loss": loss, "grad_norm": norm}));
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut hash = blake3::Hasher::new();
    for parameter in &model.plan.parameters {
        for value in read_all(&mut executor, parameter.value).unwrap() {
            hash.update(&(value as f32).to_le_bytes());
        }
    }
    let hash = hash.finalize().to_hex().to_string();
    let rate = (steps * BATCH * LENGTH) as f64 / seconds;
    println!("{steps} steps, {rate:.0} tokens/s, final weights {hash}");
    let text = json!({"steps": log, "final_parameters_blake3": hash, "algorithms": executor.algorithms()});
    std::fs::write(out, serde_json::to_vec_pretty(&text).unwrap()).unwrap();
}

/// Weights from a file; matrices of layers times `scale`.
fn load(executor: &mut dyn Executor, model: &LanguageModel, weights: &str, scale: f32) {
    let file = std::fs::File::open(weights).unwrap();
    // SAFETY: nothing writes to the file while the benchmark runs.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&map).unwrap();
    for view in &model.plan.views {
        let tensor = tensors.tensor(&view.name).unwrap();
        assert_eq!(tensor.shape(), view.shape, "{}", view.name);
        let scaled = view.shape.len() > 1 && view.name.contains("layers");
        let values: Vec<f32> = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()) * if scaled { scale } else { 1.0 })
            .collect();
        let value = model.plan.parameters[view.parameter].value;
        executor.write_f32(value, view.offset, &values).unwrap();
    }
}

fn read_tokens(file: &str) -> Vec<i32> {
    std::fs::read(file)
        .unwrap()
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Loss and gradients by name.
type Gradients = (f64, Vec<(String, Vec<f64>)>);

fn gradients(executor: &mut dyn Executor, model: &LanguageModel, ids: [&[i32]; 2]) -> Gradients {
    executor.write_ids(model.tokens, ids[0]).unwrap();
    executor.write_ids(model.labels, ids[1]).unwrap();
    let counted = ids[1].iter().filter(|l| **l != IGNORE_INDEX).count() as f64;
    executor.write_f64(model.grad_scale, 0, &[1.0 / counted]).unwrap();
    // The update's first operator joins the two parts of a tied table's gradient; its learning rate is 0.
    for section in &Section::ALL[..4] {
        executor.run(*section).unwrap();
    }
    let loss = read_all(executor, model.loss_sum).unwrap()[0] / counted;
    let views = model.plan.views.clone();
    let read = |view: &ceteris_kernels::plan::ParameterView| {
        let mut out = vec![0.0; view.len()];
        let gradient = model.plan.parameters[view.parameter].gradient;
        executor.read_f64(gradient, view.offset, &mut out).unwrap();
        (view.name.clone(), out)
    };
    (loss, views.iter().map(read).collect())
}

fn accuracy(tokens: &str, weights: &str, scale: f32) {
    let (batch, length) = (2, 256);
    let options = PlanOptions {
        optimizer: Some(Optimizer {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            max_grad_norm: None,
            weight_decay: &|_| 0.0,
        }),
        branch_gradient_copies: true,
        shared_tied_gradient: true,
        logits_chunk_rows: Some(batch * length),
        ..PlanOptions::new(Geometry::unpacked(batch, length))
    };
    let model = emit(&ModelConfig::gdn_300m(), &options).unwrap();
    let all = read_tokens(tokens);
    let tokens: Vec<i32> = (0..batch)
        .flat_map(|row| &all[row * LENGTH..][..length])
        .copied()
        .collect();
    let mut rng = Rng::new(10);
    let labels: Vec<i32> = (0..batch * length)
        .map(|i| {
            if (i + 1) % length == 0 || rng.uniform() < 0.1 {
                IGNORE_INDEX
            } else {
                tokens[i + 1]
            }
        })
        .collect();
    let start = Instant::now();
    let mut oracle =
        ceteris_kernels::cpu::executor(model.plan.clone(), ceteris_kernels::cpu::Float::F64, 0).unwrap();
    load(oracle.as_mut(), &model, weights, scale);
    let (loss, reference) = gradients(oracle.as_mut(), &model, [&tokens, &labels]);
    drop(oracle);
    println!(
        "scale {scale}: f64 loss {loss:.7}, {:.0} s",
        start.elapsed().as_secs_f64()
    );
    for precision in [Precision::Amp, Precision::Fp32] {
        let device = Device::open(0).unwrap();
        let mut executor =
            CudaExecutor::new(model.plan.clone(), precision, device, AlgorithmRecord::new()).unwrap();
        load(&mut executor, &model, weights, scale);
        let (got_loss, got) = gradients(&mut executor, &model, [&tokens, &labels]);
        let (mut sums, mut kinds) = ((0.0, 0.0), BTreeMap::<String, f64>::new());
        let mut errors = Vec::new();
        for ((name, x), (_, y)) in got.iter().zip(&reference) {
            let difference: f64 = x.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum();
            let size: f64 = y.iter().map(|b| b * b).sum();
            sums = (sums.0 + difference, sums.1 + size);
            let error = (difference / size).sqrt();
            errors.push(error);
            let kind = name.rsplit('.').take(3).collect::<Vec<_>>();
            let kind = kind
                .into_iter()
                .rev()
                .filter(|p| p.parse::<usize>().is_err())
                .collect::<Vec<_>>()
                .join(".");
            let worst = kinds.entry(kind).or_default();
            *worst = worst.max(error);
        }
        errors.sort_by(f64::total_cmp);
        println!(
            "{precision:?}: loss {got_loss:.7} ({:.1e} relative); gradients: all {:.2e}, median {:.2e}, worst {:.2e}",
            (got_loss - loss).abs() / loss,
            (sums.0 / sums.1).sqrt(),
            errors[errors.len() / 2],
            errors[errors.len() - 1]
        );
        for (kind, error) in kinds {
            println!("  {kind:32} {error:.2e}");
        }
    }
}
