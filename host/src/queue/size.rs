//! Says which ends of attempts are too large for Redis.
//!
//! In: the end of an attempt. Out: why Redis would refuse it. Not here: the limits of Redis (`server`), what
//! becomes of the attempt (`worker::settler`).

use super::handle::Queue;
use super::script::words;
use super::server::{NEVER_TOO_LARGE, SizeLimits, is_large};
use super::settle::{Ending, Settlement};

impl Ending {
    /// Whether it is so large that Redis may refuse it for its size. Then it has a call of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes() > NEVER_TOO_LARGE
    }

    /// Whether the attempt has completed its task, and can still be settled as a failed one.
    pub(crate) fn may_fail(&self) -> bool {
        let Settlement::Complete { result, effects } = self.settlement() else { return false };
        effects.is_some() || is_large(result.as_deref())
    }
}

impl Queue {
    /// Why Redis would refuse to settle this attempt, whatever else is in the call: a value is larger than
    /// its limits. None: it is not, as far as Redis tells its limits.
    pub(crate) async fn oversize(&self, consumer: &str, ending: &Ending) -> Option<String> {
        if !ending.is_large() {
            return None;
        }
        let command = self.settle_one(consumer, ending);
        let largest = words(&command).map(<[u8]>::len).max().unwrap_or_default();
        SizeLimits::of(&self.link).await.refusal(largest)
    }
}
