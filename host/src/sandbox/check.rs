//! The self-check that a component may export: run once on a new version, before it gets tasks.
//!
//! In: a loaded handler. Out: whether its `self-check` came back with ok, or what went wrong. It has the plugin's grants and limits, [`TIMEOUT`],
//! and a place of its own in the pool, so that a busy host does not hold up a new version.
//!
//! Not here: what becomes of a version that fails it (`plugins`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use wasmtime::component::ComponentExportIndex;

use super::Shared;
use super::failure::{self, Phase};
use super::handler::{AbortOnDrop, Handler, Loaded, begin, is_interrupt, store};
use super::log::GuestLog;
use crate::task::{FailureKind, Task};

/// How long a self-check may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

type Reply = Result<(), String>;

impl Handler {
    /// Runs the self-check, if the component exports one. An error is what it said, or the kind of its failure and why.
    pub async fn self_check(&self, plugin: &Arc<str>) -> Result<(), String> {
        self.self_check_within(plugin, TIMEOUT).await
    }

    pub(super) async fn self_check_within(&self, plugin: &Arc<str>, timeout: Duration) -> Result<(), String> {
        let Some(check) = self.0.exports.self_check else { return Ok(()) };
        let Some(guests) = self.0.sandbox.0.guests.as_ref() else { return Err("the host stops".into()) };
        let mut guest = AbortOnDrop(guests.spawn(run(self.0.clone(), check, plugin.clone(), timeout)));
        (&mut guest.0).await.unwrap_or_else(|error| Err(format!("the host failed while it ran it: {error}")))
    }
}

async fn run(loaded: Arc<Loaded>, check: ComponentExportIndex, plugin: Arc<str>, timeout: Duration) -> Result<(), String> {
    let shared: &Shared = &loaded.sandbox.0;
    let Ok(_permit) = shared.check_permit.acquire().await else { return Err("the host stops".into()) };
    let deadline = Instant::now() + timeout;
    let mut store = store(shared, &loaded);
    let (log, turn) = (GuestLog::new(Arc::new(vec![nobody()]), plugin, loaded.mask.clone()), shared.turns.turn());
    begin(&mut store, log, Vec::new(), deadline, CancellationToken::new(), turn.clone());
    let call = async {
        let instance = loaded.exports.pre.instantiate_async(&mut store).await.map_err(|error| (error, Phase::Instantiate))?;
        let function = instance.get_typed_func::<(), (Reply,)>(&mut store, &check).map_err(|error| (error, Phase::Call))?;
        let (reply,) = function.call_async(&mut store, ()).await.map_err(|error| (error, Phase::Call))?;
        Ok(reply)
    };
    let ended = tokio::time::timeout_at(deadline.into(), turn.keep(call)).await;
    let state = store.data();
    let mut log = state.log();
    log.finish();
    let timed_out = || format!("{}: it did not end within {timeout:?}", FailureKind::Timeout.as_str());
    match ended {
        Ok(Ok(reply)) => reply.map_err(|said| failure::bounded(said, &loaded.mask)),
        Ok(Err((error, _))) if is_interrupt(&error) => Err(timed_out()),
        Ok(Err((error, phase))) => {
            let (kind, message) = failure::classify(&error, phase, &state.limits, &log);
            Err(format!("{}: {message}", kind.as_str()))
        }
        Err(_) => Err(timed_out()),
    }
}

/// What stands in the log lines of a self-check, where those of an attempt name its task.
fn nobody() -> Task {
    Task {
        id: "self-check".into(),
        queue: "".into(),
        entry: String::new(),
        fields: Vec::new(),
        attempt: 1,
        deferrals: 0,
        crashes: 0,
        enqueued_at_ms: 0,
        traceparent: None,
        delay: None,
        reserved: Vec::new(),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
