//! Repeats a call for an attempt or a command, so that a short outage of Redis makes neither of them fail.
//!
//! In: a call that is safe to be sent twice. Out: its reply, or its last error.
//!
//! Not here: repeating settlements (`worker::settler`), the delays between connections (`link`).

use std::time::{Duration, Instant};

use super::error::{QueueError, QueueResult};
use super::link::Link;

/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a command or a request repeats a call while Redis does not answer, as Redis may be restarting.
const PATIENCE: Duration = Duration::from_secs(20);
/// A call counts as too large after its connection was cut this often in a row while Redis answered other
/// calls: Redis closes a connection on which a call is too large.
const MOST_CUTS: u32 = 3;

/// How often in a row the connection of a call was cut while Redis answered other calls.
#[derive(Debug, Default)]
pub(crate) struct Cuts(u32);

impl Cuts {
    /// Notes the last error of the call. Returns whether the call is too large for Redis. Only a call that
    /// `is_large` can be.
    pub(crate) async fn show_its_size(&mut self, error: &QueueError, is_large: bool, link: &Link) -> bool {
        let is_cut = is_large && error.is_cut() && link.ping().await.is_ok();
        self.0 = if is_cut { self.0 + 1 } else { 0 };
        self.0 >= MOST_CUTS
    }
}

/// Repeats a call while Redis does not answer, for [`PATIENCE`] at most. The link waits before each try.
pub(crate) async fn patiently<T, F: Future<Output = QueueResult<T>>>(call: impl Fn() -> F) -> QueueResult<T> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error)
                if error.is_connection() && !error.is_authentication() && start.elapsed() < PATIENCE => {}
            reply => return reply,
        }
    }
}

/// Makes the call until Redis carries it out or refuses it for good, but not after `until`. A call that may
/// be too large (`is_large`) is given up when it is cut again and again.
pub(super) async fn until<T, F: Future<Output = QueueResult<T>>>(
    until: Instant,
    link: &Link,
    is_large: bool,
    call: impl Fn() -> F,
) -> QueueResult<T> {
    let (mut last, mut cuts) = (None, Cuts::default());
    let answered = tokio::time::timeout_at(until.into(), async {
        loop {
            match call().await {
                Err(error) if error.may_pass() => {
                    if cuts.show_its_size(&error, is_large, link).await {
                        return Err(error);
                    }
                    last = Some(error);
                }
                answered => return answered,
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    match answered.await {
        Ok(answered) => answered,
        Err(_) => Err(last.unwrap_or_else(|| QueueError::no_reply("call Redis", link.address()))),
    }
}
