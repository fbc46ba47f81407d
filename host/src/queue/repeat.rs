//! Repeats a call that a running attempt waits for, so that a short outage of Redis ends no attempt.
//!
//! In: a call that is safe to be sent twice. Out: its reply, or its last error.
//!
//! Not here: repeating settlements (`worker::settler`), the delays between connections (`link`).

use std::time::{Duration, Instant};

use super::error::QueueError;
use super::link::Link;

/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the call until Redis carries it out or refuses it for good, but not after `until`.
pub(super) async fn until<T, F: Future<Output = Result<T, QueueError>>>(
    until: Instant,
    link: &Link,
    call: impl Fn() -> F,
) -> Result<T, QueueError> {
    let mut last = None;
    let answered = tokio::time::timeout_at(until.into(), async {
        loop {
            match call().await {
                Err(error) if error.may_pass() => last = Some(error),
                answered => return answered,
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    let answered = answered.await;
    answered
        .unwrap_or_else(|_| Err(last.unwrap_or_else(|| QueueError::no_reply("call Redis", link.address()))))
}
