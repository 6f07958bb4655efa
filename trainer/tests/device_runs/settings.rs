//! What a device computes and what is refused at configuration time; even step times.

use std::time::{Duration, Instant};

use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{KEY_DIMS, VALUE_DIMS, compilations};
use ceteris_trainer::checkpoint::Part;
use ceteris_trainer::config::{DocumentMarker, RecomputeSetting, RunConfig};
use ceteris_trainer::data::GlobalBatch;
use ceteris_trainer::run::engine::Engine;

use crate::common::{batches, device, engine, first_batch, layers_of_300m, sequence, small};

fn with_heads(key_dim: usize, value_dim: usize) -> RunConfig {
    let mut config = small(96);
    config.model.head_dim = key_dim;
    config.model.expand_v = value_dim as f64 / key_dim as f64;
    config
}

/// Needs no device.
#[test]
fn v65_heads_that_no_kernel_covers_are_refused_at_configuration_time() {
    for (key_dim, value_dim) in [(48, 48), (1024, 1024), (96, 192), (64, 1024), (64, 48)] {
        let config = with_heads(key_dim, value_dim);
        let start = Instant::now();
        let why = config.validate().unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(1));
        let refused = if KEY_DIMS.contains(&key_dim) {
            value_dim
        } else {
            key_dim
        };
        assert!(
            why.contains(&refused.to_string()) && why.contains("allowed there: [64, 128, 256"),
            "{why}"
        );
        // An engine that was not validated refuses too, before it opens a device.
        let start = Instant::now();
        let why = Engine::build(&config).unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(1));
        assert!(why.contains("not supported on CUDA, allowed"), "{why}");
    }
    let mut zero = small(96);
    zero.model.head_dim = 0;
    let why = zero.validate().unwrap_err().to_string();
    assert!(
        why.starts_with("model.head_dim: 0") && why.contains("allowed"),
        "{why}"
    );
}

#[test]
fn v65_every_accepted_head_size_trains_a_step() {
    let Some(_turn) = device() else {
        return;
    };
    let mut rng = Rng::new(65);
    let rows: Vec<Vec<i32>> = (0..2).map(|_| sequence(&mut rng, 96, 64)).collect();
    for key_dim in KEY_DIMS {
        for value_dim in VALUE_DIMS {
            let mut config = with_heads(key_dim, value_dim);
            config.batch.micro_batch_size = 2;
            let start = Instant::now();
            let mut engine = engine(&config);
            let result = engine.step(&first_batch(&config, &rows), 1, 1e-3).unwrap();
            println!(
                "heads {key_dim:3} x {value_dim:3}: loss {:.4}, grad_norm {:.4}, {:.1} s",
                result.loss,
                result.grad_norm,
                start.elapsed().as_secs_f64()
            );
            assert!((result.loss - 64f64.ln()).abs() < 0.5 && result.grad_norm > 0.0);
        }
    }
}

/// Rows cut into documents of random lengths by begin tokens.
fn packed_rows(rng: &mut Rng, rows: usize, length: usize, vocab: usize, longest: usize) -> Vec<Vec<i32>> {
    let mut out = Vec::new();
    for _ in 0..rows {
        let mut row = sequence(rng, length, vocab);
        let mut at = 0;
        while at < length {
            row[at] = 1;
            at += 1 + rng.below(longest);
        }
        out.push(row);
    }
    out
}

#[test]
fn v66_steps_of_random_packed_lengths_take_even_times() {
    let Some(_turn) = device() else {
        return;
    };
    const STEPS: usize = 200;
    const VOCAB: usize = 8192;
    let mut config = layers_of_300m(2048, VOCAB);
    config.data.documents = DocumentMarker::Bos;
    config.data.max_documents_per_row = 512;
    config.batch.micro_batch_size = 4;
    let mut rng = Rng::new(66);
    let mut rows = Vec::new();
    for _ in 0..STEPS {
        let longest = [16, 64, 300, 2048][rng.below(4)];
        rows.extend(packed_rows(&mut rng, 4, 2048, VOCAB, longest));
    }
    let mut batches = batches(&config, &rows);
    let mut engine = engine(&config);
    let compiled = compilations();
    let mut times = Vec::new();
    for step in 0..STEPS {
        let batch = batches.next_batch().unwrap().unwrap();
        let start = Instant::now();
        engine.step(&batch, step as u64 + 1, 1e-4).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    assert_eq!(compilations(), compiled, "a kernel was compiled after the start");
    let mut steady = times[3..].to_vec();
    steady.sort_by(f64::total_cmp);
    let (median, most) = (steady[steady.len() / 2], steady[steady.len() - 1]);
    println!(
        "{STEPS} steps: first three {:.2} {:.2} {:.2} ms; then median {median:.2}, least {:.2}, most {most:.2} ms: {:.2} x \
         the median; {} steps above 1.5 x",
        times[0],
        times[1],
        times[2],
        steady[0],
        most / median,
        steady.iter().filter(|t| **t > 1.5 * median).count()
    );
}

/// Two steps, the second one by another engine that got weights and moments of the first: against two steps of one.
fn resumed(config: &RunConfig, batch: &GlobalBatch) {
    let mut whole = engine(config);
    let mut first = engine(config);
    let done = (
        whole.step(batch, 1, 1e-2).unwrap(),
        first.step(batch, 1, 1e-2).unwrap(),
    );
    assert_eq!(done.0, done.1);
    let mut second = engine(config);
    for (index, (name, shape)) in first.tensors().into_iter().enumerate() {
        let mut values = vec![0f64; shape.iter().product()];
        for part in [Part::Value, Part::FirstMoment, Part::SecondMoment] {
            first.read_part(part, index, 0, &mut values).unwrap();
            second.write_part(part, &name, 0, &values).unwrap();
        }
    }
    let ends = (
        whole.step(batch, 2, 1e-2).unwrap(),
        second.step(batch, 2, 1e-2).unwrap(),
    );
    assert_eq!(ends.0.loss.to_bits(), ends.1.loss.to_bits());
    assert_eq!(ends.0.grad_norm.to_bits(), ends.1.grad_norm.to_bits());
    assert_eq!(whole.weights_sha256().unwrap(), second.weights_sha256().unwrap());
}

#[test]
fn v69_every_cell_of_the_support_matrix_trains_on_one_gpu() {
    let Some(_turn) = device() else {
        return;
    };
    let mut rng = Rng::new(69);
    for cell in ["packed", "padded"] {
        let mut config = small(200);
        config.batch.micro_batch_size = 2;
        let rows = if cell == "packed" {
            config.data.documents = DocumentMarker::Bos;
            config.data.max_documents_per_row = 200;
            packed_rows(&mut rng, 2, 200, 64, 90)
        } else {
            vec![sequence(&mut rng, 200, 64), sequence(&mut rng, 77, 64)]
        };
        config.validate().unwrap();
        let batch = first_batch(&config, &rows);
        resumed(&config, &batch);
        println!("{cell} x resume x 1 GPU: runs");
        config.train.recompute = RecomputeSetting::Block;
        let result = engine(&config).step(&batch, 1, 1e-2).unwrap();
        assert!(result.loss.is_finite() && result.grad_norm > 0.0);
        println!("{cell} x recompute x 1 GPU: runs, loss {:.4}", result.loss);
    }
}

/// Needs no device.
#[test]
fn v69_several_gpus_are_refused_at_configuration_time() {
    for (devices, cell) in [
        ("cuda:0,cuda:1", "2 GPUs"),
        ("cuda:0,cuda:1,cuda:2,cuda:3", "4 GPUs"),
    ] {
        for documents in [DocumentMarker::None, DocumentMarker::Bos] {
            for recompute in [RecomputeSetting::None, RecomputeSetting::Block] {
                let mut config = small(64);
                config.train.device = devices.into();
                config.train.recompute = recompute;
                config.data.documents = documents;
                let start = Instant::now();
                let why = config.validate().unwrap_err().to_string();
                assert!(start.elapsed() < Duration::from_secs(1));
                assert!(
                    why.contains(cell) && why.contains("allowed: auto, cpu, cuda, cuda:N"),
                    "{why}"
                );
            }
        }
    }
}
