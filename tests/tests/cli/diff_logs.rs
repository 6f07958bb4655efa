//! `diff` between logs of ids: what is said of other data, of damaged numbers, of micro-steps divided otherwise.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{SHAKESPEARE, line};

/// Writes lines of ids: micro-steps of two ranks.
fn log(dir: &Path, name: &str, steps: &[[Vec<u64>; 2]]) -> PathBuf {
    let mut text = String::new();
    for (micro_step, ranks) in steps.iter().enumerate() {
        for (rank, ids) in ranks.iter().enumerate() {
            let one = json!({"epoch": 0, "micro_step": micro_step, "rank": rank, "ids": ids});
            let _ = writeln!(text, "{one}");
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn steps(ids: impl IntoIterator<Item = u64>) -> Vec<[Vec<u64>; 2]> {
    let ids: Vec<u64> = ids.into_iter().collect();
    ids.chunks(8)
        .map(|step| [step[..4].to_vec(), step[4..].to_vec()])
        .collect()
}

fn class(a: &Path, b: &Path) -> Value {
    let ran = line(&format!("diff {} {} --json", a.display(), b.display()));
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
    let found: Value = serde_json::from_str(&ran.text()).unwrap();
    found["class"].clone()
}

#[test]
fn other_data_is_no_other_dealing() {
    let dir = tempfile::tempdir().unwrap();
    // Told by its differences or by how much is shared, but not by dealing or sequence.
    let named = |class: Value| {
        let kind = class["kind"].as_str().unwrap().to_owned();
        assert!(
            ["edited", "partly_other_samples"].contains(&kind.as_str()),
            "{class}"
        );
    };
    let a = log(dir.path(), "a.jsonl", &steps(0..16));
    let b = log(dir.path(), "b.jsonl", &steps((0..8).chain(100..108)));
    named(class(&a, &b));
    // Forty of four hundred, a tenth of each step.
    let a = log(dir.path(), "a.jsonl", &steps(0..400));
    let b = log(
        dir.path(),
        "b.jsonl",
        &steps((0..400).map(|id| if id % 10 == 3 { 1000 + id } else { id })),
    );
    named(class(&a, &b));
}

#[test]
fn a_micro_step_divided_otherwise_is_another_dealing() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, mut divided) = (steps(0..400), steps(0..400));
    let moved = divided[20][0].pop().unwrap();
    divided[20][1].insert(0, moved);
    let a = log(dir.path(), "a.jsonl", &whole);
    let b = log(dir.path(), "b.jsonl", &divided);
    assert_eq!(class(&a, &b)["kind"], "other_dealing");
    let mut exchanged = whole.clone();
    exchanged[20].swap(0, 1);
    let b = log(dir.path(), "b.jsonl", &exchanged);
    assert_eq!(class(&a, &b)["kind"], "other_dealing");
}

#[test]
fn a_list_turned_round_or_rolled_is_called_that() {
    let dir = tempfile::tempdir().unwrap();
    let a = log(dir.path(), "a.jsonl", &steps(0..1000));
    let b = log(dir.path(), "b.jsonl", &steps((0..1000).rev()));
    assert_eq!(class(&a, &b)["kind"], "other_order");
    let strided = |first: u64| -> Vec<[Vec<u64>; 2]> {
        let of = |step: u64, rank: u64| {
            (0..4)
                .map(|slot| (first + step * 8 + slot * 2 + rank) % 400)
                .collect()
        };
        (0..50).map(|step| [of(step, 0), of(step, 1)]).collect()
    };
    let a = log(dir.path(), "a.jsonl", &strided(0));
    let b = log(dir.path(), "b.jsonl", &strided(1));
    assert_eq!(class(&a, &b), json!({"kind": "shifted", "by": 1}));
}

#[test]
fn ids_far_apart_take_no_room_and_ids_past_the_limit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let far = |id: u64| if id == 50 { u64::from(u32::MAX) - 1 } else { id };
    let a = log(dir.path(), "a.jsonl", &steps((0..400).map(far)));
    let b = log(dir.path(), "b.jsonl", &steps(0..400));
    let ran = line(&format!("diff {} {} --json", a.display(), b.display()));
    let found: Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!(
        (ran.code, &found["first"]["sample_a"]),
        (Some(1), &json!(4_294_967_294u64))
    );
    for id in [u64::from(u32::MAX), 1 << 63] {
        let c = log(dir.path(), "c.jsonl", &[[vec![1, id], vec![2, 3]]]);
        let error = line(&format!("diff {} {}", c.display(), b.display())).refused();
        assert!(
            error.contains("c.jsonl, line 1")
                && error.contains(&id.to_string())
                && error.contains("4294967294"),
            "{error}"
        );
    }
}

#[test]
fn lines_that_are_no_objects_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l.jsonl");
    let good = "{\"micro_step\":0,\"ids\":[1,2]}\n";
    let other = dir.path().join("other.jsonl");
    std::fs::write(&other, good).unwrap();
    let verify = || line(&format!("diff {} {}", path.display(), other.display()));
    std::fs::write(&path, format!("\u{feff}{good}")).unwrap();
    assert_ne!(verify().code, Some(2), "{}", verify().stderr);
    std::fs::write(&path, format!("{good}[]\n")).unwrap();
    let error = verify().refused();
    assert!(
        error.contains("line 2") && error.contains("no JSON object"),
        "{error}"
    );
    std::fs::write(&path, [good.as_bytes(), &[0xff, 0xfe, b'\n']].concat()).unwrap();
    let error = verify().refused();
    assert!(error.contains("line 2") && error.contains("not UTF-8"), "{error}");
}

#[test]
fn more_epochs_than_can_be_gone_through_are_refused_at_once() {
    let error = line(&format!(
        "where --sample 1 --epochs 1000000000000 --order fla --seed 1 --cache-dir {SHAKESPEARE}"
    ))
    .refused();
    assert!(error.contains("1000000000000 epochs are more"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.json");
    let written = line(&format!(
        "manifest write --order fla --seed 1 --cache-dir {SHAKESPEARE} --out {}",
        path.display()
    ));
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let check = |change: &dyn Fn(&mut Value)| {
        let mut changed = manifest.clone();
        change(&mut changed);
        std::fs::write(&path, changed.to_string()).unwrap();
        line(&format!(
            "manifest check --manifest {} --cache-dir {SHAKESPEARE}",
            path.display()
        ))
    };
    assert_eq!(check(&|_| {}).code, Some(0));
    let error = check(&|m| m["epochs"]["count"] = json!(1u64 << 62)).refused();
    assert!(error.contains("epochs.count"), "{error}");
    for hashes in [json!([]), json!(["00"])] {
        let ran = check(&|m| m["epochs"]["epoch_hashes"] = hashes.clone());
        assert_eq!(ran.code, Some(1), "{}", ran.text());
        assert!(ran.text().contains("edited"), "{}", ran.text());
    }
}

/// Lines of one rank at the micro-steps named, each with the ids of its number.
fn numbered(dir: &Path, name: &str, epoch: u64, micro_steps: &[(u64, u64)]) -> PathBuf {
    let mut text = String::new();
    for (micro_step, of) in micro_steps {
        let ids: Vec<u64> = (of * 4..of * 4 + 4).collect();
        let one = json!({"epoch": epoch, "micro_step": micro_step, "rank": 0, "ids": ids});
        let _ = writeln!(text, "{one}");
    }
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_same_samples_at_other_places_are_not_equal() {
    let dir = tempfile::tempdir().unwrap();
    let plain: Vec<(u64, u64)> = (0..100).map(|n| (n, n)).collect();
    let a = numbered(dir.path(), "a.jsonl", 0, &plain);
    let later: Vec<(u64, u64)> = (0..100).map(|n| (n + 1000, n)).collect();
    let b = numbered(dir.path(), "b.jsonl", 0, &later);
    assert_eq!(class(&a, &b)["kind"], "other_places");
    let b = numbered(dir.path(), "b.jsonl", 5, &plain);
    assert_eq!(class(&a, &b)["kind"], "other_places");
    let mut damaged = plain.clone();
    damaged[99].0 = 4_294_967_294;
    let b = numbered(dir.path(), "b.jsonl", 0, &damaged);
    assert_eq!(class(&a, &b)["b"]["micro_step"], 4_294_967_294u64);
    let b = numbered(dir.path(), "b.jsonl", 0, &plain[50..]);
    let found = class(&a, &b);
    assert_eq!(found["kind"], "equal_where_both");
    assert_eq!(
        (&found["both"], &found["only_a"], &found["only_b"]),
        (&json!(50), &json!(50), &json!(0))
    );
    assert_eq!(found["from"]["micro_step"], 50);
}

#[test]
fn a_log_with_gaps_is_compared_where_it_has_lines() {
    let dir = tempfile::tempdir().unwrap();
    let some: Vec<(u64, u64)> = (0..20).filter(|n| !(5..9).contains(n)).map(|n| (n, n)).collect();
    let path = numbered(dir.path(), "gap.jsonl", 0, &some);
    let ran = line(&format!("diff {} sequential --num-samples 80", path.display()));
    assert_eq!(ran.code, Some(0), "{}{}", ran.text(), ran.stderr);
    let ran = line(&format!(
        "verify --log {} --order sequential --cache-dir {SHAKESPEARE}",
        path.display()
    ));
    assert_eq!(ran.code, Some(0), "{}{}", ran.text(), ran.stderr);
    assert!(
        ran.text()
            .contains("verified where it has lines: 4 micro-batches in between have none"),
        "{}",
        ran.text()
    );
}
