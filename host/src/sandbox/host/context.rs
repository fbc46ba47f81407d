//! `tqhost:handler/context`: the time that an attempt has left, and the progress that it reports.

use std::time::Instant;

use super::bindings::tqhost::handler::context::Host;
use crate::sandbox::state::GuestState;

impl Host for GuestState {
    fn remaining_ms(&mut self) -> u64 {
        let left = self.attempt.deadline.saturating_duration_since(Instant::now());
        u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
    }

    fn progress(&mut self, percent: u8, note: String) {
        let log = self.log();
        let note = log.mask().text(&note);
        for progress in &self.attempt.progress {
            // `set` clamps both values.
            progress.set(percent, &note);
        }
    }
}
