//! Stdout: buffered, and given back to the user only as whole as it was meant.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use super::progress::Progress;

/// Buffered stdout. What is still in the buffer when a command fails is not written.
pub struct Output {
    inner: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    /// Locks stdout.
    pub fn stdout() -> Self {
        let lock = io::stdout().lock();
        let terminal = lock.is_terminal();
        Self {
            inner: BufWriter::with_capacity(1 << 16, lock),
            terminal,
        }
    }

    /// Lets a reader at a terminal see what was written so far.
    ///
    /// # Errors
    /// Failed writes.
    pub fn show(&mut self) -> io::Result<()> {
        if self.terminal { self.inner.flush() } else { Ok(()) }
    }

    /// Writes with the progress bar out of the way where both are on a screen.
    ///
    /// # Errors
    /// Failed writes.
    pub fn suspending(
        &mut self,
        progress: &Progress,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.terminal {
            return write(&mut self.inner);
        }
        progress.suspend(|| {
            write(&mut self.inner)?;
            self.inner.flush()
        })
    }

    /// Ends with what is still in the buffer thrown away.
    pub fn discard(self) {
        let (_, _unwritten) = self.inner.into_parts();
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
