//! Every example of `--help` and of the README runs, and help, version and closed pipes behave.

use std::io::Read;
use std::process::Stdio;

use super::{command, line, loader, root};

#[test]
fn every_example_of_help_runs() {
    let words = |text: &str| {
        text.replace("\\\n", " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let help = words(&line("--help").ok());
    for (what, example) in ceteris_loader::cli::EXAMPLES {
        assert!(help.contains(&words(example)), "--help shows: {example}");
        let words = example
            .strip_prefix("loader")
            .unwrap_or_else(|| panic!("{example}: starts with the program"));
        let output = line(words).ok();
        assert!(!output.is_empty(), "{what}: {example}");
    }
}

#[test]
fn every_subcommand_has_help_with_an_example_that_runs() {
    let help = line("--help").ok();
    let commands = help
        .split("Commands:")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next())
        .expect("lists commands");
    let names: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(
        names.contains(&"ids") && names.contains(&"inspect") && names.contains(&"orders"),
        "{names:?}"
    );
    for name in names {
        // A backslash at the end of a line carries an example on to the next one.
        let help = loader([name, "--help"]).ok().replace("\\\n", " ");
        let example = help
            .lines()
            .find_map(|line| line.trim().strip_prefix("loader "))
            .unwrap_or_else(|| {
                panic!("`loader {name} --help` shows no example: {help}");
            });
        assert!(!line(example).ok().is_empty(), "loader {example}");
    }
}

#[test]
fn no_arguments_is_a_usage_error_and_version_is_not() {
    let ran = line("");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("Usage: loader"), "{}", ran.stderr);
    assert!(line("--version").ok().starts_with("loader "));
    let ran = line("--wold-size 3");
    assert_eq!((ran.code, ran.text().as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("--world-size"), "{}", ran.stderr);
}

/// `loader … | head -n 1` ends quietly.
#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = command()
        .args("ids --order sequential --num-samples 400000 --format jsonl".split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut first = [0u8; 10];
    child
        .stdout
        .take()
        .expect("piped")
        .read_exact(&mut first)
        .expect("some output");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(&first, b"{\"epoch\":0");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("error"),
        "no error about the pipe"
    );
}

/// Ctrl-C ends a long stream in order: a message, no half-written output.
#[test]
fn an_interrupt_ends_the_stream_with_a_message() {
    let words = "--order fla --seed 1 --cache-dir tests/data/shakespeare --epochs 1000000 --workers 1";
    let child = command()
        .args(words.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let id = child.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let kill = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status()
        .expect("kill runs");
    assert!(kill.success(), "the stream was still running");
    let ran = super::Ran::of(child.wait_with_output().expect("it ends"));
    assert_eq!((ran.code, ran.text().as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("SIGINT"), "{}", ran.stderr);
}

/// Below each `loader` command of the README and of the page about replaying stands what it prints.
#[test]
fn the_documents_show_what_their_commands_print() {
    let text = ["README.md", "docs/replay.md"]
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}")))
        .concat();
    let mut commands = 0;
    for (at, _) in text.match_indices("--bin loader -- ") {
        let (command, below) = text[at..].split_once('\n').expect("a line");
        let words = command.strip_prefix("--bin loader -- ").expect("as found");
        let shown = below
            .split("```\n")
            .nth(1)
            .unwrap_or_else(|| panic!("no output is shown below: {words}"));
        assert_eq!(shown, line(words).ok(), "{words}");
        commands += 1;
    }
    assert!(commands > 0, "no loader command is shown");
}

/// The commands of the page on Megatron data run as they stand, one after another.
#[test]
fn the_commands_of_the_megatron_page_run() {
    let page = std::fs::read_to_string(root().join("docs/megatron.md")).expect("docs/megatron.md");
    let dir = tempfile::tempdir().expect("a folder");
    let page = page
        .replace("\\\n", " ")
        .replace("DIR", &dir.path().display().to_string());
    let mut commands = 0;
    for command in page.lines().filter_map(|line| line.strip_prefix("    loader ")) {
        // Quotes keep words together, as in a shell.
        let mut words = Vec::new();
        for (i, piece) in command.split('\'').enumerate() {
            if i % 2 == 1 {
                words.push(piece.to_owned());
            } else {
                words.extend(piece.split_whitespace().map(str::to_owned));
            }
        }
        assert!(!loader(&words).ok().is_empty(), "{command}");
        commands += 1;
    }
    assert!(commands > 10, "the page shows {commands} commands");

    let yaml = page
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let config = dir.path().join("run.yaml");
    std::fs::write(&config, yaml.expect("a configuration")).expect("written");
    let by_file = loader(["--config", &config.display().to_string(), "--emit", "fingerprint"]).ok();
    let (_, by_flags) = ceteris_loader::cli::EXAMPLES
        .iter()
        .find(|(_, example)| example.contains("--order megatron"))
        .expect("an example of --help");
    let words = by_flags.strip_prefix("loader").expect("starts with the program");
    assert_eq!(by_file, line(&format!("{words} --emit fingerprint")).ok());
}
