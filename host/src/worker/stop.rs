//! The tokens by which the host stops in steps. It stops claiming first, while running attempts continue.

use tokio_util::sync::CancellationToken;

/// The tokens that end the loops.
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
    /// Tokens that are cancelled with these, and can be cancelled earlier on their own.
    pub fn child(&self) -> Stop {
        Stop {
            claiming: self.claiming.child_token(),
            running: self.running.child_token(),
            settling: self.settling.child_token(),
        }
    }
}
