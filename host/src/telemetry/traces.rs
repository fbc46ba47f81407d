//! Which traces are sent, and the way of a span out of the code that made it: a bounded queue.
//!
//! A trace that begins in this process may be left out as a whole: by chance (`sample`), or if too many have
//! begun in this second (`max_traces`). Traces that a producer has begun are bounded only by the room in the
//! queue: a span that finds none is not built.
//!
//! Not here: sending (`export`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;

use super::span::Span;

/// Where spans go. Clones share it. The default has no collector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces(pub(super) Option<Arc<Collecting>>);

#[derive(Debug)]
pub(super) struct Collecting {
    spans: mpsc::Sender<Span>,
    /// The part of the traces that begin here and are sent, from 0 to 1.
    sample: f64,
    rate: TraceRate,
    /// The traces that were left out because of the rate.
    left_out: AtomicU64,
    counts: Arc<SpanCounts>,
}

/// The most traces that begin in one second.
#[derive(Debug)]
struct TraceRate {
    most: u32,
    since: Instant,
    /// The second, counted from `since`, in the upper half, and the traces of that second in the lower half.
    taken: AtomicU64,
}

impl TraceRate {
    fn new(most: u32) -> TraceRate {
        TraceRate { most, since: Instant::now(), taken: AtomicU64::new(0) }
    }

    /// Whether one more trace may begin in this second. If so, it counts.
    fn takes(&self, second: u64) -> bool {
        let counted = |state: u64| {
            let (noted, taken) = (state >> 32, state as u32);
            if second > noted {
                return Some(second << 32 | 1);
            }
            // Another thread may have noted a later second since this thread read the clock. The trace counts
            // in that second.
            (taken < self.most).then_some(state + 1)
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok()
    }
}

/// The spans so far, by what became of them.
#[derive(Debug, Default)]
pub(super) struct SpanCounts {
    pub(super) sent: AtomicU64,
    /// The collector does not take them.
    pub(super) refused: AtomicU64,
    /// There was no room for them.
    pub(super) dropped: AtomicU64,
}

impl Traces {
    /// Traces whose spans go into this queue. The part `sample` of the traces that begin here is sent, but at
    /// most `max_traces` in a second.
    pub(super) fn over(
        spans: mpsc::Sender<Span>,
        sample: f64,
        max_traces: u32,
        counts: Arc<SpanCounts>,
    ) -> Traces {
        let (rate, left_out) = (TraceRate::new(max_traces), AtomicU64::new(0));
        Traces(Some(Arc::new(Collecting { spans, sample, rate, left_out, counts })))
    }

    /// Whether there is a collector.
    pub(crate) fn are_sent(&self) -> bool {
        self.0.is_some()
    }

    /// The counts of spans, each with its name in the metrics.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let none = SpanCounts::default();
        let counts = self.0.as_deref().map_or(&none, |collecting| &*collecting.counts);
        let SpanCounts { sent, refused, dropped } = counts;
        [("sent", sent), ("refused", refused), ("dropped", dropped)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// How many traces were left out because too many began in one second.
    pub(crate) fn left_out(&self) -> u64 {
        self.0.as_ref().map_or(0, |collecting| collecting.left_out.load(Ordering::Relaxed))
    }

    /// Decides whether a trace that begins here is sent.
    pub(super) fn samples(&self) -> bool {
        let Some(collecting) = self.0.as_deref().filter(|collecting| fastrand::f64() < collecting.sample)
        else {
            return false;
        };
        let takes = collecting.rate.takes(collecting.rate.since.elapsed().as_secs());
        if !takes {
            collecting.left_out.fetch_add(1, Ordering::Relaxed);
        }
        takes
    }

    /// Builds a span and records it, if there is room for it.
    pub(super) fn record(&self, span: impl FnOnce() -> Span) {
        let Some(collecting) = &self.0 else { return };
        match collecting.spans.try_reserve() {
            Ok(room) => room.send(span()),
            Err(_) => {
                collecting.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::context::TraceContext;
    use crate::telemetry::export::tests::{kept, kept_at_rate};

    #[test]
    fn traces_of_a_second_are_bounded_and_the_next_second_has_room_again() {
        let rate = TraceRate::new(2);
        let seconds = [0, 0, 0, 1, 1, 0, 1, 7, 7, 7, u64::from(u32::MAX)];
        let taken = seconds.map(|second| rate.takes(second));
        // The sixth has read the clock in a second that is over, and the current second is full.
        assert_eq!(taken, [true, true, false, true, true, false, false, true, true, false, true]);
    }

    #[test]
    fn threads_together_begin_no_more_traces_than_one_may() {
        let rate = TraceRate::new(1000);
        let taken: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| (0..1000).filter(|_| rate.takes(3)).count()));
            threads.into_iter().map(|thread| thread.join().expect("a count")).sum()
        });
        assert_eq!(taken, 1000);
    }

    #[test]
    fn traces_over_the_rate_begin_unsampled_and_others_are_not_bound_by_it() {
        let (traces, mut spans) = kept_at_rate(1.0, 1);
        let begun: Vec<bool> = (0..1000).map(|_| traces.samples()).collect();
        assert!(begun[0]);
        let left_out = begun.iter().filter(|sampled| !**sampled).count() as u64;
        assert!(left_out > 0, "a thousand of them took seconds");
        assert_eq!(traces.left_out(), left_out);
        let above = TraceContext::root(true).to_string();
        for _ in 0..3 {
            traces.enqueueing(Some(&above)).accepted("q", "1");
            assert!(spans.try_recv().is_ok());
        }
        assert_eq!((traces.left_out(), Traces::default().left_out()), (left_out, 0));
        // A trace that is left out by chance is not counted.
        let (none, _spans) = kept(0.0);
        assert!(!none.samples() && none.left_out() == 0);
    }
}
