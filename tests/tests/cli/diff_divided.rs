//! `diff` and `verify` of logs whose runs divide a global batch otherwise, lack lines, or name samples there are not.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{SHAKESPEARE, line};

/// How a run divides its samples, and what its lines hold.
#[derive(Clone, Copy)]
struct Run {
    world_size: u64,
    micro_batch_size: u64,
    strided: bool,
    holds: &'static str,
    accumulation: Option<u64>,
}

const RUN: Run = Run {
    world_size: 4,
    micro_batch_size: 2,
    strided: false,
    holds: "samples",
    accumulation: None,
};

/// Writes the log of `samples` samples in ascending sequence; `keeps` says which micro-batches have a line.
fn log(dir: &Path, name: &str, run: Run, samples: u64, keeps: impl Fn(u64, u64) -> bool) -> PathBuf {
    let (ranks, rows) = (run.world_size, run.micro_batch_size);
    let mut lines = String::new();
    for micro_step in 0..samples / (ranks * rows) {
        for rank in (0..ranks).filter(|rank| keeps(micro_step, *rank)) {
            let of = |slot| match run.strided {
                true => slot * ranks + rank,
                false => rank * rows + slot,
            };
            let ids: Vec<u64> = (0..rows)
                .map(|slot| micro_step * ranks * rows + of(slot))
                .collect();
            let tokens: Vec<Vec<u64>> = ids.iter().map(|id| vec![id % 97, id / 97, 5]).collect();
            let mut one = json!({"epoch": 0, "micro_step": micro_step, "rank": rank});
            match run.holds {
                "ids" => one["ids"] = json!(ids),
                "samples" => one["tokens"] = json!(tokens),
                _ => {
                    let digests: Vec<_> = tokens
                        .iter()
                        .map(|row| {
                            let row: Vec<i32> = row.iter().map(|token| *token as i32).collect();
                            ceteris_loader::fingerprint::Fingerprint::of_sample(&row)
                        })
                        .collect();
                    let whole = ceteris_loader::fingerprint::Fingerprint::combine(digests);
                    one["fingerprint"] = json!(whole);
                    one["num_samples"] = json!(rows);
                }
            }
            if let Some(accumulation) = run.accumulation {
                one["step"] = json!(micro_step / accumulation);
            }
            let _ = writeln!(lines, "{one}");
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, lines).unwrap();
    path
}

fn compared(a: &Path, b: &Path, more: &str) -> Value {
    let ran = line(&format!("diff {} {} --json {more}", a.display(), b.display()));
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
    serde_json::from_str(&ran.text()).unwrap()
}

/// Whether a micro-step of a rank has a line.
type Keeps = fn(u64, u64) -> bool;

const ALL: Keeps = |_, _| true;

#[test]
fn one_global_batch_divided_otherwise_is_another_dealing() {
    let dir = tempfile::tempdir().unwrap();
    for strided in [false, true] {
        for holds in ["samples", "ids"] {
            let run = Run {
                strided,
                holds,
                ..RUN
            };
            let a = log(dir.path(), "a.jsonl", run, 160, ALL);
            for (world_size, micro_batch_size) in [(2, 4), (8, 1), (1, 8), (2, 2), (2, 1), (1, 1), (4, 1)] {
                let other = Run {
                    world_size,
                    micro_batch_size,
                    ..run
                };
                let b = log(dir.path(), "b.jsonl", other, 160, ALL);
                for found in [compared(&a, &b, ""), compared(&b, &a, "")] {
                    let what = format!(
                        "{strided} {holds} {world_size} x {micro_batch_size}: {}",
                        found["class"]
                    );
                    assert_eq!(found["class"]["kind"], "other_dealing", "{what}");
                    assert_eq!(found["class"]["sets_differ_from"], Value::Null, "{what}");
                    assert_eq!(
                        (&found["step_sets"]["equal"], &found["step_sets"]["steps"]),
                        (&json!(20), &json!(20)),
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn steps_are_those_that_the_lines_name() {
    let dir = tempfile::tempdir().unwrap();
    let sixteen = Run {
        accumulation: Some(2),
        ..RUN
    };
    let a = log(dir.path(), "a.jsonl", sixteen, 160, ALL);
    let b = log(dir.path(), "b.jsonl", Run { world_size: 2, ..RUN }, 160, ALL);
    let found = compared(&a, &b, "");
    assert_eq!(
        (&found["a"]["global_batch_size"], &found["b"]["global_batch_size"]),
        (&json!(16), &json!(16))
    );
    assert_eq!(
        (&found["a"]["steps"], &found["b"]["steps"]),
        (&json!(10), &json!(10))
    );
    assert_eq!(found["class"]["kind"], "other_dealing");
    // What is asked for stands above that.
    let found = compared(&a, &b, "--gradient-accumulation-steps 1");
    assert_eq!(
        (&found["a"]["global_batch_size"], &found["b"]["global_batch_size"]),
        (&json!(8), &json!(4))
    );
}

#[test]
fn fingerprints_of_whole_micro_batches_divided_otherwise_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let whole = Run {
        holds: "whole",
        ..RUN
    };
    let a = log(dir.path(), "a.jsonl", whole, 160, ALL);
    for other in [
        Run {
            world_size: 2,
            micro_batch_size: 4,
            ..whole
        },
        Run {
            world_size: 4,
            micro_batch_size: 1,
            ..whole
        },
        Run {
            world_size: 2,
            strided: true,
            ..whole
        },
        // One side has samples, but in micro-batches of another size.
        Run {
            world_size: 2,
            micro_batch_size: 4,
            ..RUN
        },
    ] {
        let b = log(dir.path(), "b.jsonl", other, 160, ALL);
        let error = line(&format!("diff {} {}", a.display(), b.display())).refused();
        for needle in [
            "cannot be compared",
            "divided otherwise",
            "4 rank(s) of 2 row(s)",
            "fix: ",
            "samples=False",
            "verify",
        ] {
            assert!(error.contains(needle), "{needle}: {error}");
        }
    }
    // Whole micro-batches that other ranks take are seen, and so is the same division.
    let b = log(
        dir.path(),
        "b.jsonl",
        Run {
            world_size: 2,
            ..whole
        },
        160,
        ALL,
    );
    let found = compared(&a, &b, "");
    assert_eq!(
        (&found["class"]["kind"], &found["step_sets"]["equal"]),
        (&json!("other_dealing"), &json!(20)),
        "{}",
        found["class"]
    );
    assert_eq!(
        compared(&a, &log(dir.path(), "b.jsonl", RUN, 160, ALL), "")["equal"],
        true
    );
    // The same division of nothing in common is not called other data.
    let b = log(
        dir.path(),
        "b.jsonl",
        Run {
            strided: true,
            ..whole
        },
        160,
        ALL,
    );
    let ran = line(&format!("diff {} {}", a.display(), b.display()));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.text().contains("no micro-batch in common") && !ran.text().contains("different data"),
        "{}",
        ran.text()
    );
}

#[test]
fn ranks_that_lack_lines_are_compared_where_both_have_them() {
    let dir = tempfile::tempdir().unwrap();
    for holds in ["ids", "samples", "whole"] {
        let run = Run { holds, ..RUN };
        let a = log(dir.path(), "a.jsonl", run, 160, ALL);
        // Rank 1 stops early; a line in the middle is gone; rank 3 has no file; every rank stops at a step of its own.
        let cases: [(&str, Keeps, u64); 4] = [
            ("stops", |micro_step, rank| rank != 1 || micro_step < 7, 13),
            ("gone", |micro_step, rank| (micro_step, rank) != (8, 2), 1),
            ("no rank", |_, rank| rank != 3, 20),
            ("ragged", |micro_step, rank| micro_step < 20 - rank, 6),
        ];
        for (what, keeps, lacking) in cases {
            let b = log(dir.path(), "b.jsonl", run, 160, keeps);
            for (one, other, key) in [(&a, &b, "only_a"), (&b, &a, "only_b")] {
                let class = compared(one, other, "")["class"].clone();
                assert_eq!(class["kind"], "equal_where_both", "{holds} {what}: {class}");
                assert_eq!(
                    (&class["both"], &class[key]),
                    (&json!(80 - lacking), &json!(lacking)),
                    "{what}"
                );
            }
        }
        // One sample of a log with gaps is another: that is not equal.
        let b = log(dir.path(), "b.jsonl", run, 160, |micro_step, rank| {
            rank != 1 || micro_step < 7
        });
        let text = std::fs::read_to_string(&b).unwrap();
        let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        match holds {
            "ids" => lines[5]["ids"][0] = json!(9999),
            "samples" => lines[5]["tokens"][0][2] = json!(6),
            _ => lines[5]["fingerprint"] = json!("0".repeat(32)),
        }
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&b, text.join("\n")).unwrap();
        let found = compared(&a, &b, "");
        assert!(
            !["equal", "equal_where_both"].contains(&found["class"]["kind"].as_str().unwrap()),
            "{holds}: {}",
            found["class"]
        );
        assert_eq!(
            (&found["first"]["a"]["micro_step"], &found["first"]["a"]["rank"]),
            (&json!(1), &json!(1)),
            "{holds}"
        );
    }
    // Held against an order, it is compared where it has lines.
    let run = Run { holds: "ids", ..RUN };
    let b = log(dir.path(), "b.jsonl", run, 160, |micro_step, rank| {
        micro_step < 20 - rank && micro_step != 4
    });
    let ran = line(&format!("diff {} sequential --num-samples 160", b.display()));
    assert_eq!(ran.code, Some(0), "{}{}", ran.text(), ran.stderr);
}

#[test]
fn samples_that_the_dataset_does_not_have_are_pointed_out() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run { holds: "ids", ..RUN };
    // Sample 150 is the first past the end: micro-step 18, rank 3.
    let a = log(dir.path(), "a.jsonl", run, 160, ALL);
    for words in [
        format!("diff {} sequential --num-samples 150", a.display()),
        format!("diff sequential,num_samples=150 {}", a.display()),
    ] {
        let error = line(&words).refused();
        for needle in ["sample 150 at epoch 0 micro_step 18 rank 3 slot 0", "150 samples"] {
            assert!(error.contains(needle), "{needle}: {error}");
        }
    }
    let far = Run {
        micro_batch_size: 700,
        ..run
    };
    let a = log(dir.path(), "a.jsonl", far, 2800, ALL);
    let error = line(&format!(
        "verify --log {} --cache-dir {SHAKESPEARE} --order sequential",
        a.display()
    ))
    .refused();
    assert!(
        error.contains("sample 2630 at epoch 0 micro_step 0 rank 3 slot 530")
            && error.contains("2630 samples"),
        "{error}"
    );
}
