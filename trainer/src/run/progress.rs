//! What a run shows while it runs: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::metrics::StepMetrics;

/// A bar with loss, tokens per second and time left; or a line each `every` steps when stderr is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    every: u64,
    steps: u64,
    quiet: bool,
}

impl Progress {
    /// Shows `steps` steps of which `done` are done.
    pub fn new(steps: u64, done: u64, every: u64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = ProgressBar::with_draw_target(
            Some(steps),
            if terminal {
                ProgressDrawTarget::stderr_with_hz(8)
            } else {
                ProgressDrawTarget::hidden()
            },
        );
        if let Ok(style) =
            ProgressStyle::with_template("{bar:24} step {pos}/{len}  {msg}  {elapsed} elapsed, {eta} left")
        {
            bar.set_style(style);
        }
        bar.set_position(done);
        bar.reset_eta();
        Progress {
            bar,
            every,
            steps,
            quiet,
        }
    }

    /// Shows a step.
    pub fn step(&self, line: &StepMetrics) {
        self.bar.set_message(format!(
            "loss {:.4}  {} tokens/s",
            line.loss,
            thousands(line.tokens_per_s)
        ));
        self.bar.set_position(line.step);
        if self.bar.is_hidden()
            && !self.quiet
            && (line.step.is_multiple_of(self.every) || line.step == self.steps || line.step == 1)
        {
            let left = self.bar.eta();
            self.say(&format!(
                "step {}/{}  loss {:.4}  grad_norm {:.3}  lr {:.3e}  {} tokens/s  {} left",
                line.step,
                self.steps,
                line.loss,
                line.grad_norm,
                line.lr,
                thousands(line.tokens_per_s),
                clock(left)
            ));
        }
    }

    /// A line beside the bar.
    pub fn say(&self, text: &str) {
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
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

fn clock(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(12.0), "12");
        assert_eq!(clock(Duration::from_secs(3725)), "1:02:05");
        assert_eq!(clock(Duration::from_secs(65)), "1:05");
    }
}
