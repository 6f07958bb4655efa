//! Runs of the `trainer` program: files, resuming, determinism, signals, crashes at every write point.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ceteris_trainer::checkpoint;
use ceteris_trainer::run::manifest::Manifest;
use ceteris_trainer::run::metrics::{self, Line, StepMetrics};
use tempfile::TempDir;

use super::repository;

/// A small network on the bundled corpus: seconds a run.
pub const SMALL: &str = "
model: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 64, num_heads: 1, num_v_heads: 2, head_dim: 16,
        expand_v: 1.0, vocab_size: 4096, tie_word_embeddings: true}
data: {cache_dir: tests/data/shakespeare, seq_length: 128}
order: fla
batch: {world_size: 2, micro_batch_size: 1}
train: {steps: 6}
optimizer: {lr: 1e-2}
schedule: {name: linear, warmup_steps: 2}
log: {tensorboard: false}
loader: {workers: 2, prefetch: 4}
";

/// A folder with a settings file.
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("run.yaml"), SMALL).unwrap();
        Bench { folder }
    }

    pub fn run_folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, name: &str, sets: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer-under-test"));
        command
            .current_dir(repository())
            .stdin(Stdio::null())
            .env("CETERIS_CACHE", self.folder.path().join("cache"))
            .env_remove("RUST_BACKTRACE")
            .args(["train", "--config"])
            .arg(self.folder.path().join("run.yaml"))
            .arg("--set")
            .arg(format!("output_dir={}", self.run_folder(name).display()));
        for set in sets {
            command.args(["--set", set]);
        }
        command
    }

    pub fn train(&self, name: &str, sets: &[&str]) -> Ran {
        let output = self.command(name, sets).output().unwrap();
        assert!(
            output.status.success(),
            "{name} {sets:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.ran(name)
    }

    pub fn ran(&self, name: &str) -> Ran {
        Ran::of(&self.run_folder(name))
    }

    pub fn fails(&self, name: &str, sets: &[&str]) -> String {
        let Output { status, stderr, .. } = self.command(name, sets).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(2), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }
}

/// What a run left behind, without times.
#[derive(Debug, PartialEq)]
pub struct Ran {
    /// Loss, gradient norm, learning rate as bits, tokens and fingerprint of each step.
    pub steps: Vec<(u64, u64, u64, u64, u64, String)>,
    pub evals: Vec<(u64, u64)>,
    /// SHA-256 of every file of the last checkpoint but those with times or folders in them.
    pub files: BTreeMap<String, String>,
}

impl Ran {
    fn of(folder: &Path) -> Ran {
        let lines = metrics::read(&folder.join("metrics.jsonl")).unwrap();
        let step = |l: &StepMetrics| {
            (
                l.step,
                l.loss.to_bits(),
                l.grad_norm.to_bits(),
                l.lr.to_bits(),
                l.tokens,
                l.batch_fingerprint.clone(),
            )
        };
        let newest = checkpoint::newest_valid(&folder.join("checkpoints")).unwrap().0;
        let files = newest.map_or_else(BTreeMap::new, |found| {
            [
                "model.safetensors",
                "optimizer.safetensors",
                "config.json",
                "loader.json",
            ]
            .iter()
            .map(|name| {
                let bytes = std::fs::read(found.path.join(name)).unwrap();
                ((*name).to_owned(), ceteris_tests::golden::sha256_hex(&bytes))
            })
            .collect()
        });
        Ran {
            steps: lines
                .iter()
                .filter_map(|l| match l {
                    Line::Step(l) => Some(step(l)),
                    Line::Eval(_) => None,
                })
                .collect(),
            evals: lines
                .iter()
                .filter_map(|l| match l {
                    Line::Eval(l) => Some((l.step, l.eval_loss.to_bits())),
                    Line::Step(_) => None,
                })
                .collect(),
            files,
        }
    }

    pub fn losses(&self) -> Vec<f64> {
        self.steps.iter().map(|s| f64::from_bits(s.1)).collect()
    }
}

#[test]
fn a_run_leaves_its_files_and_learns() {
    let bench = Bench::new();
    let ran = bench.train(
        "a",
        &["train.steps=12", "log.tensorboard=true", "checkpoint.every=5"],
    );
    let losses = ran.losses();
    assert_eq!(losses.len(), 12);
    assert!((losses[0] - 4096f64.ln()).abs() < 0.2, "{losses:?}");
    assert!(losses[11] < losses[0] - 0.3, "{losses:?}");
    assert_eq!(
        f64::from_bits(ran.steps[0].3),
        0.0,
        "the first step of a warm-up has learning rate 0"
    );
    let folder = bench.run_folder("a");
    for file in [
        "config.resolved.yaml",
        "manifest.json",
        "metrics.jsonl",
        "weight_decay.txt",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert_eq!(std::fs::read_dir(folder.join("tensorboard")).unwrap().count(), 1);
    assert_eq!(
        checkpoint::steps_in(&folder.join("checkpoints")).unwrap(),
        [10, 12],
        "keep_last 2"
    );
    let manifest = Manifest::load(&folder.join("manifest.json")).unwrap();
    assert_eq!(
        manifest.run_fingerprint,
        Some(ceteris_trainer::run::manifest::run_fingerprint(&folder.join("metrics.jsonl")).unwrap())
    );
    // The table of decays is printed and kept.
    let table = std::fs::read_to_string(folder.join("weight_decay.txt")).unwrap();
    assert!(
        table.contains("model.layers.0.attn.A_log") && table.contains("not decayed: "),
        "{table}"
    );
}

#[test]
fn threads_workers_and_layouts_change_no_bit() {
    let bench = Bench::new();
    let plain = bench.train("plain", &[]);
    for (i, sets) in [
        &["train.threads=1"][..],
        &["train.threads=3", "loader.workers=5", "loader.prefetch=1"],
        &["loader.workers=0"],
        &["batch.device_micro_batch_size=2"],
        &["train.recompute=block"],
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(bench.train(&format!("other-{i}"), sets), plain, "{sets:?}");
    }
    // Another factorisation of the same global batch: the same steps, under a loader state of its own.
    let other = bench.train(
        "ranks",
        &["batch.world_size=1", "batch.gradient_accumulation_steps=2"],
    );
    assert_eq!(other.steps, plain.steps);
    assert_eq!(other.files["model.safetensors"], plain.files["model.safetensors"]);
    let f64s = bench.train("f64", &["train.precision=f64"]);
    assert_ne!(f64s.steps, plain.steps);
    for (a, b) in f64s.losses().iter().zip(plain.losses()) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn a_resumed_run_equals_one_that_never_stopped() {
    let bench = Bench::new();
    let held_out = "eval.cache_dir=tests/data/shakespeare";
    let common = [held_out, "eval.every=2", "eval.samples=3", "checkpoint.every=2"];
    let whole = bench.train("whole", &common);
    assert_eq!(whole.evals.len(), 3);
    for stop in [2, 4] {
        let name = format!("part-{stop}");
        let steps = format!("train.steps={stop}");
        let total = "schedule.total_steps=6";
        bench.train(&name, &[&common[..], &[&steps, total]].concat());
        let resumed = bench.train(&name, &[&common[..], &[total]].concat());
        assert_eq!(resumed, whole, "stopped after {stop}");
    }
    // A run that is done does nothing more.
    assert_eq!(bench.train("whole", &common), whole);
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let bench = Bench::new();
    bench.train("a", &["train.steps=2"]);
    for (set, part) in [
        ("model.hidden_size=64", "model.hidden_size"),
        ("seeds.init=1", "seeds.init"),
        ("train.precision=f64", "train.precision"),
        ("seeds.data=1", "seeds.data"),
        ("order=sequential", "order"),
        ("checkpoint.resume=never", "holds a run already"),
    ] {
        let error = bench.fails("a", &[set]);
        assert!(error.contains(part), "{set}: {error}");
    }
    let none = bench.fails("empty", &["checkpoint.resume=must"]);
    assert!(none.contains("no valid checkpoint"), "{none}");
    // A change that a run may make on the way is told.
    let output = bench
        .command("a", &["train.steps=3", "optimizer.lr=1e-3"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.contains("optimizer.lr = 0.001 (was 0.01)"),
        "{stderr}"
    );
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_named() {
    let bench = Bench::new();
    let whole = bench.train("whole", &["checkpoint.every=2"]);
    bench.train(
        "a",
        &["checkpoint.every=2", "train.steps=4", "schedule.total_steps=6"],
    );
    let file = bench
        .run_folder("a")
        .join("checkpoints/step-4/optimizer.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - 9;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = bench
        .command("a", &["checkpoint.every=2", "schedule.total_steps=6"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("passed over") && stderr.contains("optimizer.safetensors"),
        "{stderr}"
    );
    assert!(stderr.contains("goes on after step 2"), "{stderr}");
    assert_eq!(bench.ran("a").steps, whole.steps);
}

#[test]
fn sigterm_saves_and_the_same_command_goes_on() {
    let bench = Bench::new();
    let whole = bench.train("whole", &["train.steps=40"]);
    let mut child = bench
        .command("a", &["train.steps=40"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let metrics = bench.run_folder("a").join("metrics.jsonl");
    let started = Instant::now();
    while std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count()) < 3 {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "no step within five minutes"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let code = child.wait().unwrap().code();
    let steps = checkpoint::steps_in(&bench.run_folder("a").join("checkpoints")).unwrap();
    if code == Some(1) {
        assert_eq!(steps.len(), 1);
        assert!((3..40).contains(&steps[0]), "{steps:?}");
    } else {
        // The run may have been faster than the signal.
        assert_eq!((code, steps), (Some(0), vec![40]));
    }
    assert_eq!(bench.train("a", &["train.steps=40"]), whole);
}

/// Kills the process right before each of its write points in turn: the checkpoint before is never lost, and what is
/// trained afterwards is what an undisturbed run trains.
#[test]
fn kill_9_at_any_write_point_loses_no_checkpoint() {
    let bench = Bench::new();
    let sets = [
        "checkpoint.every=1",
        "checkpoint.keep_last=1",
        "train.steps=3",
        "schedule.total_steps=3",
    ];
    let whole = bench.train("whole", &sets);
    // Two steps are done and saved before anything is disturbed.
    let first = [&sets[..2], &["train.steps=2", "schedule.total_steps=3"]].concat();
    bench.train("origin", &first);
    let mut points = 0;
    for point in 1.. {
        let name = format!("killed-{point}");
        copy(&bench.run_folder("origin"), &bench.run_folder(&name));
        let status = bench
            .command(&name, &sets)
            .env("CETERIS_TEST_KILL_AT_WRITE", point.to_string())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if status.success() {
            break;
        }
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "point {point}"
        );
        points = point;
        let checkpoints = bench.run_folder(&name).join("checkpoints");
        // What the next start would find, with leftovers still in place.
        checkpoint::clear_leftovers(&checkpoints).unwrap();
        let (found, passed_over) = checkpoint::newest_valid(&checkpoints).unwrap();
        assert!(passed_over.is_empty(), "point {point}: {passed_over:?}");
        let step = found
            .unwrap_or_else(|| panic!("point {point}: no checkpoint left"))
            .state
            .step;
        assert!((2..=3).contains(&step), "point {point}: step {step}");
        let after = bench.train(&name, &sets);
        assert_eq!(after, whole, "point {point}");
        std::fs::remove_dir_all(bench.run_folder(&name)).unwrap();
    }
    assert!(points >= 25, "only {points} write points");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_self_test_passes_and_is_in_the_manifest() {
    let bench = Bench::new();
    let output = Command::new(env!("CARGO_BIN_EXE_trainer-under-test"))
        .args(["selftest", "--device", "cpu", "--json"])
        .env("CETERIS_CACHE", bench.run_folder("cache"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: ceteris_trainer::run::selftest::Report = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.passed() && report.checks.len() >= 8, "{report:?}");
    bench.train("a", &["train.steps=1"]);
    let manifest = Manifest::load(&bench.run_folder("a").join("manifest.json")).unwrap();
    assert_eq!(manifest.selftest, Some(report));
}
