//! `verify` and `manifest`: logs of real runs are recognised, manifests regenerate their order.

use std::path::Path;

use serde_json::Value;

use super::{SHAKESPEARE, line, loader, root};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// `verify` of a recorded run over the corpus: exit code and report.
fn verify(log: &str, claim: &str) -> (Option<i32>, Value) {
    let ran = line(&format!(
        "verify --log tests/data/run_logs/{log} --cache-dir {SHAKESPEARE} --json {claim}"
    ));
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
    (ran.code, json(&ran.text()))
}

#[test]
fn verify_confirms_a_real_torch_run() {
    let (code, report) = verify("torch_distributed", "--order torch-distributed --seed 1234");
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["verdict"], "verified");
    // Two epochs of 2630 samples, padded to 2632, on four ranks.
    assert_eq!(report["claimed"]["agreement"]["samples"], 5264);
    assert_eq!(report["claimed"]["agreement"]["samples_matched"], 5264);
}

#[test]
fn verify_names_the_order_and_seed_of_a_real_torch_run() {
    let (code, report) = verify("torch_distributed", "--order fla --seed 42");
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["verdict"], "other_order");
    let order = &report["found"]["order"];
    assert_eq!(
        (&order["name"], &order["seed"]),
        (&"torch-distributed".into(), &1234.into())
    );
    assert_eq!(report["found"]["alignment"]["epoch_offset"], 0);
    assert_eq!(report["claimed"]["agreement"]["first_mismatch"]["micro_step"], 0);
}

#[test]
fn verify_sees_that_a_script_never_set_the_epoch() {
    let (code, report) = verify("torch_no_set_epoch", "--order torch-distributed --seed 1234");
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["claimed"]["agreement"]["first_mismatch"]["epoch"], 1);
    let found = &report["found"];
    let never = found["order"]["set_epoch_called"] == false || found["alignment"]["fixed_epoch"] == 0;
    assert!(never && found["order"]["seed"] == 1234, "{found}");
}

#[test]
fn verify_recognises_a_real_trainer_run() {
    let (code, report) = verify("trainer", "--order hf-trainer --seed 7");
    assert_eq!(
        (code, &report["verdict"]),
        (Some(0), &"verified".into()),
        "{report}"
    );
    // Claimed as the strided law with another seed: order, seed and law are all found.
    let (code, report) = verify("trainer", "--order fla --seed 8");
    assert_eq!(code, Some(1));
    let order = &report["found"]["order"];
    assert_eq!(
        (&order["name"], &order["seed"]),
        (&"hf-trainer".into(), &7.into()),
        "{report}"
    );
}

#[test]
fn verify_finds_where_a_resumed_run_went_on() {
    let (code, report) = verify("trainer_resumed", "--order hf-trainer --seed 7");
    assert_eq!(code, Some(1));
    assert_eq!(report["found"]["order"]["name"], "hf-trainer");
    assert_eq!(report["found"]["alignment"]["micro_step_offset"], 20, "{report}");
}

#[test]
fn verify_says_that_the_data_is_other_data() {
    let ran = line(
        "verify --log tests/data/run_logs/trainer --order fla --seed 42 --cache-dir tests/golden/hf/list_int32_4shards --seeds 0..2 --json",
    );
    let Some(1) = ran.code else {
        // The golden folder of that name may be laid out otherwise: then this says so.
        panic!("{}", ran.stderr);
    };
    let report = json(&ran.text());
    assert_eq!(report["verdict"], "other_data", "{report}");
    assert_eq!(report["samples_known"], 0);
}

#[test]
fn verify_refuses_logs_that_are_no_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.jsonl");
    let claim = format!("--order sequential --cache-dir {SHAKESPEARE}");
    for (text, needle) in [
        ("", "holds no micro-batch"),
        ("{\"rank\":0}\n", "says nothing of what was consumed"),
        ("{\"rank\":0,\"colour\":1}\n", "unknown field `colour`"),
        ("{\"rank\":0,\"samples\":[\"12\"]}\n", "is not a fingerprint"),
        ("{\"ceteris_log\":9,\"definition\":1}\n", "a log of version 9"),
        (
            "{\"micro_step\":3,\"ids\":[1]}\n{\"micro_step\":3,\"ids\":[2]}\n",
            "micro-step 3 twice",
        ),
        (
            "{\"ids\":[1],\"num_samples\":2}\n",
            "different numbers of samples: 2, 1",
        ),
        ("{\"ids\":[1", "line 1"),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = line(&format!("verify --log {} {claim}", path.display())).refused();
        assert!(error.contains(needle), "{text}: {error}");
    }
    let error = line(&format!(
        "verify --log {} {claim}",
        dir.path().join("none").display()
    ))
    .refused();
    assert!(error.contains("cannot read the log"), "{error}");
}

/// A log of our own stream is verified, rank by rank and as a whole.
#[test]
fn verify_takes_the_loaders_own_lines() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = "--order hf-trainer --seed 3 --world-size 2 --micro-batch-size 8 --seq-length 128";
    let lines = line(&format!(
        "{options} --cache-dir {SHAKESPEARE} --steps 0..5 --emit fingerprint --format jsonl"
    ))
    .ok();
    let path = dir.path().join("log.jsonl");
    std::fs::write(&path, lines).expect("written");
    let log = path.display();
    let ok = line(&format!("verify --log {log} --cache-dir {SHAKESPEARE} {options}")).ok();
    assert!(ok.contains("verified     yes"), "{ok}");
}

fn write_manifest(path: &Path, data: &Path) -> String {
    let text = loader([
        "manifest",
        "write",
        "--order",
        "fla",
        "--seed",
        "42",
        "--world-size",
        "8",
        "--epochs",
        "2",
        "--cache-dir",
        &data.display().to_string(),
        "--out",
        &path.display().to_string(),
    ])
    .ok();
    assert!(text.contains("bytes; dataset"), "{text}");
    std::fs::read_to_string(path).expect("written")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[test]
fn a_manifest_is_checked_on_another_host() {
    let dir = tempfile::tempdir().expect("a folder");
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    copy(&super::root().join(SHAKESPEARE), &here);
    copy(&here, &there);
    let manifest = dir.path().join("run.manifest.json");
    let text = write_manifest(&manifest, &here);
    assert!(text.len() < 10_000, "{} bytes", text.len());
    // Of several files that are gone, the first is named.
    let gone = dir.path().join("gone");
    copy(&here, &gone);
    for file in ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"] {
        let check = format!(
            "manifest check --manifest {} --cache-dir {}",
            manifest.display(),
            gone.display()
        );
        let whole = std::fs::read(gone.join(file)).expect("read");
        std::fs::remove_file(gone.join(file)).expect("removed");
        let ran = line(&check);
        assert!(matches!(ran.code, Some(1 | 2)), "{}", ran.text());
        let text = format!("{}{}", ran.text(), ran.stderr);
        assert!(text.contains(file), "{text}");
        std::fs::write(gone.join(file), whole).expect("written");
    }
    for file in ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"] {
        std::fs::remove_file(gone.join(file)).expect("removed");
    }
    let ran = line(&format!(
        "manifest check --manifest {} --cache-dir {}",
        manifest.display(),
        gone.display()
    ));
    assert!(matches!(ran.code, Some(1 | 2)), "{}", ran.text());
    let text = format!("{}{}", ran.text(), ran.stderr);
    assert!(text.contains("data-00000-of-00002.arrow"), "{text}");
    // The machine it was written on is gone.
    std::fs::remove_dir_all(&here).expect("removed");
    let check = format!("manifest check --manifest {} --cache-dir", manifest.display());
    let ok = line(&format!("{check} {}", there.display())).ok();
    assert!(ok.starts_with("same "), "{ok}");

    let other = there.join("data-00001-of-00002.arrow");
    let mut bytes = std::fs::read(&other).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&other, bytes).expect("written");
    let ran = line(&format!("{check} {}", there.display()));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.text()
            .contains("file data-00001-of-00002.arrow differs: other content"),
        "{}",
        ran.text()
    );
}

#[test]
fn a_manifest_that_was_edited_is_found_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let manifest = dir.path().join("run.manifest.json");
    let text = write_manifest(&manifest, &super::root().join(SHAKESPEARE));
    let check = format!(
        "manifest check --manifest {} --cache-dir {SHAKESPEARE}",
        manifest.display()
    );
    let edit = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        std::fs::write(&manifest, text.replace(from, to)).expect("written");
    };
    edit("\"world_size\": 8", "\"world_size\": 4");
    let ran = line(&check);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.text().contains("steps per epoch"), "{}", ran.text());
    edit("\"seed\": 42", "\"seed\": 43");
    let ran = line(&check);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.text().contains("epoch 0 has another order"), "{}", ran.text());
    edit("\"ceteris_manifest\": 1", "\"ceteris_manifest\": 2");
    assert!(line(&check).refused().contains("version 2"));
    edit("\"samples\"", "\"sample\"");
    assert!(line(&check).refused().contains("unknown field `sample`"));
}

/// A run over Megatron-Core's dataset classes.
#[test]
fn verify_recognises_a_real_megatron_run() {
    let data = "--data-path tests/golden/megatron/u16/data --split 100,0,0 --seq-length 64";
    let verify = |claim: &str| {
        let ran = line(&format!(
            "verify --log tests/data/run_logs/megatron {data} --json {claim}"
        ));
        assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
        (ran.code, json(&ran.text()))
    };
    let (code, report) = verify("--order megatron --seed 1234 --samples 400");
    assert_eq!(
        (code, &report["verdict"]),
        (Some(0), &"verified".into()),
        "{report}"
    );
    let (code, report) = verify("--order megatron --seed 5 --samples 400");
    assert_eq!(
        (code, &report["verdict"]),
        (Some(1), &"other_order".into()),
        "{report}"
    );
    assert_eq!(report["found"]["order"]["seed"], 1234);
}

/// What a blend takes of its datasets, against a recount of the places that `where` lists.
#[test]
fn audit_tells_what_a_blend_takes() {
    let run = "--order megatron --seed 1234 --samples 600 --data-path 0.3 tests/golden/megatron/u16/data 0.7 \
               tests/golden/megatron/multiseq/data --split 100,0,0 --seq-length 16 --micro-batch-size 4";
    let report = json(&line(&format!("audit --json {run}")).ok());
    let taken = &report["composition"];
    let steps = taken["draws"].as_u64().expect("a number") / 4;
    let places = line(&format!("where --step 0..{steps} --json --quiet {run}")).json_lines();
    let (mut tokens, mut samples) = ([0u64; 2], [0u64; 2]);
    let mut starts = std::collections::BTreeMap::new();
    let mut repeats: [Option<(u64, u64)>; 2] = [None; 2];
    for place in &places[1..] {
        let number = |value: &Value, key: &str| value[key].as_u64().expect("a number");
        let spans = place["documents"].as_array().expect("spans");
        samples[number(&spans[0], "part") as usize] += 1;
        for span in spans {
            let part = number(span, "part") as usize;
            tokens[part] += number(span, "end") - number(span, "start");
            let seen = starts.entry((part, number(span, "sequence"))).or_insert(0);
            if number(span, "start") == 0 {
                *seen += 1;
                if *seen == 2 {
                    repeats[part].get_or_insert((number(span, "document"), number(place, "step")));
                }
            }
        }
    }
    for part in 0..2 {
        assert_eq!(taken["sources"][part]["drawn"], samples[part], "{taken}");
        assert_eq!(taken["documents"][part]["tokens"], tokens[part], "{taken}");
        let found = &taken["documents"][part];
        let repeat = found["first_repeat_document"]
            .as_u64()
            .zip(found["first_repeat_step"].as_u64());
        assert_eq!(repeat, repeats[part], "{taken}");
    }
    assert!(
        repeats[1].is_some(),
        "the small dataset is gone through more than once: {taken}"
    );
}

/// Numbers that no run has are found before anything is computed with them.
#[test]
fn a_log_with_numbers_no_run_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank-00000.jsonl");
    let whole =
        std::fs::read_to_string(root().join("tests/data/run_logs/torch_distributed/rank-00000.jsonl"))
            .unwrap();
    let mut lines: Vec<Value> = whole.lines().map(json).collect();
    for (at, key) in [(1, "micro_step"), (0, "world_size")] {
        let right = std::mem::replace(&mut lines[at][key], u64::MAX.into());
        assert!(right.is_u64(), "{key}: {right}");
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
        let error = line(&format!(
            "verify --log {} --cache-dir {SHAKESPEARE} --order torch-distributed --seed 42",
            path.display()
        ))
        .refused();
        assert!(
            error.contains(key) && error.contains("the line is damaged"),
            "{key}: {error}"
        );
        lines[at][key] = right;
    }
}

/// Seed s from epoch 1 on is seed s + 1 from epoch 0 on: the seed that needs no such words is named, the other beside it.
#[test]
fn verify_prefers_the_seed_whose_epochs_are_those_logged() {
    for claimed in [1233, 1235] {
        let claim = format!("--order torch-distributed --seed {claimed} --seeds 1230..1240");
        let (code, report) = verify("torch_distributed", &claim);
        assert_eq!(code, Some(1), "{report}");
        assert_eq!(report["found"]["order"]["seed"], 1234, "{report}");
        assert_eq!(report["found"]["alignment"]["epoch_offset"], 0, "{report}");
        assert_eq!(report["same_as"][0]["order"]["seed"], 1233, "{report}");
        assert_eq!(report["same_as"][0]["alignment"]["epoch_offset"], 1, "{report}");
    }
    let text = line(&format!(
        "verify --log tests/data/run_logs/torch_distributed --cache-dir {SHAKESPEARE} --order torch-distributed --seed 1233"
    ))
    .text();
    assert!(text.contains("the same as seed 1233 from epoch 1 on"), "{text}");
}

#[test]
fn a_range_of_seeds_that_cannot_be_searched_is_refused() {
    let error = line(&format!(
        "verify --log tests/data/run_logs/torch_distributed --cache-dir {SHAKESPEARE} --order torch-distributed --seed 1 \
         --seeds 0..18446744073709551615"
    ))
    .refused();
    assert!(error.contains("a search tries up to 1048576"), "{error}");
}
