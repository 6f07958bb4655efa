//! Page-locked staging: what the host writes goes to the device by asynchronous copies, so that writing the next
//! micro-batch waits neither for the copy nor for the work that is on the stream. A ring of slots, each free again when
//! the copies out of it are done. Memory: slots × bytes, page-locked.

use cudarc::driver::{result, sys};

use super::device::Device;
use super::error::{CudaError, Doing};

/// Alignment of the parts within a slot.
const PART: usize = 64;

/// A ring of page-locked slots.
#[derive(Debug)]
pub(super) struct Staging {
    base: *mut u8,
    slot_bytes: usize,
    slots: Vec<Slot>,
    next: usize,
}

#[derive(Debug)]
struct Slot {
    event: sys::CUevent,
    busy: bool,
}

// SAFETY: the memory and the events belong to this value alone and may be used from any thread while the context is
// current, which every entry of the executor sees to.
unsafe impl Send for Staging {}

impl Staging {
    /// `slots` slots of `slot_bytes` bytes each.
    pub(super) fn new(slot_bytes: usize, slots: usize) -> Result<Self, CudaError> {
        let slot_bytes = slot_bytes.max(1).next_multiple_of(PART);
        // SAFETY: a size above zero; freed once, in `drop`.
        let base = unsafe { result::malloc_host(slot_bytes * slots, 0) }
            .doing(|| format!("page-locking {} bytes", slot_bytes * slots))?;
        let mut ring = Staging {
            base: base.cast(),
            slot_bytes,
            slots: Vec::new(),
            next: 0,
        };
        for _ in 0..slots {
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                .doing(|| "making an event".into())?;
            ring.slots.push(Slot { event, busy: false });
        }
        Ok(ring)
    }

    /// Copies every part to its address, in stream order. Returns when the parts may be reused, which is at once; a
    /// message larger than a slot is copied without staging.
    pub(super) fn send(&mut self, device: &Device, parts: &[(u64, &[u8])]) -> Result<(), CudaError> {
        let total: usize = parts.iter().map(|p| p.1.len().next_multiple_of(PART)).sum();
        if total > self.slot_bytes || self.slots.is_empty() {
            return parts
                .iter()
                .try_for_each(|(to, bytes)| device.upload(*to, bytes, "values"));
        }
        let index = self.next;
        self.next = (index + 1) % self.slots.len();
        let slot = &mut self.slots[index];
        if slot.busy {
            // SAFETY: an event of this context, recorded before.
            unsafe { result::event::synchronize(slot.event) }.doing(|| "waiting for a copy".into())?;
        }
        let mut at = index * self.slot_bytes;
        for (to, bytes) in parts.iter().filter(|p| !p.1.is_empty()) {
            // SAFETY: `at .. at + bytes.len()` lies within the slot, whose copies are done; `to` has room for the bytes
            // (callers check ranges); the slot is not written again before its event has passed.
            unsafe {
                let staged = std::slice::from_raw_parts_mut(self.base.add(at), bytes.len());
                staged.copy_from_slice(bytes);
                result::memcpy_htod_async(*to, &*staged, device.stream())
            }
            .doing(|| "copying values to the device".into())?;
            at += bytes.len().next_multiple_of(PART);
        }
        slot.busy = true;
        // SAFETY: event and stream belong to the current context.
        unsafe { result::event::record(slot.event, device.stream()) }.doing(|| "recording an event".into())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: made by `new`, destroyed once; copies out of the slot are waited for.
            unsafe {
                if slot.busy {
                    let _ = result::event::synchronize(slot.event);
                }
                let _ = result::event::destroy(slot.event);
            }
        }
        // SAFETY: allocated by `new`, freed once, no copy is under way.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}

/// The bytes of plain values.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding; the bytes are those of the slice.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Types whose bytes are all initialised.
///
/// # Safety
/// No padding.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: numbers and arrays of numbers have no padding.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: two bytes, both of them the number's.
unsafe impl Plain for half::bf16 {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [i32; N] {}
