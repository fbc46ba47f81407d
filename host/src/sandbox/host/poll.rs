//! `wasi:io/poll`: the waits of a guest, which end at the deadline of its attempt.
//!
//! Not here: the sources of events, such as clocks and requests.

use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi_io::bindings::wasi::io::poll::{Host, HostPollable};
use wasmtime_wasi_io::poll::DynPollable;

use crate::sandbox::state::GuestState;
use crate::sandbox::waits::GuestWaits;

/// The part of the state of a guest that its waits need.
pub(super) struct PollView<'s> {
    table: &'s mut ResourceTable,
    waits: &'s GuestWaits,
}

/// Lends a [`PollView`] of the state.
pub(super) struct GuestPolls;

impl HasData for GuestPolls {
    type Data<'s> = PollView<'s>;
}

pub(super) fn view(state: &mut GuestState) -> PollView<'_> {
    PollView { table: &mut state.table, waits: &state.attempt.waits }
}

impl Host for PollView<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        self.waits.or_deadline(self.table.poll(pollables)).await
    }
}

impl HostPollable for PollView<'_> {
    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.waits.or_deadline(self.table.block(pollable)).await
    }

    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        self.table.ready(pollable).await
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        HostPollable::drop(self.table, pollable)
    }
}
