//! A shared library for LD_PRELOAD: whoever is started with it counts how often it asks for memory.
//!
//! Out: the number, as eight bytes of the machine's order, in the file that `ALLOCATIONS` names, which has to be there with eight bytes. The file is
//! mapped, so a count is an addition and no system call. Compiled by `allocations.rs` beside this folder.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Where the number is; null until the file is mapped.
static COUNT: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

const READ_WRITE: c_int = 2;
const PROT_READ_WRITE: c_int = 1 | 2;
const MAP_SHARED: c_int = 1;
const ENOMEM: c_int = 12;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int) -> c_int;
    fn mmap(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
    // The C library's own, which those below stand in front of.
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

/// Maps the file. Runs when the library is loaded, before the program begins, and asks for no memory.
extern "C" fn init() {
    // SAFETY: names and paths end with a zero byte, and the mapping stays for as long as the process.
    unsafe {
        let path = getenv(c"ALLOCATIONS".as_ptr());
        if path.is_null() {
            return;
        }
        let file = open(path, READ_WRITE);
        let mapped = mmap(null_mut(), size_of::<u64>(), PROT_READ_WRITE, MAP_SHARED, file, 0);
        if mapped as isize != -1 {
            COUNT.store(mapped.cast(), Ordering::Release);
        }
    }
}

fn count() {
    // SAFETY: null, or the mapping, which is never given back and is aligned as a page.
    if let Some(count) = unsafe { COUNT.load(Ordering::Acquire).as_ref() } {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: it is that function, and its arguments are passed on.
    unsafe { __libc_malloc(size) }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: it is that function, and its arguments are passed on.
    unsafe { __libc_calloc(number, size) }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: it is that function, and its arguments are passed on.
    unsafe { __libc_realloc(block, size) }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: it takes the same arguments.
    unsafe { __libc_memalign(alignment, size) }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(block: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    count();
    // SAFETY: the caller says where the block's address belongs.
    unsafe {
        let found = __libc_memalign(alignment, size);
        if found.is_null() {
            return ENOMEM;
        }
        *block = found;
    }
    0
}
