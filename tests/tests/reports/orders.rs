//! Orders: epochs, padding, seeds, options that must not be swallowed, shuffles of Hugging Face datasets.

use std::process::Command;
use std::sync::Arc;

use ceteris_samplers::dataset::{self, DatasetStep};
use ceteris_samplers::{Order, OrderSpec};
use ceteris_tests::orders::{batches, dealt, epoch, geometry, order};
use serde_json::{Value, json};

fn build(spec: Value, n: u64, world_size: u64, micro_batch_size: u64) -> Arc<dyn Order> {
    order(spec, n, geometry(world_size, micro_batch_size)).expect("the order builds")
}

/// Each rank's samples of an epoch in a row.
fn per_rank(order: &Arc<dyn Order>, number: u64) -> Vec<Vec<u64>> {
    let epoch = epoch(order, number).expect("the epoch builds");
    (0..order.geometry().world_size)
        .map(|rank| batches(order, &epoch, rank).concat())
        .collect()
}

/// Runs `loader ids` over so many samples: exit code, stdout, stderr.
fn ids(num_samples: u64, words: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_loader-under-test"))
        .args(["ids", "--num-samples", &num_samples.to_string()])
        .args(words.split_whitespace())
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn rows(steps: Value, n: u64) -> Vec<u64> {
    let steps: Vec<DatasetStep> = serde_json::from_value(steps).expect("the steps are steps");
    let rows = dataset::apply(&steps, n).expect("the steps apply");
    rows.iter().collect()
}

const V09_EPOCH_0: [u64; 22] = [
    10, 4, 15, 3, 11, 5, 9, 20, 19, 13, 2, 0, 18, 16, 7, 8, 6, 14, 17, 1, 12, 21,
];
const V09_EPOCH_1: [u64; 22] = [
    11, 18, 6, 0, 3, 12, 17, 1, 15, 7, 9, 5, 10, 21, 19, 20, 16, 4, 8, 2, 14, 13,
];

#[test]
fn v09_each_epoch_has_its_own_order_unless_a_script_never_set_it() {
    let order = build(json!({"name": "torch-distributed", "seed": 0}), 22, 1, 1);
    assert_eq!(per_rank(&order, 0), [V09_EPOCH_0]);
    assert_eq!(per_rank(&order, 1), [V09_EPOCH_1]);
    assert!(order.spec().warnings().is_empty());

    for name in ["torch-distributed", "fla"] {
        let spec = json!({"name": name, "seed": 0, "set_epoch_called": false, "dataset": []});
        let never_set = build(spec, 22, 1, 1);
        assert_eq!(per_rank(&never_set, 0), [V09_EPOCH_0]);
        assert_eq!(per_rank(&never_set, 1), [V09_EPOCH_0]);
        let warnings = never_set.spec().warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("every epoch repeats the order of epoch 0"));
    }

    // A user is told once, however many epochs are listed.
    let (code, _, stderr) = ids(
        22,
        "--order torch-distributed --seed 0 --no-set-epoch-called --epochs 3",
    );
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stderr.matches("every epoch repeats").count(), 1, "{stderr}");
}

#[test]
fn v10_padded_and_dropped_ids_are_named() {
    let order = build(json!({"name": "torch-distributed", "seed": 0}), 10, 4, 2);
    let want = [
        ([[4, 3, 6], [1, 9, 2], [7, 0, 4], [5, 8, 1]], [4, 1]),
        ([[5, 0, 7], [6, 8, 4], [1, 9, 5], [2, 3, 6]], [5, 6]),
        ([[8, 6, 2], [7, 9, 3], [1, 0, 8], [5, 4, 7]], [8, 7]),
    ];
    for (e, (ranks, padded)) in (0..).zip(want) {
        assert_eq!(per_rank(&order, e), ranks);
        assert_eq!(epoch(&order, e).unwrap().padded(), padded);
    }
    assert_eq!((order.num_padded(), order.num_dropped()), (2, 0));

    let dropping = build(
        json!({"name": "torch-distributed", "seed": 0, "drop_last": true}),
        10,
        4,
        2,
    );
    assert_eq!(per_rank(&dropping, 0), [[4, 3], [1, 9], [7, 0], [5, 8]]);
    assert_eq!(epoch(&dropping, 0).unwrap().dropped(), [6, 2]);
    assert_eq!((dropping.num_padded(), dropping.num_dropped()), (0, 2));

    let report = |more: &str| {
        let words = format!("--order torch-distributed --seed 0 --world-size 4 {more}");
        let (code, stdout, stderr) = ids(10, &words);
        assert_eq!(code, Some(0), "{stderr}");
        stdout + &stderr
    };
    let padded = report("");
    assert!(
        padded.contains("2 padded") && padded.contains("positions 4, 1"),
        "{padded}"
    );
    let dropped = report("--drop-last");
    assert!(
        dropped.contains("2 dropped") && dropped.contains("positions 6, 2"),
        "{dropped}"
    );
}

#[test]
fn v11_fewer_samples_than_ranks() {
    let order = build(json!({"name": "torch-distributed", "seed": 0}), 2, 5, 1);
    assert_eq!(per_rank(&order, 0), [[0], [1], [0], [1], [0]]);
    assert_eq!(order.num_padded(), 3);
    assert_eq!(epoch(&order, 0).unwrap().padded(), [0, 1, 0]);
}

#[test]
fn v12_samples_repeated_to_even_out_the_ranks_are_named() {
    let spec = || json!({"name": "hf-trainer", "seed": 42, "dataset": []});
    let by_batch = |order: &Arc<dyn Order>| {
        let epoch = epoch(order, 0).unwrap();
        [0, 1].map(|rank| batches(order, &epoch, rank))
    };
    let ten = build(spec(), 10, 2, 2);
    assert_eq!(
        by_batch(&ten),
        [[[2, 6], [4, 5], [3, 7]], [[1, 8], [0, 9], [2, 6]]]
    );
    assert_eq!(epoch(&ten, 0).unwrap().padded(), [2, 6]);
    let eleven = build(spec(), 11, 2, 2);
    assert_eq!(
        by_batch(&eleven),
        [[[6, 8], [1, 10], [3, 5]], [[9, 2], [0, 7], [4, 6]]]
    );
    assert_eq!(epoch(&eleven, 0).unwrap().padded(), [6]);
}

#[test]
fn v13_an_epoch_asked_for_twice_is_the_same() {
    let spec = || json!({"name": "hf-trainer", "seed": 42, "dataset": []});
    let want = |e: u64| match e {
        0 => vec![2, 6, 1, 8, 4, 5, 0, 9, 3, 7],
        1 => vec![8, 4, 9, 0, 5, 1, 6, 7, 2, 3],
        _ => vec![2, 6, 3, 8, 7, 9, 1, 4, 5, 0],
    };
    let one = build(spec(), 10, 1, 1);
    for e in [1, 0, 1, 2, 1] {
        assert_eq!(dealt(&epoch(&one, e).unwrap()), want(e));
        let fresh = build(spec(), 10, 1, 1);
        assert_eq!(dealt(&epoch(&fresh, e).unwrap()), want(e));
    }
    let seed_43 = build(json!({"name": "hf-trainer", "seed": 43, "dataset": []}), 10, 1, 1);
    assert_eq!(dealt(&epoch(&seed_43, 0).unwrap()), want(1));
}

#[test]
fn v16_options_that_would_have_no_effect_are_errors() {
    let why = |json: &str| serde_json::from_str::<OrderSpec>(json).unwrap_err().to_string();
    let misspelt = why(r#"{"name":"torch-distributed","seed":1,"drop_lst":true}"#);
    let foreign = why(r#"{"name":"torch-distributed","seed":1,"even_batches":false}"#);
    let twice = why(r#"{"name":"torch-distributed","seed":1,"seed":2}"#);
    assert!(
        misspelt
            .starts_with("unknown option `drop_lst` of order `torch-distributed`; did you mean `drop_last`?"),
        "{misspelt}"
    );
    assert!(
        foreign.starts_with("`even_batches` is an option of hf-trainer,")
            && foreign.contains("not of order `torch-distributed`; nearest here: `")
            && foreign.contains("(its options: seed, shuffle, drop_last, set_epoch_called, dataset)"),
        "{foreign}"
    );
    assert!(
        twice.starts_with("`seed` is given twice: keep one `seed`"),
        "{twice}"
    );
}

#[test]
fn v24_shuffles_of_one_generator_follow_each_other_whatever_was_cached() {
    let nth = |call: u64| rows(json!([{"shuffle": {"seed": 42, "call": call}}]), 1000);
    let cold = [1, 2, 3].map(nth);
    assert!(cold[0] != cold[1] && cold[1] != cold[2] && cold[0] != cold[2]);
    // Nothing is kept between builds that could make a second run differ; in any sequence they come out the same.
    let warm = [3, 2, 1].map(nth);
    assert_eq!(cold, [warm[2].clone(), warm[1].clone(), warm[0].clone()]);

    let ten = |step: Value| rows(json!([step]), 10);
    assert_eq!(
        ten(json!({"shuffle": {"seed": 42}})),
        [5, 6, 0, 7, 3, 2, 4, 9, 1, 8]
    );
    let side = |take: &str| ten(json!({"train_test_split": {"take": take, "test_size": 3, "seed": 42}}));
    assert_eq!(side("test"), [5, 6, 0]);
    assert_eq!(side("train"), [7, 3, 2, 4, 9, 1, 8]);
}

#[test]
fn v25_nothing_random_without_a_recorded_seed() {
    for name in [
        "fla",
        "hf-trainer",
        "torch-distributed",
        "torch-random",
        "shuffle",
    ] {
        let why = serde_json::from_value::<OrderSpec>(json!({"name": name}))
            .unwrap_err()
            .to_string();
        assert!(why.contains(&format!("order `{name}` needs a `seed`")), "{why}");
        let (code, stdout, stderr) = ids(10, &format!("--order {name}"));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("needs a `seed`"), "{stderr}");
    }
    for step in [
        json!({"shuffle": {}}),
        json!({"train_test_split": {"take": "train"}}),
    ] {
        let spec = json!({"name": "sequential", "dataset": [step]});
        let why = serde_json::from_value::<OrderSpec>(spec).unwrap_err().to_string();
        assert!(why.contains("no seed"), "{why}");
    }
    // Every seed in effect is listed with what it is for.
    let spec = json!({"name": "hf-trainer", "seed": 1, "data_seed": 2});
    let spec: OrderSpec = serde_json::from_value(spec).unwrap();
    let seeds: Vec<String> = spec
        .seeds()
        .iter()
        .map(|(of, seed)| format!("{of} {seed}"))
        .collect();
    assert_eq!(seeds, ["dataset shuffle 1", "sampler 2"]);
}
