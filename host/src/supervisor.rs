//! Tells the service manager how the host is, if there is one that asks: systemd, or another one that speaks
//! its protocol.
//!
//! In: `NOTIFY_SOCKET` and `WATCHDOG_USEC` of the environment. Out: that the host takes tasks, that its
//! threads go on, and that it stops. Not here: whether queues make progress (`admin::health`). A host whose
//! Redis is away goes on with its signs of life, because a restart would not help.

use std::time::Duration;

use sd_notify::NotifyState;

/// Signs of life for each time that the service manager waits for one.
const SIGNS: u32 = 3;

/// The host takes tasks from now on.
pub(crate) fn ready() {
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
