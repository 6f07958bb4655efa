//! Page-locked host memory: the device copies from it without a copy in between, and the system never moves it.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result};

use super::device::Device;
use super::error::{CudaError, Doing};

/// One region of page-locked memory, aligned to a page, freed when it is dropped.
#[derive(Debug)]
pub struct PageLocked {
    context: Arc<CudaContext>,
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the region is owned by this value alone; access is ordered by whoever owns the value, and freeing it makes the
// context current first.
unsafe impl Send for PageLocked {}
// SAFETY: as above, `&PageLocked` gives out nothing but the address and the size.
unsafe impl Sync for PageLocked {}

impl PageLocked {
    /// At least `bytes` zeroed bytes (4096 where fewer are asked for).
    ///
    /// # Errors
    /// [`CudaError::Driver`]: the system locks no more memory.
    pub fn zeroed(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        device.bind()?;
        let bytes = bytes.max(4096);
        // SAFETY: a size above zero; freed once, in `drop`.
        let base =
            unsafe { result::malloc_host(bytes, 0) }.doing(|| format!("page-locking {bytes} bytes"))?;
        let pointer = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| CudaError::Unsupported(format!("page-locking {bytes} bytes gave no memory")))?;
        // SAFETY: the whole of the region that was just allocated.
        unsafe { pointer.as_ptr().write_bytes(0, bytes) };
        Ok(PageLocked {
            context: device.context().clone(),
            pointer,
            bytes,
        })
    }

    /// First byte.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Bytes in the region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `zeroed` and freed only here. An error at this point has no one to tell.
            let _ = unsafe { result::free_host(self.pointer.as_ptr().cast()) };
        }
    }
}
