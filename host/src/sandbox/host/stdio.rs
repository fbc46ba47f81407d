//! `wasi:cli/stdout` and `stderr`: bytes go to the attempt's log, which never makes the guest wait.

use std::sync::Arc;

use wasmtime::component::Resource;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::bindings::cli::{stderr, stdout};
use wasmtime_wasi::p2::{DynOutputStream, OutputStream, Pollable, StreamResult};

use crate::guarded::Guarded;
use crate::sandbox::log::{GuestLog, GuestStream};
use crate::sandbox::state::GuestState;

/// The bytes that a guest may write at once. The bound also holds for `write-zeroes`.
const PERMIT: usize = 64 * 1024;

impl stdout::Host for GuestState {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        push(self, GuestStream::Stdout)
    }
}

impl stderr::Host for GuestState {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        push(self, GuestStream::Stderr)
    }
}

fn push(state: &mut GuestState, stream: GuestStream) -> wasmtime::Result<Resource<DynOutputStream>> {
    let output: DynOutputStream = Box::new(LogStream { log: state.printed_to.clone(), stream });
    Ok(state.table.push(output)?)
}

struct LogStream {
    log: Arc<Guarded<Arc<Guarded<GuestLog>>>>,
    stream: GuestStream,
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        let log = self.log.lock().clone();
        log.lock().write(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT)
    }
}

#[async_trait]
impl Pollable for LogStream {
    async fn ready(&mut self) {}
}
