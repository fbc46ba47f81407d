//! Duties: work for a queue that only one of its hosts does.
//!
//! A host holds its duties under one lease, which it renews at every call. When the lease of a holder ends,
//! another host that serves the queue takes the duty. Two hosts may believe for a moment that they hold the
//! same duty, so each duty must be safe to be done twice.
//!
//! Not here: what the duties are (`worker`), when leases are renewed (`worker::lookout`).

use std::time::Duration;

use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::keys;
use super::link::Link;
use super::reply::{self, Shaped, UnexpectedShape};
use super::script::{self, ScriptCall};

/// The duties of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnDuties {
    /// Hosts with a lease, this one included.
    pub hosts: u64,
    /// For each queue in the call: whether this host holds its duties.
    pub has: Vec<bool>,
}

impl Queue {
    /// The name of this queue's duties: those of one group of one stream.
    pub fn duty(&self) -> String {
        format!("{} {}", self.keys.stream, self.rules.group)
    }
}

/// Renews the lease of `host`, and takes those duties of the queues that no other host holds.
pub(crate) async fn renew(
    link: &Link,
    host: &str,
    lease: Duration,
    queues: &[&Queue],
) -> QueueResult<OwnDuties> {
    let call = ScriptCall::new(&script::DUTIES).key("holders", keys::DUTIES).key("hosts", keys::DUTY_HOSTS);
    let duties: Vec<String> = queues.iter().map(|queue| queue.duty()).collect();
    let call = call.arg("host", host).arg("lease", millis(lease)).arg("duties", duties);
    let reply = link.script(&call).await?;
    let held = |reply| -> Shaped<OwnDuties> {
        let [hosts, has] = reply::tuple(reply)?;
        Ok(OwnDuties { hosts: reply::count(&hosts)?, has: reply::codes(has, [false, true], queues.len())? })
    };
    held(reply).map_err(|UnexpectedShape| QueueError::unexpected("duties", link.address()))
}

/// Gives up the duties of queues that this host no longer serves.
pub(crate) async fn release(link: &Link, queues: &[&Queue]) -> QueueResult {
    let duties: Vec<String> = queues.iter().map(|queue| queue.duty()).collect();
    link.command("release duties", redis::cmd("HDEL").arg(keys::DUTIES).arg(duties)).await.map(drop)
}

/// Gives up the host's lease, and with it all its duties.
pub(crate) async fn leave(link: &Link, host: &str) -> QueueResult {
    link.command("release duties", redis::cmd("ZREM").arg(keys::DUTY_HOSTS).arg(host)).await.map(drop)
}
