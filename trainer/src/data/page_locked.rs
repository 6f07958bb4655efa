//! Page-locked memory for the loader's batch buffers, from the device that computes.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ceteris_kernels::cuda::{Device, PageLocked};
use ceteris_loader::pipeline::{AllocationError, BufferAllocator, BufferMemory, PlainMemory};

use crate::device::Target;

/// Hears what a user should be told.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Memory that batches for a device are read into: page-locked for a CUDA device, plain for the CPU. Where no memory can be
/// page-locked the buffers are plain ones and `notice` hears why; no result changes.
pub fn batch_memory(target: Target, notice: Notice) -> Arc<dyn BufferAllocator> {
    match target {
        Target::Cpu => Arc::new(PlainMemory),
        Target::Cuda(ordinal) => match Device::open(ordinal) {
            Ok(device) => Arc::new(PageLockedMemory {
                device,
                notice,
                told: AtomicBool::new(false),
            }),
            Err(why) => {
                notice(&format!("the loader reads into plain memory: {why}"));
                Arc::new(PlainMemory)
            }
        },
    }
}

/// Hands out page-locked regions.
struct PageLockedMemory {
    device: Device,
    notice: Notice,
    told: AtomicBool,
}

impl fmt::Debug for PageLockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageLockedMemory")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl BufferAllocator for PageLockedMemory {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BufferMemory>, AllocationError> {
        match PageLocked::zeroed(&self.device, bytes) {
            Ok(region) => Ok(Box::new(Region(region))),
            Err(why) => {
                // Once: every buffer of the ring would say the same.
                if !self.told.swap(true, Ordering::Relaxed) {
                    (self.notice)(&format!(
                        "the loader reads into plain memory: no more memory can be page-locked ({why})"
                    ));
                }
                PlainMemory.allocate(bytes)
            }
        }
    }

    fn kind(&self) -> &'static str {
        "page-locked"
    }
}

#[derive(Debug)]
struct Region(PageLocked);

// SAFETY: the region stays where it is until it is dropped, starts on a page (a multiple of BUFFER_ALIGN), holds initialised
// bytes that any thread may use, and overlaps nothing else.
unsafe impl BufferMemory for Region {
    fn pointer(&self) -> NonNull<u8> {
        self.0.pointer()
    }

    fn len(&self) -> usize {
        self.0.bytes()
    }
}
