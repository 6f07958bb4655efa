//! The one place where an error becomes text: message, causes, and what to do.

use std::fmt::Display;
use std::io::{self, Write};

use crate::pipeline::LoaderError;

/// An error on its way to the user, with the fix when there is one.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    fix: Option<String>,
}

impl Failure {
    /// A failure that is a sentence of its own.
    pub fn new(message: impl Display) -> Self {
        Self {
            error: anyhow::anyhow!("{message}"),
            fix: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Puts a sentence of context in front; the error itself becomes the cause.
    #[must_use]
    pub fn context(self, message: impl Display + Send + Sync + 'static) -> Self {
        Self {
            error: self.error.context(message.to_string()),
            fix: self.fix,
        }
    }

    /// The reader of our output went away (`| head`): not an error of ours.
    fn is_broken_pipe(&self) -> bool {
        self.error.chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        })
    }

    /// The user or the system ended the run between two batches.
    pub fn is_interruption(&self) -> bool {
        matches!(
            self.error.downcast_ref::<LoaderError>(),
            Some(LoaderError::Interrupted { .. })
        )
    }

    /// Writes the failure to stderr and says which exit code it means: 2, or 0 when only the reader of the
    /// output went away.
    pub fn report(&self, program: &str) -> u8 {
        if self.is_broken_pipe() {
            return 0;
        }
        // Nobody is left to tell when stderr is closed too.
        let _ = io::stderr().lock().write_all(self.text(program).as_bytes());
        2
    }

    fn text(&self, program: &str) -> String {
        let mut text = format!("{program}: error: {}\n", self.error);
        let mut last = self.error.to_string();
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            // Some errors repeat their source in their own text.
            if !last.contains(&cause) {
                text.push_str(&format!("  because: {cause}\n"));
            }
            last = cause;
        }
        if let Some(fix) = &self.fix {
            text.push_str(&format!("  fix: {fix}\n"));
        }
        text
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            fix: None,
        }
    }
}

/// Adds a fix to the error of a result.
pub trait OrFix<T> {
    /// Turns the error into a [`Failure`] with this fix.
    ///
    /// # Errors
    /// The failure.
    fn or_fix(self, fix: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> OrFix<T> for Result<T, E> {
    fn or_fix(self, fix: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| error.into().fix(fix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the shard cannot be read")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_report_names_message_causes_and_fix() {
        let failure = Failure::from(Outer(io::Error::other("the disk is gone"))).fix("plug it in");
        assert_eq!(
            failure.text("loader"),
            "loader: error: the shard cannot be read\n  because: the disk is gone\n  fix: plug it in\n"
        );
        assert_eq!(Failure::new("x is 3").text("loader"), "loader: error: x is 3\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let pipe = || io::Error::new(io::ErrorKind::BrokenPipe, "gone");
        assert_eq!(Failure::from(pipe()).report("loader"), 0);
        assert_eq!(Failure::from(Outer(pipe())).report("loader"), 0);
        assert!(!Failure::from(io::Error::other("full")).is_broken_pipe());
    }
}
