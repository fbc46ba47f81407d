//! A shared library for LD_PRELOAD that resolves some host names without a name server.
//!
//! In: `FAKE_NAMES`, as in `a.test=127.0.0.1,b.test=::1`; the lookup of a name with `=never` does not end.
//! Out: their addresses. Not here: every other name, which the C library looks up. Compiled by `../names.rs`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;

type GetAddrInfo = extern "C" fn(*const c_char, *const c_char, *const c_void, *mut *mut c_void) -> c_int;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

fn address(name: &str) -> Option<CString> {
    let names = std::env::var("FAKE_NAMES").ok()?;
    let found = names.split(',').find_map(|pair| pair.split_once('=').filter(|(known, _)| *known == name))?;
    CString::new(found.1).ok()
}

/// # Safety
/// The caller must follow the rules of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const c_void,
    found: *mut *mut c_void,
) -> c_int {
    // SAFETY: RTLD_NEXT (-1) and a name that ends with a zero byte; it finds the C library's function.
    let real = unsafe {
        transmute::<*mut c_void, GetAddrInfo>(dlsym(-1isize as *mut c_void, c"getaddrinfo".as_ptr()))
    };
    // SAFETY: it is null or a text that ends with a zero byte.
    let name = (!node.is_null()).then(|| unsafe { CStr::from_ptr(node) }).and_then(|name| name.to_str().ok());
    let instead = name.and_then(address);
    while instead.as_deref() == Some(c"never") {
        std::thread::park();
    }
    real(instead.as_ref().map_or(node, |address| address.as_ptr()), service, hints, found)
}
