//! The way of a span out of the code that made it: a bounded queue.
//!
//! Not here: sending (`export`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::span::Span;

/// Where spans go. Clones share it. The default has no collector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces(pub(super) Option<Arc<Collecting>>);

#[derive(Debug)]
pub(super) struct Collecting {
    spans: mpsc::Sender<Span>,
    /// The part of the traces that begin here and are sent.
    sample: f64,
    counts: Arc<SpanCounts>,
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
    /// Traces whose spans go into this queue.
    pub(super) fn over(spans: mpsc::Sender<Span>, sample: f64, counts: Arc<SpanCounts>) -> Traces {
        Traces(Some(Arc::new(Collecting { spans, sample, counts })))
    }

    /// Whether there is a collector.
    pub(crate) fn are_sent(&self) -> bool {
        self.0.is_some()
    }

    /// The counts of spans, each with its name in the metrics.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let counts = self.0.as_deref().map(|collecting| &*collecting.counts);
        let count =
            |of: fn(&SpanCounts) -> &AtomicU64| counts.map_or(0, |counts| of(counts).load(Ordering::Relaxed));
        [
            ("sent", count(|counts| &counts.sent)),
            ("refused", count(|counts| &counts.refused)),
            ("dropped", count(|counts| &counts.dropped)),
        ]
    }

    /// Decides whether a trace that begins here is sent.
    pub(super) fn samples(&self) -> bool {
        self.0.as_ref().is_some_and(|collecting| fastrand::f64() < collecting.sample)
    }

    pub(super) fn record(&self, span: Span) {
        if let Some(collecting) = &self.0
            && collecting.spans.try_send(span).is_err()
        {
            collecting.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
