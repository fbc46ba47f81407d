//! The state that all queues of one host share.
//!
//! Not here: the state of one queue (`shared`), the loops (`lifecycle`, `workers`).

use std::sync::Arc;

use super::capacity::Capacity;
use super::lookout::Lookout;
use super::waiter::Waiter;
use crate::queue::{Link, Redis};
use crate::shutdown::Stop;

/// The state that all queues of one host share.
pub(crate) struct Common {
    pub redis: Redis,
    /// The host's consumer name in every group, unique for each start.
    pub consumer: Arc<str>,
    pub capacity: Capacity,
    pub waiter: Waiter,
    pub lookout: Lookout,
    /// The connection for reads that do not block. All queues use it.
    pub reads: Link,
    pub stop: Stop,
}
