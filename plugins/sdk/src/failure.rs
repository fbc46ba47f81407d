//! Failures: how a handler reports that an attempt did not complete its task.
//!
//! In: a message, and a delay. Out: the [`Failure`] that the host acts on:
//!
//! | built by | what the host does with the task |
//! |---|---|
//! | `Failure::retry(message)` | retries it after the queue's backoff, until its attempts are used up |
//! | `Failure::retry(message).after(duration)` | retries it after `duration`, which is a day at most |
//! | `Failure::unavailable(message)` | like a retry, and a queue with `hold` waits until the service is back |
//! | `Failure::reject(message)` | dead-letters it now |
//! | `Failure::defer(message, duration)` | runs it again after `duration`; this uses up no attempt |

use std::fmt;
use std::time::Duration;

use crate::Failure;
use crate::bindings::tqhost::handler::types::{Deferral, Retry};
use crate::outage;

impl Failure {
    /// A transient failure: another attempt may succeed.
    pub fn retry(message: impl fmt::Display) -> Failure {
        Failure::Retry(Retry { message: message.to_string(), after_ms: None })
    }

    /// A failure for a cause outside: a service that the task needs refuses connections, does not answer in
    /// time, or asks to be called later. It is a retry that says nothing about this version of the handler.
    /// If the queue has a `hold`, the host holds the queue back while the service is down, and does not
    /// charge the attempts that found it down. `after` gives the time that the service asks to wait.
    pub fn unavailable(message: impl fmt::Display) -> Failure {
        let message = message.to_string();
        outage::note(&message);
        Failure::retry(message)
    }

    /// Whether [`Failure::unavailable`] made this failure in this attempt, or one with the same message.
    pub fn is_unavailable(&self) -> bool {
        outage::is_noted(self)
    }

    /// A permanent failure: every other attempt would fail as well.
    pub fn reject(message: impl fmt::Display) -> Failure {
        Failure::Reject(message.to_string())
    }

    /// A deferral: the task is not ready yet, which is not an error. It waits and keeps its attempts. The
    /// queue's `max_deferrals` limits how often a task can be deferred.
    pub fn defer(message: impl fmt::Display, after: Duration) -> Failure {
        Failure::Defer(Deferral { message: message.to_string(), after_ms: millis(after) })
    }

    /// Sets the delay of a retry, instead of the queue's backoff, or of a deferral. It does not change a
    /// rejection.
    pub fn after(self, delay: Duration) -> Failure {
        match self {
            Failure::Retry(retry) => Failure::Retry(Retry { after_ms: Some(millis(delay)), ..retry }),
            Failure::Defer(deferral) => Failure::Defer(Deferral { after_ms: millis(delay), ..deferral }),
            Failure::Reject(message) => Failure::Reject(message),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Turns any other error into a failure. Its message is `doing`, a colon, and the error:
/// `parse(text).or_reject("reading the order")?`.
pub trait OrFail<T> {
    fn or_retry(self, doing: &str) -> Result<T, Failure>;
    fn or_reject(self, doing: &str) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_retry(self, doing: &str) -> Result<T, Failure> {
        self.map_err(|why| Failure::retry(format_args!("{doing}: {why}")))
    }

    fn or_reject(self, doing: &str) -> Result<T, Failure> {
        self.map_err(|why| Failure::reject(format_args!("{doing}: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_carries_its_message_and_time() {
        assert!(matches!(
            Failure::retry("busy"),
            Failure::Retry(Retry { message, after_ms: None }) if message == "busy"
        ));
        let later = Failure::retry("busy").after(Duration::from_secs(2));
        assert!(matches!(later, Failure::Retry(Retry { after_ms: Some(2000), .. })));
        assert!(matches!(
            Failure::defer("not yet", Duration::from_millis(5)),
            Failure::Defer(Deferral { after_ms: 5, .. })
        ));
        assert!(matches!(
            Failure::reject("gone").after(Duration::from_secs(1)),
            Failure::Reject(message) if message == "gone"
        ));
        let down = Failure::unavailable("it is down").after(Duration::from_secs(3));
        assert!(matches!(&down, Failure::Retry(Retry { after_ms: Some(3000), .. })) && down.is_unavailable());
        assert!(!Failure::retry("busy").is_unavailable());
        assert!(matches!(
            Failure::retry("x").after(Duration::MAX),
            Failure::Retry(Retry { after_ms: Some(u64::MAX), .. })
        ));
    }

    #[test]
    fn other_errors_say_what_was_being_done() {
        let error = "x".parse::<u8>().or_retry("reading the size").unwrap_err();
        assert!(matches!(
            error,
            Failure::Retry(retry)
                if retry.message == "reading the size: invalid digit found in string"
        ));
        assert!(matches!("x".parse::<u8>().or_reject("reading"), Err(Failure::Reject(_))));
    }
}
