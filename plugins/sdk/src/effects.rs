//! Why the host refused an effect, or a read of data outside of the task.
//!
//! In: the errors of the interfaces. Out: one [`EffectError`] for all of them, which `?` turns into a
//! [`Failure`].

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::Failure;
use crate::bindings::tqhost::extensions::records;
use crate::bindings::tqhost::handler::{outbox, state};

/// Why a call of [`outbox`](crate::outbox), [`state`](crate::state) or [`records`](crate::records) was
/// refused. The refused call has no effect. With `?`, `Unavailable` becomes a retry, and every other error a
/// rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EffectError {
    /// The host's configuration has no queue of this name.
    UnknownQueue(String),
    /// The configuration does not grant this queue (`enqueue_to`) or this key (`records`).
    NotPermitted(String),
    /// A key, a value, a counter, or all effects of the task together exceed a limit.
    TooLarge(String),
    /// Redis did not answer, or holds something else than the call needs. It may work later.
    Unavailable(String),
}

impl EffectError {
    /// The text of the host.
    pub fn message(&self) -> &str {
        match self {
            EffectError::UnknownQueue(why)
            | EffectError::NotPermitted(why)
            | EffectError::TooLarge(why)
            | EffectError::Unavailable(why) => why,
        }
    }

    /// The error in place of an interface's own one.
    pub(crate) fn of(error: impl Into<EffectError>) -> EffectError {
        error.into()
    }
}

impl fmt::Display for EffectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl Error for EffectError {}

impl From<EffectError> for Failure {
    fn from(error: EffectError) -> Failure {
        match error {
            EffectError::Unavailable(why) => Failure::retry(why),
            other => Failure::reject(other),
        }
    }
}

impl From<outbox::Error> for EffectError {
    fn from(error: outbox::Error) -> EffectError {
        match error {
            outbox::Error::UnknownQueue(why) => EffectError::UnknownQueue(why),
            outbox::Error::NotPermitted(why) => EffectError::NotPermitted(why),
            outbox::Error::TooLarge(why) => EffectError::TooLarge(why),
        }
    }
}

impl From<state::Error> for EffectError {
    fn from(error: state::Error) -> EffectError {
        match error {
            state::Error::TooLarge(why) => EffectError::TooLarge(why),
            state::Error::Unavailable(why) => EffectError::Unavailable(why),
        }
    }
}

impl From<records::Error> for EffectError {
    fn from(error: records::Error) -> EffectError {
        match error {
            records::Error::NotPermitted(why) => EffectError::NotPermitted(why),
            records::Error::TooLarge(why) => EffectError::TooLarge(why),
            records::Error::Unavailable(why) => EffectError::Unavailable(why),
        }
    }
}

/// A time in whole milliseconds. A short time is never rounded to 0, which means something else to the host.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_rejects_and_an_outage_retries() {
        let refused = EffectError::of(outbox::Error::NotPermitted("not `a`".into()));
        assert_eq!(refused, EffectError::NotPermitted("not `a`".into()));
        assert!(matches!(Failure::from(refused), Failure::Reject(why) if why == "not `a`"));
        let away = EffectError::of(state::Error::Unavailable("Redis is away".into()));
        assert!(matches!(Failure::from(away), Failure::Retry(retry) if retry.message == "Redis is away"));
    }

    #[test]
    fn a_short_time_is_not_none() {
        let each = [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1001), Duration::MAX];
        assert_eq!(each.map(millis), [0, 1, 2, u64::MAX]);
    }
}
