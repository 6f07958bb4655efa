//! `loader ids` and `loader orders`: orders without a dataset.

use serde_json::{Value, json};

use super::{line, loader};

fn rows(line: &Value) -> Vec<u64> {
    line["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(Value::as_u64)
        .collect()
}

/// Recorded from torch 2.15.0: `DistributedSampler` over 10 samples, 4 ranks, seed 0.
#[test]
fn ids_of_all_ranks_in_text_and_jsonl() {
    let args = "ids --order torch-distributed --num-samples 10 --world-size 4 --micro-batch-size 3 --seed 0 --epoch 1";
    let lines = line(&format!("{args} --format jsonl")).json_lines();
    let by_rank: Vec<Vec<u64>> = lines.iter().map(rows).collect();
    assert_eq!(by_rank, [[5, 0, 7], [6, 8, 4], [1, 9, 5], [2, 3, 6]]);
    assert_eq!(
        lines[3]["global_micro_step"], 1,
        "an epoch is one micro-step here, and this is epoch 1"
    );
    let text = line(&format!("{args} --rank 2")).ok();
    assert!(
        text.contains("epoch 1 step 0 micro_step 0 rank 2  rows 1 9 5  positions 1 9 5"),
        "{text}"
    );
    assert!(
        text.contains("2 padded at its end by samples it already had: positions 5, 6"),
        "{text}"
    );
}

#[test]
fn switches_have_a_flag_a_value_and_a_no_form() {
    let args =
        "ids --order torch-distributed --num-samples 10 --world-size 4 --micro-batch-size 3 --format jsonl";
    let run = |more: &str| {
        line(&format!("{args} {more}"))
            .json_lines()
            .iter()
            .map(rows)
            .collect::<Vec<_>>()
    };
    let dropped = run("--seed 0 --drop-last");
    assert_eq!(dropped, [vec![4, 3], vec![1, 9], vec![7, 0], vec![5, 8]]);
    assert_eq!(run("--seed 0 --drop-last=true"), dropped);
    assert_ne!(run("--seed 0 --drop-last=false"), dropped);
    assert_eq!(run("--seed 0 --no-drop-last"), run("--seed 0"));
    let in_order = [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6, 0], vec![3, 7, 1]];
    assert_eq!(run("--no-shuffle"), in_order);
    assert_eq!(run("--shuffle=false"), in_order);
    let refused = line(&format!("{args} --seed 0 --drop-last --no-drop-last")).refused();
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn seeds_are_taken_as_torch_takes_them() {
    let args = "ids --order torch-distributed --num-samples 10 --micro-batch-size 10 --format jsonl --seed";
    let run = |seed: &str| rows(&line(&format!("{args} {seed}")).json_lines()[0]);
    assert_eq!(run("-1"), run("18446744073709551615"));
    assert_eq!(run("4294967301"), run("5"));
    assert_ne!(run("5"), run("6"));
    let refused = line(&format!("{args} 18446744073709551616")).refused();
    assert!(refused.contains("seed"), "{refused}");
}

#[test]
fn steps_run_on_into_later_epochs_when_epochs_says_so() {
    let args = "ids --order torch-distributed --num-samples 10 --world-size 2 --micro-batch-size 2 --seed 3 --format jsonl";
    let whole = line(&format!("{args} --epochs 3")).json_lines();
    let counters = |line: &Value| {
        ["epoch", "micro_step", "step", "global_micro_step", "rank"].map(|key| line[key].as_u64().expect(key))
    };
    assert_eq!(whole.len(), 18);
    assert_eq!(counters(&whole[17]), [2, 2, 2, 8, 1]);
    let part = line(&format!("{args} --epochs 3 --steps 2..5")).json_lines();
    assert_eq!(part, whole[4..10], "steps 2, 3 and 4 of the run");
    let second = line(&format!("{args} --epoch 1 --epochs 2 --steps 2..5")).json_lines();
    assert_eq!(
        second,
        whole[10..16],
        "steps count from the first epoch asked for"
    );
    let accumulated = line(&format!("{args} --gradient-accumulation-steps 2 --steps 1..2")).json_lines();
    assert_eq!(
        accumulated.len(),
        2,
        "the last step of the epoch has one micro-step"
    );
    assert_eq!(counters(&accumulated[0]), [0, 2, 1, 2, 0]);
}

#[test]
fn an_order_file_is_obeyed_to_the_letter() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("order.txt");
    let list: String = (0..10).rev().map(|row| format!("{row}\n")).collect();
    std::fs::write(&path, list).expect("writes");
    let run = |more: &[&str]| {
        let path = path.to_str().expect("UTF-8");
        let mut args = vec![
            "ids",
            "--order",
            "file",
            "--path",
            path,
            "--num-samples",
            "10",
            "--format",
            "jsonl",
        ];
        args.extend(more);
        loader(args)
    };
    let lines = run(&["--micro-batch-size", "10"]).json_lines();
    assert_eq!(rows(&lines[0]), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    let by_rank = run(&["--world-size", "2", "--micro-batch-size", "5"]).json_lines();
    assert_eq!(
        by_rank.iter().map(rows).collect::<Vec<_>>(),
        [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0]]
    );
    std::fs::write(&path, "0\n1\n12\n").expect("writes");
    let refused = run(&["--rows", "any"]).refused();
    assert!(
        refused.contains("order.txt, line 3: row 12 is out of range"),
        "{refused}"
    );
}

#[test]
fn formats_hold_the_same_rows() {
    let args = "ids --order fla --num-samples 10 --world-size 2 --micro-batch-size 3 --seed 1";
    let lines = line(&format!("{args} --format jsonl")).json_lines();
    let document: Value =
        serde_json::from_str(&line(&format!("{args} --format json")).ok()).expect("one document");
    assert_eq!(document["records"], json!(lines));
    assert_eq!(document["header"]["samples"], 10);
    assert_eq!(document["summary"]["samples"], 10);
    let array = line(&format!("{args} --format npy"));
    assert!(array.stdout.starts_with(b"\x93NUMPY"));
    let body: Vec<i64> = array.stdout[128..]
        .chunks_exact(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        .collect();
    let flat: Vec<i64> = lines
        .iter()
        .flat_map(|line| {
            rows(line)
                .into_iter()
                .map(|row| row as i64)
                .chain([-1; 3])
                .take(3)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(body, flat);
}

#[test]
fn orders_lists_every_order_with_its_source() {
    let text = line("orders").ok();
    let list: Value = serde_json::from_str(&line("orders --json").ok()).expect("JSON");
    let names: Vec<&str> = list
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|o| o["name"].as_str())
        .collect();
    for name in ["fla", "hf-trainer", "torch-distributed", "sequential", "file"] {
        assert!(names.contains(&name) && text.contains(name), "{name}");
    }
    let fla = line("orders fla").ok();
    assert!(
        fla.contains("hf-trainer") && fla.contains("DistributedSampler"),
        "{fla}"
    );
    assert!(fla.contains("data_seed"), "{fla}");
    let refused = line("orders fal").refused();
    assert!(refused.contains("did you mean `fla`?"), "{refused}");
}

#[test]
fn inspect_says_what_a_folder_holds() {
    let text = line("inspect --cache-dir tests/data/shakespeare").ok();
    for needle in ["2630", "input_ids", "uint16", "data-00001-of-00002.arrow", "128"] {
        assert!(text.replace(',', "").contains(needle), "lacks {needle}: {text}");
    }
    let report: Value =
        serde_json::from_str(&line("inspect --cache-dir tests/data/shakespeare --json").ok()).expect("JSON");
    assert_eq!(
        (
            &report["splits"][0]["rows"],
            &report["splits"][0]["tokens"]["max"]
        ),
        (&2630.into(), &128.into())
    );
    let refused = line("inspect --cache-dir no/such/folder").refused();
    assert!(refused.contains("no/such/folder"), "{refused}");
}
