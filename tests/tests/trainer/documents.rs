//! Examples of `--help` and the README's run.

use std::process::Command;

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

/// What the README shows of its first command are that command's numbers, to the last digit, on any machine.
#[test]
fn the_readme_shows_the_numbers_of_its_isolation() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let (command, shown) = readme
        .split_once("--bin trainer -- ")
        .and_then(|(_, rest)| rest.split_once('\n'))
        .unwrap();
    let shown = shown.split("```\n").nth(1).unwrap();
    let folder = TempDir::new().unwrap();
    let output_dir = format!("output_dir={}", folder.path().display());
    // Its first fifteen steps: a quarter of the time, the same learning rates.
    let mut args: Vec<&str> = command.split_whitespace().collect();
    for set in [&output_dir, "train.steps=15", "schedule.total_steps=60"] {
        args.extend(["--set", set]);
    }
    let ran = program(&args);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    // A row of numbers after its name, the column of step 15.
    let at_15 = |text: &str, name: &str| {
        let table = &text[text.find("share of the variance").unwrap()..];
        let head = table.lines().next().unwrap();
        let end = head.find("step 15").unwrap() + "step 15".len();
        let row = table.lines().find(|line| line.starts_with(name)).unwrap();
        let value = row[..end].trim_end_matches('%').trim_end();
        value.rsplit(' ').next().unwrap().to_owned()
    };
    for name in [
        "order  ",
        "seeds.data  ",
        "seeds.init  ",
        "order x seeds.data",
        "mean loss",
        "standard deviation over the runs",
    ] {
        assert_eq!(at_15(&printed, name), at_15(shown, name), "{name}: {printed}");
    }
    assert!(shown.contains("Repeating one run gave a difference of exactly 0"));
    for file in ["report.html", "report.md", "isolate.json"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}
