//! Reports V02, V14, V17, V20, V23 (what a training run has to do with them), V57-V60 and V67.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ceteris_loader::collate::IGNORE_INDEX;
use ceteris_loader::source::{Source, SourceError};
use ceteris_samplers::SampleId;
use ceteris_trainer::checkpoint::{self, Part};
use ceteris_trainer::config::RunConfig;
use ceteris_trainer::data::{GlobalBatch, TrainData};
use ceteris_trainer::init::InitConfig;
use ceteris_trainer::model::parameters::{Kind, named_parameters};
use ceteris_trainer::optim::{DECAY_PRESETS, DecayPreset};
use ceteris_trainer::run::engine::{Engine, EngineError, StepResult};
use ceteris_trainer::run::manifest::Manifest;
use ceteris_trainer::run::metrics::{self, Line, StepMetrics};
use tempfile::TempDir;

const PAD: i32 = 0;

/// Rows of given tokens, padded with 0 behind their own.
#[derive(Debug)]
struct Rows(Vec<Vec<i32>>);

impl Source for Rows {
    fn num_samples(&self) -> u64 {
        self.0.len() as u64
    }
    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        Ok(self.0[id as usize].len())
    }
    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let row = &self.0[id as usize];
        let n = row.len().min(out.len());
        out[..n].copy_from_slice(&row[..n]);
        Ok(n)
    }
    fn file_of(&self, _: SampleId) -> Option<PathBuf> {
        None
    }
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// A small network over rows of `seq_length` tokens below 64, in stored order.
fn small(seq_length: usize) -> RunConfig {
    let mut config = RunConfig::default();
    let model = &mut config.model;
    (model.hidden_size, model.num_hidden_layers, model.vocab_size) = (32, 1, 64);
    (model.num_heads, model.num_v_heads, model.head_dim, model.expand_v) = (1, Some(2), 16, 1.0);
    (model.intermediate_size, model.tie_word_embeddings) = (Some(64), true);
    config.data.cache_dir = "rows".into();
    config.data.seq_length = seq_length;
    config.data.pad_token_id = Some(PAD as u32);
    config.train.steps = Some(1);
    config.loader.workers = 0;
    config
}

/// Rows with this many targets each: tokens 1..=63 in turn.
fn rows_with_targets(targets: &[usize]) -> Vec<Vec<i32>> {
    let row = |r: usize, n: usize| (0..=n).map(|i| 1 + ((r * 7 + i * 5) % 63) as i32).collect();
    targets.iter().enumerate().map(|(r, &n)| row(r, n)).collect()
}

fn first_batch(config: &RunConfig, rows: &[Vec<i32>]) -> GlobalBatch {
    let data = TrainData::over(config, Arc::new(Rows(rows.to_vec())), "rows".into()).unwrap();
    data.batches(config, None, None)
        .unwrap()
        .next_batch()
        .unwrap()
        .unwrap()
}

fn engine(config: &RunConfig) -> Engine {
    let mut engine = Engine::build(config).unwrap();
    config
        .init
        .run(&config.model, config.seeds.init, &mut |name, first, values| {
            engine
                .write_weights(name, first, values)
                .map_err(|e| e.to_string())
        })
        .unwrap();
    engine
}

/// Loss, gradient norm and the weights after one step.
fn step(config: &RunConfig, rows: &[Vec<i32>]) -> (StepResult, Vec<(String, String)>) {
    let batch = first_batch(config, rows);
    let mut engine = engine(config);
    let result = engine.step(&batch, 1, 1e-2).unwrap();
    (result, engine.weights_sha256().unwrap())
}

fn split(config: &RunConfig, world: u64, micro: u64, accumulation: u64) -> RunConfig {
    let mut config = config.clone();
    config.batch.world_size = world;
    config.batch.micro_batch_size = micro;
    config.batch.gradient_accumulation_steps = Some(accumulation);
    config
}

#[test]
fn v57_the_split_into_accumulation_steps_changes_no_bit() {
    let config = small(201);
    let rows = rows_with_targets(&[3, 200, 17, 64, 199, 5, 128, 40]);
    let whole = step(&split(&config, 1, 8, 1), &rows);
    for (micro, accumulation) in [(4, 2), (2, 4), (1, 8)] {
        let parts = step(&split(&config, 1, micro, accumulation), &rows);
        assert_eq!(
            parts.0.loss.to_bits(),
            whole.0.loss.to_bits(),
            "{micro} x {accumulation}"
        );
        assert_eq!(
            parts.0.grad_norm.to_bits(),
            whole.0.grad_norm.to_bits(),
            "{micro} x {accumulation}"
        );
        assert_eq!(parts.1, whole.1, "{micro} x {accumulation}");
    }
}

#[test]
fn v58_the_loss_is_the_mean_over_the_tokens_of_all_ranks() {
    let config = small(9);
    // The third rank has a row of one token, which has no target.
    let rows = rows_with_targets(&[1, 7, 0]);
    let ranks = split(&config, 3, 1, 1);
    let batch = first_batch(&ranks, &rows);
    assert_eq!(batch.counted_tokens(), 8);
    let together = step(&split(&config, 1, 3, 1), &rows);
    let apart = step(&ranks, &rows);
    assert_eq!(apart.0.loss.to_bits(), together.0.loss.to_bits());
    assert_eq!(apart.1, together.1);
    assert!(apart.0.loss.is_finite() && apart.0.grad_norm > 0.0);
    // Sum over 8, not the mean of the ranks' means.
    let alone = |row: usize| {
        let one = split(&config, 1, 1, 1);
        step(&one, &rows[row..=row]).0.loss
    };
    let mean = (alone(0) + 7.0 * alone(1)) / 8.0;
    assert!((apart.0.loss - mean).abs() < 1e-6, "{} {mean}", apart.0.loss);
    assert!((apart.0.loss - (alone(0) + alone(1)) / 2.0).abs() > 1e-6);
    // A global batch without any target is an error, not NaN.
    let nothing = rows_with_targets(&[0]);
    let batch = first_batch(&split(&config, 1, 1, 1), &nothing);
    let error = engine(&split(&config, 1, 1, 1))
        .step(&batch, 1, 1e-2)
        .unwrap_err();
    assert!(matches!(error, EngineError::NothingCounts { step: 1 }), "{error}");
}

/// Negative log-likelihood of a model that is certain of `input + 1`.
fn one_hot_loss(batch: &GlobalBatch) -> f64 {
    let certain = 40.0f64;
    let others = 63.0;
    let mut sum = 0.0;
    let mut count = 0;
    for (input, target) in batch.pairs(0) {
        let logit = if target == input + 1 { certain } else { 0.0 };
        sum += (certain.exp() + others).ln() - logit;
        count += 1;
    }
    sum / f64::from(count)
}

#[test]
fn v59_labels_are_shifted_once_and_visibly() {
    let mut config = small(16);
    config.data.pad_token_id = Some(63);
    let rows = vec![(0..16).collect::<Vec<i32>>()];
    // Both collators, each with the shift where it belongs.
    for collator in [
        ceteris_trainer::config::Collate::Hf,
        ceteris_trainer::config::Collate::Shim,
    ] {
        config.data.collator = collator;
        let batch = first_batch(&config, &rows);
        assert!(one_hot_loss(&batch) < 1e-12, "{collator:?}");
        assert_eq!(batch.pairs(0).next(), Some((0, 1)), "{collator:?}");
        assert_eq!(
            batch.counted_tokens(),
            15,
            "{collator:?}: nothing is predicted behind the row"
        );
    }
    // Shifted twice, or not at all, is refused.
    let source = || Arc::new(Rows(rows.clone()));
    for (collator, shift, part) in [
        (ceteris_trainer::config::Collate::Shim, true, "shifted twice"),
        (
            ceteris_trainer::config::Collate::Hf,
            false,
            "not be shifted at all",
        ),
    ] {
        config.data.collator = collator;
        config.loss.shift_in_model = Some(shift);
        let data = TrainData::over(&config, source(), "rows".into()).unwrap();
        let error = data.batches(&config, None, None).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(IGNORE_INDEX, -100);
    // And it can be looked at.
    let output = trainer(&[
        "pairs",
        "--config",
        "configs/tiny.yaml",
        "--rows",
        "1",
        "--tokens",
        "3",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    let pairs: Vec<(&str, &str)> = text
        .split_whitespace()
        .filter_map(|word| word.split_once("->"))
        .collect();
    assert_eq!(pairs.len(), 3, "{text}");
    assert_eq!(
        (pairs[0].1, pairs[1].1),
        (pairs[1].0, pairs[2].0),
        "the target is the next input: {text}"
    );
}

#[test]
fn v60_weight_decay_groups_are_shown_and_obeyed() {
    let mut config = small(9);
    config.optimizer.weight_decay = 0.125;
    let tensors = named_parameters(&config.model);
    // Every preset names every tensor.
    let output = trainer(&[
        "groups",
        "--config",
        "configs/tiny.yaml",
        "--all-presets",
        "--format",
        "json",
    ]);
    let shown: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let presets: BTreeSet<&str> = shown.iter().map(|r| r["preset"].as_str().unwrap()).collect();
    assert_eq!(presets, BTreeSet::from(["all", "fla", "hf-trainer", "megatron"]));
    assert!(
        shown
            .iter()
            .all(|r| r["weight_decay"].is_f64() && r["name"].is_string())
    );
    for (name, preset) in DECAY_PRESETS {
        config.optimizer.decay = preset;
        let mut engine = engine(&config);
        let (lr, wd) = (0.25, config.optimizer.weight_decay);
        let before = weights(&mut engine);
        engine.update_without_gradient(1, lr).unwrap();
        let after = weights(&mut engine);
        let factor = (1.0 - lr * wd) as f32;
        for ((tensor, before), after) in tensors.iter().zip(&before).zip(&after) {
            let decays = preset.decays(&tensor.name, &tensor.shape);
            for (b, a) in before.iter().zip(after) {
                let want = if decays { b * factor } else { *b };
                assert_eq!(a.to_bits(), want.to_bits(), "{name}: {}", tensor.name);
            }
            if preset == DecayPreset::Fla && matches!(tensor.kind, Kind::DecayRate | Kind::TimeStep) {
                assert!(!decays, "{} never decays under fla", tensor.name);
            }
        }
        let decayed = tensors
            .iter()
            .filter(|t| preset.decays(&t.name, &t.shape))
            .count();
        assert!(decayed > 0, "{name}");
    }
}

fn weights(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tensors = engine.tensors();
    tensors
        .iter()
        .enumerate()
        .map(|(i, (_, shape))| {
            let mut values = vec![0.0; shape.iter().product()];
            engine.read_part(Part::Value, i, 0, &mut values).unwrap();
            values.iter().map(|&x| x as f32).collect()
        })
        .collect()
}

#[test]
fn v67_decay_parameters_start_finite_in_float32() {
    let mut config = small(9);
    config.model.num_heads = 1;
    config.model.num_v_heads = Some(10_000);
    config.model.head_dim = 1;
    let mut seen = 0;
    let mut digest = String::new();
    InitConfig::default()
        .run(&config.model, 42, &mut |name, _, values| {
            if name.ends_with("A_log") {
                seen += values.len();
                assert!(values.iter().all(|x| x.is_finite()));
                // exp(A_log) in (0, 16], from the documented floor of 16 / 2^24 on.
                let floor = (16.0f64 / 16_777_216.0).ln() as f32;
                assert!(
                    values
                        .iter()
                        .all(|&x| x >= floor && f64::from(x).exp() <= 16.0 + 1e-5)
                );
                digest.push_str(&ceteris_trainer::init::tensor_sha256(values));
            }
            if name.ends_with("dt_bias") {
                // Inverse softplus of time steps in [0.001, 0.1].
                let range = |dt: f64| (dt + (-(-dt).exp_m1()).ln()) as f32;
                let (low, high) = (range(0.001) - 1e-3, range(0.1) + 1e-3);
                assert!(values.iter().all(|&x| x >= low && x <= high));
                digest.push_str(&ceteris_trainer::init::tensor_sha256(values));
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, 10_000);
    // The same on every host: this is the hash of the two tensors anywhere.
    let digest = ceteris_tests::golden::sha256_hex(digest.as_bytes());
    assert_eq!(digest, V67_DIGEST);
}

const V67_DIGEST: &str = "f4d0be6a88623229c20ff94c2629fbccb57ff83b1c37b7bda761704ccdcaf331";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer-under-test"));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

fn trainer(args: &[&str]) -> std::process::Output {
    let output = program().args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Trains a small network on the bundled corpus.
struct Corpus(TempDir);

impl Corpus {
    fn new() -> Corpus {
        let folder = TempDir::new().unwrap();
        let text = "
model: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 64, num_heads: 1, num_v_heads: 2, head_dim: 16,
        expand_v: 1.0, vocab_size: 4096, tie_word_embeddings: true}
data: {cache_dir: tests/data/shakespeare, seq_length: 128}
order: fla
batch: {world_size: 2, micro_batch_size: 1}
optimizer: {lr: 1e-2}
log: {tensorboard: false}
";
        std::fs::write(folder.path().join("run.yaml"), text).unwrap();
        Corpus(folder)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, name: &str, sets: &[&str]) -> Command {
        let mut command = program();
        command
            .args(["train", "--quiet", "--config"])
            .arg(self.0.path().join("run.yaml"))
            .arg("--set")
            .arg(format!("output_dir={}", self.folder(name).display()));
        sets.iter().for_each(|set| {
            command.args(["--set", set]);
        });
        command
    }

    fn train(&self, name: &str, sets: &[&str]) -> Vec<StepMetrics> {
        let output = self.command(name, sets).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.steps(name)
    }

    fn steps(&self, name: &str) -> Vec<StepMetrics> {
        metrics::read(&self.folder(name).join("metrics.jsonl"))
            .unwrap()
            .into_iter()
            .filter_map(|line| match line {
                Line::Step(step) => Some(step),
                Line::Eval(_) => None,
            })
            .collect()
    }

    fn manifest(&self, name: &str) -> Manifest {
        Manifest::load(&self.folder(name).join("manifest.json")).unwrap()
    }
}

fn bits(steps: &[StepMetrics]) -> Vec<(u64, u64, String)> {
    steps
        .iter()
        .map(|s| {
            (
                s.loss.to_bits(),
                s.grad_norm.to_bits(),
                s.batch_fingerprint.clone(),
            )
        })
        .collect()
}

#[test]
fn v02_training_killed_and_resumed_consumes_what_an_undisturbed_run_consumes() {
    let corpus = Corpus::new();
    // Three epochs of 1,000 rows, 8 a step.
    let order = corpus.folder("order.txt");
    let list: Vec<String> = (0..1000u64).map(|i| (i * 7 % 1000).to_string()).collect();
    std::fs::write(&order, list.join("\n")).unwrap();
    let path = format!("order={{name: file, path: {}, rows: distinct}}", order.display());
    let sets = [
        path.as_str(),
        "train.epochs=3",
        "batch.micro_batch_size=4",
        "checkpoint.every=25",
    ];
    let whole = corpus.train("whole", &sets);
    assert_eq!(whole.len(), 375);
    // What it consumed: every row once an epoch.
    let settings: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let config = load(&corpus, &settings);
    let data = TrainData::open(&config, &mut |_| {}).unwrap();
    let mut batches = data.batches(&config, None, None).unwrap();
    let mut consumed = vec![Vec::new(); 3];
    for logged in &whole {
        let batch = batches.next_batch().unwrap().unwrap();
        assert_eq!(
            batch.fingerprint.fingerprint.to_string(),
            logged.batch_fingerprint
        );
        consumed[batch.epoch as usize].extend(batch.samples());
    }
    for mut rows in consumed {
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..1000), "every row once an epoch");
    }
    // A checkpoint without a data position is refused, never restarted at 0.
    corpus.train(
        "lost",
        &[
            sets[0],
            "train.steps=2",
            "checkpoint.every=1",
            "checkpoint.keep_last=1",
        ],
    );
    std::fs::remove_file(corpus.folder("lost/checkpoints/step-2/loader.json")).unwrap();
    let output = corpus
        .command("lost", &[sets[0], "train.steps=3"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && stderr.contains("checkpoints are all damaged"),
        "{stderr}"
    );
    // Killed fifteen times, five times an epoch.
    for kill in 0..15 {
        let mut child = corpus.command("killed", &sets).spawn().unwrap();
        let metrics = corpus.folder("killed/metrics.jsonl");
        let target = 5 + kill * 25;
        let lines = || std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count());
        while lines() < target && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = child.kill();
        child.wait().unwrap();
    }
    let killed = corpus.train("killed", &sets);
    assert_eq!(bits(&killed), bits(&whole));
}

#[test]
fn v14_the_data_seed_moves_the_order_alone_and_the_init_seed_the_weights_alone() {
    let corpus = Corpus::new();
    let mut traces = BTreeSet::new();
    let mut hashes = Vec::new();
    for data in [1, 2] {
        for init in [1, 2] {
            let name = format!("{data}-{init}");
            let sets = [
                format!("seeds.data={data}"),
                format!("seeds.init={init}"),
                "train.steps=20".into(),
            ];
            let steps = corpus.train(&name, &sets.each_ref().map(String::as_str));
            traces.insert(steps.iter().map(|s| s.loss.to_bits()).collect::<Vec<u64>>());
            let manifest = corpus.manifest(&name);
            let seeds: Vec<&str> = manifest.seeds.iter().map(|s| s.seed.as_str()).collect();
            assert!(seeds.contains(&data.to_string().as_str()) && seeds.contains(&init.to_string().as_str()));
            hashes.push((data, init, manifest.order_hash, manifest.init_hash));
        }
    }
    assert_eq!(traces.len(), 4, "all four loss traces differ");
    for (a, b) in hashes.iter().flat_map(|a| hashes.iter().map(move |b| (a, b))) {
        assert_eq!(a.2 == b.2, a.0 == b.0, "the order depends on the data seed alone");
        assert_eq!(
            a.3 == b.3,
            a.1 == b.1,
            "the weights depend on the init seed alone"
        );
    }
}

#[test]
fn v17_order_and_weights_are_those_of_every_machine() {
    let corpus = Corpus::new();
    corpus.train(
        "a",
        &[
            "train.steps=100",
            "train.precision=f32",
            "checkpoint.at_end=false",
        ],
    );
    let manifest = corpus.manifest("a");
    assert_eq!(manifest.order_hash, V17_ORDER_HASH);
    assert_eq!(manifest.init_hash, V17_INIT_HASH);
}

const V17_ORDER_HASH: &str = "2aab89c2ee86ae3e77d67fe87463684e";
const V17_INIT_HASH: &str = "f0b74b5f88941ae44b90c8dcbc41e9ea1f3342bc0c66e3a301f66e4c77a159e4";

#[test]
fn v20_another_layout_replays_the_same_global_batches_bit_by_bit() {
    let corpus = Corpus::new();
    let eight = ["batch.world_size=8", "batch.micro_batch_size=1"];
    let one = [
        "batch.world_size=1",
        "batch.micro_batch_size=2",
        "batch.gradient_accumulation_steps=4",
    ];
    let whole = corpus.train("whole", &[&eight[..], &["train.steps=30"]].concat());
    corpus.train("part", &[&eight[..], &["train.steps=10"]].concat());
    let replayed = corpus.train("part", &[&one[..], &["train.steps=20"]].concat());
    assert_eq!(
        bits(&replayed)[10..],
        bits(&whole)[10..20],
        "losses and batches of steps 11 to 20"
    );
    // Another global batch is refused by name, unless it is asked for.
    let output = corpus
        .command(
            "part",
            &["batch.world_size=4", "batch.micro_batch_size=1", "train.steps=30"],
        )
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && stderr.contains("global batch"),
        "{stderr}"
    );
}

#[test]
fn v23_an_order_given_as_a_file_is_obeyed_in_training() {
    let corpus = Corpus::new();
    let n = 2630u64;
    let file = corpus.folder("reversed.txt");
    let list: Vec<String> = (0..n).rev().map(|i| i.to_string()).collect();
    std::fs::write(&file, list.join("\n")).unwrap();
    let order = format!("order={{name: file, path: {}}}", file.display());
    for (world, workers) in [(1, 0), (4, 8)] {
        let name = format!("{world}-{workers}");
        let sets = [
            order.clone(),
            format!("batch.world_size={world}"),
            format!("batch.micro_batch_size={}", 4 / world),
            format!("loader.workers={workers}"),
            "train.steps=6".into(),
            "eval.cache_dir=tests/data/shakespeare".into(),
            "eval.every=2".into(),
            "eval.samples=2".into(),
            "checkpoint.every=2".into(),
        ];
        let mut command = corpus.command(&name, &sets.iter().map(String::as_str).collect::<Vec<_>>());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // What was consumed is n-1, n-2, ...: the fingerprints of those rows, step by step.
        let config = load(&corpus, &sets);
        let data = TrainData::open(&config, &mut |_| {}).unwrap();
        let mut batches = data.batches(&config, None, None).unwrap();
        for (i, logged) in corpus.steps(&name).iter().enumerate() {
            let batch = batches.next_batch().unwrap().unwrap();
            let rows: Vec<u64> = batch.samples().collect();
            let from = n - 1 - 4 * i as u64;
            assert_eq!(rows, [from, from - 1, from - 2, from - 3]);
            assert_eq!(
                batch.fingerprint.fingerprint.to_string(),
                logged.batch_fingerprint
            );
        }
        assert_eq!(
            checkpoint::steps_in(&corpus.folder(&name).join("checkpoints")).unwrap(),
            [4, 6]
        );
    }
    let output = program()
        .args(["train", "--config"])
        .arg(corpus.0.path().join("run.yaml"))
        .args(["--set", &order, "--set", "train.steps=1", "--set"])
        .arg(format!("output_dir={}", corpus.folder("told").display()))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no shuffle applied"), "{stderr}");
}

fn load(corpus: &Corpus, sets: &[String]) -> RunConfig {
    let mut config = ceteris_trainer::config::load(Some(&corpus.0.path().join("run.yaml")), sets, &|_| None)
        .unwrap()
        .config;
    // Tests run in their own folder, the program at the top.
    config.data.cache_dir = root().join(&config.data.cache_dir);
    config
}
