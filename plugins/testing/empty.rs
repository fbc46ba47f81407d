//! Completes at once, with no result.
//!
//! This guest imports no function, and its memory does not grow for tasks of up to 20 KiB. So a measurement
//! with it measures only the host. It has no standard library, and its allocator uses the heap that an
//! instance has from the start.
#![cfg(target_family = "wasm")]
#![no_std]

extern crate alloc;

use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;

// The world of all handlers, so that there is one contract. The build drops its imports, which are not used.
wit_bindgen::generate!({ path: "../../wit/handler.wit", world: "tqhost:handler/task-handler" });

use exports::tqhost::handler::handler::{Failure, Guest, Task};

struct Empty;

impl Guest for Empty {
    fn handle(_: Task) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }
}

export!(Empty);

/// Allocates the memory for the arguments that the host passes in. For this target wit-bindgen leaves this
/// function to the C library, which is not linked here.
#[cfg(target_os = "wasi")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(old: *mut u8, old_len: usize, align: usize, new_len: usize) -> *mut u8 {
    if new_len == 0 {
        return core::ptr::without_provenance_mut(align);
    }
    // SAFETY: in the canonical ABI the alignment is a power of two, and an old block is passed with its own
    // length and alignment.
    unsafe {
        if old_len == 0 {
            alloc::alloc::alloc(Layout::from_size_align_unchecked(new_len, align))
        } else {
            alloc::alloc::realloc(old, Layout::from_size_align_unchecked(old_len, align), new_len)
        }
    }
}

/// Smaller than the heap that every handler is linked with (`plugins/.cargo/config.toml`).
const ARENA_BYTES: usize = 24 << 10;
const PAGE_BYTES: usize = 1 << 16;

unsafe extern "C" {
    /// The first byte of the heap, from the linker.
    static __heap_base: u8;
}

/// Allocates from the start of the arena. When every block is free again, which is so after each task, it
/// starts again.
struct Bump {
    used: Cell<usize>,
    live: Cell<usize>,
}

// SAFETY: a component instance has one thread.
unsafe impl Sync for Bump {}

// SAFETY: every block lies in the arena or in pages of its own, and overlaps no live block.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = (&raw const __heap_base) as usize;
        let start = (base + self.used.get()).next_multiple_of(layout.align()) - base;
        if start + layout.size() > ARENA_BYTES {
            // The arena is full: the block gets new pages, which are never freed. Instances are short-lived.
            let pages = layout.size().div_ceil(PAGE_BYTES);
            return match core::arch::wasm32::memory_grow::<0>(pages) {
                usize::MAX => core::ptr::null_mut(),
                page => (page * PAGE_BYTES) as *mut u8,
            };
        }
        self.used.set(start + layout.size());
        self.live.set(self.live.get() + 1);
        (base + start) as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        let base = (&raw const __heap_base) as usize;
        if (base..base + ARENA_BYTES).contains(&(block as usize)) {
            self.live.set(self.live.get() - 1);
            if self.live.get() == 0 {
                self.used.set(0);
            }
        }
    }
}

#[global_allocator]
static MEMORY: Bump = Bump { used: Cell::new(0), live: Cell::new(0) };

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
