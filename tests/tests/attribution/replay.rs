//! `trainer replay`: a run with another order, and one state on the batches of two.

use std::collections::BTreeMap;
use std::path::Path;

use ceteris_trainer::run::metrics::{self, Line, StepMetrics};
use serde_json::Value;

use super::isolate::Bench;
use super::{Ran, trainer};

fn train(bench: &Bench, name: &str, sets: &[&str]) {
    let mut words = vec![
        "train".to_owned(),
        "--quiet".into(),
        "--config".into(),
        bench.folder("run.yaml").display().to_string(),
        "--set".into(),
        format!("output_dir={}", bench.folder(name).display()),
        "--set".into(),
        "train.steps=8".into(),
    ];
    for set in sets {
        words.extend(["--set".to_owned(), (*set).to_owned()]);
    }
    let ran = trainer(words);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

fn replay(bench: &Bench, from: &str, with: &str, words: &[&str]) -> Ran {
    let mut all = vec![
        "replay".to_owned(),
        "--quiet".into(),
        "--json".into(),
        "--from".into(),
        bench.folder(from).display().to_string(),
        "--with".into(),
        format!("order={with}"),
    ];
    all.extend(words.iter().map(|w| (*w).to_owned()));
    trainer(all)
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn steps(folder: &Path) -> Vec<StepMetrics> {
    metrics::read(&folder.join("metrics.jsonl"))
        .unwrap()
        .into_iter()
        .filter_map(|line| match line {
            Line::Step(step) => Some(step),
            Line::Eval(_) => None,
        })
        .collect()
}

/// What a run computed, without times.
fn bits(steps: &[StepMetrics]) -> Vec<(u64, u64, u64, u64, String)> {
    steps
        .iter()
        .map(|s| {
            let batch = s.batch_fingerprint.clone();
            (
                s.step,
                s.loss.to_bits(),
                s.grad_norm.to_bits(),
                s.lr.to_bits(),
                batch,
            )
        })
        .collect()
}

/// Two runs that differ in their order and its seed; the first keeps its checkpoints.
fn two_runs(bench: &Bench) {
    train(
        bench,
        "a",
        &["checkpoint.every=3", "checkpoint.keep_last=9", "schedule=linear"],
    );
    train(bench, "b", &["order=shuffle", "seeds.data=7", "schedule=linear"]);
}

#[test]
fn a_run_with_the_order_of_another_is_that_other_run() {
    let bench = Bench::new();
    two_runs(&bench);
    let other = bench.folder("b").display().to_string();
    let out = bench.folder("a-as-b").display().to_string();
    let replayed = json(&replay(&bench, "a", &other, &["--output", &out]));
    assert_eq!(
        bits(&steps(&bench.folder("a-as-b"))),
        bits(&steps(&bench.folder("b")))
    );
    assert_eq!(replayed["other_run"]["same_batches"], true);
    assert_eq!(replayed["other_run"]["largest_difference"], 0.0);
    assert_eq!(replayed["first_difference"], 1);
    // With its own order it is itself.
    let own = bench.folder("a").display().to_string();
    let out = bench.folder("a-as-a").display().to_string();
    let same = json(&replay(&bench, "a", &own, &["--output", &out]));
    assert_eq!(same["first_difference"], Value::Null);
    assert_eq!(
        bits(&steps(&bench.folder("a-as-a"))),
        bits(&steps(&bench.folder("a")))
    );
}

#[test]
fn the_state_of_a_step_is_handed_over_exactly() {
    let bench = Bench::new();
    two_runs(&bench);
    let (a, b) = (steps(&bench.folder("a")), steps(&bench.folder("b")));
    let other = bench.folder("b").display().to_string();
    let own = bench.folder("a").display().to_string();
    let out = |name: &str| bench.folder(name).display().to_string();
    // Over to itself, at a step with a checkpoint and at one without: the run as it was.
    for (step, name) in [("3", "kept"), ("4", "made")] {
        json(&replay(
            &bench,
            "a",
            &own,
            &["--until", step, "--output", &out(name)],
        ));
        assert_eq!(bits(&steps(&bench.folder(name))), bits(&a), "{name}");
    }
    // Over to the other order: its batches from its own step 4 on, at this run's learning rates.
    json(&replay(
        &bench,
        "a",
        &other,
        &["--until", "3", "--output", &out("over")],
    ));
    let over = steps(&bench.folder("over"));
    assert_eq!(bits(&over[..3]), bits(&a[..3]));
    for (here, there) in over[3..].iter().zip(&b[3..]) {
        assert_eq!(
            (here.step, &here.batch_fingerprint),
            (there.step, &there.batch_fingerprint)
        );
    }
    // The state is A's: step 4's loss is that of A's weights on B's batch.
    let scored = json(&replay(&bench, "a", &other, &["--score", "3", "--steps", "1"]));
    assert_eq!(
        scored["batches"][0]["batch_b"].as_f64().unwrap().to_bits(),
        over[3].loss.to_bits()
    );
    assert_ne!(over[3].loss.to_bits(), b[3].loss.to_bits());
    // The same said the other way round, in one piece or stopped and gone on with.
    json(&replay(
        &bench,
        "a",
        &other,
        &["--since", "4", "--output", &out("since")],
    ));
    assert_eq!(bits(&steps(&bench.folder("since"))), bits(&over));
    let manifest = std::fs::read_to_string(bench.folder("over/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let hash = |name: &str| -> Value {
        let text = std::fs::read_to_string(bench.folder(name).join("manifest.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["order_hash"].clone()
    };
    assert!(manifest["run_fingerprint"].is_string());
    assert!(hash("over") != hash("a") && hash("over") != hash("b") && hash("kept") == hash("a"));
    // Another replay does not go on in its folder.
    let refused = replay(&bench, "a", &other, &["--until", "5", "--output", &out("over")]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("another replay"),
        "{}",
        refused.stderr
    );
    let refused = replay(&bench, "a", &other, &["--until", "8", "--output", &out("late")]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("8 steps"),
        "{}",
        refused.stderr
    );
}

/// Every file below a folder with its contents.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                out.insert(path.display().to_string(), std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

#[test]
fn a_difference_in_loss_is_split_into_batch_and_state() {
    let bench = Bench::new();
    two_runs(&bench);
    let (a, b) = (steps(&bench.folder("a")), steps(&bench.folder("b")));
    let before = (contents(&bench.folder("a")), contents(&bench.folder("b")));
    let other = bench.folder("b").display().to_string();
    for (step, at) in [("0", 0), ("3", 3), ("6", 6)] {
        let score = json(&replay(&bench, "a", &other, &["--score", step, "--steps", "2"]));
        assert_eq!(score["as_recorded"], true, "step {step}");
        let batches = score["batches"].as_array().unwrap();
        assert_eq!(batches.len(), 2);
        for (i, batch) in batches.iter().enumerate() {
            assert_eq!(batch["step"], at as u64 + 1 + i as u64);
            assert_eq!(batch["fingerprints"][0], a[at + i].batch_fingerprint.as_str());
            assert_eq!(batch["fingerprints"][1], b[at + i].batch_fingerprint.as_str());
        }
        let number = |key: &str| score["split"][key].as_f64().unwrap();
        assert_eq!(number("run_a"), a[at].loss);
        assert_eq!(number("run_b"), b[at].loss);
        assert!((number("batch") + number("state") - number("difference")).abs() < 1e-12);
        // Before the first step both have the same weights: all of the difference is the batch.
        assert_eq!(number("state") == 0.0, at == 0, "{score}");
    }
    assert_eq!(
        before,
        (contents(&bench.folder("a")), contents(&bench.folder("b"))),
        "nothing is touched"
    );
    let refused = replay(&bench, "a", &other, &["--score", "5"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("no checkpoint of step 5; it has steps 0, 3, 6, 8"),
        "{}",
        refused.stderr
    );
    let refused = replay(&bench, "a", "nonsense", &["--score", "3"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("nonsense"),
        "{}",
        refused.stderr
    );
}
