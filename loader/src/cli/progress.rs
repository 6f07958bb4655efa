//! A progress bar with tokens/s, drawn only where someone can see it.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar; nothing when stderr is not a terminal.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for work over whole files, of a size that becomes known on the way.
    pub fn bytes(what: &'static str, quiet: bool) -> Self {
        Self::with_template(
            what,
            0,
            quiet,
            "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}",
        )
    }

    /// A bar for a run of `tokens` tokens. It is drawn from half a second on, so that short runs stay quiet.
    pub fn tokens(what: &'static str, tokens: u64, quiet: bool) -> Self {
        let template =
            "{msg} {wide_bar} {percent:>3}%  {human_pos} of {human_len} tokens  {rate}  {eta} left";
        Self::with_template(what, tokens, quiet, template)
    }

    fn with_template(what: &'static str, len: u64, quiet: bool, template: &str) -> Self {
        let seen = std::io::stderr().is_terminal() && !quiet;
        let target = if seen {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(len), target);
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
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
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
