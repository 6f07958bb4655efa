//! Reports about provenance: what a run consumed, where two runs part, and whether it can be said again elsewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_loader::source::megatron_writer::IndexedWriter;
use ceteris_tests::datasets::save_rows;
use serde_json::{Value, json};

/// Runs `loader`; exit code, stdout and stderr.
fn loader(words: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_loader-under-test"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(words.split_whitespace())
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A run that writes JSON: exit code (0 or 1) and report.
#[track_caller]
fn report(words: &str) -> (i32, Value) {
    let (code, stdout, stderr) = loader(&format!("{words} --json"));
    assert!(code < 2, "{words}: {stderr}");
    (code, serde_json::from_str(&stdout).unwrap())
}

/// Samples of 16 tokens, different for each number.
fn sample(number: usize) -> Vec<i32> {
    (0..16)
        .map(|t| ((number * 7919 + t * 31) % 50_000) as i32 + 10)
        .collect()
}

const WORLD_SIZE: usize = 2;
const MICRO_BATCH_SIZE: usize = 4;
const STEP: usize = WORLD_SIZE * MICRO_BATCH_SIZE;

/// Writes a stream as the log of a run: two ranks, micro-batches of four, each rank a block of every step in turn.
fn blocked_log(dir: &Path, name: &str, stream: &[Vec<i32>]) -> PathBuf {
    write_log(dir, name, stream, |rank, slot| rank * MICRO_BATCH_SIZE + slot)
}

fn write_log(dir: &Path, name: &str, stream: &[Vec<i32>], deal: impl Fn(usize, usize) -> usize) -> PathBuf {
    let mut text = String::new();
    for (micro_step, step) in stream.chunks(STEP).enumerate() {
        for rank in 0..WORLD_SIZE {
            let rows: Vec<&Vec<i32>> = (0..MICRO_BATCH_SIZE)
                .filter_map(|slot| step.get(deal(rank, slot)))
                .collect();
            let line = json!({"epoch": 0, "micro_step": micro_step, "rank": rank, "tokens": rows});
            text.push_str(&format!("{line}\n"));
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn place(step: usize, rank: usize, slot: usize) -> Value {
    json!({"epoch": 0, "step": step, "micro_step": step, "rank": rank, "slot": slot})
}

/// Place of position `k` of the stream.
fn at(k: usize) -> Value {
    place(k / STEP, k % STEP / MICRO_BATCH_SIZE, k % MICRO_BATCH_SIZE)
}

#[test]
fn v51_an_order_is_regenerated_from_a_small_manifest_and_a_cut_list_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<i64>> = (0..1000)
        .map(|n| sample(n).into_iter().map(i64::from).collect())
        .collect();
    for host in ["here", "there"] {
        save_rows(&dir.path().join(host), &rows, 4);
    }
    let (manifest, there) = (dir.path().join("m.json"), dir.path().join("there"));
    let order = "--order hf-trainer --seed 42 --world-size 4 --micro-batch-size 8 --epochs 3";
    let (code, _, stderr) = loader(&format!(
        "manifest write {order} --cache-dir {} --out {}",
        dir.path().join("here").display(),
        manifest.display()
    ));
    assert_eq!(code, 0, "{stderr}");
    assert!(std::fs::metadata(&manifest).unwrap().len() < 10_000);
    std::fs::remove_dir_all(dir.path().join("here")).unwrap();
    let (code, found) = report(&format!(
        "manifest check --manifest {} --cache-dir {}",
        manifest.display(),
        there.display()
    ));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&manifest).unwrap()).unwrap();
    assert_eq!((code, &found["same"]), (0, &json!(true)));
    assert_eq!(found["order_hash"], written["epochs"]["order_hash"]);

    // A published list of the order, cut to 60 %.
    for (name, width) in [("order.bin", 4), ("order.txt", 0)] {
        let path = dir.path().join(name);
        let bytes: Vec<u8> = match width {
            4 => (0..1000u32).rev().flat_map(u32::to_le_bytes).collect(),
            _ => (0..1000)
                .rev()
                .map(|row| format!("{row}\n"))
                .collect::<String>()
                .into_bytes(),
        };
        let words = format!(
            "--order file --path {} --cache-dir {}",
            path.display(),
            there.display()
        );
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(loader(&words).0, 0, "the whole list is taken");
        let cut = match width {
            4 => bytes.len() * 6 / 10,
            // At the end of a line, so that only the length tells.
            _ => String::from_utf8(bytes.clone())
                .unwrap()
                .lines()
                .take(600)
                .map(|line| line.len() + 1)
                .sum(),
        };
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let (code, _, stderr) = loader(&words);
        assert_eq!(code, 2);
        assert!(
            (stderr.contains("600") || stderr.contains("2400")) && stderr.contains("1000"),
            "found and expected length: {stderr}"
        );
    }
}

#[test]
fn v52_other_data_is_refused_at_start_with_sizes_and_the_first_differing_file() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |from: usize| -> Vec<Vec<i64>> {
        (from..from + 1000)
            .map(|n| sample(n).into_iter().map(i64::from).collect())
            .collect()
    };
    let (a, b, c) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
    save_rows(&a, &rows(0), 4);
    save_rows(&b, &rows(0)[..990], 4);
    save_rows(&c, &rows(0), 4);
    let other = dir.path().join("other");
    save_rows(&other, &rows(5000), 4);
    let shard = "data-00002-of-00004.arrow";
    std::fs::copy(other.join(shard), c.join(shard)).unwrap();
    let manifest = dir.path().join("m.json");
    let (code, _, stderr) = loader(&format!(
        "manifest write --order fla --seed 1 --world-size 2 --cache-dir {} --out {}",
        a.display(),
        manifest.display()
    ));
    assert_eq!(code, 0, "{stderr}");
    let check = |data: &Path| {
        let words = format!(
            "manifest check --manifest {} --cache-dir {}",
            manifest.display(),
            data.display()
        );
        report(&words)
    };
    assert_eq!(check(&a).0, 0);
    let (code, found) = check(&b);
    let difference = found["dataset_difference"].as_str().unwrap();
    assert_eq!(code, 1);
    assert!(difference.contains("data-00000-of-00004.arrow"), "{difference}");
    assert!(
        difference.contains("990 samples") && difference.contains("1000"),
        "{difference}"
    );
    let (code, found) = check(&c);
    let difference = found["dataset_difference"].as_str().unwrap();
    assert_eq!(code, 1);
    assert!(difference.contains(shard), "{difference}");
}

#[test]
fn v53_an_audit_names_the_convention_of_begin_and_end_tokens() {
    const BEGIN: i64 = 1;
    const END: i64 = 2;
    let dir = tempfile::tempdir().unwrap();
    let corpus = |begin: bool, end: bool| -> Vec<Vec<i64>> {
        (0..200usize)
            .map(|n| {
                let body = sample(n).into_iter().take(3 + n % 13).map(i64::from);
                let front = begin.then_some(BEGIN).into_iter();
                front.chain(body).chain(end.then_some(END)).collect()
            })
            .collect()
    };
    for (name, begin, end, convention) in [
        ("end", false, true, "end_only"),
        ("begin", true, false, "begin_only"),
        ("both", true, true, "begin_and_end"),
        ("none", false, false, "none"),
    ] {
        let path = dir.path().join(name);
        save_rows(&path, &corpus(begin, end), 2);
        let (code, found) = report(&format!(
            "audit {} --bos-id {BEGIN} --eos-id {END}",
            path.display()
        ));
        let found = &found["corpus"];
        assert_eq!(code, 0);
        assert_eq!(found["convention"], convention, "{found}");
        assert_eq!(found["start_with_bos"], if begin { 200 } else { 0 });
        assert_eq!(found["end_with_eos"], if end { 200 } else { 0 });
        assert_eq!(found["eos_inside"], 0);
        let warned = found["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|w| w.as_str().unwrap().contains("neither a begin nor an end token"));
        assert_eq!(warned, convention == "none", "{found}");
    }
    // An end token inside a document, an empty one, a repeated one, an id outside the vocabulary.
    let mut rows = corpus(false, true);
    rows[7].insert(1, END);
    rows[8].clear();
    rows[9] = rows[3].clone();
    rows[10][0] = 60_000;
    let path = dir.path().join("faults");
    save_rows(&path, &rows, 2);
    let (code, found) = report(&format!(
        "audit {} --eos-id {END} --vocab-size 60000",
        path.display()
    ));
    let found = &found["corpus"];
    assert_eq!(code, 1, "ids outside the vocabulary");
    assert_eq!(
        [
            &found["eos_inside"],
            &found["empty_documents"],
            &found["duplicate_documents"],
            &found["outside_vocabulary"]
        ],
        [&json!(1), &json!(1), &json!(1), &json!(1)],
        "{found}"
    );
    assert_eq!(found["duplicate_groups"][0]["documents"], json!([3, 9]));
    assert_eq!(found["largest_id"], json!([60_000, 10]));
}

#[test]
fn v54_documents_that_another_tokenizer_encodes_otherwise_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let different = [3usize, 71, 200, 201, 555, 900, 999];
    let document = |n: usize| -> Vec<i32> {
        sample(n)
            .into_iter()
            .chain(sample(n + 5000))
            .take(10 + n % 20)
            .collect()
    };
    let write = |name: &str, other: bool| -> PathBuf {
        let prefix = dir.path().join(name);
        let mut writer = IndexedWriter::create(&prefix, TokenType::I32, false).unwrap();
        for n in 0..1000 {
            let mut tokens = document(n);
            if other && different.contains(&n) {
                // One token for a line break and its indentation becomes two.
                tokens.splice(5..6, [70_001, 70_002]);
            }
            writer.add_document(&tokens).unwrap();
        }
        writer.finish().unwrap();
        prefix
    };
    let (a, b) = (write("a", false), write("b", true));
    let (code, found) = report(&format!("diff {} {}", a.display(), b.display()));
    assert_eq!(code, 1);
    assert_eq!(
        found["class"],
        json!({"kind": "other_tokenizer", "documents": 7, "of": 1000, "only_in_a": 0, "only_in_b": 0})
    );
    let listed = found["documents"].as_array().unwrap();
    let numbers: Vec<u64> = listed.iter().map(|d| d["a"].as_u64().unwrap()).collect();
    assert_eq!(numbers, different.map(|n| n as u64));
    for document_found in listed {
        let n = document_found["a"].as_u64().unwrap() as usize;
        assert_eq!(
            (&document_found["b"], &document_found["token"]),
            (&json!(n), &json!(5))
        );
        assert_eq!(document_found["window_start"], 1);
        assert_eq!(
            document_found["window_a"],
            json!(document(n)[1..10.min(document(n).len())])
        );
        assert_eq!(document_found["window_b"][4], 70_001);
    }
    assert_eq!(found["first"]["a"]["step"], 3);
    assert_eq!(found["first"]["tokens"]["token"], 5);

    // The same seven among documents of which one is missing: counts are aligned, and the rest is still found.
    let prefix = dir.path().join("c");
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32, false).unwrap();
    for n in (0..1000).filter(|n| *n != 400) {
        let mut tokens = document(n);
        if different.contains(&n) {
            tokens.splice(5..6, [70_001, 70_002]);
        }
        writer.add_document(&tokens).unwrap();
    }
    writer.finish().unwrap();
    let (_, found) = report(&format!("diff {} {}", a.display(), prefix.display()));
    let listed = found["documents"].as_array().unwrap();
    let numbers: Vec<(u64, u64)> = listed
        .iter()
        .map(|d| (d["a"].as_u64().unwrap(), d["b"].as_u64().unwrap()))
        .collect();
    let expected = different.map(|n| (n as u64, n as u64 - u64::from(n > 400)));
    assert_eq!(numbers, expected, "{}", found["class"]);
    assert_eq!(
        found["class"],
        json!({"kind": "other_tokenizer", "documents": 7, "of": 1000, "only_in_a": 1, "only_in_b": 0})
    );
}

#[test]
fn v55_the_first_divergence_of_two_streams_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let base: Vec<Vec<i32>> = (0..160).map(sample).collect();
    let a = blocked_log(dir.path(), "a.jsonl", &base);
    let diff = |b: &Path| report(&format!("diff {} {}", a.display(), b.display()));
    let first = |found: &Value| found["first"]["a"].clone();

    let (code, found) = diff(&blocked_log(dir.path(), "equal.jsonl", &base));
    assert_eq!((code, &found["class"]["kind"]), (0, &json!("equal")));

    let mut stream = base.clone();
    stream.swap(21, 90);
    let (code, found) = diff(&blocked_log(dir.path(), "swapped.jsonl", &stream));
    assert_eq!(
        (code, &found["class"]),
        (1, &json!({"kind": "swapped", "places": [[at(21), at(90)]]}))
    );
    assert_eq!(first(&found), at(21));
    assert_eq!(found["first"]["sample_a_in_b"], at(90));

    // Within one global batch it is a swap as well, not a dealing.
    let mut stream = base.clone();
    stream.swap(17, 22);
    let (code, found) = diff(&blocked_log(dir.path(), "swapped_in_step.jsonl", &stream));
    assert_eq!((code, &found["class"]["kind"]), (1, &json!("swapped")));
    assert_eq!(first(&found), at(17));

    let stream: Vec<Vec<i32>> = base[1..].iter().chain(&base[..1]).cloned().collect();
    let (code, found) = diff(&blocked_log(dir.path(), "shifted.jsonl", &stream));
    assert_eq!((code, &found["class"]), (1, &json!({"kind": "shifted", "by": 1})));
    assert_eq!(first(&found), at(0));

    let mut stream = base.clone();
    stream.insert(51, base[50].clone());
    stream.truncate(base.len());
    let (code, found) = diff(&blocked_log(dir.path(), "duplicated.jsonl", &stream));
    assert_eq!(
        (code, &found["class"]),
        (
            1,
            &json!({"kind": "duplicated", "at": at(51), "also_at": at(50), "count": 1, "replaces_another": false})
        )
    );
    assert_eq!(first(&found), at(51));

    let mut stream = base.clone();
    stream.remove(70);
    let (code, found) = diff(&blocked_log(dir.path(), "missing.jsonl", &stream));
    assert_eq!(
        (code, &found["class"]),
        (1, &json!({"kind": "missing", "at": at(70), "count": 1}))
    );
    assert_eq!(first(&found), at(70));

    // The same samples on other ranks, step by step.
    let strided = |rank: usize, slot: usize| slot * WORLD_SIZE + rank;
    let (code, found) = diff(&write_log(dir.path(), "dealt.jsonl", &base, strided));
    assert_eq!(
        (code, &found["class"]["kind"]),
        (1, &json!("other_dealing")),
        "{}",
        found["class"]
    );
    assert_eq!(found["class"]["sets_differ_from"], Value::Null);
    assert_eq!(first(&found), place(0, 0, 1));

    let stream: Vec<Vec<i32>> = base
        .iter()
        .map(|tokens| tokens[..15].iter().copied().chain([0]).collect())
        .collect();
    let (code, found) = diff(&blocked_log(dir.path(), "last_token.jsonl", &stream));
    assert_eq!(
        (code, &found["class"]),
        (
            1,
            &json!({"kind": "convention", "relation": "last_token", "beneath": {"kind": "equal"}})
        )
    );
    assert_eq!(
        (first(&found), &found["first"]["tokens"]["token"]),
        (at(0), &json!(15))
    );

    // Another order of the same samples is told apart from another dealing.
    let stream: Vec<Vec<i32>> = (0..160).map(|k| base[k * 37 % 160].clone()).collect();
    let (code, found) = diff(&blocked_log(dir.path(), "other_order.jsonl", &stream));
    assert_eq!((code, &found["class"]["kind"]), (1, &json!("other_order")));
}

#[test]
fn v55_another_seed_is_named() {
    let layout = "--cache-dir tests/data/shakespeare --world-size 2 --micro-batch-size 4";
    let (code, found) = report(&format!("diff fla,seed=42 fla,seed=43 {layout}"));
    assert_eq!((code, &found["class"]["kind"]), (1, &json!("other_seed")));
    assert!(
        found["class"]["b"]
            .as_array()
            .unwrap()
            .contains(&json!(["seed", 43]))
    );
    let (code, found) = report(&format!("diff fla fla,epoch=1 {layout} --seed 42"));
    assert_eq!((code, &found["class"]["kind"]), (1, &json!("other_seed")));
    assert_eq!(found["class"]["b"], json!([["epoch", 1]]));
    // A log does not say what it is: its seed is searched for.
    let (code, found) =
        report("diff hf-trainer,seed=5 tests/data/run_logs/trainer --cache-dir tests/data/shakespeare");
    assert_eq!(
        (code, &found["class"]["kind"]),
        (1, &json!("other_seed")),
        "{}",
        found["class"]
    );
    assert!(
        found["class"]["b"]
            .as_array()
            .unwrap()
            .contains(&json!(["seed", 7]))
    );
    let (code, found) =
        report("diff hf-trainer,seed=7 tests/data/run_logs/trainer --cache-dir tests/data/shakespeare");
    assert_eq!((code, &found["class"]["kind"]), (0, &json!("equal")));
}

/// Megatron data whose tokens say where they come from: document number times 32, plus the position in it.
fn telling_documents(prefix: &Path, lengths: impl Iterator<Item = usize>) {
    let mut writer = IndexedWriter::create(prefix, TokenType::I32, false).unwrap();
    for (document, length) in lengths.enumerate() {
        let tokens: Vec<i32> = (0..length).map(|t| (document * 32 + t) as i32).collect();
        writer.add_document(&tokens).unwrap();
    }
    writer.finish().unwrap();
}

/// Lines of a command that must have succeeded, as JSON.
fn json_lines(words: &str) -> Vec<Value> {
    let (code, stdout, stderr) = loader(words);
    assert_eq!(code, 0, "{words}: {stderr}");
    stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Documents of a sample from its tokens alone: (document, first token, behind the last one).
fn scan(tokens: &[i64]) -> Vec<(i64, i64, i64)> {
    let mut spans: Vec<(i64, i64, i64)> = Vec::new();
    for token in tokens {
        let (document, at) = (token / 32, token % 32);
        match spans.last_mut() {
            // A document that follows itself (its end, then its start again) is two spans.
            Some(span) if span.0 == document && span.2 == at => span.2 += 1,
            _ => spans.push((document, at, at + 1)),
        }
    }
    spans
}

fn spans(line: &Value) -> Vec<(i64, i64, i64)> {
    let number = |span: &Value, key: &str| span[key].as_i64().unwrap();
    line["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| {
            (
                number(span, "document"),
                number(span, "start"),
                number(span, "end"),
            )
        })
        .collect()
}

#[test]
fn v50_steps_and_documents_are_looked_up_in_a_packed_run_of_three_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let lengths: Vec<usize> = (0..5000).map(|n| 5 + n * 7 % 16).collect();
    telling_documents(&prefix, lengths.iter().copied());
    let samples = 3 * ((lengths.iter().sum::<usize>() - 1) / 64);
    let run = format!(
        "--order megatron --data-path {} --split 100,0,0 --seq-length 64 --seed 7 --samples {samples} --world-size 4 \
         --micro-batch-size 2",
        prefix.display()
    );
    // Every place of the run with what a scan of its tokens says.
    type Spans = Vec<(i64, i64, i64)>;
    let mut all: Vec<([u64; 4], Spans)> = Vec::new();
    for record in json_lines(&format!("{run} --emit tokens --format jsonl --quiet")) {
        let number = |key: &str| record[key].as_u64().unwrap();
        for (slot, row) in (0..).zip(record["tokens"].as_array().unwrap()) {
            let tokens: Vec<i64> = row
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t.as_i64().unwrap())
                .collect();
            let at = [number("step"), number("micro_step"), number("rank"), slot];
            all.push((at, scan(&tokens)));
        }
    }
    assert!(all.len() > samples - 8, "three epochs: {}", all.len());
    let at = |line: &Value| ["step", "micro_step", "rank", "slot"].map(|key| line[key].as_u64().unwrap());

    let found = json_lines(&format!("where --step 17 {run} --json --quiet"));
    let expected: Vec<_> = all.iter().filter(|(at, _)| at[0] == 17).cloned().collect();
    assert_eq!(expected.len(), 8);
    // The first line is about the run.
    let found: Vec<_> = found[1..].iter().map(|line| (at(line), spans(line))).collect();
    assert_eq!(found, expected);
    let found = json_lines(&format!("where --step 17 --rank 3 {run} --json --quiet"));
    assert_eq!(found.len(), 3);
    assert!(found[1..].iter().all(|line| line["rank"] == 3));

    let found = json_lines(&format!("where --doc 4711 {run} --json --quiet"));
    let mut found: Vec<_> = found.iter().map(|line| (at(line), spans(line))).collect();
    found.sort();
    let mut expected: Vec<_> = all
        .iter()
        .map(|(at, spans)| {
            (
                *at,
                spans
                    .iter()
                    .copied()
                    .filter(|span| span.0 == 4711)
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, spans)| !spans.is_empty())
        .collect();
    expected.sort();
    assert_eq!(found, expected);
    // Three epochs consume it three times, token by token.
    let tokens: i64 = found
        .iter()
        .flat_map(|(_, spans)| spans)
        .map(|span| span.2 - span.1)
        .sum();
    assert_eq!(tokens, 3 * lengths[4711] as i64);

    let (code, _, stderr) = loader(&format!("where --doc 5000 {run}"));
    assert!(
        code == 2 && stderr.contains("no sample holds a part of document 5000"),
        "{stderr}"
    );
    let (code, _, stderr) = loader(&format!("where --step 999999 {run}"));
    assert!(
        code == 2 && stderr.contains("step 999999 of epoch 0 does not exist"),
        "{stderr}"
    );
}

#[test]
fn v56_packing_is_dumped_and_stated() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    // Sequence length 30: one document of 4 x, ten of 0.1 x.
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32, false).unwrap();
    writer.add_document(&(0..120).collect::<Vec<i32>>()).unwrap();
    for n in 1..=10 {
        writer
            .add_document(&[1000 * n, 1000 * n + 1, 1000 * n + 2])
            .unwrap();
    }
    writer.finish().unwrap();
    let words = format!(
        "where --step 0..6 --order megatron --data-path {} --split 100,0,0 --seq-length 30 --seed 3 --samples 6",
        prefix.display()
    );
    let (code, text, stderr) = loader(&words);
    assert_eq!(code, 0, "{stderr}");
    for needle in [
        "documents cut at the ends of samples: yes",
        "several documents in a sample: yes",
        "reset at documents: no",
    ] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    let lines = json_lines(&format!("{words} --json"));
    assert_eq!(
        (
            &lines[0]["documents_cut"],
            &lines[0]["documents_packed"],
            &lines[0]["state_reset"]
        ),
        (&json!(true), &json!(true), &json!(false))
    );
    assert_eq!(lines.len(), 7);
    let mut pieces_of_long = 0;
    for line in &lines[1..] {
        let spans = spans(line);
        let total: i64 = spans.iter().map(|(_, start, end)| end - start).sum();
        assert_eq!(total, 30, "a sample is full: {line}");
        pieces_of_long += spans.iter().filter(|span| span.0 == 0).count();
        for (document, start, end) in spans {
            let length = if document == 0 { 120 } else { 3 };
            assert!(start < end && end <= length, "{line}");
        }
    }
    assert!(
        pieces_of_long >= 4,
        "the long document goes on from sample to sample"
    );
    // Rows of a table: each is a sample of its own.
    let (code, text, _) = loader("where --step 0..2 --order sequential --cache-dir tests/data/shakespeare");
    assert_eq!(code, 0);
    assert!(
        text.contains("documents cut at the ends of samples: no"),
        "{text}"
    );
    assert!(text.contains("each stored row counts as one document"), "{text}");
}
