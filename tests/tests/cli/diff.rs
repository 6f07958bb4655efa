//! `diff` as a user meets it: sentences, exit codes, the page, and counts against a plain recount.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{SHAKESPEARE, line};

fn report(words: &str) -> (Option<i32>, Value) {
    let ran = line(&format!("diff {words} --json"));
    assert!(matches!(ran.code, Some(0 | 1)), "{words}: {}", ran.stderr);
    let value = serde_json::from_str(&ran.text()).unwrap_or_else(|e| panic!("{e}"));
    (ran.code, value)
}

const LAYOUT: &str = "--seed 42 --world-size 8 --micro-batch-size 4";

#[test]
fn fla_and_the_trainer_differ_in_dealing_and_the_report_says_so() {
    let words = format!("fla hf-trainer --cache-dir {SHAKESPEARE} {LAYOUT}");
    let (code, found) = report(&words);
    assert_eq!((code, &found["ceteris_diff"]), (Some(1), &json!(1)));
    assert_eq!(found["class"]["kind"], "other_dealing");
    assert_eq!(found["class"]["same_list"], true);
    // 2630 samples are 82 full steps of 32, and a last one that is filled up to 8 places here and 32 there.
    assert_eq!(found["class"]["sets_differ_from"]["step"], 82);
    assert_eq!(
        (&found["step_sets"]["equal"], &found["step_sets"]["steps"]),
        (&json!(82), &json!(83))
    );
    let ran = line(&format!("diff {words}"));
    assert_eq!(ran.code, Some(1));
    let text = ran.text();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for needle in [
        "same global batches, other dealing",
        "one and the same list of samples",
        "A deals strided: sample by sample round the 8 ranks",
        "B deals blocked: a whole micro-batch of 4 to each rank in turn",
        "first differ at epoch 0 step 82, the last of the epoch",
        "first epoch 0 step 0 (micro_step 0) rank 0 slot 1",
    ] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
}

#[test]
fn exit_codes_tell_equal_from_different_from_wrong() {
    let data = format!("--cache-dir {SHAKESPEARE}");
    assert_eq!(line(&format!("diff fla fla {data} {LAYOUT}")).code, Some(0));
    // One rank leaves nothing to deal.
    assert_eq!(
        line(&format!("diff fla hf-trainer {data} --seed 42")).code,
        Some(0)
    );
    assert_eq!(
        line(&format!("diff fla hf-trainer {data} {LAYOUT}")).code,
        Some(1)
    );
    assert_eq!(
        line(&format!("diff fla hf-trainer {data} {LAYOUT} --steps 0..1")).code,
        Some(1)
    );
    for (words, needle) in [
        (
            "diff fla nothing --seed 1",
            "`nothing` is no order and no file that is there",
        ),
        ("diff fla fla --seed 1", "no dataset is named"),
        (
            "diff fla,colour=red fla --seed 1 --num-samples 9",
            "unknown option `colour`",
        ),
        (
            "diff fla,seed fla --seed 1 --num-samples 9",
            "`seed` in `fla,seed` is no option",
        ),
        (
            "diff fla,seed=1,seed=2 fla --seed 1 --num-samples 9",
            "gives seed twice",
        ),
        (
            "diff torch-distributed tests/data/run_logs/trainer --seed 1 --num-samples 9",
            "names samples by number only",
        ),
    ] {
        let error = line(words).refused();
        assert!(error.contains(needle), "{words}: {error}");
    }
}

#[test]
fn another_dataset_is_told_by_its_tokens() {
    let (code, found) = report(&format!(
        "sequential sequential,cache_dir=tests/golden/fla/np1_seq128 --cache-dir {SHAKESPEARE}"
    ));
    assert_eq!(found["compared_by"], "tokens");
    // The bundled corpus is that pipeline's output, in another integer type.
    assert_eq!(
        (code, &found["class"]["kind"]),
        (Some(0), &json!("equal")),
        "{}",
        found["class"]
    );
    let (code, found) = report(&format!("{SHAKESPEARE} tests/golden/hf/list_int32_4shards"));
    assert_eq!((code, &found["class"]["kind"]), (Some(1), &json!("other_data")));
}

/// Counts of the report against a plain recount of the ids that `loader ids` lists.
#[test]
fn counts_are_those_of_a_plain_recount() {
    let (n, layout) = (
        1003,
        "--world-size 3 --micro-batch-size 5 --gradient-accumulation-steps 2",
    );
    let (_, found) = report(&format!(
        "torch-distributed,seed=1 hf-trainer,seed=2,dataset=[] --num-samples {n} {layout}"
    ));
    let places = |order: &str| -> Vec<(u64, u64, u64, u64, u64)> {
        let lines = line(&format!(
            "ids --order {order} --num-samples {n} {layout} --format jsonl"
        ))
        .json_lines();
        let mut places = Vec::new();
        for record in &lines {
            let number = |key: &str| record[key].as_u64().expect("a number");
            let rows = record["rows"].as_array().expect("rows");
            for (slot, row) in (0..).zip(rows) {
                let row = row.as_u64().expect("a row");
                places.push((number("step"), number("micro_step"), number("rank"), slot, row));
            }
        }
        places
    };
    let a = places("torch-distributed --seed 1");
    // `dataset: []` leaves out the shuffle before the sampler.
    let b = {
        let ran = super::loader(
            format!("ids --order hf-trainer --seed 2 --dataset [] --num-samples {n} {layout} --format jsonl")
                .split_whitespace(),
        );
        let mut places = Vec::new();
        for record in ran.json_lines() {
            let number = |key: &str| record[key].as_u64().expect("a number");
            for (slot, row) in (0..).zip(record["rows"].as_array().expect("rows")) {
                places.push((
                    number("step"),
                    number("micro_step"),
                    number("rank"),
                    slot,
                    row.as_u64().expect("a row"),
                ));
            }
        }
        places
    };
    // In deal order: strided goes slot by slot over the ranks, blocked rank by rank.
    let mut dealt_a = a.clone();
    dealt_a.sort_by_key(|&(_, micro_step, rank, slot, _)| (micro_step, slot, rank));
    let mut dealt_b = b.clone();
    dealt_b.sort_by_key(|&(_, micro_step, rank, slot, _)| (micro_step, rank, slot));
    type At = (u64, u64, u64, u64);
    type Found = BTreeMap<u64, (usize, At)>;
    let first = |dealt: &[(u64, u64, u64, u64, u64)]| -> Found {
        let mut first = BTreeMap::new();
        for (k, &(step, micro_step, rank, slot, row)) in dealt.iter().enumerate() {
            first.entry(row).or_insert((k, (step, micro_step, rank, slot)));
        }
        first
    };
    let (first_a, first_b) = (first(&dealt_a), first(&dealt_b));
    let common: Vec<_> = first_a
        .iter()
        .filter_map(|(row, a)| Some((*a, *first_b.get(row)?)))
        .collect();
    let count = |test: &dyn Fn(&At, &At) -> bool| common.iter().filter(|((_, a), (_, b))| test(a, b)).count();
    let stats = &found["stats"];
    assert_eq!(stats["common"], common.len());
    assert_eq!(stats["same_step"], count(&|a, b| a.0 == b.0));
    assert_eq!(stats["same_rank"], count(&|a, b| a.2 == b.2));
    assert_eq!(
        stats["same_place"],
        count(&|a, b| (a.1, a.2, a.3) == (b.1, b.2, b.3))
    );
    assert_eq!(stats["samples_a"], a.len());
    assert_eq!(stats["a"]["repeated"], a.len() - first_a.len());
    assert_eq!(stats["b"]["repeated"], b.len() - first_b.len());
    let distances: Vec<usize> = common.iter().map(|((i, _), (j, _))| i.abs_diff(*j)).collect();
    assert_eq!(
        stats["displacement"]["max"],
        *distances.iter().max().expect("some")
    );
    let mean = distances.iter().sum::<usize>() as f64 / distances.len() as f64;
    assert!((stats["displacement"]["mean"].as_f64().expect("a number") - mean).abs() < 1e-9);
    // Overlap, step by step: one step a bin here.
    assert_eq!(stats["steps_per_bin"], 1);
    for bin in stats["overlap"].as_array().expect("bins") {
        let step = bin["step"].as_u64().expect("a step");
        let seen = common
            .iter()
            .filter(|((_, a), (_, b))| a.0 <= step && b.0 <= step)
            .count();
        let here = common
            .iter()
            .filter(|((_, a), (_, b))| a.0 == step && b.0 == step)
            .count();
        assert_eq!(
            (&bin["seen_so_far"], &bin["same_step"]),
            (&json!(seen), &json!(here)),
            "step {step}"
        );
        assert_eq!(
            bin["samples_so_far"],
            a.iter().filter(|place| place.0 <= step).count()
        );
    }
    // Kendall's tau over all pairs.
    let mut order: Vec<(usize, usize)> = common.iter().map(|((i, _), (j, _))| (*i, *j)).collect();
    order.sort_unstable();
    let inversions: usize = (0..order.len())
        .map(|x| order[x + 1..].iter().filter(|later| later.1 < order[x].1).count())
        .sum();
    let m = order.len() as f64;
    let tau = 1.0 - 4.0 * inversions as f64 / (m * (m - 1.0));
    let found_tau = stats["correlation"]["kendall_tau"]["value"]
        .as_f64()
        .expect("a number");
    assert!((found_tau - tau).abs() < 1e-12, "{found_tau} {tau}");
    let ranks: u64 = stats["ranks"]
        .as_array()
        .expect("rows")
        .iter()
        .flat_map(|row| row.as_array().expect("numbers"))
        .map(|n| n.as_u64().expect("a number"))
        .sum();
    assert_eq!(ranks, common.len() as u64);
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("report.html");
    let ran = line(&format!(
        "diff fla hf-trainer --cache-dir {SHAKESPEARE} {LAYOUT} --html {}",
        path.display()
    ));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let page = std::fs::read_to_string(&path).expect("written");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for needle in [
        "Overlap over steps",
        "Displacement",
        "Where B has A",
        "Which rank has whose samples",
        "<svg ",
    ] {
        assert!(page.contains(needle), "{needle}");
    }
    for loaded in ["http", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(loaded), "{loaded}");
    }
    assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
    assert!(page.len() < 400_000, "{} bytes", page.len());
}
