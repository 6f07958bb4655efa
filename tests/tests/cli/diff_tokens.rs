//! `diff` of token files and of logs with tokens: streams that are shifted, conventions epoch by epoch, integer types.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::line;

fn compared(a: &Path, b: &Path) -> (Option<i32>, Value) {
    let ran = line(&format!("diff {} {} --json", a.display(), b.display()));
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.stderr);
    (ran.code, serde_json::from_str(&ran.text()).unwrap())
}

/// An `.npy` file of rows of `width` tokens; what does not fill a row is left out.
fn npy(dir: &Path, name: &str, descr: &str, stream: &[u32], width: usize) -> PathBuf {
    let rows = stream.len() / width;
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    for token in &stream[..rows * width] {
        match descr {
            "<u2" => bytes.extend((*token as u16).to_le_bytes()),
            _ => bytes.extend(token.to_le_bytes()),
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Tokens drawn by a fixed rule, some more often than others as in a text.
fn text(tokens: usize, mut state: u64) -> Vec<u32> {
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..tokens)
        .map(|_| (draw() % 300).min(draw() % 5000) + 10)
        .collect()
}

#[test]
fn a_text_that_is_shifted_is_no_other_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let width = 16;
    let stream = text(400 * width, 7);
    let a = npy(dir.path(), "a.npy", "<i4", &stream, width);
    for (k, rolled) in [(2, false), (5, false), (17, false), (17, true), (1003, false)] {
        let mut other = stream[k..].to_vec();
        if rolled {
            other.extend(&stream[..k]);
        }
        let b = npy(dir.path(), "b.npy", "<i4", &other, width);
        let (code, found) = compared(&a, &b);
        let class = &found["class"];
        assert_eq!(
            (code, &class["kind"], &class["by"], &class["token"]),
            (Some(1), &json!("text_shifted"), &json!(k), &json!(0)),
            "{k}: {class}"
        );
        assert_eq!(class["at"]["step"], 0);
        let (_, found) = compared(&b, &a);
        assert_eq!(found["class"]["by"], -(k as i64), "{k}: {}", found["class"]);
    }
    // Seven tokens lost in the middle of row 150: equal up to there.
    let mut other = stream.clone();
    other.drain(150 * width + 9..150 * width + 16);
    let b = npy(dir.path(), "b.npy", "<i4", &other, width);
    let (_, found) = compared(&a, &b);
    let class = &found["class"];
    assert_eq!(
        (&class["kind"], &class["by"]),
        (&json!("text_shifted"), &json!(7)),
        "{class}"
    );
    assert_eq!((&class["at"]["step"], &class["token"]), (&json!(150), &json!(9)));
    assert_eq!(
        (&found["first"]["a"]["step"], &found["first"]["tokens"]["token"]),
        (&json!(150), &json!(9))
    );
    let ran = line(&format!("diff {} {}", a.display(), b.display()));
    assert!(
        ran.text()
            .contains("the same text, shifted: B runs 7 tokens ahead"),
        "{}",
        ran.text()
    );
    // A few rows are enough, and one token is a shift of inputs against labels.
    let a = npy(dir.path(), "a.npy", "<i4", &stream[..10 * width], width);
    let b = npy(dir.path(), "b.npy", "<i4", &stream[3..9 * width + 3], width);
    assert_eq!(compared(&a, &b).1["class"]["by"], 3);
}

#[test]
fn documents_near_one_another_are_counted_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let width = 16;
    let mut stream = text(400 * width, 7);
    let a = npy(dir.path(), "a.npy", "<i4", &stream, width);
    for row in [100, 105, 107] {
        stream[row * width + 7] = 9;
    }
    let b = npy(dir.path(), "b.npy", "<i4", &stream, width);
    let (_, found) = compared(&a, &b);
    assert_eq!(
        (&found["class"]["kind"], &found["class"]["documents"]),
        (&json!("other_tokenizer"), &json!(3)),
        "{}",
        found["class"]
    );
    let listed: Vec<_> = found["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["a"].clone())
        .collect();
    assert_eq!(listed, [json!(100), json!(105), json!(107)]);
}

#[test]
fn what_is_no_shift_is_not_called_one() {
    let dir = tempfile::tempdir().unwrap();
    let width = 16;
    let stream = text(400 * width, 7);
    let a = npy(dir.path(), "a.npy", "<i4", &stream, width);
    // Each row loses its fourth token and ends in another one: every document is encoded otherwise.
    let other: Vec<u32> = stream
        .chunks(width)
        .flat_map(|row| {
            row.iter()
                .enumerate()
                .filter(|(t, _)| *t != 3)
                .map(|(_, token)| *token)
                .chain([9])
        })
        .collect();
    let b = npy(dir.path(), "b.npy", "<i4", &other, width);
    assert_eq!(compared(&a, &b).1["class"]["kind"], "other_tokenizer");
    // Shifted, and one token of the rest is another: no shift explains all.
    let mut other = stream[5..].to_vec();
    other[3000] = 9;
    let b = npy(dir.path(), "b.npy", "<i4", &other, width);
    assert_ne!(compared(&a, &b).1["class"]["kind"], "text_shifted");
    // Other text.
    let b = npy(dir.path(), "b.npy", "<i4", &text(400 * width, 8), width);
    assert_ne!(compared(&a, &b).1["class"]["kind"], "text_shifted");
    // One token, over and over.
    let a = npy(dir.path(), "a.npy", "<i4", &vec![7; 64 * width], width);
    let b = npy(dir.path(), "b.npy", "<i4", &vec![7; 60 * width], width);
    assert_eq!(compared(&a, &b).1["class"]["kind"], "prefix");
}

#[test]
fn tokens_of_two_bytes_are_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = text(64 * 16, 3);
    stream[77] = 65_535;
    let a = npy(dir.path(), "a.npy", "<i4", &stream, 16);
    let b = npy(dir.path(), "b.npy", "<u2", &stream, 16);
    let (code, found) = compared(&a, &b);
    assert_eq!((code, &found["class"]["kind"]), (Some(0), &json!("equal")));
    stream[77] = 65_534;
    let b = npy(dir.path(), "b.npy", "<u2", &stream, 16);
    let (code, found) = compared(&a, &b);
    assert_eq!(code, Some(1));
    assert_eq!(
        (&found["first"]["a"]["step"], &found["first"]["tokens"]["token"]),
        (&json!(4), &json!(13)),
        "{found}"
    );
    assert_eq!(found["first"]["tokens"]["window_a"][4], 65_535);
}

/// A log of two epochs, each over the same rows, changed by a rule of its epoch.
fn two_epochs(dir: &Path, name: &str, change: impl Fn(u64, &[u32]) -> Vec<u32>) -> PathBuf {
    let stream = text(80 * 16, 5);
    let mut lines = String::new();
    for epoch in 0..2 {
        for (micro_step, batch) in stream.chunks(4 * 16).enumerate() {
            let rows: Vec<Vec<u32>> = batch.chunks(16).map(|row| change(epoch, row)).collect();
            let line = json!({"epoch": epoch, "micro_step": micro_step, "rank": 0, "tokens": rows});
            let _ = writeln!(lines, "{line}");
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, lines).unwrap();
    path
}

#[test]
fn a_convention_has_to_hold_in_every_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let last = |row: &[u32]| -> Vec<u32> { row[..15].iter().copied().chain([2]).collect() };
    let first = |row: &[u32]| -> Vec<u32> { [1].into_iter().chain(row[1..].iter().copied()).collect() };
    let a = two_epochs(dir.path(), "a.jsonl", |_, row| row.to_vec());
    let b = two_epochs(dir.path(), "b.jsonl", |_, row| last(row));
    let (_, found) = compared(&a, &b);
    assert_eq!(found["class"]["relation"], "last_token", "{}", found["class"]);
    // From the second epoch on.
    let b = two_epochs(dir.path(), "b.jsonl", |epoch, row| match epoch {
        0 => row.to_vec(),
        _ => last(row),
    });
    let (_, found) = compared(&a, &b);
    assert_eq!(found["class"]["relation"], "last_token", "{}", found["class"]);
    assert_eq!(found["first"]["a"]["epoch"], 1);
    assert_eq!(found["epochs"][0]["equal"], true);
    // Another convention in the second epoch: neither of them explains the runs.
    let b = two_epochs(dir.path(), "b.jsonl", |epoch, row| match epoch {
        0 => last(row),
        _ => first(row),
    });
    let (_, found) = compared(&a, &b);
    assert_ne!(found["class"]["kind"], "convention", "{}", found["class"]);
    assert_eq!(
        (
            &found["first"]["a"]["epoch"],
            &found["first"]["tokens"]["relation"]
        ),
        (&json!(0), &json!("last_token"))
    );
}
