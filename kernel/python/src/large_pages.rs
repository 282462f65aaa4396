//! Advice to the operating system about memory. Without it everything works, and more slowly.

/// Wants large pages for so many bytes that were not touched yet. A map that is looked up at random places misses the
/// processor's table of small pages each time.
#[cfg(target_os = "linux")]
pub fn want((start, bytes): (*const u8, usize)) {
    use std::ffi::{c_int, c_void};
    const PAGE: usize = 4096;
    const MADV_HUGEPAGE: c_int = 14;
    unsafe extern "C" {
        fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }
    let skipped = start.align_offset(PAGE);
    if bytes > skipped + PAGE {
        // SAFETY: the advice changes nothing of what the memory holds, and an answer that is a failure does no harm.
        unsafe { madvise(start.wrapping_add(skipped).cast_mut().cast(), bytes - skipped, MADV_HUGEPAGE) };
    }
}

/// Elsewhere the system decides by itself.
#[cfg(not(target_os = "linux"))]
pub fn want(_: (*const u8, usize)) {}
