//! Pauses queues and lets them go on, and notes who did it.
//!
//! In: a queue, the operator, the reason. Out: whether it was otherwise before. Not here: how hosts obey
//! (`queue::control`).

use std::time::Duration;

use super::changes::{self, ChangeKind, ChangeView, check_why};
use super::error::{OperationError, OperationResult};
use crate::config::units::show_duration;
use crate::queue::Queue;
use crate::queue::control::PauseChange;
use crate::queue::repeat::patiently;

/// The longest pause that ends by itself.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A pause or its end, as an operator orders it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pausing {
    /// The operator.
    pub who: String,
    pub why: String,
    /// The pause ends by itself after this time.
    pub time: Option<Duration>,
}

/// Pauses the queue in all hosts. Without a reason and a time, a pause that stands stays, and no longer ends
/// by itself. Returns false if the queue was paused before.
pub(crate) async fn pause(queue: &Queue, order: &Pausing) -> OperationResult<bool> {
    let Pausing { who, why, time } = order;
    check_why(why)?;
    if time.is_some_and(|time| time.is_zero() || time > LONGEST) {
        return Err(OperationError::Invalid("for: it is not a time from 1ms to 366 days".to_owned()));
    }
    let paused = patiently(|| queue.pause(who, why, *time)).await?;
    if paused != PauseChange::None {
        let detail = time.map(|time| format!("for {}", show_duration(time))).unwrap_or_default();
        let change = ChangeView::new(ChangeKind::Pause, who).detail(&detail);
        changes::note(&queue.link, change.queue(&queue.rules.name).why(why)).await;
    }
    Ok(paused == PauseChange::New)
}

/// Lets all hosts claim tasks of the queue again. Returns false if it was neither paused nor on hold.
pub(crate) async fn resume(queue: &Queue, who: &str, why: &str) -> OperationResult<bool> {
    check_why(why)?;
    let was_stopped = patiently(|| queue.resume()).await?;
    if was_stopped {
        let change = ChangeView::new(ChangeKind::Resume, who);
        changes::note(&queue.link, change.queue(&queue.rules.name).why(why)).await;
    }
    Ok(was_stopped)
}
