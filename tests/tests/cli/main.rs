//! The `loader` command line as a user meets it: the binary runs, and stdout, stderr and exit code are looked at.

mod bad_input;
mod bench;
mod config;
mod contract;
mod diff;
mod diff_divided;
mod diff_logs;
mod diff_tokens;
mod examples;
mod fla_pipeline;
mod ids;
mod megatron;
mod prepare;
mod provenance;
mod python_log;
mod state;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The repository's root, where every command runs.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The bundled corpus, as commands name it.
const SHAKESPEARE: &str = "tests/data/shakespeare";

/// What a run of the binary gave.
struct Ran {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("stdout is UTF-8")
    }

    /// Stdout of a run that must have succeeded.
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self.text()
    }

    /// The lines of a jsonl run that must have succeeded.
    fn json_lines(self) -> Vec<Value> {
        let text = self.ok();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .collect()
    }

    /// Stderr of a run that must have failed with code 2 and nothing on stdout, as one error.
    #[track_caller]
    fn refused(self) -> String {
        assert_eq!(
            self.code,
            Some(2),
            "stdout: {}\nstderr: {}",
            self.text(),
            self.stderr
        );
        assert_eq!(self.text(), "", "nothing partial reaches stdout");
        let errors = self
            .stderr
            .lines()
            .filter(|line| line.contains("error: "))
            .count();
        assert_eq!(errors, 1, "one error: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self.stderr
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loader-under-test"));
    command
        .current_dir(root())
        .stdin(Stdio::null())
        .env_remove("RUST_BACKTRACE");
    command
}

/// Runs `loader` with these arguments.
fn loader<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    Ran::of(command().args(args).output().expect("the binary runs"))
}

/// Runs `loader` with the words of a line.
fn line(words: &str) -> Ran {
    loader(words.split_whitespace())
}

/// Runs `loader` in the bare form over the bundled corpus with more words.
fn shakespeare(words: &str) -> Ran {
    line(&format!(
        "--order fla --cache-dir {SHAKESPEARE} --seed 42 --micro-batch-size 4 --seq-length 128 {words}"
    ))
}
