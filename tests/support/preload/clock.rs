//! A shared library for LD_PRELOAD that shifts the time of day of a program.
//!
//! In: the file that `SHIFTED_CLOCK` names, with whole seconds; no file or an empty one means 0. It is read
//! at every call, so the clock can jump while the program runs. Out: the shifted time. Not here: the
//! monotonic clock, which no administrator can set. Compiled by `../clock.rs`.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

#[repr(C)]
pub struct Time {
    seconds: i64,
    rest: c_long,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The next function of this name, which is the C library's.
fn real(slot: &OnceLock<usize>, name: &CStr) -> usize {
    // SAFETY: RTLD_NEXT (-1) and a name that ends with a zero byte.
    *slot.get_or_init(|| unsafe { dlsym(-1isize as *mut c_void, name.as_ptr()) as usize })
}

fn shift() -> i64 {
    static PATH: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let path = PATH.get_or_init(|| std::env::var_os("SHIFTED_CLOCK")).as_ref();
    let text = path.and_then(|path| std::fs::read_to_string(path).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// # Safety
/// The caller must follow the rules of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    static REAL: OnceLock<usize> = OnceLock::new();
    // SAFETY: it is that function, and its arguments are passed on.
    let result = unsafe {
        transmute::<usize, extern "C" fn(c_int, *mut Time) -> c_int>(real(&REAL, c"clock_gettime"))(
            clock, time,
        )
    };
    // CLOCK_REALTIME and its coarse form.
    if result == 0 && matches!(clock, 0 | 5) {
        // SAFETY: the real function has just written there.
        unsafe { (*time).seconds += shift() };
    }
    result
}

/// # Safety
/// The caller must follow the rules of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut Time, zone: *mut c_void) -> c_int {
    static REAL: OnceLock<usize> = OnceLock::new();
    // SAFETY: it is that function, and its arguments are passed on.
    let result = unsafe {
        transmute::<usize, extern "C" fn(*mut Time, *mut c_void) -> c_int>(real(&REAL, c"gettimeofday"))(
            time, zone,
        )
    };
    if result == 0 {
        // SAFETY: the real function has just written there.
        unsafe { (*time).seconds += shift() };
    }
    result
}

/// # Safety
/// The caller must follow the rules of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(out: *mut i64) -> i64 {
    static REAL: OnceLock<usize> = OnceLock::new();
    // SAFETY: it is that function; its argument may be null.
    let now = unsafe {
        transmute::<usize, extern "C" fn(*mut i64) -> i64>(real(&REAL, c"time"))(std::ptr::null_mut())
    } + shift();
    if !out.is_null() {
        // SAFETY: the caller gave a place for it.
        unsafe { *out = now };
    }
    now
}
