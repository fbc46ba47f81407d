//! The spans of an attempt: "wait" and "run" for each of its tasks.
//!
//! In: the tasks, and how their attempts ended. Out: the spans, and the trace contexts for the tasks and
//! requests that an attempt makes. A task's spans stand below the span that its `traceparent` names, whose
//! producer has decided whether the trace is sent. A task without a `traceparent` begins a trace with its
//! first attempt, and later attempts go on with it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::context::TraceContext;
use super::request::RequestTrace;
use super::span::{Span, SpanKind};
use super::traces::Traces;
use crate::task::Task;

/// The most links of a span. flows.lua keeps as many spans of the children of a flow.
const MAX_LINKS: usize = 128;

/// The traces of one attempt. The default is for an attempt whose spans go nowhere.
#[derive(Debug, Clone, Default)]
pub struct AttemptTrace(Option<Arc<TracedAttempt>>);

#[derive(Debug)]
struct TracedAttempt {
    traces: Traces,
    start: SystemTime,
    /// One for each task.
    runs: Vec<Run>,
}

/// One task's part of an attempt.
#[derive(Debug)]
struct Run {
    context: TraceContext,
    parent: Option<u64>,
    /// The run of the attempt before.
    earlier: Option<TraceContext>,
}

impl Run {
    fn new(traces: &Traces, task: &Task, earlier: Option<TraceContext>) -> Run {
        match of_producer(task).or(earlier) {
            // The trace is not sent, so the context goes on unchanged.
            Some(above) if !above.sampled => Run { context: above, parent: None, earlier: None },
            Some(above) => Run { context: above.child(), parent: Some(above.span), earlier },
            None => Run { context: TraceContext::root(traces.samples()), parent: None, earlier: None },
        }
    }
}

/// The trace context that the producer wrote. None if there is none, or the text is not one.
fn of_producer(task: &Task) -> Option<TraceContext> {
    task.traceparent.as_deref().and_then(TraceContext::parse)
}

/// How a task's part of an attempt ended.
pub(crate) struct RunEnd<'e> {
    /// The plugin and its version: `name@digest`.
    pub plugin: &'e str,
    pub group: &'e str,
    pub outcome: &'e str,
    pub error: Option<&'e str>,
    /// When the task could run (ms since the Unix epoch).
    pub since_ms: u64,
    /// The spans of the children whose flow the task joins, with spaces between them.
    pub links: Option<&'e str>,
}

impl Traces {
    /// Begins the spans of an attempt. `earlier` returns the run of a task's last attempt.
    pub(crate) fn begin(
        &self,
        tasks: &[Task],
        earlier: impl Fn(&Task) -> Option<TraceContext>,
    ) -> AttemptTrace {
        AttemptTrace(self.0.is_some().then(|| {
            let runs = tasks.iter().map(|task| Run::new(self, task, earlier(task))).collect();
            Arc::new(TracedAttempt { traces: self.clone(), start: SystemTime::now(), runs })
        }))
    }
}

impl AttemptTrace {
    fn run(&self, index: usize) -> Option<(&TracedAttempt, &Run)> {
        let traced = self.0.as_deref()?;
        traced.runs.get(index).map(|run| (traced, run))
    }

    /// The context of a task's run, if spans are sent anywhere.
    fn context(&self, index: usize) -> Option<TraceContext> {
        self.run(index).map(|(_, run)| run.context)
    }

    /// The `traceparent` for tasks and requests that the run of a task makes.
    pub(crate) fn traceparent(&self, index: usize, task: &Task) -> Option<String> {
        match self.span(index, task) {
            Some(span) => Some(span.to_string()),
            None => of_producer(task).and(task.traceparent.clone()),
        }
    }

    /// The span of a task's run, for its next attempt. None if the producer has decided that no span is made.
    pub(crate) fn span(&self, index: usize, task: &Task) -> Option<TraceContext> {
        self.context(index).filter(|context| context.sampled || of_producer(task).is_none())
    }

    /// The trace of the requests of an attempt. Requests of a batch have none, as they belong to several
    /// tasks.
    pub(crate) fn requests(&self, tasks: &[Task]) -> RequestTrace {
        let [task] = tasks else { return RequestTrace::default() };
        match self.run(0) {
            Some((TracedAttempt { traces, .. }, run)) if run.context.sampled => {
                RequestTrace::Below { traces: traces.clone(), run: run.context }
            }
            _ => RequestTrace::passing_on(self.traceparent(0, task)),
        }
    }

    /// Records the spans of a task whose attempt has ended.
    pub(crate) fn ended(&self, index: usize, task: &Task, end: &RunEnd<'_>) {
        let Some((traced, run)) = self.run(index).filter(|(_, run)| run.context.sampled) else { return };
        let of_task = |span: Span| {
            span.text("messaging.system", "tqhost")
                .text("messaging.destination.name", &task.queue)
                .text("messaging.consumer.group.name", end.group)
                .text("messaging.message.id", &task.id)
                .number("tqhost.attempt", task.attempt)
        };
        let since = (UNIX_EPOCH + Duration::from_millis(end.since_ms)).min(traced.start);
        // If no span is above the run, the wait stands below the run.
        let parent = run.parent.or(Some(run.context.span));
        traced.traces.record(|| {
            let (name, context) = (format!("wait {}", task.queue), run.context.child());
            let mut wait = of_task(Span::new(name, SpanKind::Internal, context, parent, since));
            wait.end = traced.start;
            wait
        });
        traced.traces.record(|| {
            let name = format!("run {}", task.queue);
            let span = Span::new(name, SpanKind::Consumer, run.context, run.parent, traced.start);
            let (plugin, version) = end.plugin.rsplit_once('@').unwrap_or((end.plugin, ""));
            let mut span = of_task(span)
                .text("messaging.operation.name", "run")
                .text("messaging.operation.type", "process")
                .text("tqhost.plugin", plugin)
                .text("tqhost.version", version)
                .text("tqhost.outcome", end.outcome);
            if let Some(error) = end.error {
                span = span.failed(end.outcome, error);
            }
            let joined = end.links.into_iter().flat_map(|links| links.split(' '));
            let joined = joined.take(MAX_LINKS).filter_map(TraceContext::parse);
            span.links = run.earlier.into_iter().chain(joined).take(MAX_LINKS).collect();
            span
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::testing;
    use crate::telemetry::export::tests::kept;

    const ABOVE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn task(traceparent: Option<&str>) -> Task {
        Task { traceparent: traceparent.map(str::to_owned), ..testing::task() }
    }

    const END: RunEnd<'_> = RunEnd {
        plugin: "p@abc",
        group: "g",
        outcome: "trap",
        error: Some("unreachable"),
        since_ms: 5,
        links: None,
    };

    #[test]
    fn runs_of_a_task_stand_below_its_producer_and_link_to_each_other() {
        let (traces, mut spans) = kept(1.0);
        let task = task(Some(ABOVE));
        let first = traces.begin(std::slice::from_ref(&task), |_| None);
        first.ended(0, &task, &END);
        let second = traces.begin(std::slice::from_ref(&task), |_| first.context(0));
        second.ended(0, &task, &END);
        for link in [None, first.context(0)] {
            let (wait, run) = (spans.try_recv().expect("a span"), spans.try_recv().expect("a span"));
            for span in [&wait, &run] {
                assert_eq!(
                    (span.context.trace, span.parent),
                    (0x4bf92f3577b34da6a3ce929d0e0e4736, Some(0xf067aa0ba902b7))
                );
            }
            assert_eq!((wait.links, run.links), (vec![], link.into_iter().collect()));
            assert_eq!(wait.end, run.start);
            assert_eq!((wait.error, run.error.as_deref()), (None, Some("unreachable")));
        }
        let below = first.traceparent(0, &task).expect("a context");
        assert_eq!(TraceContext::parse(&below), first.context(0));
    }

    #[test]
    fn a_task_that_joins_a_flow_links_to_the_runs_of_the_children() {
        let (traces, mut spans) = kept(1.0);
        let task = task(Some(ABOVE));
        let mut run_with = |links: &str, earlier: Option<TraceContext>| {
            let attempt = traces.begin(std::slice::from_ref(&task), |_| earlier);
            attempt.ended(0, &task, &RunEnd { links: Some(links), ..END });
            let (wait, run) = (spans.try_recv().expect("a span"), spans.try_recv().expect("a span"));
            assert_eq!(wait.links, []);
            run.links
        };
        let children: Vec<_> = (0..200).map(|_| TraceContext::root(true)).collect();
        let text = |children: &[TraceContext]| -> String {
            children.iter().map(|child| format!("{child} ")).collect()
        };
        assert_eq!(run_with(&text(&children[..2]), None), children[..2]);
        let earlier = TraceContext::root(true);
        assert_eq!(run_with(&text(&children[..1]), Some(earlier)), [earlier, children[0]]);
        assert_eq!(run_with(&text(&children), None), children[..128]);
        assert_eq!(run_with(&text(&children), Some(earlier))[1..], children[..127]);
        assert_eq!(run_with(&format!(" nonsense  {}", children[0]), None), children[..1]);
    }

    #[test]
    fn a_trace_begins_with_the_first_attempt_and_goes_on_with_the_next() {
        let (traces, mut spans) = kept(1.0);
        let task = task(Some("nonsense"));
        let first = traces.begin(std::slice::from_ref(&task), |_| None);
        first.ended(0, &task, &END);
        let (wait, run) = (spans.try_recv().expect("a span"), spans.try_recv().expect("a span"));
        assert_eq!((run.parent, wait.parent), (None, Some(run.context.span)));
        let second = traces.begin(std::slice::from_ref(&task), |_| first.context(0));
        let (before, after) = (first.context(0).expect("traced"), second.context(0).expect("traced"));
        assert!(before.trace == after.trace && before.span != after.span);
    }

    #[test]
    fn the_beginner_of_a_trace_decides_about_its_attempts() {
        let (traces, mut spans) = kept(0.0);
        let (quiet, sampled, own) = (task(Some(&ABOVE.replace("-01", "-00"))), task(Some(ABOVE)), task(None));
        for task in [&quiet, &sampled, &own] {
            let attempt = traces.begin(std::slice::from_ref(task), |_| None);
            attempt.ended(0, task, &END);
            let below = attempt.traceparent(0, task).expect("a context");
            assert_eq!(below == ABOVE.replace("-01", "-00"), *task == quiet, "{below}");
            assert_eq!(below.ends_with("-01"), *task == sampled, "{below}");
        }
        assert!(spans.try_recv().is_ok() && spans.try_recv().is_ok() && spans.try_recv().is_err());
        // Without a collector, a producer's context goes on, if it is one.
        let none = Traces::default().begin(&[], |_| None);
        assert_eq!(none.traceparent(0, &sampled).as_deref(), Some(ABOVE));
        assert_eq!(none.traceparent(0, &own), None);
        assert_eq!(none.traceparent(0, &task(Some("nonsense"))), None);
    }
}
