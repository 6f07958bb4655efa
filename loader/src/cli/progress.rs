//! A progress bar with tokens/s, drawn only where someone can see it.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Short work shows no bar.
const DELAY: Duration = Duration::from_millis(500);

/// A bar; nothing when stderr is not a terminal or the work is short. Clones are the same bar.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Set once, under the lock that showing the bar takes.
    finished: Arc<Mutex<bool>>,
}

impl Progress {
    /// A bar for work over whole files, of a size that becomes known on the way.
    pub fn bytes(what: &'static str, quiet: bool) -> Self {
        let template = "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}";
        Self::with_template(what, 0, quiet, template)
    }

    /// A bar for a run of `tokens` tokens.
    pub fn tokens(what: &'static str, tokens: u64, quiet: bool) -> Self {
        let template =
            "{msg} {wide_bar} {percent:>3}%  {human_pos} of {human_len} tokens  {rate}  {eta} left";
        Self::with_template(what, tokens, quiet, template)
    }

    /// A bar for `samples` samples.
    pub fn samples(what: &'static str, samples: u64, quiet: bool) -> Self {
        let template = "{msg} {wide_bar} {percent:>3}%  {human_pos} of {human_len} samples  {eta} left";
        Self::with_template(what, samples, quiet, template)
    }

    /// A bar for `datasets` datasets.
    pub fn datasets(what: &'static str, datasets: u64, quiet: bool) -> Self {
        Self::with_template(
            what,
            datasets,
            quiet,
            "{msg} {wide_bar} {human_pos} of {human_len} datasets  {eta} left",
        )
    }

    /// A bar for a stage of work counted in whatever it goes through, of a size that becomes known on the way.
    pub fn of(what: &'static str, quiet: bool) -> Self {
        Self::with_template(what, 0, quiet, "{msg} {wide_bar} {percent:>3}%  {eta} left")
    }

    /// Work of which no one can say how much is done.
    pub fn spinner(what: &'static str, quiet: bool) -> Self {
        Self::with_template(what, 0, quiet, "{spinner} {msg} {elapsed}")
    }

    fn with_template(what: &'static str, len: u64, quiet: bool, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style.with_key(
                "rate",
                |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = write!(out, "{}", rate(state.per_sec()));
                },
            );
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        let progress = Self {
            bar,
            finished: Arc::default(),
        };
        if std::io::stderr().is_terminal() && !quiet {
            progress.show_later();
        }
        progress
    }

    fn show_later(&self) {
        let progress = self.clone();
        // Without the thread there is no bar, and nothing else is lost.
        let _ = std::thread::Builder::new()
            .name("progress".to_string())
            .spawn(move || {
                std::thread::sleep(DELAY);
                let finished = progress.finished.lock().unwrap_or_else(PoisonError::into_inner);
                if !*finished {
                    progress.bar.set_draw_target(ProgressDrawTarget::stderr());
                    progress.bar.enable_steady_tick(Duration::from_millis(200));
                }
            });
    }

    /// Says where the work stands.
    pub fn set(&self, what: &str, done: u64, of: u64) {
        self.bar.set_message(what.to_string());
        self.bar.set_length(of);
        self.bar.set_position(done);
    }

    /// Counts tokens or bytes.
    pub fn add(&self, tokens: u64) {
        self.bar.inc(tokens);
    }

    /// Takes the bar off the screen while `write` writes to the terminal.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        *self.finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bar.finish_and_clear();
    }
}

/// A rate for reading: 12.3M tokens/s.
pub fn rate(tokens_per_s: f64) -> String {
    let (value, unit) = match tokens_per_s {
        r if r >= 1e9 => (r / 1e9, "G"),
        r if r >= 1e6 => (r / 1e6, "M"),
        r if r >= 1e3 => (r / 1e3, "k"),
        r => (r, ""),
    };
    format!("{value:.1}{unit} tokens/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(
            [12.0, 4200.0, 3.5e6, 1.25e9].map(rate),
            ["12.0 tokens/s", "4.2k tokens/s", "3.5M tokens/s", "1.2G tokens/s"]
        );
    }
}
