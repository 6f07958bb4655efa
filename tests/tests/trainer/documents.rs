//! Examples of `--help` and the README's run.

use std::process::Command;

use ceteris_trainer::run::metrics::{self, Line};
use tempfile::TempDir;

use super::repository;

fn program(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_trainer-under-test"))
        .current_dir(repository())
        .args(args)
        .output()
        .unwrap()
}

/// The settings that an example names are settings that there are.
#[test]
fn examples_of_help_name_settings_that_exist() {
    for command in [
        &["train"][..],
        &["config", "show"],
        &["groups"],
        &["init"],
        &["pairs"],
        &["selftest"],
    ] {
        let help = program(&[command, &["--help"]].concat());
        let text = String::from_utf8(help.stdout).unwrap();
        let examples: Vec<&str> = text.lines().filter(|l| l.starts_with("  trainer ")).collect();
        assert!(!examples.is_empty(), "{command:?} shows no example");
        for example in examples {
            let words: Vec<&str> = example.split_whitespace().skip(1).collect();
            assert!(words.starts_with(command), "{example}");
            let mut settings = vec!["config", "show"];
            for pair in words.windows(2).filter(|w| matches!(w[0], "--config" | "--set")) {
                settings.extend(pair);
            }
            if settings.len() > 2 {
                let shown = program(&settings);
                let stderr = String::from_utf8_lossy(&shown.stderr).into_owned();
                assert!(shown.status.success(), "{example}: {stderr}");
            }
        }
    }
}

/// The losses that the README shows are those of its command, to the last digit, on any machine.
#[test]
fn the_readme_shows_the_losses_of_its_run() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let (command, shown) = readme
        .split_once("--bin trainer -- ")
        .and_then(|(_, rest)| rest.split_once('\n'))
        .unwrap();
    let shown = shown.split("```\n").nth(1).unwrap();
    let folder = TempDir::new().unwrap();
    let output_dir = format!("output_dir={}", folder.path().display());
    // Its first ten steps: a tenth of the time, the same learning rates.
    let mut args: Vec<&str> = command.split_whitespace().collect();
    for set in [
        &output_dir,
        "train.steps=10",
        "schedule.total_steps=100",
        "log.every=1",
    ] {
        args.extend(["--set", set]);
    }
    let ran = program(&args);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = metrics::read(&folder.path().join("metrics.jsonl")).unwrap();
    let mut compared = 0;
    for line in &lines {
        let Line::Step(line) = line else { continue };
        if let Some((_, rest)) = shown.split_once(&format!("step {}/100  loss ", line.step)) {
            let loss = rest.split_whitespace().next().unwrap();
            assert_eq!(loss, format!("{:.4}", line.loss), "step {}", line.step);
            compared += 1;
        }
    }
    assert_eq!(compared, 2, "steps 1 and 10 are shown");
    for file in ["metrics.jsonl", "config.resolved.yaml", "manifest.json"] {
        assert!(shown.contains(&format!("runs/tiny/{file}")), "{file}");
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}
