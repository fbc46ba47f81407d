//! The binary: everything it does is in the library.

use std::ffi::CStr;
use std::process::ExitCode;

/// A task's memory is often given up by another thread than the one that asked for it, which the system's
/// allocator is slow at: with it the host takes a quarter more time for a short task.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How the allocator is set: what is free goes back to the system after a second, by a thread of its own.
#[allow(unsafe_code, reason = "the allocator looks for this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: &CStr = c"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";

fn main() -> ExitCode {
    ExitCode::from(tqhost::cli::main())
}
