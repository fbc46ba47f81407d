//! One attempt: an instance, one call, and the report of how it went.
//!
//! In: an [`Attempt`]. Out: its [`Report`], always, but when it was told to stop. The guest runs on the sandbox's own
//! threads; dropping the future of [`Handler::run`] ends it there.
//!
//! ```text
//! place ─▶ store ─▶ instantiate ─▶ handle ─▶ Outcome
//!                                     ▲          │ if its plugin keeps instances, and it is fit for another task
//!                                     └── kept ◀─┘
//! ```
//!
//! Not here: what is kept, and how long (`warm`), the meaning of errors (`failure`), what the guest may call (`host`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentExportIndex, InstancePre};
use wasmtime::{Store, UpdateDeadline};

use super::failure::{self, Phase};
use super::host;
use super::host::bindings::{RunnerPre, exports::tqhost::handler::handler as guest, tqhost::handler::types};
use super::host::http::Requests;
use super::log::GuestLog;
use super::state::State;
use super::warm::{Instance, Number};
use super::{LoadError, Sandbox, Shared, component};
use crate::config::{self, Secret};
use crate::task::{FailureKind, Outcome, Progress, Task};

/// What a result may need beside its bytes before it is measured: the texts of a failure, list and option headers.
const RESULT_SLACK: u64 = 1 << 20;
/// Handles that a guest may leave open at the end of a task and still get another one: the streams that runtimes of languages hold on to.
const MAX_LEFT_HANDLES: usize = 32;

/// A loaded version of a plugin, ready to run attempts. Cheap to clone.
#[derive(Clone)]
pub struct Handler(pub(super) Arc<Loaded>);

pub(super) struct Loaded {
    pub(super) sandbox: Sandbox,
    pub(super) pre: RunnerPre<State>,
    /// The function to call before the first attempt, if there is one.
    pub(super) self_check: Option<ComponentExportIndex>,
    pub(super) config: Arc<BTreeMap<String, Secret>>,
    pub(super) http: Arc<host::http::Grant>,
    pub(super) memory: u64,
    max_output: u64,
    number: Number,
    /// What is kept of its instances; None: each has one task.
    warm: Option<config::Warm>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.sandbox.0.pool.forget(self.number);
    }
}

/// One run of a handler.
#[derive(Debug)]
pub struct Attempt {
    pub task: Arc<Task>,
    pub plugin: Arc<str>,
    /// Attempts allowed in all: 1 + max_retries.
    pub max_attempts: u32,
    /// Over instantiation and call, not over the wait for a free place.
    pub timeout: Duration,
    pub progress: Progress,
    /// Ends the attempt without a report.
    pub stop: CancellationToken,
}

/// How an attempt went.
#[derive(Debug, Clone)]
pub struct Report {
    pub outcome: Outcome,
    /// Bytes of all memories of the instance together, at most; also what earlier attempts have left there.
    pub peak_memory: u64,
    /// Of instantiation and call.
    pub duration: Duration,
}

impl Handler {
    pub(super) fn new(
        sandbox: Sandbox,
        pre: RunnerPre<State>,
        self_check: Option<ComponentExportIndex>,
        grants: &config::Plugin,
    ) -> Handler {
        let config = Arc::new(grants.config.clone());
        let http = Arc::new(host::http::Grant::new(grants, sandbox.0.sends_on.clone()));
        let (number, memory, max_output, warm) = (sandbox.0.pool.number(), grants.memory, grants.max_output, grants.warm);
        Handler(Arc::new(Loaded { sandbox, pre, self_check, config, http, memory, max_output, number, warm }))
    }

    /// Whether it can make requests and nothing allows any. It may be configured to make none.
    pub fn lacks_hosts(&self) -> bool {
        self.0.http.is_empty() && component::interfaces_of(self.0.pre.instance_pre().component()).makes_requests()
    }

    /// Lets its requests be counted.
    pub fn count_requests(&self, requests: Arc<Requests>) {
        self.0.http.count_in(requests);
    }

    /// The same code with other grants, and instances of its own.
    pub fn with_grants(&self, grants: &config::Plugin) -> Handler {
        Handler::new(self.0.sandbox.clone(), self.0.pre.clone(), self.0.self_check, grants)
    }

    /// Runs one attempt to its end. None only if `stop` was cancelled.
    pub async fn run(&self, attempt: Attempt) -> Option<Report> {
        let guests = self.0.sandbox.0.guests.as_ref()?;
        let mut guest = AbortOnDrop(guests.spawn(run(self.0.clone(), attempt)));
        match (&mut guest.0).await {
            Ok(report) => report,
            Err(error) if error.is_cancelled() => None,
            // A bug of the host, but this task's failure: the panic itself has been logged.
            Err(error) => {
                let message = failure::bounded(format!("the host failed while it ran the handler: {error}"));
                let outcome = Outcome::Failed { kind: FailureKind::Trap, message };
                Some(Report { outcome, peak_memory: 0, duration: Duration::ZERO })
            }
        }
    }
}

pub(super) struct AbortOnDrop<T>(pub(super) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(loaded: Arc<Loaded>, attempt: Attempt) -> Option<Report> {
    let mut instance = instance(&loaded, &attempt.stop).await?;
    let started = Instant::now();
    // A timeout beyond what the clock can hold is as good as a year.
    let timeout = attempt.timeout.min(Duration::from_secs(365 * 24 * 3600));
    let deadline = started + timeout;
    let log = GuestLog::new(attempt.task.clone(), attempt.plugin.clone());
    instance.tasks += 1;
    begin(&mut instance.store, log, attempt.progress.clone(), deadline, attempt.stop.clone());

    let ended = {
        let call = call(&loaded, &mut instance, &attempt, timeout);
        tokio::select! {
            biased;
            ended = call => Some(ended),
            () = tokio::time::sleep_until(deadline.into()) => None,
            () = attempt.stop.cancelled() => return None,
        }
    };
    let duration = started.elapsed();
    let report = {
        let state = instance.store.data();
        let mut log = state.log();
        log.finish();
        let outcome = match ended {
            Some(Ok(reply)) => outcome(reply, loaded.max_output),
            // An interrupted guest that computed: the epoch callback has seen what ended it.
            Some(Err(_)) if attempt.stop.is_cancelled() => return None,
            Some(Err((error, _))) if is_interrupt(&error) => timed_out(timeout),
            Some(Err((error, phase))) => {
                tracing::debug!(target: "guest", task = %attempt.task.id, plugin = %attempt.plugin, error = format!("{error:?}"), "failed");
                let (kind, message) = failure::classify(&error, phase, &state.limits, &log);
                Outcome::Failed { kind, message }
            }
            None => timed_out(timeout),
        };
        Report { outcome, peak_memory: state.limits.peak(), duration }
    };
    if let Some(warm) = &loaded.warm
        && is_fit(&mut instance, &report.outcome, warm)
    {
        loaded.sandbox.0.pool.keep(loaded.number, warm.idle, instance);
    }
    Some(report)
}

/// One that was kept, or else a new one. None when told to stop.
async fn instance(loaded: &Loaded, stop: &CancellationToken) -> Option<Instance> {
    let shared: &Shared = &loaded.sandbox.0;
    if loaded.warm.is_some()
        && let Some(kept) = shared.pool.take(loaded.number)
    {
        return Some(kept);
    }
    let place = tokio::select! {
        biased;
        place = shared.pool.place() => place?,
        () = stop.cancelled() => return None,
    };
    Some(Instance::new(store(shared, loaded), place))
}

pub(super) fn store(shared: &Shared, loaded: &Loaded) -> Store<State> {
    let mut store = Store::new(&shared.engine, State::new(loaded.memory, loaded.config.clone(), loaded.http.clone()));
    store.limiter(|state| &mut state.limits);
    // For each call anew.
    store.set_hostcall_fuel(usize::try_from(loaded.max_output.saturating_add(RESULT_SLACK)).unwrap_or(usize::MAX));
    store
}

/// Nothing of an attempt before this one is left but what the guest has in its memory, and its handles.
pub(super) fn begin(store: &mut Store<State>, log: GuestLog, progress: Progress, deadline: Instant, stop: CancellationToken) {
    store.data_mut().begin(log, progress, deadline);
    // Timers fire only when a thread is free, so a guest that computes looks at the clock itself.
    store.epoch_deadline_callback(move |_| {
        if stop.is_cancelled() || Instant::now() >= deadline {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
    store.set_epoch_deadline(1);
}

/// Whether an instance may have another task. Lets go of the one that has ended.
fn is_fit(instance: &mut Instance, outcome: &Outcome, warm: &config::Warm) -> bool {
    let state = instance.store.data_mut();
    let left = state.end();
    let failed = matches!(outcome, Outcome::Failed { .. }) || state.limits.refused().is_some();
    !failed && left <= MAX_LEFT_HANDLES && instance.tasks < warm.max_tasks
}

type Reply = Result<Option<Vec<u8>>, guest::Failure>;

async fn call(loaded: &Loaded, instance: &mut Instance, attempt: &Attempt, timeout: Duration) -> Result<Reply, (wasmtime::Error, Phase)> {
    let Instance { store, runner, .. } = instance;
    let runner = match runner {
        Some(runner) => runner,
        None => runner.insert(loaded.pre.instantiate_async(&mut *store).await.map_err(|error| (error, Phase::Instantiate))?),
    };
    let task = &*attempt.task;
    let fields: Vec<types::Field<'_>> = task.fields.iter().map(|field| types::Field { name: &field.name, value: &field.value }).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let task = guest::Task {
        id: &task.id,
        queue: &task.queue,
        fields: &fields,
        attempt: task.attempt,
        max_attempts: attempt.max_attempts,
        enqueued_at_ms: task.enqueued_at_ms,
        deadline_ms: u64::try_from((now + timeout).as_millis()).unwrap_or(u64::MAX),
        traceparent: task.traceparent.as_deref(),
    };
    runner.tqhost_handler_handler().call_handle(store, task).await.map_err(|error| (error, Phase::Call))
}

/// Checks the exported function's signature, which would otherwise fail the first attempt and every other.
pub(super) fn check_type(pre: &InstancePre<State>) -> Result<(), LoadError> {
    let component = pre.component();
    let item = component
        .get_export(None, component::HANDLER_OFFERED)
        .and_then(|(_, handler)| component.get_export(Some(&handler), "handle"))
        .map(|(item, _)| item);
    let Some(ComponentItem::ComponentFunc(handle)) = item else {
        return Err(LoadError::WrongType("tqhost:handler/handler has no function `handle`".into()));
    };
    handle
        .typecheck::<(guest::Task<'_>,), (Reply,)>(&pre.instance_type())
        .map_err(|error| LoadError::WrongType(format!("the function `handle`: {error:#}")))
}

fn outcome(reply: Reply, max_output: u64) -> Outcome {
    match reply {
        Ok(Some(result)) if result.len() as u64 > max_output => Outcome::Failed {
            kind: FailureKind::OutputTooLarge,
            message: format!("the handler returned {} bytes, max_output is {max_output}", result.len()),
        },
        Ok(result) => Outcome::Completed { result },
        Err(guest::Failure::Retry(retry)) => {
            Outcome::Retry { message: failure::bounded(retry.message), after: retry.after_ms.map(Duration::from_millis) }
        }
        Err(guest::Failure::Reject(message)) => Outcome::Reject { message: failure::bounded(message) },
        Err(guest::Failure::Defer(defer)) => {
            Outcome::Defer { message: failure::bounded(defer.message), after: Duration::from_millis(defer.after_ms) }
        }
    }
}

pub(super) fn is_interrupt(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref::<wasmtime::Trap>(), Some(wasmtime::Trap::Interrupt))
}

fn timed_out(timeout: Duration) -> Outcome {
    Outcome::Failed { kind: FailureKind::Timeout, message: format!("the handler did not end within {timeout:?}") }
}
