//! Comparing runs and attributing their gap.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod compare;
mod compare_logs;
mod effects;
mod isolate;
mod replay;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a command did.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// The top of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `trainer` in the repository.
fn trainer<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer-under-test"))
        .current_dir(repository())
        .stdin(Stdio::null())
        .env_remove("RUST_BACKTRACE")
        .args(words)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
