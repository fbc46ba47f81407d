//! `wasi:random`: one secure generator per thread that runs guests, shared by all attempts on it.
//!
//! A generator per store would cost more than a small handler. Sharing is safe because the generator is
//! cryptographic: from its own numbers, a guest learns nothing about the numbers of another guest.

use std::cell::RefCell;

use crate::sandbox::state::GuestState;
use wasmtime::component::{HasSelf, Linker};
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::random::WasiRandomCtx;

/// Bytes that one call may ask for; the host has to hold them beside the guest's copy.
const MAX_BYTES: u64 = 1 << 20;

thread_local! {
    static GENERATOR: RefCell<WasiRandomCtx> = RefCell::new(WasiRandomCtx::default());
}

pub(super) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    random::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)?;
    insecure::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)?;
    insecure_seed::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)
}

fn bytes(len: u64) -> wasmtime::Result<Vec<u8>> {
    if len > MAX_BYTES {
        wasmtime::bail!("asked for {len} random bytes, {MAX_BYTES} at most are given at once");
    }
    GENERATOR.with_borrow_mut(|generator| random::Host::get_random_bytes(generator, len))
}

fn number() -> wasmtime::Result<u64> {
    GENERATOR.with_borrow_mut(random::Host::get_random_u64)
}

impl random::Host for GuestState {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        number()
    }
}

impl insecure::Host for GuestState {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        number()
    }
}

impl insecure_seed::Host for GuestState {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((number()?, number()?))
    }
}
