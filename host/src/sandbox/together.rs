//! Runs many attempts at the same time in one instance, for handlers that mostly wait.
//!
//! In: attempts of a version whose plugin has `concurrent`. Out: a report for each, as `handler` makes them.
//! The first attempts open an instance, further ones join it, and it is kept or dropped when all have ended.
//!
//! ```text
//! run ─▶ a seat in an open instance, or in a new one ─▶ Left ─▶ AttemptReport
//!                                            └ drive: one call of `run`, for as long as tasks are live
//! ```
//!
//! If the instance fails, only the task that computed has failed. The others are *disturbed*: they are not
//! charged, and run again. If the fault cannot be told, every task is disturbed: no task computed, or the
//! instance ran out of something that its tasks share, and the one that computed has not taken most of it.
//!
//! Not here: which task has which seat (`seats`), the interface that the guest calls (`host::tasks`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use wasmtime::component::ResourceTableError;

use super::attempt::{Attempt, AttemptReport, Ended};
use super::attempt_state::{AttemptState, Interrupts};
use super::call::{self, Export};
use super::effects::AttemptEffects;
use super::failure::{self, Phase, Whereabouts};
use super::loaded::{self, LoadedHandler};
use super::mask::Mask;
use super::place;
use super::seated::{LONGEST, SeatedTasks};
use super::seats::{Arrival, HELD, InstanceSeats, Left, Seated, TakenSeat};
use super::slices::SlicedCall;
use super::state::GuestState;
use super::waits::GuestWaits;
use super::warm::Instance;
use crate::config::Warm;
use crate::guarded::Guarded;
use crate::task::{FailureKind, Task};

/// How long the guest may take to return when all tasks have ended.
const TO_CLOSE: Duration = Duration::from_secs(1);
/// How long an interrupted guest may take to end. It is interrupted when a task whose time is over holds the
/// instance.
const TO_INTERRUPT: Duration = Duration::from_millis(100);
/// Handles that each task of an instance may hold.
const HANDLES: usize = 64;

/// A task's seat, which it leaves when this is dropped.
struct TaskSeat {
    seats: Arc<InstanceSeats>,
    number: u32,
    over: CancellationToken,
}

impl Drop for TaskSeat {
    fn drop(&mut self) {
        self.over.cancel();
        self.seats.leave(self.number);
    }
}

/// Runs an attempt beside others of its version, as [`super::Handler::run`] does alone.
pub(super) async fn run(
    loaded: &Arc<LoadedHandler>,
    function: Export<(), ()>,
    attempt: Attempt,
    warm: Warm,
) -> Option<AttemptReport> {
    let (attempt, over, since) = (Arc::new(attempt), CancellationToken::new(), Instant::now());
    let log = Arc::new(Guarded::new(loaded.log(attempt.tasks.clone(), attempt.plugin.clone())));
    let waits = Arc::<GuestWaits>::default();
    let seated = Seated {
        attempt: attempt.clone(),
        log: log.clone(),
        waits: waits.clone(),
        over: over.clone(),
        since,
    };
    let (end, mut left) = oneshot::channel();
    let arrival = Arrival { seated: Box::new(seated), end };
    let TakenSeat { seats, number, is_new } = loaded.open.seat(arrival, warm);
    let seat = TaskSeat { seats, number, over };
    let seats = &seat.seats;
    if is_new {
        let driven = drive(loaded.clone(), function, seats.clone(), attempt.plugin.clone());
        loaded.sandbox.0.runs_on.spawn(driven);
    }
    let timeout = attempt.timeout.min(LONGEST);
    let deadline = async {
        seats.began.wait().await;
        tokio::time::sleep_until((seats.start_of(since) + timeout).into()).await;
    };
    let mut whereabouts = Whereabouts::default();
    let left = tokio::select! {
        biased;
        left = &mut left => left,
        () = attempt.stop.cancelled() => {
            drop(stop(seats, number, &waits, &mut left).await);
            return None;
        }
        () = deadline => {
            whereabouts = waits.whereabouts();
            stop(seats, number, &waits, &mut left).await
        }
    };
    if let (Ok(Left::Holds), Some(task)) = (&left, attempt.tasks.first()) {
        loaded.open.note_culprit(task);
    }
    let ended = ended(left, timeout, &whereabouts, &loaded.mask)?;
    let (duration, peak_memory) = (seats.start_of(since).elapsed(), seats.peak.load(Ordering::Relaxed));
    drop(seat);
    let mut log = log.lock();
    log.finish();
    Some(AttemptReport {
        ended,
        backtrace: Vec::new(),
        last_lines: log.take_last_lines(),
        peak_memory,
        duration,
    })
}

/// How an attempt ended whose task left its instance in this way. None: the attempt has no report.
fn ended(
    left: Result<Left, oneshot::error::RecvError>,
    timeout: Duration,
    whereabouts: &Whereabouts,
    mask: &Mask,
) -> Option<Ended> {
    Some(match left {
        Ok(Left::Ended(ended)) => ended,
        Ok(Left::Evicted) => return None,
        Ok(Left::Stopped) => {
            let (kind, message) = Phase::Call.timed_out("the handler", timeout, timeout, whereabouts, mask);
            Ended::Failed { kind, message }
        }
        Ok(Left::Holds) => {
            let message =
                format!("the handler did not end within {timeout:?}: it computed, or waited without `await`");
            Ended::Failed { kind: FailureKind::BusyTimeout, message }
        }
        Ok(Left::HeldUp) => {
            disturbed("another task held its instance up: it computed, or waited without `await`".to_owned())
        }
        Err(_) => disturbed("the host failed while it ran the instance".to_owned()),
    })
}

fn disturbed(message: String) -> Ended {
    Ended::Disturbed { kind: FailureKind::Trap, message }
}

/// Asks the guest to stop a task, and waits until the guest has taken that news. A task that ends meanwhile
/// counts as ended, and not as stopped.
async fn stop(
    seats: &InstanceSeats,
    number: u32,
    waits: &GuestWaits,
    left: &mut oneshot::Receiver<Left>,
) -> Result<Left, oneshot::error::RecvError> {
    seats.stop(number);
    if let Ok(left) = tokio::time::timeout(HELD, &mut *left).await {
        return left;
    }
    let reason = seats.reason_of_silence(number);
    if matches!(reason, Left::Holds) {
        // The guest is interrupted where it waits, or at the next tick, and then tells where it was.
        waits.late.notify_waiters();
        if let Ok(left) = tokio::time::timeout(TO_INTERRUPT, left).await {
            return left;
        }
        seats.broken.cancel();
    }
    Ok(reason)
}

/// Runs an instance for as long as it has tasks.
async fn drive(
    loaded: Arc<LoadedHandler>,
    function: Export<(), ()>,
    seats: Arc<InstanceSeats>,
    plugin: Arc<str>,
) {
    let sliced = loaded.sandbox.0.slices.call(loaded.number);
    if let Some(mut instance) = loaded::instance(&loaded, &seats.over, &sliced).await {
        seats.begin(instance.tasks);
        begin(&loaded, &mut instance, &seats, &sliced, plugin.clone());
        let call = call::run(function, &loaded.exports, &mut instance);
        let called = tokio::select! {
            biased;
            called = sliced.clone().run(std::panic::AssertUnwindSafe(call).catch_unwind()) => Some(called),
            () = sliced.evicted() => None,
            () = seats.broken.cancelled() => None,
            () = late_to_close(&seats) => None,
        };
        match called {
            Some(Ok(called)) => end(&loaded, instance, &seats, &sliced, called),
            // The panic itself has been logged.
            Some(Err(_)) => end_all(&instance, &seats, &sliced, "the host failed while it ran the instance"),
            None => {
                if seats.broken.is_cancelled() {
                    tracing::warn!(%plugin, "an instance is stopped: its guest hears nothing; its other \
                        tasks begin again");
                }
                end_all(&instance, &seats, &sliced, "another task held the instance for too long");
            }
        }
    }
    seats.end_all(|_| Left::Evicted);
}

async fn late_to_close(seats: &InstanceSeats) {
    seats.over.cancelled().await;
    tokio::time::sleep(TO_CLOSE).await;
}

/// Prepares the state of the instance for its tasks.
fn begin(
    loaded: &LoadedHandler,
    instance: &mut Instance,
    seats: &Arc<InstanceSeats>,
    sliced: &SlicedCall,
    plugin: Arc<str>,
) {
    // The host may copy the results of all tasks: one that is too large must end its own task alone.
    loaded.refuel(&mut instance.store, u32::MAX);
    let nobody = Task { entry: String::new(), fence: 0, ..Task::bare("".into(), "no-task") };
    let log = loaded.log(Arc::new(vec![nobody]), plugin);
    let interrupts = Interrupts { stop: seats.broken.clone(), sliced: sliced.clone() };
    let state = instance.store.data_mut();
    let log = state.renewed_log(log);
    state.begin(AttemptState {
        log,
        effects: AttemptEffects::of_nobody(),
        deadline: Instant::now() + LONGEST,
        interrupts: Some(interrupts),
        ..AttemptState::nobody()
    });
    state.together = Some(Box::new(SeatedTasks {
        seats: seats.clone(),
        sliced: sliced.clone(),
        nobody: None,
        others: BTreeMap::new(),
        others_bytes: 0,
        max_output: loaded.max_output,
        strays: None,
    }));
    state.widen(HANDLES * seats.most);
}

/// Ends the tasks when the call has ended, and keeps the instance if it is fit for more.
fn end(
    loaded: &LoadedHandler,
    mut instance: Instance,
    seats: &InstanceSeats,
    sliced: &SlicedCall,
    called: Result<(), (wasmtime::Error, Phase)>,
) {
    let state = instance.store.data();
    seats.note_peak(state.limits.peak());
    loaded.note_peak(state.limits.peak());
    let Err((error, phase)) = called else {
        let is_clean = seats.is_clean();
        seats.end_all(|_| Left::Ended(disturbed("the instance returned before its tasks had ended".into())));
        instance.tasks = seats.begun();
        if is_clean {
            loaded.keep(instance);
        }
        return;
    };
    if sliced.is_evicted() {
        return end_all(&instance, seats, sliced, "");
    }
    let mut log = state.log();
    log.finish();
    let at_fault = seats.entered().filter(|_| !ran_out_of_shared(state, &error));
    let (kind, message) = if loaded::is_interrupt(&error) {
        let whereabouts = place::whereabouts(&error, &instance.store, &state.attempt.waits, log.place());
        let (kind, how) = match whereabouts.is_waiting {
            true => (FailureKind::Timeout, "it waited without `await`"),
            false => (FailureKind::BusyTimeout, "it computed"),
        };
        let place = whereabouts.place.map(|place| format!(", {place}")).unwrap_or_default();
        let message = format!("the handler did not end in time: {how}{place}");
        (kind, failure::bounded(&message, &loaded.mask))
    } else {
        failure::classify(&error, phase, &state.limits, loaded.output(u32::MAX), &log)
    };
    drop(log);
    let task = state.attempt.effects.task().ok();
    if let (Some(task), Some(_)) = (task, at_fault) {
        loaded.open.note_culprit(task);
    }
    let task = task.map(|task| task.id.as_str());
    let plugin = state.attempt.plugin.as_deref();
    let error = &message;
    tracing::warn!(plugin, task, error, "an instance failed; the other tasks that it ran begin again");
    seats.end_all(|number| {
        let (kind, message) = (kind, message.clone());
        Left::Ended(if phase == Phase::Instantiate || at_fault == Some(number) {
            Ended::Failed { kind, message }
        } else {
            Ended::Disturbed { kind, message: format!("beside it in its instance: {message}") }
        })
    });
}

/// Whether an instance failed because it had no more memory or handles, and other tasks may have taken them.
fn ran_out_of_shared(state: &GuestState, error: &wasmtime::Error) -> bool {
    let is_short = state.limits.refused().is_some() || state.table.max_capacity() == 0;
    is_short && !state.has_taken_most()
        || matches!(error.downcast_ref::<ResourceTableError>(), Some(ResourceTableError::Full))
}

/// Ends all tasks of an instance that is stopped.
fn end_all(instance: &Instance, seats: &InstanceSeats, sliced: &SlicedCall, why: &str) {
    let peak = instance.store.data().limits.peak();
    seats.note_peak(peak);
    if sliced.is_evicted() {
        tracing::warn!(memory = peak, "stopped: all handlers together need more memory than they have");
        return seats.end_all(|_| Left::Evicted);
    }
    seats.end_all(|_| Left::Ended(disturbed(why.to_owned())));
}
