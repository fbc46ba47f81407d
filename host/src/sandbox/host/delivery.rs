//! `tqhost:extensions/delivery`: the number of the delivery, and which task of a batch calls belong to.

use super::effect_bindings::tqhost::extensions::delivery::Host;
use crate::sandbox::state::GuestState;

impl Host for GuestState {
    fn fence(&mut self) -> wasmtime::Result<u64> {
        Ok(self.attempt.effects.task()?.fence)
    }

    fn select(&mut self, index: u32) -> wasmtime::Result<()> {
        self.attempt.effects.select(index as usize)
    }
}
