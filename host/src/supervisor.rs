//! Tells the service manager how the host is, if there is one that asks: systemd, or another one that speaks
//! its protocol.
//!
//! In: `NOTIFY_SOCKET` and `WATCHDOG_USEC` of the environment. Out: that the host is ready, that its threads
//! go on, and that it stops. Not here: whether queues make progress (`admin::health`). A host whose
//! Redis is away goes on with its signs of life, because a restart would not help.

use std::time::Duration;

use sd_notify::NotifyState;

/// Signs of life for each time that the service manager waits for one.
const SIGNS: u32 = 3;

/// The longest wait for a host that works before it is called ready all the same. The service manager would
/// kill it otherwise, and a restart does not help against a queue that cannot be read.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);

/// Tells that the host is ready: once it is, or after `patience`. Tells nothing if the host is stopped
/// before.
pub(crate) async fn ready_once(
    is_ready: impl Future<Output = ()>,
    stopped: impl Future<Output = ()>,
    patience: Duration,
) {
    tokio::select! {
        biased;
        () = stopped => return,
        () = is_ready => {}
        () = tokio::time::sleep(patience) => tracing::warn!(
            "the host works, but is not ready after {} s: see /readyz for the reason",
            patience.as_secs(),
        ),
    }
    tell(NotifyState::Ready);
}

/// The host takes no more tasks, and ends.
pub(crate) fn stopping() {
    tell(NotifyState::Stopping);
}

/// Gives signs of life for as long as the runtime runs tasks. It ends at once if nobody asks for them.
pub(crate) async fn signs_of_life() {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    let mut every = tokio::time::interval((patience / SIGNS).max(Duration::from_millis(1)));
    loop {
        every.tick().await;
        tell(NotifyState::Watchdog);
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "could not tell the service manager how the host is");
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_host_that_is_never_ready_is_called_ready_in_the_end_and_one_that_stops_is_not_waited_for() {
        let (start, patience) = (Instant::now(), Duration::from_millis(50));
        ready_once(pending(), pending(), patience).await;
        assert!(start.elapsed() >= patience);
        let start = Instant::now();
        ready_once(ready(()), pending(), READY_WITHIN).await;
        ready_once(pending(), ready(()), READY_WITHIN).await;
        assert!(start.elapsed() < READY_WITHIN);
    }
}
