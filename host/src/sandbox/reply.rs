//! The replies of handlers, and the outcomes that they mean.
//!
//! In: the reply for each task, with the effects and outages of its call. Out: the [`Ended`] of the call.

use std::time::Duration;

use super::attempt::Ended;
use super::effects::Outages;
use super::failure;
use super::host::bindings::exports::tqhost::handler::handler::Failure;
use super::host::bindings::tqhost::handler::types::{Deferral, Retry};
use super::mask::Mask;
use crate::effects::Effects;
use crate::task::{FailureKind, Outcome};

/// The reply for one task.
pub(super) type Reply = Result<Option<Vec<u8>>, Failure>;

/// Turns the replies into the result of the call. `effects` has the effects of each task.
pub(super) fn ended(
    replies: Vec<Reply>,
    effects: Vec<Effects>,
    outages: &Outages,
    max_output: u64,
    mask: &Mask,
) -> Ended {
    if replies.len() != effects.len() {
        let message = format!("the handler gave {} results for {} tasks", replies.len(), effects.len());
        return Ended::Failed { kind: FailureKind::Trap, message };
    }
    let each = replies.into_iter().zip(effects).enumerate();
    let outcomes = each.map(|(index, (reply, effects))| {
        let outcome = outcome(reply, effects, max_output, mask);
        match (outcome, outages.get(&index)) {
            (Outcome::Retry { message, after }, Some(asked)) => {
                Outcome::Unavailable { message, after: asked.or(after) }
            }
            (outcome, _) => outcome,
        }
    });
    Ended::Each(outcomes.collect())
}

fn outcome(reply: Reply, effects: Effects, max_output: u64, mask: &Mask) -> Outcome {
    match reply {
        Ok(Some(result)) if result.len() as u64 > max_output => Outcome::Failed {
            kind: FailureKind::OutputTooLarge,
            message: format!("the handler returned {} bytes, max_output is {max_output}", result.len()),
        },
        Ok(result) => Outcome::Completed {
            result: result.map(|result| mask.owned(result)),
            effects: (!effects.is_empty()).then(|| Box::new(effects)),
        },
        Err(Failure::Retry(Retry { message, after_ms })) => Outcome::Retry {
            message: failure::bounded(&message, mask),
            after: after_ms.map(Duration::from_millis),
        },
        Err(Failure::Reject(message)) => Outcome::Reject { message: failure::bounded(&message, mask) },
        Err(Failure::Defer(Deferral { message, after_ms })) => Outcome::Defer {
            message: failure::bounded(&message, mask),
            after: Duration::from_millis(after_ms),
        },
    }
}
