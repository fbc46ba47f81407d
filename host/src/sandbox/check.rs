//! Runs the self-check that a component may export: once for each new version, before it gets tasks.
//!
//! In: a loaded handler. Out: ok from its `self-check`, or an error. The check has the plugin's grants and
//! limits, [`TIMEOUT`], and a place of its own in the pool, so that a busy host does not delay a new version.
//!
//! Not here: what follows when a version fails its check (`plugins`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::attempt_state::{AttemptState, Interrupts};
use super::call::Export;
use super::failure::{self, Phase, Whereabouts};
use super::handler::Handler;
use super::limits::Limits;
use super::loaded::{LoadedHandler, is_interrupt, store};
use super::shared::Shared;
use crate::task::{FailureKind, Task};

/// How long a self-check may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

type Reply = Result<(), String>;

/// Why a self-check did not pass: its own words, or the kind and the message of its failure.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckError {
    /// It fails until the file or its grants change.
    #[error("{0}")]
    Failed(String),
    /// Another try may succeed: the machine was busy, a service was not ready, or the host had no memory for
    /// it.
    #[error("{0}")]
    Hindered(String),
}

impl CheckError {
    /// Whether the same version may pass another time.
    pub fn may_pass(&self) -> bool {
        matches!(self, CheckError::Hindered(_))
    }
}

impl Handler {
    /// Whether the component exports a self-check.
    pub fn checks_itself(&self) -> bool {
        self.0.exports.self_check.is_some()
    }

    /// Runs the self-check, if the component exports one. A host gives it [`TIMEOUT`].
    pub async fn self_check(&self, plugin: &Arc<str>, timeout: Duration) -> Result<(), CheckError> {
        let Some(check) = self.0.exports.self_check else { return Ok(()) };
        let guest = self.guests().spawn(run(self.0.clone(), check, plugin.clone(), timeout));
        AbortOnDropHandle::new(guest).await.unwrap_or_else(|error| {
            Err(CheckError::Hindered(format!("the host failed while it ran it: {error}")))
        })
    }
}

async fn run(
    loaded: Arc<LoadedHandler>,
    check: Export<(), (Reply,)>,
    plugin: Arc<str>,
    timeout: Duration,
) -> Result<(), CheckError> {
    let shared: &Shared = &loaded.sandbox.0;
    let _permit = shared.check_permit.acquire().await.expect("nothing closes it");
    let deadline = Instant::now() + timeout;
    // The lines that a self-check logs name no task.
    let (log, sliced) = (loaded.log(Arc::new(vec![nobody()]), plugin), shared.slices.call(loaded.number));
    // An attempt waits here for memory. A start of 0 bytes does not.
    let mut limits = Limits::new(loaded.memory, shared.budget.start(0).await);
    limits.account.begin(sliced.clone());
    let mut store = store(shared, &loaded, limits);
    let tasks = 1;
    loaded.refuel(&mut store, tasks);
    let interrupts = Interrupts { stop: CancellationToken::new(), sliced: sliced.clone() };
    let log = store.data().renewed_log(log);
    store.data_mut().begin(AttemptState {
        log,
        deadline,
        interrupts: Some(interrupts),
        ..AttemptState::nobody()
    });
    let mut made = None;
    let call = async {
        let instance = loaded
            .exports
            .pre
            .instantiate_async(&mut store)
            .await
            .map_err(|error| (error, Phase::Instantiate))?;
        let instance = made.insert(instance);
        let function = check.of(instance, &mut store).map_err(|error| (error, Phase::Call))?;
        let (reply,) = function.call_async(&mut store, ()).await.map_err(|error| (error, Phase::Call))?;
        Ok(reply)
    };
    let ended = tokio::time::timeout_at(deadline.into(), sliced.clone().run(call)).await;
    let phase = if made.is_some() { Phase::Call } else { Phase::Instantiate };
    let state = store.data();
    let mut log = state.log();
    log.finish();
    let (kind, message) = match ended {
        Ok(Err(_)) if sliced.is_evicted() => {
            return Err(CheckError::Hindered("all handlers together have no more memory".into()));
        }
        Ok(Ok(reply)) => {
            return reply.map_err(|why| CheckError::Failed(failure::bounded(&why, &loaded.mask)));
        }
        Ok(Err((error, phase))) if !is_interrupt(&error) => {
            failure::classify(&error, phase, &state.limits, loaded.output(tasks), &log)
        }
        Ok(Err(_)) | Err(_) => {
            phase.timed_out("it", timeout, sliced.waited(), &Whereabouts::default(), &loaded.mask)
        }
    };
    let why = format!("{}: {message}", kind.into_str());
    Err(match kind {
        FailureKind::Timeout | FailureKind::BusyTimeout | FailureKind::StartTimeout => {
            CheckError::Hindered(why)
        }
        // A fault of the component's own code is a trap, so this one may be the host's.
        FailureKind::Instantiate => CheckError::Hindered(why),
        FailureKind::Trap | FailureKind::OutOfMemory | FailureKind::OutputTooLarge | FailureKind::Effects => {
            CheckError::Failed(why)
        }
    })
}

/// The task that the log lines of a self-check name.
fn nobody() -> Task {
    Task { entry: String::new(), fence: 0, ..Task::bare("".into(), "self-check") }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
