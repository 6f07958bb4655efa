//! Memory of the batch buffers.
//!
//! A loader asks for all its memory once, before the first batch, and reuses it until it is dropped. What kind of
//! memory that is (plain, page-locked for a GPU) is the caller's choice through [`BufferAllocator`], so this crate
//! knows nothing of devices.
//!
//! Memory cost: one region per batch buffer, `prefetch + 1` regions per loader.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

/// Alignment in bytes every [`BufferMemory`] must have: a cache line, and what vector loads and DMA engines like.
pub const BUFFER_ALIGN: usize = 256;

/// Hands out the memory of batch buffers.
pub trait BufferAllocator: Send + Sync + fmt::Debug {
    /// One region of at least `bytes` zeroed bytes, aligned to [`BUFFER_ALIGN`], freed when it is dropped.
    ///
    /// # Errors
    /// [`AllocationError`] when the memory cannot be had.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BufferMemory>, AllocationError>;

    /// What kind of memory this is, for reports ("plain", "page-locked").
    fn kind(&self) -> &'static str;
}

/// One region of memory, owned.
///
/// # Safety
/// `pointer()` must stay the same for the life of the value, be aligned to [`BUFFER_ALIGN`], point to `len()`
/// initialised bytes that may be read and written from any thread, and overlap nothing else.
pub unsafe trait BufferMemory: Send + Sync + fmt::Debug {
    /// First byte.
    fn pointer(&self) -> NonNull<u8>;
    /// Bytes in the region.
    fn len(&self) -> usize;
    /// True when the region has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory for a batch buffer could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot allocate {bytes} bytes of {kind} memory for a batch buffer: {reason}")]
pub struct AllocationError {
    /// Bytes asked for.
    pub bytes: usize,
    /// Kind of memory asked for.
    pub kind: &'static str,
    /// What went wrong.
    pub reason: String,
}

/// Plain, page-aligned memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMemory;

/// Regions start on a page so that later page-locking or huge pages need no copy.
const PAGE: usize = 4096;

impl BufferAllocator for PlainMemory {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BufferMemory>, AllocationError> {
        let fail = |reason: &str| AllocationError {
            bytes,
            kind: "plain",
            reason: reason.to_owned(),
        };
        let layout = Layout::from_size_align(bytes.max(PAGE), PAGE).map_err(|_| fail("size too large"))?;
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).ok_or_else(|| fail("out of memory"))?;
        Ok(Box::new(PlainRegion { pointer, layout }))
    }

    fn kind(&self) -> &'static str {
        "plain"
    }
}

#[derive(Debug)]
struct PlainRegion {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the region is owned by this value alone; access is ordered by whoever owns the value.
unsafe impl Send for PlainRegion {}
// SAFETY: as above, `&PlainRegion` gives out nothing but the address and the size.
unsafe impl Sync for PlainRegion {}

// SAFETY: `pointer` comes from one `alloc_zeroed` of `layout`, is kept until drop, and PAGE is a multiple of BUFFER_ALIGN.
unsafe impl BufferMemory for PlainRegion {
    fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for PlainRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `PlainMemory::allocate` with this layout and freed once.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_memory_is_zeroed_aligned_and_large_enough() {
        for bytes in [0, 1, 4096, 4097, 1 << 20] {
            let region = PlainMemory.allocate(bytes).unwrap();
            assert!(region.len() >= bytes.max(1));
            assert_eq!(region.pointer().as_ptr() as usize % BUFFER_ALIGN, 0);
            // SAFETY: the region promises `len()` initialised bytes and nothing writes to them here.
            let all = unsafe { std::slice::from_raw_parts(region.pointer().as_ptr(), region.len()) };
            assert!(all.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = PlainMemory.allocate(usize::MAX - 10).unwrap_err();
        assert!(error.to_string().contains("size too large"), "{error}");
    }
}
