//! Limits the rate of a plugin's log, over all of its attempts together.
//!
//! In: the size of each line, before it is logged. Out: whether the line may be logged. If lines were
//! dropped, the host logs their number once in every [`PERIOD`]. Without this limit, a handler with many
//! tasks would fill the disk, or the buffer for stderr, where other plugins would lose their lines.
//!
//! Not here: the limit of one attempt (`log`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::share::Share;

/// A plugin may log the amount of this many seconds at once.
const BURST: u64 = 8;
/// Bytes of a line beside its text: its time, queue, task and plugin.
const FIELDS: u64 = 192;
/// The shortest time between two reports of dropped lines.
const PERIOD: Duration = Duration::from_secs(10);

/// The lines of one plugin.
#[derive(Debug, Default)]
pub(super) struct Lines {
    now: Mutex<Now>,
    /// Since the host started.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Now {
    /// Logged bytes that the rate has not yet paid for.
    level: u64,
    forgiven: Option<Instant>,
    /// Dropped lines not yet reported. While there are any, a spawned task waits to report them.
    untold: Option<Dropped>,
}

#[derive(Debug, Default)]
struct Dropped {
    lines: u64,
    bytes: u64,
}

/// The right of one version to log. All versions of a plugin share what was logged.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    pub(super) share: Arc<Share>,
    /// Bytes in a second.
    pub(super) rate: u64,
}

impl Quota {
    /// Whether a line with a text of so many bytes may go out. One that may not is counted.
    pub(super) fn take(&self, plugin: &Arc<str>, text: usize) -> bool {
        let lines = &self.share.lines;
        let bytes = FIELDS.saturating_add(text as u64);
        let mut now = lines.now();
        if now.take(bytes, self.rate, Instant::now()) {
            return true;
        }
        lines.dropped.fetch_add(1, Ordering::Relaxed);
        let is_first = now.untold.is_none();
        let untold = now.untold.get_or_insert_default();
        untold.lines += 1;
        untold.bytes += bytes;
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
            let Some(Dropped { lines, bytes }) = share.lines.now().untold.take() else { return };
            tracing::warn!(
                %plugin,
                lines,
                bytes,
                "it logs more than its max_log_rate of {rate} bytes a second: lines were dropped"
            );
        };
        // Guests run on a runtime; where there is none, nothing runs that could tell.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tell);
        }
    }
}

impl Lines {
    /// Lines that were dropped since the host started.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Nothing panics while it is locked.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn take(&mut self, bytes: u64, rate: u64, at: Instant) -> bool {
        let since = at.saturating_duration_since(self.forgiven.unwrap_or(at));
        let forgiven = (rate as f64 * since.as_secs_f64()) as u64;
        // Less than a byte stays to be forgiven later.
        if forgiven > 0 || self.forgiven.is_none() {
            self.level = self.level.saturating_sub(forgiven);
            self.forgiven = Some(at);
        }
        let level = self.level.saturating_add(bytes);
        let is_taken = level <= rate.saturating_mul(BURST);
        if is_taken {
            self.level = level;
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
        let (mut now, began) = (Now::default(), Instant::now());
        let mut lines = |ms: u64| {
            (0..10_000).take_while(|_| now.take(100, RATE, began + Duration::from_millis(ms))).count()
        };
        assert_eq!([lines(0), lines(50), lines(100), lines(1100), lines(1_000_000)], [80, 0, 1, 10, 80]);
    }

    #[test]
    fn lines_that_come_often_are_forgiven_all_the_same() {
        let (mut now, began) = (Now::default(), Instant::now());
        assert!(now.take(8000, 1000, began));
        let taken = (0..100_000).filter(|n| now.take(1, 1000, began + Duration::from_micros(10 * n))).count();
        assert!((990..=1000).contains(&taken), "{taken} bytes in a second");
    }

    #[test]
    fn what_is_dropped_is_counted() {
        let quota = Quota { share: Arc::default(), rate: 100 };
        let taken = [(); 5].map(|()| quota.take(&"p".into(), 108));
        assert_eq!((taken, quota.share.lines.dropped()), ([true, true, false, false, false], 3));
        let untold = quota.share.lines.now().untold.take().expect("something to tell of");
        assert_eq!((untold.lines, untold.bytes), (3, 900));
    }
}
