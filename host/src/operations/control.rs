//! Pauses queues and lets them go on, and notes who did it.
//!
//! In: a queue, the operator, the reason. Out: whether the queue is paused now, and whether that has changed.
//! Not here: how hosts obey (`queue::control`).

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::changes::{self, ChangeKind, ChangeView, check_why};
use super::error::{OperationError, OperationResult};
use crate::config::units::show_duration;
use crate::queue::Queue;
use crate::queue::control::PauseChange;
use crate::queue::repeat::patiently;

/// The longest pause that ends by itself.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A queue that was paused or resumed. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PausedView {
    pub queue: String,
    pub paused: bool,
    /// False: it was so before.
    pub changed: bool,
}

/// Pauses the queue in all hosts in the name of `who`, until it is resumed or for this time. Without a reason
/// and a time, a pause that stands stays, and no longer ends by itself.
pub(crate) async fn pause(
    queue: &Queue,
    who: &str,
    why: &str,
    time: Option<Duration>,
) -> OperationResult<PausedView> {
    check_why(why)?;
    if time.is_some_and(|time| time.is_zero() || time > LONGEST) {
        return Err(OperationError::Invalid("for: it is not a time from 1ms to 366 days".to_owned()));
    }
    let done = patiently(|| queue.pause(who, why, time)).await?;
    if done != PauseChange::None {
        let detail = time.map(|time| format!("for {}", show_duration(time))).unwrap_or_default();
        note(queue, ChangeView::new(ChangeKind::Pause, who).detail(&detail), why).await;
    }
    Ok(PausedView { queue: queue.rules.name.clone(), paused: true, changed: done == PauseChange::New })
}

/// Lets all hosts claim tasks of the queue again, whether it is paused or on hold.
pub(crate) async fn resume(queue: &Queue, who: &str, why: &str) -> OperationResult<PausedView> {
    check_why(why)?;
    let changed = patiently(|| queue.resume()).await?;
    if changed {
        note(queue, ChangeView::new(ChangeKind::Resume, who), why).await;
    }
    Ok(PausedView { queue: queue.rules.name.clone(), paused: false, changed })
}

async fn note(queue: &Queue, change: ChangeView, why: &str) {
    changes::note(&queue.link, change.queue(&queue.rules.name).why(why)).await;
}
