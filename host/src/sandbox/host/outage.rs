//! `tqhost:extensions/outage`: the handler says that a service which it needs is down.

use std::time::Duration;

use super::effect_bindings::tqhost::extensions::outage::Host;
use crate::sandbox::state::GuestState;

impl Host for GuestState {
    fn unavailable(&mut self, index: u32, after_ms: Option<u64>) -> wasmtime::Result<()> {
        self.attempt.effects.note_outage(index as usize, after_ms.map(Duration::from_millis))
    }
}
