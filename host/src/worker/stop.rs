//! How the host stops, in steps: stopping to claim is not stopping to work.

use tokio_util::sync::CancellationToken;

/// What every loop goes by when it ends.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// No new task is claimed.
    pub claiming: CancellationToken,
    /// Attempts that still run are stopped and their tasks given back.
    pub running: CancellationToken,
    /// What is not settled by now is left for other hosts.
    pub settling: CancellationToken,
}

impl Stop {
    /// Stops when this does, or earlier by itself.
    pub fn child(&self) -> Stop {
        Stop {
            claiming: self.claiming.child_token(),
            running: self.running.child_token(),
            settling: self.settling.child_token(),
        }
    }
}
