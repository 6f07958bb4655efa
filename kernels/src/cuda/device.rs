//! A device: its context, the stream the step runs on, raw allocations, events.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::error::{CudaError, Doing};

/// One CUDA device.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    capability: (i32, i32),
    shared: u32,
}

impl Device {
    /// Opens device `ordinal` and makes a stream.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::TooOld`], [`CudaError::Driver`].
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).doing(|| format!("opening device {ordinal}"))?;
        // SAFETY: nothing was allocated through the safe wrapper; all synchronisation is this module's.
        unsafe { context.disable_event_tracking() };
        let name = context.name().doing(|| "reading the device's name".into())?;
        let capability = context
            .compute_capability()
            .doing(|| "reading the compute capability".into())?;
        if capability.0 < 8 {
            return Err(CudaError::TooOld {
                name,
                major: capability.0,
                minor: capability.1,
            });
        }
        let shared = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .doing(|| "reading the size of the shared memory".into())?;
        let stream = context.new_stream().doing(|| "making a stream".into())?;
        Ok(Device {
            context,
            stream,
            name,
            capability,
            shared: u32::try_from(shared).unwrap_or(0),
        })
    }

    /// The device's name as the driver gives it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Target architecture of the kernels, e.g. `sm_90a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        // The `a` targets unlock instructions of one generation only; a binary for them runs on no other.
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// Most shared memory a block may use, bytes.
    pub(super) fn shared_memory(&self) -> u32 {
        self.shared
    }

    /// Free bytes of device memory.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let (free, _) = self
            .context
            .mem_get_info()
            .doing(|| "reading the free memory".into())?;
        Ok(free as u64)
    }

    /// Makes the context current on this thread; every entry of the executor does so first.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.context
            .bind_to_thread()
            .doing(|| "binding the context".into())
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// The same device with a stream of its own.
    pub(super) fn another_stream(&self) -> Result<Device, CudaError> {
        self.bind()?;
        Ok(Device {
            context: self.context.clone(),
            stream: self.context.new_stream().doing(|| "making a stream".into())?,
            name: self.name.clone(),
            capability: self.capability,
            shared: self.shared,
        })
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Waits for everything on the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`]: also failures of earlier launches surface here.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.stream
            .synchronize()
            .doing(|| "waiting for the device".into())
    }

    /// Copies host bytes to the device; the bytes may be reused on return.
    pub(super) fn upload<T: Copy>(&self, to: u64, values: &[T], what: &str) -> Result<(), CudaError> {
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: `to` points into an allocation of this device with room for `values` (callers check ranges), and
        // the copy has left the pageable host memory when the call returns.
        unsafe { result::memcpy_htod_async(to, values, self.stream()) }
            .doing(|| format!("copying {what} to the device"))
    }

    /// Copies device bytes to the host and waits.
    pub(super) fn download<T: Copy>(&self, out: &mut [T], from: u64, what: &str) -> Result<(), CudaError> {
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: as in `upload`; the stream is synchronised before `out` is read.
        unsafe { result::memcpy_dtoh_async(out, from, self.stream()) }
            .doing(|| format!("copying {what} from the device"))?;
        self.synchronize()
    }
}

/// Number of devices the driver sees.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::Driver`].
pub fn device_count() -> Result<usize, CudaError> {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let count = CudaContext::device_count().doing(|| "counting devices".into())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A block of device memory, freed on drop.
#[derive(Debug)]
pub(super) struct Block {
    context: Arc<CudaContext>,
    pointer: u64,
    bytes: u64,
}

impl Block {
    /// Allocates and clears `bytes` (at least 256).
    pub(super) fn zeroed(device: &Device, bytes: u64) -> Result<Self, CudaError> {
        let bytes = bytes.max(256);
        let free = device.free_memory()?;
        if bytes > free {
            return Err(CudaError::Memory { needed: bytes, free });
        }
        let size = usize::try_from(bytes).map_err(|_| CudaError::Memory { needed: bytes, free })?;
        // SAFETY: the context is current (checked by `bind`); the block is owned and freed once.
        let pointer = unsafe { result::malloc_sync(size) }.doing(|| format!("allocating {bytes} bytes"))?;
        let block = Block {
            context: device.context().clone(),
            pointer,
            bytes,
        };
        block.fill(0)?;
        Ok(block)
    }

    /// Sets every byte; used to clear, and by tests to poison. Done when it returns: the driver's call is not ordered
    /// with the executor's stream.
    pub(super) fn fill(&self, byte: u8) -> Result<(), CudaError> {
        // SAFETY: the whole of an allocation this value owns.
        unsafe { result::memset_d8_sync(self.pointer, byte, self.bytes as usize) }
            .doing(|| "filling memory".into())?;
        self.context.synchronize().doing(|| "filling memory".into())
    }

    pub(super) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `zeroed` and freed only here. An error at this point has no one to tell.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// A pair of events around a piece of work.
#[derive(Debug)]
pub(super) struct Timer {
    start: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    pub(super) fn new() -> Result<Self, CudaError> {
        let event =
            || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).doing(|| "making an event".into());
        Ok(Timer {
            start: event()?,
            end: event()?,
        })
    }

    pub(super) fn start(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: event and stream belong to the current context.
        unsafe { result::event::record(self.start, stream) }.doing(|| "recording an event".into())
    }

    pub(super) fn stop(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: as in `start`.
        unsafe { result::event::record(self.end, stream) }.doing(|| "recording an event".into())
    }

    /// Milliseconds between start and stop; waits for the stop.
    pub(super) fn milliseconds(&self) -> Result<f32, CudaError> {
        // SAFETY: both events were recorded on one stream.
        unsafe {
            result::event::synchronize(self.end).doing(|| "waiting for an event".into())?;
            result::event::elapsed(self.start, self.end).doing(|| "reading events".into())
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here.
        unsafe {
            let _ = result::event::destroy(self.start);
            let _ = result::event::destroy(self.end);
        }
    }
}
