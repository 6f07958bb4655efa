//! Memory maps that outlive their file: a page that vanishes is an error, not the death of the process.
//!
//! When a mapped file is shortened (or its disk fails), touching a lost page raises SIGBUS, whose default is
//! to kill the process. The handler installed here looks up the faulting address among the registered maps,
//! marks that map as lost, puts zero pages where the file's pages were (from the fault to the end of the map)
//! and lets the access go on. The reader looks at the mark *after* it has copied and turns it into an error,
//! so zeros put there are never delivered. Faults elsewhere go to the handler that was there before (Rust's
//! own, for instance).
//!
//! Limits: the handler is process-wide and installed with the first map; code that installs another SIGBUS
//! handler later and does not chain takes this protection away. The rest of the page in which a shortened
//! file now ends reads as zeros without any signal: that is what [`super::Source::check_unchanged`] is for.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

/// One registered address range. Nodes are never freed, only reused: the handler may be walking the list.
struct Region {
    /// Odd while `start` and `end` change; a handler that sees it odd or changing skips the node. The node of
    /// the faulting map itself is stable, because its guard is alive while the map is read.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
    in_use: AtomicBool,
    next: *const Region,
}

static REGIONS: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
static INSTALL: Once = Once::new();
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);
/// The action that was there before, set before ours is installed and never changed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Keeps an address range registered with the handler.
pub(crate) struct Guard {
    region: &'static Region,
}

// SAFETY: `Region` is shared through atomics only; `next` is written before the node is published.
unsafe impl Send for Guard {}
// SAFETY: as above.
unsafe impl Sync for Guard {}

impl Guard {
    /// Registers `len` bytes from `start`, which must be a live memory map for as long as the guard lives.
    pub(crate) fn new(start: *const u8, len: usize) -> Self {
        INSTALL.call_once(install);
        let region = claim();
        let start = start as usize;
        region.version.fetch_add(1, Ordering::SeqCst);
        region.lost.store(false, Ordering::SeqCst);
        region.start.store(start, Ordering::SeqCst);
        region
            .end
            .store(start + len.next_multiple_of(page_size()), Ordering::SeqCst);
        region.version.fetch_add(1, Ordering::SeqCst);
        Self { region }
    }

    /// A page of this map was lost. Call after the bytes in question were copied.
    #[inline]
    pub(crate) fn lost(&self) -> bool {
        // The handler sets the mark before it maps zeros; the fence keeps the copy before this look.
        fence(Ordering::Acquire);
        self.region.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.region.version.fetch_add(1, Ordering::SeqCst);
        self.region.end.store(0, Ordering::SeqCst);
        self.region.start.store(0, Ordering::SeqCst);
        self.region.version.fetch_add(1, Ordering::SeqCst);
        self.region.in_use.store(false, Ordering::SeqCst);
    }
}

/// A node nobody uses, or a new one at the head of the list.
fn claim() -> &'static Region {
    let mut at = REGIONS.load(Ordering::Acquire).cast_const();
    while !at.is_null() {
        // SAFETY: nodes are leaked boxes, valid for the rest of the process.
        let region: &'static Region = unsafe { &*at };
        if region
            .in_use
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            return region;
        }
        at = region.next;
    }
    let region = Box::into_raw(Box::new(Region {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
        in_use: AtomicBool::new(true),
        next: ptr::null(),
    }));
    let mut head = REGIONS.load(Ordering::Acquire);
    loop {
        // SAFETY: the node is not published yet, so this is the only access to it.
        unsafe { (*region).next = head };
        match REGIONS.compare_exchange_weak(head, region, Ordering::SeqCst, Ordering::SeqCst) {
            // SAFETY: leaked above, never freed.
            Ok(_) => return unsafe { &*region },
            Err(now) => head = now,
        }
    }
}

fn page_size() -> usize {
    PAGE_SIZE.load(Ordering::Relaxed)
}

fn install() {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_SIZE.store(usize::try_from(size).unwrap_or(4096), Ordering::SeqCst);
    // SAFETY: plain sigaction calls on zeroed structures; the previous action is stored before ours can run.
    unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous);
        PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

/// Async-signal-safe: atomics, one `mmap`, and `sigaction` when the fault is not ours.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some((region, end)) = find(address) {
        region.lost.store(true, Ordering::SeqCst);
        let page = address & !(page_size() - 1);
        // SAFETY: [page, end) lies inside a map whose guard is alive, so nothing else owns these addresses.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                end - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    pass_on(signal, info, context);
}

fn find(address: usize) -> Option<(&'static Region, usize)> {
    let mut at = REGIONS.load(Ordering::Acquire).cast_const();
    while !at.is_null() {
        // SAFETY: nodes are leaked boxes, valid for the rest of the process.
        let region: &'static Region = unsafe { &*at };
        let version = region.version.load(Ordering::SeqCst);
        let start = region.start.load(Ordering::SeqCst);
        let end = region.end.load(Ordering::SeqCst);
        let stable = version.is_multiple_of(2) && region.version.load(Ordering::SeqCst) == version;
        if stable && start <= address && address < end {
            return Some((region, end));
        }
        at = region.next;
    }
    None
}

/// Calls the earlier handler; without one, restores the default so that the repeated fault ends the process.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.load(Ordering::SeqCst);
    // SAFETY: set before the handler was installed, never freed or changed.
    let Some(previous) = (unsafe { previous.as_ref() }) else {
        return;
    };
    let handler = previous.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: a zeroed action is the default action.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, ptr::null_mut());
        }
    } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: an action with SA_SIGINFO holds a three-argument handler.
        let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        call(signal, info, context);
    } else {
        // SAFETY: an action without SA_SIGINFO holds a one-argument handler.
        let call: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
        call(signal);
    }
}
