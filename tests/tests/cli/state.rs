//! `--save-state` and `--resume`: a stream in two pieces is the stream in one.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::{Ran, SHAKESPEARE, command, shakespeare};

fn saved(folder: &Path, words: &str) -> (Ran, String) {
    let path = folder.join("state.json").display().to_string();
    (shakespeare(&format!("{words} --save-state {path}")), path)
}

#[test]
fn a_stream_in_two_pieces_is_the_stream_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let common = "--emit tokens --format jsonl --quiet --world-size 2";
    let whole = shakespeare(&format!("{common} --epochs 2")).json_lines();
    let (head, state) = saved(folder.path(), &format!("{common} --steps 0..11"));
    let head = head.json_lines();
    let tail = shakespeare(&format!("{common} --epochs 2 --resume {state}")).json_lines();
    assert!(head.len() == 22 && !tail.is_empty());
    assert_eq!([head, tail].concat(), whole);

    // The end of an epoch is a place to go on from as well.
    let (first, state) = saved(folder.path(), common);
    let next = shakespeare(&format!("{common} --epochs 2 --resume {state} --workers 0")).json_lines();
    assert_eq!([first.json_lines(), next].concat(), whole);
    let text = shakespeare(&format!("{common} --epochs 1 --resume {state}")).refused();
    assert!(
        text.contains("nothing is left") && text.contains("--epochs 2"),
        "{text}"
    );
}

#[test]
fn a_signal_leaves_a_state_that_goes_on_where_the_output_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json").display().to_string();
    let common = format!(
        "--order fla --cache-dir {SHAKESPEARE} --seed 42 --micro-batch-size 4 --seq-length 128 --emit sha256 --format jsonl \
         --quiet --epochs 40"
    );
    let mut child = command()
        .args(common.split_whitespace())
        .args(["--save-state", &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    reader.read_line(&mut text).unwrap();
    // The pipe is full long before 40 epochs are written: the signal comes in the middle.
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let lines =
        |text: &str| -> Vec<Value> { text.lines().map(|l| serde_json::from_str(l).unwrap()).collect() };
    let head = lines(&text);
    let tail = crate::line(&format!("{common} --resume {path}")).json_lines();
    assert!(!head.is_empty() && !tail.is_empty());
    assert_eq!([head, tail].concat(), crate::line(&common).json_lines());
}

#[test]
fn a_state_of_another_run_is_refused_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let (ran, state) = saved(folder.path(), "--steps 0..5 --quiet");
    ran.ok();
    let run = |words: &str| {
        crate::line(&format!(
            "--order fla --cache-dir {SHAKESPEARE} --resume {state} {words}"
        ))
    };
    let text = run("--seed 43 --micro-batch-size 4 --seq-length 128").refused();
    assert!(text.contains("seed") || text.contains("order"), "{text}");
    let text = run("--seed 42 --micro-batch-size 8 --seq-length 128").refused();
    assert!(text.contains("global batch"), "{text}");
    let ran = run("--seed 42 --micro-batch-size 8 --seq-length 128 --allow-global-batch-change");
    assert!(ran.stderr.contains("repeat"), "{}", ran.stderr);
    ran.ok();
    // The same global batch over other ranks goes on as it is.
    run("--seed 42 --micro-batch-size 2 --world-size 2 --seq-length 128").ok();
    let text = run("--seed 42 --micro-batch-size 4 --seq-length 128 --steps 0..3").refused();
    assert!(text.contains("--steps"), "{text}");
    std::fs::write(&state, "{}").unwrap();
    let text = run("--seed 42 --micro-batch-size 4 --seq-length 128").refused();
    assert!(text.contains("state.json"), "{text}");
}
