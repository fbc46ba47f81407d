//! The state of one attempt in the store of its instance, for the calls that its guest makes.
//!
//! Not here: the rest of the store (`state`).

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::attempt::Attempt;
use super::effects::AttemptEffects;
use super::host::http::Client;
use super::limits::AttemptMemory;
use super::log::GuestLog;
use super::slices::SlicedCall;
use super::waits::GuestWaits;
use crate::guarded::Guarded;
use crate::task::Progress;

/// The waits of an instance without an attempt. All share one value, so that a store is made and reset
/// without an allocation for it.
static OF_NOBODY: LazyLock<Arc<GuestWaits>> = LazyLock::new(Arc::default);

/// The part of an instance that belongs to one attempt.
pub(super) struct AttemptState {
    pub(super) log: Arc<Guarded<GuestLog>>,
    /// The progress of each task of the attempt.
    pub(super) progress: Vec<Progress>,
    pub(super) effects: AttemptEffects,
    /// The plugin whose tasks run. None where no task runs, as in a self-check.
    pub(super) plugin: Option<Arc<str>>,
    pub(super) deadline: Instant,
    /// Ends or delays the call of the attempt that runs. None before the first attempt.
    pub(super) interrupts: Option<Interrupts>,
    pub(super) waits: Arc<GuestWaits>,
    /// Cancelled when the attempt is over, which ends its requests. None: they end with the instance's call.
    pub(super) over: Option<CancellationToken>,
    pub(super) http: Option<Box<Client>>,
    /// The memory that the attempt has asked for. Kept here while another attempt of the instance computes;
    /// `Limits` has it while this one does.
    pub(super) memory: AttemptMemory,
}

impl AttemptState {
    /// The state of an attempt that begins.
    pub(super) fn of(
        attempt: &Attempt,
        log: Arc<Guarded<GuestLog>>,
        waits: Arc<GuestWaits>,
        deadline: Instant,
        interrupts: Interrupts,
    ) -> AttemptState {
        let source = Some(attempt.effects.clone());
        AttemptState {
            log,
            progress: attempt.progress.clone(),
            effects: AttemptEffects::new(attempt.tasks.clone(), source, attempt.trace.clone()),
            plugin: Some(attempt.plugin.clone()),
            deadline,
            interrupts: Some(interrupts),
            waits,
            over: None,
            http: None,
            memory: AttemptMemory::default(),
        }
    }

    /// The state in which no task runs.
    pub(super) fn nobody() -> AttemptState {
        AttemptState {
            log: Arc::default(),
            progress: Vec::new(),
            effects: AttemptEffects::default(),
            plugin: None,
            deadline: Instant::now(),
            interrupts: None,
            waits: OF_NOBODY.clone(),
            over: None,
            http: None,
            memory: AttemptMemory::default(),
        }
    }
}

/// The reasons beside the deadline for which a tick stops or delays a handler that computes.
pub(super) struct Interrupts {
    pub(super) stop: CancellationToken,
    pub(super) sliced: SlicedCall,
}
