//! Limits the rate of a plugin's log, over all of its attempts together.
//!
//! In: the size of each line, before it is logged. Out: whether the line may be logged. If lines were
//! dropped, the host logs their number once in every [`PERIOD`]. Without this limit, a handler with many
//! tasks would fill the disk, or the buffer for stderr, where other plugins would lose their lines.
//!
//! Not here: the limit of one attempt (`log`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::guarded::Guarded;

/// A plugin may log at once what its rate allows in this many seconds.
const BURST: u64 = 8;
/// Bytes of a line beside its text: its time, queue, task and plugin.
const FIELDS: u64 = 192;
/// The shortest time between two reports of dropped lines.
const PERIOD: Duration = Duration::from_secs(10);

/// The lines of one plugin.
#[derive(Debug, Default)]
pub(super) struct Lines {
    state: Guarded<RateState>,
    /// Lines that were dropped since the host started.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct RateState {
    /// Logged bytes that the rate has not yet paid for, up to `paid_until`.
    unpaid_bytes: u64,
    /// None before the first line.
    paid_until: Option<Instant>,
    /// Dropped lines not yet reported. While there are any, a spawned task waits to report them.
    unreported: Option<Dropped>,
}

#[derive(Debug, Default)]
struct Dropped {
    lines: u64,
    bytes: u64,
}

/// The right of one version to log. All versions of a plugin share what was logged.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    pub(super) lines: Arc<Lines>,
    /// The bytes that may be logged in a second.
    pub(super) rate: u64,
}

impl Lines {
    /// Lines that were dropped since the host started.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Quota {
    /// Whether a line with `text` bytes may be logged. Counts a line that may not as dropped.
    pub(super) fn take(&self, plugin: &Arc<str>, text: usize) -> bool {
        let bytes = FIELDS.saturating_add(text as u64);
        let mut state = self.lines.state.lock();
        if state.take(bytes, self.rate, Instant::now()) {
            return true;
        }
        self.lines.dropped.fetch_add(1, Ordering::Relaxed);
        let is_first = state.unreported.is_none();
        let unreported = state.unreported.get_or_insert_default();
        unreported.lines += 1;
        unreported.bytes += bytes;
        drop(state);
        if is_first {
            self.report_later(plugin.clone());
        }
        false
    }

    /// Logs the number of dropped lines after [`PERIOD`].
    fn report_later(&self, plugin: Arc<str>) {
        let (all, rate) = (self.lines.clone(), self.rate);
        let report = async move {
            tokio::time::sleep(PERIOD).await;
            let Some(Dropped { lines, bytes }) = all.state.lock().unreported.take() else { return };
            tracing::warn!(
                %plugin,
                lines,
                bytes,
                "it logs more than its max_log_rate of {rate} bytes a second: lines were dropped"
            );
        };
        // Guests always run on a runtime. Without one, nothing can report the dropped lines.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(report);
        }
    }
}

impl RateState {
    /// Whether a line of `bytes` bytes may be logged at this time. Counts it if so.
    fn take(&mut self, bytes: u64, rate: u64, at: Instant) -> bool {
        let since = at.saturating_duration_since(self.paid_until.unwrap_or(at));
        let paid = (rate as f64 * since.as_secs_f64()) as u64;
        // A fraction of a byte is kept for the next call.
        if paid > 0 || self.paid_until.is_none() {
            self.unpaid_bytes = self.unpaid_bytes.saturating_sub(paid);
            self.paid_until = Some(at);
        }
        let unpaid_bytes = self.unpaid_bytes.saturating_add(bytes);
        let is_taken = unpaid_bytes <= rate.saturating_mul(BURST);
        if is_taken {
            self.unpaid_bytes = unpaid_bytes;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        const RATE: u64 = 1000;
        let (mut now, began) = (RateState::default(), Instant::now());
        let mut lines = |ms: u64| {
            (0..10_000).take_while(|_| now.take(100, RATE, began + Duration::from_millis(ms))).count()
        };
        assert_eq!([lines(0), lines(50), lines(100), lines(1100), lines(1_000_000)], [80, 0, 1, 10, 80]);
    }

    #[test]
    fn frequent_lines_are_paid_for_too() {
        let (mut now, began) = (RateState::default(), Instant::now());
        assert!(now.take(8000, 1000, began));
        let taken = (0..100_000).filter(|n| now.take(1, 1000, began + Duration::from_micros(10 * n))).count();
        assert!((990..=1000).contains(&taken), "{taken} bytes in a second");
    }

    #[test]
    fn dropped_lines_are_counted() {
        let quota = Quota { lines: Arc::default(), rate: 100 };
        let taken = [(); 5].map(|()| quota.take(&"p".into(), 108));
        assert_eq!((taken, quota.lines.dropped()), ([true, true, false, false, false], 3));
        let unreported = quota.lines.state.lock().unreported.take().expect("something to tell of");
        assert_eq!((unreported.lines, unreported.bytes), (3, 900));
    }
}
