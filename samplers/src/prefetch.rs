//! Hints to memory: huge pages for large lists, cache lines before they are needed.
//!
//! Both are hints only. Where the platform has none of them the functions do nothing, and results never differ.

/// Entries worth hinting for: below this a list lies in the cache anyway.
pub(crate) const WORTHWHILE: usize = 1 << 16;

/// Asks for huge pages under the spare room of an empty list, before anything touches it.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge_pages<T>(list: &mut Vec<T>) {
    const HUGE_PAGE: usize = 1 << 21;
    let room = list.spare_capacity_mut();
    let start = (room.as_ptr() as usize).next_multiple_of(HUGE_PAGE);
    let end = (room.as_ptr() as usize + size_of_val(room)) / HUGE_PAGE * HUGE_PAGE;
    if end > start {
        // SAFETY: the range lies inside one allocation of this process, and this advice does not change what any
        // byte of it reads as.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Asks for huge pages, which this platform does not have.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages<T>(_list: &mut Vec<T>) {}

/// Fetches the cache line of entry `i`, which need not exist.
#[inline(always)]
pub(crate) fn entry<T>(list: &[T], i: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing the program can see and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(list.as_ptr().wrapping_add(i).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (list, i);
}
