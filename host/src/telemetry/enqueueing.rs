//! The span of a task's enqueueing by a command, the HTTP API or a page.
//!
//! In: the trace context that a caller sent. Out: the context for the new task, and the span if the queue has
//! taken the task.

use std::time::SystemTime;

use super::context::TraceContext;
use super::span::{Span, SpanKind};
use super::traces::Traces;

/// A task that is being enqueued.
#[derive(Debug, Default)]
pub(crate) struct Enqueueing {
    /// The `traceparent` of the new task.
    pub(crate) traceparent: Option<String>,
    span: Option<EnqueueSpan>,
}

#[derive(Debug)]
struct EnqueueSpan {
    traces: Traces,
    context: TraceContext,
    parent: Option<u64>,
    start: SystemTime,
}

impl Traces {
    /// Begins the span of an enqueueing, below the span that `incoming` names.
    pub(crate) fn enqueueing(&self, incoming: Option<&str>) -> Enqueueing {
        let above = incoming.and_then(TraceContext::parse);
        let is_quiet = self.0.is_none() || above.is_some_and(|above| !above.sampled);
        if is_quiet {
            let traceparent = above.and(incoming).map(str::to_owned);
            return Enqueueing { traceparent, span: None };
        }
        let context = above.map_or_else(|| TraceContext::root(self.samples()), TraceContext::child);
        let parent = above.map(|above| above.span);
        let span = EnqueueSpan { traces: self.clone(), context, parent, start: SystemTime::now() };
        Enqueueing { traceparent: Some(context.to_string()), span: context.sampled.then_some(span) }
    }
}

impl Enqueueing {
    /// Records the span, as the queue has taken the task.
    pub(crate) fn accepted(self, queue: &str, id: &str) {
        let Some(EnqueueSpan { traces, context, parent, start }) = self.span else { return };
        traces.record(|| {
            Span::new(format!("enqueue {queue}"), SpanKind::Producer, context, parent, start)
                .text("messaging.system", "tqhost")
                .text("messaging.destination.name", queue)
                .text("messaging.message.id", id)
                .text("messaging.operation.name", "enqueue")
                .text("messaging.operation.type", "send")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::export::tests::kept;

    #[test]
    fn a_task_stands_below_the_span_of_its_enqueueing_unless_nobody_is_to_see_it() {
        let (traces, mut spans) = kept(1.0);
        let above = TraceContext::root(true);
        let enqueueing = traces.enqueueing(Some(&above.to_string()));
        let below = enqueueing.traceparent.clone();
        enqueueing.accepted("q", "1");
        let span = spans.try_recv().expect("a span");
        assert_eq!((Some(span.context.to_string()), span.parent), (below, Some(above.span)));
        let quiet = TraceContext::root(false).to_string();
        for (traces, incoming, expected) in [
            (&traces, quiet.as_str(), Some(quiet.clone())),
            (&Traces::default(), &above.to_string(), Some(above.to_string())),
            (&Traces::default(), "nonsense", None),
        ] {
            let enqueueing = traces.enqueueing(Some(incoming));
            assert_eq!(enqueueing.traceparent, expected);
            enqueueing.accepted("q", "2");
        }
        assert!(spans.try_recv().is_err());
        assert!(traces.enqueueing(Some("nonsense")).traceparent.is_some(), "it begins a trace");
    }
}
