//! Counts the allocations of a process this is preloaded into, for the test that holds them to a number.
//!
//! A library of its own: `rustc --edition 2024 --crate-type cdylib -O -C panic=abort`. It stands in front of glibc's
//! allocator and calls it by its inner names, so nothing has to be looked up. The file that `CLAWMUX_ALLOCATIONS`
//! names, of at least 16 bytes, holds two numbers of 8 bytes in the machine's order: allocations so far, and their
//! bytes. A block that is made larger or smaller counts as one.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

unsafe extern "C" {
    safe fn __libc_malloc(bytes: usize) -> *mut c_void;
    safe fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    safe fn __libc_memalign(alignment: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int) -> c_int;
    fn close(file: c_int) -> c_int;
    fn mmap(at: *mut c_void, bytes: usize, protection: c_int, flags: c_int, file: c_int, from: c_long)
    -> *mut c_void;
}

const READ_WRITE: c_int = 2;
const PAGE_READ_WRITE: c_int = 1 | 2;
const SHARED: c_int = 1;
const NO_MEMORY: c_int = 12;
const NOT_ALLOWED: c_int = 22;

/// What stands in the file.
#[repr(C)]
struct Counted {
    allocations: AtomicU64,
    bytes: AtomicU64,
}

/// The file in memory; null until it is opened.
static COUNTED: AtomicPtr<Counted> = AtomicPtr::new(null_mut());
/// Stands in where there is no file.
static NOWHERE: Counted = Counted { allocations: AtomicU64::new(0), bytes: AtomicU64::new(0) };

fn count(bytes: usize) {
    let mut counted = COUNTED.load(Ordering::Relaxed);
    if counted.is_null() {
        counted = opened();
        COUNTED.store(counted, Ordering::Relaxed);
    }
    // SAFETY: it is a mapping that is never let go, or a static.
    let counted = unsafe { &*counted };
    counted.allocations.fetch_add(1, Ordering::Relaxed);
    counted.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Opens the file, without an allocation. Two threads may each do it: both map the same page.
fn opened() -> *mut Counted {
    let nowhere = (&raw const NOWHERE).cast_mut();
    // SAFETY: the strings end in zeroes; what is mapped is checked.
    unsafe {
        let path = getenv(c"CLAWMUX_ALLOCATIONS".as_ptr());
        if path.is_null() {
            return nowhere;
        }
        let file = open(path, READ_WRITE);
        if file < 0 {
            return nowhere;
        }
        let page = mmap(null_mut(), size_of::<Counted>(), PAGE_READ_WRITE, SHARED, file, 0);
        close(file);
        if page.addr() == usize::MAX { nowhere } else { page.cast() }
    }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    count(bytes);
    __libc_malloc(bytes)
}

#[unsafe(no_mangle)]
extern "C" fn calloc(number: usize, bytes: usize) -> *mut c_void {
    count(number.saturating_mul(bytes));
    __libc_calloc(number, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    count(bytes);
    // SAFETY: the caller's block.
    unsafe { __libc_realloc(block, bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    count(bytes);
    __libc_memalign(alignment, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    memalign(alignment, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(block: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    if !alignment.is_power_of_two() || alignment % size_of::<usize>() != 0 {
        return NOT_ALLOWED;
    }
    let allocated = memalign(alignment, bytes);
    if allocated.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: the caller's place for it.
    unsafe { *block = allocated };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's block.
    unsafe { __libc_free(block) }
}
