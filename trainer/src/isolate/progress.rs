//! What an isolation shows while its runs go on: a bar over the steps of all of them on a terminal, a line a run
//! elsewhere.

use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::run::metrics::Line;

/// Bytes read from the end of a metrics file: several lines.
const TAIL: u64 = 4096;

/// Steps of a run that its metrics file holds; 0 where there is none.
pub(super) fn steps_done(metrics: &Path) -> u64 {
    let read = || -> std::io::Result<u64> {
        let mut file = std::fs::File::open(metrics)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let last = text
            .lines()
            .rev()
            .find_map(|l| serde_json::from_str::<Line>(l).ok());
        Ok(last.map_or(0, |line| line.step()))
    };
    read().unwrap_or(0)
}

/// The bar.
pub(super) struct Progress {
    bar: ProgressBar,
    files: Vec<PathBuf>,
    total: u64,
    before: u64,
    started: Instant,
    quiet: bool,
    finished: Mutex<usize>,
}

impl Progress {
    /// Runs by their metrics files, with the steps of each.
    pub(super) fn new(files: Vec<PathBuf>, total: u64, finished: usize, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let target = if terminal {
            ProgressDrawTarget::stderr_with_hz(8)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(
            "{bar:24} {pos}/{len} steps of all runs  {msg}  {elapsed} elapsed, {eta} left",
        ) {
            bar.set_style(style);
        }
        let progress = Progress {
            before: files.iter().map(|f| steps_done(f)).sum(),
            bar,
            files,
            total,
            started: Instant::now(),
            quiet,
            finished: Mutex::new(finished),
        };
        progress.bar.set_position(progress.before);
        progress.bar.reset_eta();
        progress
            .bar
            .set_message(format!("{finished}/{} runs", progress.files.len()));
        progress
    }

    fn done(&self) -> u64 {
        self.files.iter().map(|f| steps_done(f)).sum()
    }

    /// Looks at the files.
    pub(super) fn look(&self) {
        if !self.bar.is_hidden() {
            self.bar.set_position(self.done());
        }
    }

    /// A run has ended.
    pub(super) fn run_done(&self, name: &str, loss: Option<f64>) {
        let number = {
            let mut finished = self
                .finished
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            *finished += 1;
            *finished
        };
        let runs = self.files.len();
        self.bar.set_message(format!("{number}/{runs} runs"));
        let loss = loss.map_or(String::new(), |l| format!("  loss {l:.4}"));
        self.say(&format!(
            "run {number}/{runs}  {name}{loss}  {} left",
            clock(self.left())
        ));
    }

    fn left(&self) -> Duration {
        let done = self.done();
        let own = done.saturating_sub(self.before);
        if own == 0 {
            return Duration::ZERO;
        }
        self.started
            .elapsed()
            .mul_f64(self.total.saturating_sub(done) as f64 / own as f64)
    }

    /// A line beside the bar.
    pub(super) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        if self.bar.is_hidden() {
            // A closed stderr must not end a run.
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn clock(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}
