//! Gives memory back to the system that is free and that the allocator would keep.
//!
//! It keeps what large pieces of work leave behind, for the next one and for each thread apart: tens of MiB after the code of a large component was
//! taken over, or a guest has made the host hold as much as it may. Without this a host would stay as large as the worst moment of each of its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

/// What several failures in a row wait for, so that they are dealt with together: giving back takes milliseconds, in which others may have to wait
/// for memory.
const PAUSE: Duration = Duration::from_secs(1);

/// Remembers that memory is to be given back.
#[derive(Debug, Default)]
pub(super) struct GivesBack {
    soon: Arc<AtomicBool>,
}

impl GivesBack {
    /// Gives back what is free in a second.
    pub(super) fn soon(&self, on: &Handle) {
        if self.soon.swap(true, Ordering::AcqRel) {
            return;
        }
        let soon = self.soon.clone();
        on.spawn(async move {
            tokio::time::sleep(PAUSE).await;
            // What fails from here on asks again.
            soon.store(false, Ordering::Release);
            tokio::task::spawn_blocking(now);
        });
    }
}

/// Gives back what is free.
pub(super) fn now() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "there is no other way to tell the allocator")]
    // SAFETY: it may be called at any time, from any thread; it only returns what is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
