//! What other programs rely on: the jsonl lines, where each stream of output goes, and that workers, prefetch and
//! repetition change nothing.

use serde_json::Value;

use super::{SHAKESPEARE, shakespeare};

/// Byte for byte, from recorded values: tests/golden/fla_order.json, world 8, epoch 0 and 1.
#[test]
fn jsonl_lines_are_as_documented() {
    let first = |words: &str| {
        let text = shakespeare(&format!(
            "--world-size 8 --steps 0..1 --rank 0 --format jsonl {words}"
        ))
        .ok();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        text
    };
    let head = "{\"epoch\":0,\"micro_step\":0,\"step\":0,\"global_micro_step\":0,\"rank\":0,\"rows\":[651,2545,2225,988],\
                \"positions\":[672,906,2565,1799]";
    let sha256 = "8b8459ba60385435ce44640a16aacd3e24ed2e33a177835fde98e6dcfbb5a8e4";
    assert_eq!(
        first(""),
        format!("{head}}}\n"),
        "rows are what jsonl holds unless said otherwise"
    );
    assert_eq!(first("--emit rows"), format!("{head}}}\n"));
    assert_eq!(
        first("--emit sha256"),
        format!("{head},\"sha256\":\"{sha256}\"}}\n")
    );
    let tokens: Value = serde_json::from_str(&first("--emit tokens")).expect("JSON");
    let rows = tokens["tokens"].as_array().expect("tokens");
    assert_eq!(rows.len(), 4);
    assert!(
        rows.iter()
            .all(|row| row.as_array().is_some_and(|row| row.len() == 128))
    );
    let later = first("--epoch 1 --emit sha256");
    assert!(
        later.starts_with("{\"epoch\":1,\"micro_step\":0,\"step\":0,\"global_micro_step\":83,\"rank\":0,\"rows\":[545,2584,924,356]"),
        "{later}"
    );
}

/// The fingerprint of a micro-batch, recomputed from its tokens by the documented definition.
#[test]
fn fingerprints_follow_their_definition() {
    let run = |emit: &str| {
        shakespeare(&format!(
            "--world-size 2 --steps 0..3 --format jsonl --emit {emit}"
        ))
        .json_lines()
    };
    for (tokens, fingerprint) in run("tokens").iter().zip(run("fingerprint")) {
        let mut digests = Vec::new();
        for row in tokens["tokens"].as_array().expect("tokens") {
            let row: Vec<u32> = row
                .as_array()
                .expect("a row")
                .iter()
                .map(|t| t.as_u64().expect("id") as u32)
                .collect();
            let mut bytes = (row.len() as u64).to_le_bytes().to_vec();
            bytes.extend(row.iter().flat_map(|token| token.to_le_bytes()));
            digests.extend(xxhash_rust::xxh3::xxh3_128(&bytes).to_be_bytes());
        }
        let want = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&digests));
        assert_eq!(fingerprint["fingerprint"], want);
    }
}

#[test]
fn data_goes_to_stdout_and_the_rest_to_stderr() {
    let machine = shakespeare("--steps 0..2 --format jsonl");
    assert!(
        machine.stderr.contains("fla") && machine.stderr.contains("fingerprint"),
        "{}",
        machine.stderr
    );
    assert!(machine.text().lines().all(|line| line.starts_with("{\"epoch\":")));
    let quiet = shakespeare("--steps 0..2 --format jsonl --quiet");
    assert_eq!(quiet.stderr, "");
    assert_eq!(quiet.stdout, machine.stdout);
    let text = shakespeare("--steps 0..2");
    assert!(
        text.text().starts_with("dataset "),
        "the header leads: {}",
        text.text()
    );
    assert!(
        text.text().contains("epoch 0 step 1 micro_step 1 rank 0  rows "),
        "{}",
        text.text()
    );
    assert!(!text.stderr.contains("dataset"), "{}", text.stderr);
}

fn summary(words: &str) -> Value {
    serde_json::from_str(&shakespeare(&format!("--emit summary --format jsonl {words}")).ok())
        .expect("one object")
}

#[test]
fn workers_prefetch_and_repetition_change_nothing() {
    let words = "--world-size 4 --epochs 2 --steps 3..160 --gradient-accumulation-steps 2";
    let first = summary(words);
    assert!(
        first["fingerprint"].as_str().is_some_and(|f| f.len() == 32),
        "{first}"
    );
    for speed in [
        "",
        "--workers 0",
        "--workers 1",
        "--workers 3 --prefetch 1",
        "--workers 16 --prefetch 5",
    ] {
        assert_eq!(summary(&format!("{words} {speed}")), first, "{speed}");
    }
    let text = |speed: &str| shakespeare(&format!("--world-size 8 {speed}")).ok();
    assert_eq!(
        text("--workers 0"),
        text("--workers 7"),
        "stdout is the same to the byte"
    );
}

/// One global batch of 32, however it is dealt to ranks, micro-batches and accumulation.
#[test]
fn the_run_fingerprint_is_that_of_the_global_batches() {
    let of = |words: &str| summary(&format!("--steps 0..50 {words}"))["fingerprint"].clone();
    let first = of("--world-size 8");
    for layout in [
        "--world-size 1 --gradient-accumulation-steps 8",
        "--world-size 2 --gradient-accumulation-steps 4",
        "--world-size 4 --gradient-accumulation-steps 2",
    ] {
        assert_eq!(of(layout), first, "{layout}");
    }
    assert_ne!(
        of("--world-size 4"),
        first,
        "another global batch size groups other samples into a step"
    );
    let blocked = super::line(&format!(
        "--order hf-trainer --cache-dir {SHAKESPEARE} --seed 42 --micro-batch-size 4 --seq-length 128 --world-size 8 \
         --steps 0..50 --emit summary --format jsonl"
    ));
    let blocked: Value = serde_json::from_str(&blocked.ok()).expect("one object");
    assert_eq!(
        blocked["fingerprint"], first,
        "strided and blocked deals differ in ranks, not in global batches"
    );
}

/// The bundled corpus holds the rows of tests/golden/fla/np1_seq128 in another integer type and in two files.
#[test]
fn the_fingerprint_does_not_depend_on_storage() {
    let bundled = summary("--world-size 8");
    let golden = super::line(
        "--order fla --cache-dir tests/golden/fla/np1_seq128 --seed 42 --micro-batch-size 4 --seq-length 128 --world-size 8 \
         --emit summary --format jsonl",
    );
    let golden: Value = serde_json::from_str(&golden.ok()).expect("one object");
    assert_eq!(
        (&golden["fingerprint"], &golden["set_fingerprint"]),
        (&bundled["fingerprint"], &bundled["set_fingerprint"])
    );
}

/// `npy` holds what `jsonl` holds, in its documented shape.
#[test]
fn an_array_of_tokens_holds_the_same_tokens() {
    let words = "--world-size 8 --steps 81..83 --emit tokens";
    let lines = shakespeare(&format!("{words} --format jsonl")).json_lines();
    let array = shakespeare(&format!("{words} --format npy")).stdout;
    let header = String::from_utf8_lossy(&array[10..128]).into_owned();
    assert!(
        header.contains("'<i4'") && header.contains("(2, 8, 4, 128"),
        "{header}"
    );
    let values = array[128..]
        .chunks_exact(4)
        .map(|b| i64::from(i32::from_le_bytes(b.try_into().expect("four bytes"))));
    let listed = lines.iter().flat_map(|line| {
        let rows = line["tokens"].as_array().expect("tokens");
        let tokens = rows
            .iter()
            .flat_map(|row| row.as_array().expect("a row"))
            .map(|t| t.as_i64().expect("an id"));
        tokens.chain(std::iter::repeat(-1)).take(4 * 128)
    });
    assert!(
        values.eq(listed),
        "81 is full, 82 has two rows on some ranks and one on others"
    );
}

/// Rows that all have one length need no --seq-length.
#[test]
fn the_length_of_rows_is_known_where_they_agree() {
    let words =
        format!("--order sequential --cache-dir {SHAKESPEARE} --steps 0..2 --emit sha256 --format jsonl");
    let short = super::line(&words).json_lines();
    assert_eq!(
        short,
        super::line(&format!("{words} --seq-length 128")).json_lines()
    );
}

/// The epoch's end repeats two samples here: the summary names them for each epoch.
#[test]
fn what_padding_repeats_is_named() {
    let two = summary("--world-size 8 --epochs 2");
    let epochs = two["epochs"].as_array().expect("epochs");
    assert_eq!(epochs.len(), 2);
    assert_eq!(epochs[0]["padded_positions"], serde_json::json!([672, 481]));
    assert_eq!(epochs[0]["padded_rows"], serde_json::json!([651, 266]));
    assert_eq!(epochs[1]["padded_positions"], serde_json::json!([2258, 1645]));
    assert_eq!(two["samples"], 2 * 2632);
    let none = summary("--world-size 8 --drop-last");
    assert_eq!(
        (
            &none["samples"],
            none["epochs"][0]["dropped_positions"].as_array().map(Vec::len)
        ),
        (&2624.into(), Some(6))
    );
}

#[test]
fn a_part_of_the_ranks_is_fingerprinted_as_such() {
    let text = shakespeare("--world-size 8 --rank 3 --emit summary").ok();
    assert!(text.contains("rank 3 only"), "{text}");
    let one = summary("--world-size 8 --rank 3");
    assert_eq!(
        (&one["ranks"], &one["samples"]),
        (&serde_json::json!([3]), &329.into())
    );
    let lines = shakespeare("--world-size 8 --rank 1,3 --steps 0..2 --format jsonl").json_lines();
    assert_eq!(
        lines.iter().map(|line| line["rank"].as_u64()).collect::<Vec<_>>(),
        [1, 3, 1, 3].map(Some)
    );
}
