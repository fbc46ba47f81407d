//! Repeats calls while Redis does not answer.
//!
//! Not here: the limit of a whole request (`api`).

use std::future::Future;
use std::time::{Duration, Instant};

use crate::queue::QueueError;

/// How long a call is repeated while Redis does not answer, as Redis may be restarting. A link waits before
/// each try.
const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats a call while Redis does not answer. Only for calls that change nothing when they are carried out
/// twice.
pub(crate) async fn patiently<T, F: Future<Output = Result<T, QueueError>>>(
    call: impl Fn() -> F,
) -> Result<T, QueueError> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error)
                if error.is_connection() && !error.is_authentication() && start.elapsed() < PATIENCE => {}
            reply => return reply,
        }
    }
}
