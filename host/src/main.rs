//! The binary: everything it does is in the library.

use std::process::ExitCode;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings of the allocator: a thread of its own gives free memory back to the system after a second.
#[cfg(feature = "jemalloc")]
#[allow(unsafe_code, reason = "the allocator looks for this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: &std::ffi::CStr = c"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";

fn main() -> ExitCode {
    ExitCode::from(tqhost::main())
}
