//! `wasi:logging/logging`: one message, one log line.

use tracing::Level;
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

pub(super) const NAMES: &[&str] = &["wasi:logging/logging", "wasi:logging/logging@0.1.0-draft"];

#[allow(unsafe_code, reason = "derived")]
mod level {
    use wasmtime::component::{ComponentType, Lift};

    #[expect(dead_code, reason = "made only by the derived lifting code")]
    #[derive(Clone, Copy, ComponentType, Lift)]
    #[component(enum)]
    #[repr(u8)]
    pub(super) enum GuestLevel {
        #[component(name = "trace")]
        Trace,
        #[component(name = "debug")]
        Debug,
        #[component(name = "info")]
        Info,
        #[component(name = "warn")]
        Warn,
        #[component(name = "error")]
        Error,
        #[component(name = "critical")]
        Critical,
    }
}
use crate::sandbox::state::GuestState;
use level::GuestLevel;

pub(super) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    for name in NAMES {
        linker.instance(name)?.func_wrap(
            "log",
            |cx: StoreContextMut<'_, GuestState>,
             (level, context, message): (GuestLevel, String, String)|
             -> wasmtime::Result<()> {
                let level = match level {
                    GuestLevel::Trace => Level::TRACE,
                    GuestLevel::Debug => Level::DEBUG,
                    GuestLevel::Info => Level::INFO,
                    GuestLevel::Warn => Level::WARN,
                    GuestLevel::Error | GuestLevel::Critical => Level::ERROR,
                };
                cx.data().log().message(level, &context, &message);
                Ok(())
            },
        )?;
    }
    Ok(())
}
