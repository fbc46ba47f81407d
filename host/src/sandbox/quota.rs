//! The right of one version to log.
//!
//! In: the size of each line, before it is logged. Out: whether the line may be logged. If lines were
//! dropped, the host logs their number once in every [`PERIOD`].
//!
//! Not here: what all versions of a plugin have logged (`log_rate`), the limit of one attempt (`log`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::log_rate::Dropped;
use super::share::Share;

/// Bytes of a line beside its text: its time, queue, task and plugin.
const FIELDS: u64 = 192;

/// The shortest time between two reports of dropped lines.
const PERIOD: Duration = Duration::from_secs(10);

/// The right of one version to log. All versions of a plugin share what was logged.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    pub(super) share: Arc<Share>,
    /// Bytes in a second.
    pub(super) rate: u64,
}

impl Quota {
    /// Whether a line with `text` bytes may be logged. Counts a line that may not.
    pub(super) fn take(&self, plugin: &Arc<str>, text: usize) -> bool {
        let lines = &self.share.lines;
        let bytes = FIELDS.saturating_add(text as u64);
        let mut now = lines.now();
        if now.take(bytes, self.rate, Instant::now()) {
            return true;
        }
        lines.dropped.fetch_add(1, Ordering::Relaxed);
        let is_first = now.unreported.is_none();
        let unreported = now.unreported.get_or_insert_default();
        unreported.lines += 1;
        unreported.bytes += bytes;
        drop(now);
        if is_first {
            self.tell_later(plugin.clone());
        }
        false
    }

    fn tell_later(&self, plugin: Arc<str>) {
        let (share, rate) = (self.share.clone(), self.rate);
        let tell = async move {
            tokio::time::sleep(PERIOD).await;
            let Some(Dropped { lines, bytes }) = share.lines.now().unreported.take() else { return };
            tracing::warn!(
                %plugin,
                lines,
                bytes,
                "it logs more than its max_log_rate of {rate} bytes a second: lines were dropped"
            );
        };
        // Guests always run on a runtime. Without one, nothing can report the dropped lines.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tell);
        }
    }
}
