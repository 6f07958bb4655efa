//! `trainer isolate`: proof, runs, report. Reports V15 and V61.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{Ran, repository, trainer};

/// A small network on the bundled corpus: a fraction of a second a run.
pub const SMALL: &str = "
model: {hidden_size: 16, num_hidden_layers: 1, intermediate_size: 32, num_heads: 1, num_v_heads: 1, head_dim: 16,
        expand_v: 1.0, vocab_size: 4096, tie_word_embeddings: true}
data: {cache_dir: tests/data/shakespeare, seq_length: 128}
order: fla
batch: {world_size: 2, micro_batch_size: 1}
train: {steps: 6}
optimizer: {lr: 1e-2}
schedule: {name: constant}
log: {tensorboard: false}
loader: {workers: 1, prefetch: 2}
";

/// A folder with settings.
pub struct Bench(TempDir);

impl Bench {
    pub fn new() -> Bench {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("run.yaml"), SMALL).unwrap();
        Bench(folder)
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn words(&self, name: &str, words: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = vec![
            "isolate".into(),
            "--config".into(),
            self.folder("run.yaml").display().to_string(),
            "--set".into(),
            format!("output_dir={}", self.folder(name).display()),
        ];
        all.extend(words.iter().map(|w| (*w).to_owned()));
        all
    }

    fn isolate(&self, name: &str, words: &[&str]) -> Ran {
        trainer(self.words(name, words))
    }

    /// Runs an isolation and reads its report.
    fn report(&self, name: &str, words: &[&str]) -> Value {
        let ran = self.isolate(name, &[words, &["--quiet"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        self.json(name)
    }

    fn json(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.folder(name).join("isolate.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn spawn(&self, name: &str, words: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_trainer-under-test"))
            .current_dir(repository())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .args(self.words(name, words))
            .spawn()
            .unwrap()
    }
}

/// How many different hashes a part has over a plan's runs.
fn distinct(plan: &Value, part: &str) -> u64 {
    let all = plan["proof"]["distinct"].as_array().unwrap();
    all.iter().find(|d| d[0] == part).unwrap()[1].as_u64().unwrap()
}

fn losses(report: &Value) -> Vec<Vec<u64>> {
    report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| {
            run["losses"]
                .as_array()
                .unwrap()
                .iter()
                .map(|l| l.as_f64().unwrap().to_bits())
                .collect()
        })
        .collect()
}

#[test]
fn v15_a_seed_sweep_varies_what_it_says() {
    let bench = Bench::new();
    let plan = |vary: &[&str]| -> Value {
        let words: Vec<&str> = vary
            .iter()
            .flat_map(|v| ["--vary", *v])
            .chain(["--plan", "--json"])
            .collect();
        let ran = bench.isolate("plan", &words);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let data = plan(&["seeds.data=0..4"]);
    assert_eq!((distinct(&data, "order"), distinct(&data, "init")), (5, 1));
    let model = plan(&["seeds.init=0..4"]);
    assert_eq!((distinct(&model, "order"), distinct(&model, "init")), (1, 5));
    let both = plan(&["seeds.data=0..4", "seeds.init=0..4"]);
    assert_eq!((distinct(&both, "order"), distinct(&both, "init")), (5, 5));
    for part in ["corpus", "samples", "model", "batch", "optimizer", "execution"] {
        assert_eq!(distinct(&both, part), 1, "{part}");
    }
    assert_eq!(both["flagged"], false);
    // An order without a seed: five equal runs, which no one takes for a sweep.
    let words = ["--vary", "seeds.data=0..4", "--set", "order=sequential"];
    let flagged = bench.isolate("flagged", &[&words[..], &["--plan"]].concat());
    assert_eq!(flagged.code, Some(1), "{}", flagged.stderr);
    assert!(
        flagged
            .stdout
            .contains("FLAGGED: turning seeds.data moves no hash"),
        "{}",
        flagged.stdout
    );
    let refused = bench.isolate("flagged", &words);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("--vary seeds.data: turning it moves no hash"),
        "{}",
        refused.stderr
    );
    assert!(
        !bench.folder("flagged").join("cells").exists(),
        "nothing is trained"
    );
}

/// Checks what a report claims: every effect has replicates, and one that is shown has an interval without 0 and exceeds
/// its spread; the sentences say the same.
fn check_claims(report: &Value, factor: &str, pairs: u64) {
    let mut seen = 0;
    for response in report["responses"].as_array().unwrap() {
        let sentences = response["sentences"].to_string();
        for effect in response["effects"].as_array().unwrap() {
            if !effect["name"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{factor}: "))
            {
                continue;
            }
            seen += 1;
            assert_eq!(effect["replicates"], pairs);
            let (low, high) = (
                effect["interval"][0].as_f64().unwrap(),
                effect["interval"][1].as_f64().unwrap(),
            );
            let (mean, spread) = (
                effect["difference"].as_f64().unwrap(),
                effect["spread"].as_f64().unwrap(),
            );
            assert!(low <= mean && mean <= high && spread > 0.0, "{effect}");
            let shown = (low > 0.0 || high < 0.0) && mean.abs() > spread;
            assert_eq!(effect["shown"], shown, "{effect}");
            let claims = sentences.contains(&format!("{factor} explains"));
            let denied = sentences
                .split("no effect shown of ")
                .nth(1)
                .and_then(|t| t.split(';').next());
            let denies = denied.is_some_and(|t| t.contains(&format!("{factor} (")));
            assert_eq!((claims, denies), (shown, !shown), "{sentences}");
        }
    }
    assert!(seen > 0, "the factor is named");
}

#[test]
fn v61_differences_come_with_their_spread_and_nothing_is_exactly_nothing() {
    let bench = Bench::new();
    // Nothing.
    let nothing = bench.report("nothing", &[]);
    assert!(
        nothing["sentence"]
            .as_str()
            .unwrap()
            .contains("differ by exactly 0 over 6 steps"),
        "{}",
        nothing["sentence"]
    );
    assert_eq!(nothing["null_check"]["exact"], true);
    assert_eq!(nothing["null_check"]["largest_difference"], 0.0);
    // The order alone, over three weight seeds.
    let order = bench.report(
        "order",
        &["--vary", "order=fla,sequential", "--vary", "seeds.init=1..3"],
    );
    check_claims(&order, "order", 3);
    // The weight seed alone, over three data seeds.
    let model = bench.report(
        "model",
        &["--vary", "seeds.init=1,2", "--vary", "seeds.data=1..3"],
    );
    check_claims(&model, "seeds.init", 3);
    // The learning rate alone, over three weight seeds: so large that it must be found.
    let rate = bench.report(
        "rate",
        &["--vary", "optimizer.lr=1e-4,1e-1", "--vary", "seeds.init=1..3"],
    );
    check_claims(&rate, "optimizer.lr", 3);
    let last = &rate["responses"][3];
    assert_eq!(last["step"], 6);
    assert_eq!(last["effects"][0]["shown"], true, "{last}");
    assert!(
        rate["sentence"]
            .as_str()
            .unwrap()
            .contains("At step 6, optimizer.lr explains"),
        "{}",
        rate["sentence"]
    );
    // What cannot matter differs by exactly 0.
    let threads = bench.report(
        "threads",
        &["--vary", "train.threads=1,2", "--vary", "seeds.init=1..3"],
    );
    for effect in threads["responses"][4]["effects"].as_array().unwrap() {
        assert_eq!(
            effect["exactly_zero"],
            effect["name"].as_str().unwrap().starts_with("train.threads"),
            "{effect}"
        );
    }
    assert!(
        threads["sentence"]
            .as_str()
            .unwrap()
            .contains("train.threads changes nothing (exactly 0)")
    );
    for report in [&nothing, &order, &model, &rate, &threads] {
        assert_eq!(report["null_check"]["exact"], true);
    }
}

#[test]
fn a_knob_that_moves_the_hash_of_another_is_refused() {
    let bench = Bench::new();
    // This order deals other rows to another number of ranks, whatever the global batch.
    let layouts = "batch={world_size: 1, micro_batch_size: 4},{world_size: 2, micro_batch_size: 2}";
    let ran = bench.isolate("refused", &["--vary", layouts, "--set", "order=megatron-random"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr
            .contains("--vary batch: {world_size: 2, micro_batch_size: 2} instead of")
            && ran.stderr.contains("also moves the order hash"),
        "{}",
        ran.stderr
    );
    assert!(!bench.folder("refused").join("cells").exists());
    // The same layouts under an order that does not, and changes that cannot be made alone, pass and are said.
    let passes = |words: &[&str]| {
        let ran = bench.isolate("passes", &[words, &["--plan"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    passes(&["--vary", layouts]);
    passes(&[
        "--vary",
        "batch.world_size=1,2",
        "--set",
        "batch.global_batch_size=4",
    ]);
    let shapes = passes(&["--vary", "model.hidden_size=16,32"]);
    assert!(
        shapes.contains("initial weights move along: the tensors have other shapes"),
        "{shapes}"
    );
    let eps = passes(&["--vary", "model.norm_eps=1e-5,1e-6"]);
    assert!(
        eps.contains("moves 2 model hashes") && !eps.contains("along"),
        "{eps}"
    );
    // Document markers of the model decide samples.
    let markers = ["--set", "data.documents=bos", "--vary", "model.bos_token_id=1,3"];
    let ran = bench.isolate("markers", &markers);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("also moves the samples hash"),
        "{}",
        ran.stderr
    );
}

#[test]
fn bad_requests_are_refused_by_name() {
    let bench = Bench::new();
    for (words, why) in [
        (&["--vary", "order=fla,nonsense"][..], "nonsense"),
        (&["--vary", "model.norm_epz=1,2"], "norm_eps"),
        (&["--vary", "optimizer.lr=1e-3,fast"], "optimizer.lr"),
        (&["--vary", "seeds.data=1,2", "--at", "7"], "steps 1 to 6"),
        (
            &["--vary", "seeds.data=1,2", "--confidence", "1.5"],
            "--confidence",
        ),
        (&["--vary", "seeds.data=1..9", "--budget", "3"], "need 9 runs"),
        (
            &[
                "--vary",
                "order=fla,megatron",
                "--vary",
                "order.shuffle=true,false",
            ],
            "set the same thing",
        ),
    ] {
        let ran = bench.isolate("bad", words);
        assert_eq!(ran.code, Some(2), "{words:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(why) && !ran.stderr.contains("panicked"),
            "{words:?}: {}",
            ran.stderr
        );
    }
}

#[test]
fn a_budget_says_what_it_confounds() {
    let bench = Bench::new();
    let words = [
        "--vary",
        "order=fla,megatron",
        "--vary",
        "seeds.data=1,2",
        "--vary",
        "seeds.init=1,2",
        "--budget",
        "4",
    ];
    let report = bench.report("half", &words);
    assert_eq!(report["runs"].as_array().unwrap().len(), 4);
    let said = report["confounding"].to_string();
    assert!(
        said.contains("order is confounded with seeds.data x seeds.init"),
        "{said}"
    );
    assert!(
        report["sentence"]
            .as_str()
            .unwrap()
            .contains("Only 4 of 8 combinations"),
        "{}",
        report["sentence"]
    );
    assert!(report["method"].as_str().unwrap().contains("least squares"));
    // The whole design keeps the runs of the half.
    let started = modified(&bench.folder("half/cells/order=fla,seeds.data=1,seeds.init=1/manifest.json"));
    let whole = bench.report("half", &words[..6]);
    assert_eq!(whole["runs"].as_array().unwrap().len(), 8);
    assert_eq!(
        modified(&bench.folder("half/cells/order=fla,seeds.data=1,seeds.init=1/manifest.json")),
        started
    );
    // The page and the Markdown stand beside the numbers, and load nothing.
    let page = std::fs::read_to_string(bench.folder("half/report.html")).unwrap();
    assert!(
        page.contains("<svg")
            && !page.contains("http://")
            && !page.contains("https://")
            && !page.contains("NaN")
    );
    assert!(page.contains("Order: megatron (B) against fla (A)"));
    let markdown = std::fs::read_to_string(bench.folder("half/report.md")).unwrap();
    assert!(markdown.contains("| order: megatron against fla |"), "{markdown}");
    // Other settings do not go on in the same folder.
    let ran = bench.isolate("half", &[&words[..6], &["--set", "optimizer.lr=5e-3"]].concat());
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("optimizer.lr is 0.01 there, 0.005 here"),
        "{}",
        ran.stderr
    );
}

fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).unwrap().modified().unwrap()
}

#[test]
fn an_isolation_that_was_killed_goes_on_and_gives_the_same_bits() {
    let bench = Bench::new();
    let words = [
        "--vary",
        "optimizer.lr=1e-3,1e-2",
        "--set",
        "train.steps=40",
        "--set",
        "checkpoint.every=5",
    ];
    let whole = bench.report("whole", &words);
    for signal in ["-KILL", "-TERM"] {
        let name = format!("stopped{signal}");
        let mut child = bench.spawn(&name, &words);
        let second = bench.folder(&name).join("cells/optimizer.lr=1e-2/metrics.jsonl");
        wait_for(&second, 8, &mut child);
        let sent = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        let status = child.wait().unwrap();
        if signal == "-TERM" {
            assert_eq!(status.code(), Some(1), "a stop is no error");
        }
        assert!(!bench.folder(&name).join("isolate.json").exists());
        let first = bench.folder(&name).join("cells/optimizer.lr=1e-3/manifest.json");
        let before = modified(&first);
        let resumed = bench.report(&name, &words);
        assert_eq!(losses(&resumed), losses(&whole), "{signal}");
        assert_eq!(modified(&first), before, "a finished run is not run again");
    }
    // In processes of their own, the same bits.
    let children = bench.report("children", &[&words[..], &["--devices", "cpu,cpu"]].concat());
    assert_eq!(losses(&children), losses(&whole));
}

/// Waits until a file has so many lines.
pub fn wait_for(path: &Path, lines: usize, child: &mut Child) {
    let started = Instant::now();
    while std::fs::read_to_string(path).map_or(0, |t| t.lines().count()) < lines {
        assert!(
            child.try_wait().unwrap().is_none(),
            "ended before it could be stopped"
        );
        assert!(started.elapsed() < Duration::from_secs(120), "never got there");
        std::thread::sleep(Duration::from_millis(2));
    }
}
