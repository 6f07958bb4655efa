//! `trainer compare`: alignment, tables, crossings, windows, noise, the gate, reports.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Ran, trainer};

const FLA: &str = "fla=tests/data/logs/port_report.fla.log";
const MEGATRON: &str = "megatron=tests/data/logs/port_report.megatron.log";

/// Files of a test.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and gives its path.
    pub fn put(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// Writes a table of steps and losses.
    pub fn curve(&self, name: &str, losses: impl IntoIterator<Item = (u64, f64)>) -> String {
        let mut text = "step,loss\n".to_owned();
        for (step, loss) in losses {
            text.push_str(&format!("{step},{loss}\n"));
        }
        self.put(name, &text)
    }
}

/// Runs `trainer compare`.
pub fn compare(words: &[&str]) -> Ran {
    trainer(std::iter::once("compare").chain(words.iter().copied()))
}

/// The JSON report of a comparison, and the exit code.
pub fn report(words: &[&str]) -> (Option<i32>, Value) {
    let mut all = words.to_vec();
    all.extend(["--json", "-"]);
    let ran = compare(&all);
    assert!(matches!(ran.code, Some(0 | 1)), "{words:?}: {}", ran.stderr);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap())
}

/// The message of a comparison that is refused.
pub fn refused(words: &[&str]) -> String {
    let ran = compare(words);
    assert_eq!(ran.code, Some(2), "{words:?}: {}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "");
    ran.stderr
}

/// Cells of the rows of text whose first cell is one of `first`.
fn rows(text: &str, first: &[&str]) -> Vec<Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .filter(|cells: &Vec<String>| first.contains(&cells[0].as_str()))
        .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The losses, differences and rates that a published port of FLA's 300M gated delta network to Megatron-LM reports
/// (`tests/scripts/port_report_logs.py` names it), from the two logs, digit by digit.
#[test]
fn a_published_port_report_comes_out_of_its_logs_digit_by_digit() {
    let at = "1,100,500,1000,2000,2100,3000,4000,4500,4700";
    let common = [FLA, MEGATRON, "--loss-divisor", "8", "--at", at];
    let ran = compare(&[&common[..], &["--digits", "3", "--window", "3700..4700"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let places: Vec<&str> = at.split(',').collect();
    let expected = [
        ["1", "11.965", "11.965", "-0.00"],
        ["100", "7.471", "9.601", "+28.51"],
        ["500", "4.625", "4.728", "+2.22"],
        ["1000", "4.001", "4.050", "+1.21"],
        ["2000", "3.607", "3.614", "+0.21"],
        ["2100", "3.600", "3.592", "-0.22"],
        ["3000", "3.448", "3.460", "+0.35"],
        ["4000", "3.396", "3.390", "-0.19"],
        ["4500", "3.373", "3.373", "-0.01"],
        ["4700", "3.351", "3.366", "+0.45"],
    ];
    assert_eq!(rows(&ran.stdout, &places), expected);
    assert_eq!(
        rows(&ran.stdout, &["Iteration"]),
        [["Iteration", "fla loss", "megatron loss", "Δ %"]]
    );
    let rates = rows(
        &ran.stdout,
        &["Step time (ms)", "Tokens/s per device", "TFLOP/s per device"],
    );
    assert_eq!(
        rates,
        [
            ["Step time (ms)", "1434.6", "1431.6", "-0.21"],
            ["Tokens/s per device", "182,729", "183,213", "+0.26"],
            ["TFLOP/s per device", "–", "642.0", "–"],
        ]
    );
    assert_eq!(rows(&ran.stdout, &["Whole run"])[0][1], "1h 54m 00s");
    assert!(
        ran.stdout
            .contains("First crossover at step 2100: megatron falls below fla"),
        "{}",
        ran.stdout
    );

    // The same with the digits of the logs, where the report prints four.
    let ran = compare(&[&common[..], &["--window", "3700..4700"]].concat());
    assert_eq!(rows(&ran.stdout, &["1"]), [["1", "11.9654", "11.9652", "-0.00"]]);
    assert_eq!(
        rows(&ran.stdout, &["1000"]),
        [["1000", "4.0012", "4.0497", "+1.21"]]
    );
    assert_eq!(
        rows(&ran.stdout, &["2000"]),
        [["2000", "3.6067", "3.6144", "+0.21"]]
    );
    let late = &rows(&ran.stdout, &["3700 to 4700"])[0];
    assert_eq!(late[1..5], ["11", "3.3795", "3.3829", "+0.10"]);

    let (_, found) = report(&common);
    let warmup = &found["against"][0]["warmup"];
    assert_eq!(
        (
            &warmup["ends_at"],
            &warmup["found_by"],
            &warmup["widest_at"],
            &warmup["closed_from"]
        ),
        (&json!(1000), &json!("learning_rate"), &json!(100), &json!(1100))
    );
}

#[test]
fn a_divisor_is_for_the_logs_it_names() {
    // A bare one leaves Megatron's log alone; a named one divides whichever it names.
    let (_, found) = report(&[FLA, MEGATRON, "--loss-divisor", "8", "--at", "1"]);
    assert_eq!(found["runs"][0]["loss_divisor"], 8.0);
    assert_eq!(found["runs"][1]["loss_divisor"], 1.0);
    let (_, found) = report(&[FLA, MEGATRON, "--loss-divisor", "B=4", "--at", "1"]);
    assert_eq!(found["table"][0]["losses"], json!([95.7232, 11.9652 / 4.0]));
    let (_, found) = report(&[
        FLA,
        MEGATRON,
        "--loss-divisor",
        "8",
        "--loss-divisor",
        "fla=2",
        "--at",
        "1",
    ]);
    assert_eq!(found["runs"][0]["loss_divisor"], 2.0);
    let files = Files::new();
    let a = files.curve("a.csv", [(1, 1.0)]);
    assert!(refused(&[&a, &a, "--loss-divisor", "8"]).contains("--loss-divisor A=8"));
    assert!(refused(&[&a, &a, "--loss-divisor", "A=0"]).contains("divisor of 0"));
    assert!(refused(&[&a, &a, "--loss-divisor", "D=2"]).contains("no log is called \"D\"; there are A, B"));
    assert!(refused(&[&a, &a, "--loss-divisor", "A=x"]).contains("\"x\" is no number"));
}

#[test]
fn a_tolerance_is_a_gate() {
    let files = Files::new();
    let a = files.curve("a.csv", (1..=100).map(|s| (s, 4.0)));
    let b = files.curve(
        "b.csv",
        (1..=100).map(|s| {
            (
                s,
                if s < 10 {
                    5.0
                } else if s == 60 {
                    4.1
                } else {
                    4.01
                },
            )
        }),
    );
    let gate = |words: &[&str]| report(&[&[a.as_str(), b.as_str()], words].concat());
    let (code, found) = gate(&["--tolerance", "0.01"]);
    let found = &found["against"][0]["tolerance"];
    assert_eq!(
        (code, &found["exceeded"]),
        (Some(1), &json!({"at": 1, "delta_percent": 25.0}))
    );
    assert_eq!(
        (&found["places"], &found["places_beyond"]),
        (&json!(100), &json!(10))
    );
    let (code, found) = gate(&["--tolerance", "0.01", "--tolerance-from", "10"]);
    assert_eq!((code, &found["passed"]), (Some(1), &json!(false)));
    assert_eq!(found["against"][0]["tolerance"]["exceeded"]["at"], 60);
    let (code, found) = gate(&["--tolerance", "0.03", "--tolerance-from", "10"]);
    assert_eq!((code, &found["passed"]), (Some(0), &json!(true)));
    assert_eq!(found["against"][0]["tolerance"]["widest"]["at"], 60);
    // The text names the first step, and a run held against itself is exactly 0 apart.
    let ran = compare(&[&a, &b, "--tolerance", "0.01", "--tolerance-from", "10"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout.contains(
            "TOLERANCE EXCEEDED: b first leaves 1 % of a at step 60 (+2.50 %); beyond it at 1 of 91 places"
        ),
        "{}",
        ran.stdout
    );
    let (code, found) = report(&[&a, &a, "--tolerance", "0"]);
    assert_eq!(
        (code, &found["against"][0]["tolerance"]["widest"]["delta_percent"]),
        (Some(0), &json!(0.0))
    );
    // One step's jump is gone in a mean of ten.
    let (code, found) = gate(&["--tolerance", "0.01", "--tolerance-from", "20", "--smooth", "10"]);
    let widest = number(&found["against"][0]["tolerance"]["widest"]["delta_percent"]);
    assert_eq!(code, Some(0));
    assert!(
        (widest - 100.0 * (0.9 * 4.01 + 0.1 * 4.1 - 4.0) / 4.0).abs() < 1e-9,
        "{widest}"
    );
    // Nothing to check is no pass.
    let error = refused(&[&a, &b, "--tolerance", "0.01", "--tolerance-from", "101"]);
    assert!(
        error.contains("no common record from 101 on, the last is at 100"),
        "{error}"
    );
    assert_eq!(compare(&[&a, &b, "--tolerance", "-1"]).code, Some(2));
    assert_eq!(compare(&[&a, &b, "--tolerance-from", "1"]).code, Some(2));
}

#[test]
fn nan_is_kept_said_and_fails_the_gate() {
    let files = Files::new();
    let a = files.curve("a.csv", [(1, 4.0), (2, 3.0), (3, 2.0)]);
    let b = files.put("b.csv", "step,loss\n1,4.0\n2,nan\n3,2.0\n");
    let (code, found) = report(&[&a, &b, "--tolerance", "0.5"]);
    let against = &found["against"][0];
    assert_eq!(
        (code, &against["tolerance"]["exceeded"]),
        (Some(1), &json!({"at": 2, "delta_percent": null}))
    );
    assert_eq!(found["table"][1]["losses"], json!([3.0, null]));
    // It is in no average.
    assert!(
        against["windows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|w| w["b"].is_number())
    );
    let ran = compare(&[&a, &b]);
    assert!(
        ran.stdout
            .contains("B: the loss of 1 logged steps is not a finite number, first at step 2"),
        "{}",
        ran.stdout
    );
    assert_eq!(rows(&ran.stdout, &["2"]), [["2", "3", "NaN", "–"]]);
}

#[test]
fn by_tokens_runs_of_other_batch_sizes_meet() {
    let files = Files::new();
    // B takes half the tokens a step: its step 2 s is A's step s.
    let a = files.curve("a.csv", (1..=50).map(|s| (s, 10.0 - 0.1 * s as f64)));
    let b = files.curve("b.csv", (1..=100).map(|s| (s, 10.0 - 0.05 * s as f64)));
    let tokens = [
        "--align",
        "tokens",
        "--tokens-per-step",
        "A=200",
        "--tokens-per-step",
        "B=100",
    ];
    let (_, found) = report(&[&[a.as_str(), b.as_str()], &tokens[..]].concat());
    assert_eq!(found["align"], "tokens");
    let series = found["against"][0]["series"].as_array().unwrap();
    assert_eq!((series.len(), &series[49]["at"]), (50, &json!(10_000)));
    assert!(
        series
            .iter()
            .all(|place| number(&place["delta_percent"]).abs() < 1e-9)
    );
    // Between two records the loss is interpolated: A at 300 tokens lies between its steps 1 and 2.
    let (_, found) = report(
        &[
            &[b.as_str(), a.as_str()],
            &["--at", "300"][..],
            &["--align", "tokens"],
            &["--tokens-per-step", "A=100", "--tokens-per-step", "B=200"],
        ]
        .concat(),
    );
    assert!((number(&found["table"][0]["losses"][1]) - 9.85).abs() < 1e-9);
    // By steps they do not.
    let (_, found) = report(&[&a, &b]);
    assert!(number(&found["against"][0]["series"][49]["delta_percent"]) > 40.0);
    let error = refused(&[&a, &b, "--align", "tokens"]);
    assert!(error.contains("--tokens-per-step"), "{error}");
    let falling = files.put("c.csv", "step,loss,tokens\n1,2,100\n2,2,50\n");
    let error = refused(&[&a, &falling, "--align", "tokens", "--tokens-per-step", "A=100"]);
    assert!(error.contains("do not rise"), "{error}");
}

#[test]
fn denser_logs_are_averaged_when_asked() {
    let files = Files::new();
    let a = files.curve("a.csv", (1..=40).map(|s| (s, s as f64)));
    // Means over ten steps, as HF logs them.
    let b = files.curve("b.csv", (1..=4).map(|k| (10 * k, 10.0 * k as f64 - 4.5)));
    let (_, found) = report(&[&a, &b]);
    assert!(
        found["notes"][0].as_str().unwrap().contains("--average"),
        "{found}"
    );
    let (_, found) = report(&[&a, &b, "--average"]);
    let series = found["against"][0]["series"].as_array().unwrap();
    assert_eq!(series.len(), 4);
    assert!(
        series.iter().all(|place| place["delta_percent"] == 0.0),
        "{series:?}"
    );
    assert!(refused(&[&a, &b, "--average", "--align", "tokens"]).contains("--align steps"));
    let c = files.curve("c.csv", [(3, 1.0), (7, 1.0)]);
    let d = files.curve("d.csv", [(4, 1.0), (8, 1.0)]);
    let error = refused(&[&c, &d]);
    assert!(
        error.contains("no step in common: A has 2 records from 3 to 7"),
        "{error}"
    );
}

/// A loss curve with noise that a seed gives, the same on every machine.
fn noisy(seed: u64, shift: f64) -> Vec<(u64, f64)> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (1..=400)
        .map(|step| {
            let mut noise = 0.0;
            for _ in 0..6 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                noise += (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
            }
            (step, 3.0 + 5.0 / step as f64 + 0.01 * noise + shift)
        })
        .collect()
}

#[test]
fn repeats_tell_noise_from_a_difference() {
    let files = Files::new();
    let path = |name: &str, seed, shift| files.curve(name, noisy(seed, shift));
    let a = path("a.csv", 1, 0.0);
    let repeats = [path("a2.csv", 2, 0.0), path("a3.csv", 3, 0.0)].map(|p| format!("A={p}"));
    let (same, shifted) = (path("same.csv", 4, 0.0), path("shifted.csv", 5, 0.1));
    let against = |b: &str| {
        let (_, found) = report(&[&a, b, "--repeat", &repeats[0], "--repeat", &repeats[1]]);
        found["against"][0]["noise"].clone()
    };
    let noise = against(&same);
    assert_eq!(noise["share_inside_by_chance"], 0.5);
    // Of 400 places half are inside by chance: 0.5 ± 0.025.
    assert!(
        (number(&noise["share_inside"]) - 0.5).abs() < 0.1,
        "{}",
        noise["share_inside"]
    );
    let band = &noise["places"][0];
    assert_eq!(
        (&band["at"], &band["a"]["runs"], &band["b"]["runs"]),
        (&json!(1), &json!(3), &json!(1))
    );
    let first: Vec<f64> = (1..=3).map(|seed| noisy(seed, 0.0)[0].1).collect();
    let mean = first.iter().sum::<f64>() / 3.0;
    let std = (first.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    assert!((number(&band["a"]["std"]) - std).abs() < 1e-12);
    assert_eq!(
        number(&band["a"]["min"]),
        first.iter().copied().fold(f64::INFINITY, f64::min)
    );
    assert_eq!(
        number(&band["a"]["max"]),
        first.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    );
    let noise = against(&shifted);
    assert_eq!(
        (&noise["gap_is_inside"], &noise["inside"]),
        (&json!(false), &json!(0))
    );
    assert!(number(&noise["gap_over_std"]) > 5.0, "{}", noise["gap_over_std"]);
    let ran = compare(&[&a, &shifted, "--repeat", &repeats[0], "--repeat", &repeats[1]]);
    assert!(
        ran.stdout.contains("the gap is larger than the noise"),
        "{}",
        ran.stdout
    );
    // Without repeats nothing is said of noise.
    let (_, found) = report(&[&a, &same]);
    assert_eq!(found["against"][0]["noise"], Value::Null);
    assert!(refused(&[&a, &same, "--repeat", &same]).contains("KEY=PATH"));
}

#[test]
fn three_runs_share_one_table() {
    let files = Files::new();
    let a = files.curve("a.csv", [(1, 4.0), (2, 2.0)]);
    let b = files.curve("b.csv", [(1, 5.0), (2, 2.0)]);
    let c = files.curve("c.csv", [(2, 1.0)]);
    let ran = compare(&[&a, &format!("second={b}"), &c, "--digits", "1"]);
    assert_eq!(
        rows(&ran.stdout, &["Iteration", "1", "2"]),
        [
            ["Iteration", "a loss", "second loss", "Δ %", "c loss", "Δ %"],
            ["1", "4.0", "5.0", "+25.00", "–", "–"],
            ["2", "2.0", "2.0", "+0.00", "1.0", "-50.00"],
        ]
    );
    // Two logs of one name stay apart.
    std::fs::create_dir(files.path("other")).unwrap();
    let other = files.curve("other/a.csv", [(1, 4.0)]);
    let ran = compare(&[&a, &other]);
    assert!(
        ran.stdout.contains("A a loss") && ran.stdout.contains("B a loss"),
        "{}",
        ran.stdout
    );
    assert!(refused(&[&format!("x={a}"), &format!("x={b}")]).contains("two logs are called x"));
    assert!(refused(&[&a, &format!("A={b}")]).contains("two logs are called A"));
    assert!(refused(&[&format!("B={a}"), &b]).contains("letter of another log"));
}

#[test]
fn places_that_are_not_there_are_named() {
    let files = Files::new();
    let a = files.curve("a.csv", [(1, 4.0), (10, 2.0), (20, 1.0)]);
    let ran = compare(&[&a, &a, "--at", "10,15,30"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout
            .contains("no record of two runs at 15; the nearest are at 10 and 20"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout
            .contains("no record of two runs at 30; the nearest are at 20")
    );
    assert!(refused(&[&a, &a, "--at", "2,3"]).contains("no two runs have a loss at 2, 3"));
    for window in ["0", "5..1", "x"] {
        assert_eq!(compare(&[&a, &a, "--window", window]).code, Some(2));
    }
}

#[test]
fn reports_are_written_whole_and_load_nothing() {
    let files = Files::new();
    let a = files.curve("a<b>.csv", noisy(1, 0.0));
    let b = files.curve("b.csv", noisy(2, 0.02));
    let repeat = format!("A={}", files.curve("r.csv", noisy(3, 0.0)));
    let out = |name: &str| files.path(name).display().to_string();
    let ran = compare(&[
        &a,
        &b,
        "--repeat",
        &repeat,
        "--tolerance",
        "0.5",
        "--html",
        &out("r.html"),
        "--markdown",
        &out("r.md"),
        "--json",
        &out("r.json"),
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let page = std::fs::read_to_string(out("r.html")).unwrap();
    for needle in [
        "<!doctype html>",
        "within tolerance",
        "a&lt;b&gt; loss",
        "<polygon",
        "<polyline",
        "Gap, in percent",
        "</html>",
    ] {
        assert!(page.contains(needle), "{needle}");
    }
    for loaded in ["http", "src=", "@import", "url(", "<script", "a<b>"] {
        assert!(!page.contains(loaded), "{loaded}");
    }
    let text = std::fs::read_to_string(out("r.md")).unwrap();
    assert!(
        text.starts_with("## Loss curves: a<b>, b\n") && text.contains("| Iteration | a<b> loss |"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&std::fs::read_to_string(out("r.json")).unwrap()).unwrap();
    // The text on the screen is the same with and without files.
    assert_eq!(
        ran.stdout,
        compare(&[&a, &b, "--repeat", &repeat, "--tolerance", "0.5"]).stdout
    );
    let keys = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let documented = std::fs::read_to_string(super::repository().join("docs/compare.md")).unwrap();
    for value in [
        &json,
        &json["runs"][0],
        &json["runs"][0]["throughput"],
        &json["table"][0],
        &json["against"][0],
        &json["against"][0]["noise"],
        &json["against"][0]["tolerance"],
        &json["against"][0]["warmup"],
        &json["against"][0]["windows"][0],
        &json["against"][0]["crossover"],
        &json["against"][0]["series"][0],
        &json["against"][0]["noise"]["places"][0]["a"],
    ] {
        for key in keys(value) {
            assert!(
                documented.contains(&format!("`{key}`")),
                "docs/compare.md does not name {key}"
            );
        }
    }
    assert_eq!(
        (&json["ceteris_compare"], &json["passed"]),
        (&json!(1), &json!(true))
    );
    let error = refused(&[&a, &b, "--html", &out("none/r.html")]);
    assert!(error.contains("cannot be written"), "{error}");
}

#[test]
fn wrong_command_lines_are_refused() {
    let files = Files::new();
    let a = files.curve("a.csv", [(1, 1.0)]);
    assert_eq!(compare(&[&a]).code, Some(2));
    assert!(
        refused(&[&a, &a, "--format-of", "A=xml"])
            .contains("none of metrics, hf-console, hf-state, megatron, csv")
    );
    assert!(refused(&[&a, &a, "--format-of", "A"]).contains("KEY=KIND"));
    assert!(refused(&[&a, &a, "--devices", "0"]).contains("count from 1"));
    assert!(refused(&[&a, &a, "--devices", "1", "--devices", "2"]).contains("given twice"));
    assert!(refused(&[&a, "nowhere.csv"]).contains("nowhere.csv: cannot be read"));
    let help = compare(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("Examples:") && help.stdout.contains("1: a gap exceeds --tolerance"));
}
