//! A flag that ends a run cleanly: set by SIGINT, SIGTERM or the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ends a loader: once set, `next_batch` returns [`super::LoaderError::Interrupted`], also while it waits.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl StopSignal {
    /// A flag that only [`StopSignal::request`] sets.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Sets the flag on SIGINT and SIGTERM from now on, for the life of the process. A second signal ends the process at
    /// once, as if nothing were installed.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install() -> std::io::Result<StopSignal> {
        let stop = StopSignal::new();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Handlers run in the order of registration: the second signal finds the flag set by the first.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop.0.stop))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.0.signal), signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0.stop))?;
        }
        Ok(stop)
    }

    /// Sets the flag.
    pub fn request(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }

    /// The signal that set the flag (0: the program), `None` while it is not set.
    pub fn requested(&self) -> Option<i32> {
        let set = self.0.stop.load(Ordering::SeqCst);
        set.then(|| i32::try_from(self.0.signal.load(Ordering::SeqCst)).unwrap_or(0))
    }
}
