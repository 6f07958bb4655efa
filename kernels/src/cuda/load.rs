//! A second stream of work on a device, to show that results do not depend on what runs beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::call::{Modules, Program, fill_random};
use super::device::{Block, Device};
use super::error::CudaError;
use super::product::Products;
use super::source::Source;

/// Bytes written over and over: more than the second-level cache holds.
const BYTES: u64 = 256 << 20;

/// Work on a stream of its own until dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64, CudaError>>>,
}

impl Load {
    /// Keeps the device busy with memory traffic of random writes until the value is dropped.
    ///
    /// # Errors
    /// [`CudaError`]: missing libraries, too little memory.
    pub fn start(device: &Device) -> Result<Self, CudaError> {
        let other = device.another_stream()?;
        let block = Block::zeroed(&other, BYTES)?;
        let mut modules = Modules::new(&other);
        let kernel = modules.kernel(Source::Reduce, &[], "fill_random", 0)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            other.bind()?;
            let call = fill_random(kernel, block.pointer(), block.bytes());
            let mut program = Program::new(vec![call; 8], 0);
            let products = Products::listing();
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                program.issue(0..program.len(), other.stream(), &products)?;
                other.synchronize()?;
                rounds += 1;
            }
            drop((program, block, modules));
            Ok(rounds)
        });
        Ok(Load {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the load; returns how many rounds of it ran.
    ///
    /// # Errors
    /// [`CudaError`]: the device failed.
    pub fn end(mut self) -> Result<u64, CudaError> {
        self.join()
    }

    fn join(&mut self) -> Result<u64, CudaError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(rounds)) => rounds,
            Some(Err(_)) => Err(CudaError::Unsupported("the thread of the load panicked".into())),
            None => Ok(0),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.join();
    }
}
