//! `loader bench`: its report, its JSON, and what it refuses.

use serde_json::Value;

use crate::{SHAKESPEARE, loader};

const BENCH: [&str; 9] = [
    "bench",
    "--cache-dir",
    SHAKESPEARE,
    "--order",
    "fla",
    "--seed",
    "42",
    "--micro-batch-size",
    "8",
];

#[test]
fn the_report_has_the_same_figures_as_text_and_json() {
    let more = ["--micro-steps", "100", "--repeat", "1", "--consumer-ms", "0.5"];
    let text = loader(BENCH.iter().chain(&more)).ok();
    for part in [
        "the order",
        "in sequence",
        "plain copy",
        "% of a plain copy",
        "consumer",
        "waited",
        "order memory",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = loader(BENCH.iter().chain(&more).chain(&["--format", "json"])).ok();
    let json: Value = serde_json::from_str(&json).expect("one JSON document");
    let number = |value: &Value| value.as_f64().expect("a number");
    for key in [
        "shuffled",
        "sequential",
        "memcpy_1",
        "memcpy_sequential_1",
        "consumer",
    ] {
        let speed = &json[key];
        assert_eq!(speed["micro_steps"], 100, "{key}");
        assert_eq!(speed["tokens"], 100 * 8 * 128, "{key}");
        let rate = number(&speed["tokens"]) / number(&speed["wall_s"]);
        assert!(
            (rate / number(&speed["tokens_per_s"]) - 1.0).abs() < 1e-6,
            "{key}"
        );
    }
    let of_copy = number(&json["fraction_of_memcpy"]);
    assert!(of_copy > 0.0 && of_copy.is_finite());
    // What the ratios say follows from the speeds beside them.
    let fastest = |key: &str| {
        let all = json.as_object().expect("an object").iter();
        all.filter(|(name, _)| name.strip_prefix(key).is_some_and(|n| n.parse::<u64>().is_ok()))
            .map(|(_, speed)| number(&speed["gb_per_s"]))
            .fold(0.0, f64::max)
    };
    let memory = fastest("memcpy_") / fastest("memcpy_sequential_");
    assert!((number(&json["memcpy_shuffled_over_sequential"]) / memory - 1.0).abs() < 1e-6);
    assert!(json["shuffled"]["context_switches"].is_u64() && json["shuffled"]["page_faults"].is_u64());
    assert!(
        number(&json["consumer"]["wall_s"]) > 0.05,
        "the consumer was busy 100 times half a millisecond"
    );
    assert!((0.0..=1.0).contains(&number(&json["stall"])));
    assert_eq!(json["order"]["name"], "fla");
}

#[test]
fn measurements_that_measure_nothing_are_refused() {
    for (flag, value) in [
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("--repeat", "0"),
        ("--micro-steps", "0"),
    ] {
        let error = loader(BENCH.iter().chain(&[flag, value])).refused();
        assert!(error.contains(flag), "{error}");
    }
}
