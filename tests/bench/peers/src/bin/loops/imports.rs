//! Links the imports of guests for the sandboxed loop.
//!
//! In: a component. Out: a linker with WASI and WASI HTTP as wasmtime implements them, a log that drops its
//! messages, and functions that trap for all other imports. No task of this comparison calls those.

use http::{Request, Response};
use peers::Error;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{
    RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use super::sandbox::State;

/// The interfaces of wasmtime's own crates, which are real.
const REAL: [&str; 7] = [
    "wasi:cli/",
    "wasi:clocks/",
    "wasi:filesystem/",
    "wasi:http/",
    "wasi:io/",
    "wasi:random/",
    "wasi:sockets/",
];
const LOG: &str = "wasi:logging/logging";

/// The part of WASI that belongs to one instance.
pub struct Wasi {
    ctx: WasiCtx,
    http: WasiHttpCtx,
    hooks: NoRequests,
    table: ResourceTable,
}

impl Default for Wasi {
    fn default() -> Wasi {
        Wasi {
            ctx: WasiCtx::builder().build(),
            http: WasiHttpCtx::new(),
            hooks: NoRequests,
            table: ResourceTable::new(),
        }
    }
}

impl State {
    fn imported(&mut self) -> &mut Wasi {
        self.wasi.as_mut().expect("a guest that imports WASI")
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let Wasi { ctx, table, .. } = self.imported();
        WasiCtxView { ctx, table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let Wasi { http: ctx, hooks, table, .. } = self.imported();
        WasiHttpCtxView { ctx, hooks, table }
    }
}

/// Refuses every request.
struct NoRequests;

type Later<T> = Box<dyn Future<Output = T> + Send>;
type Sent = wasmtime_wasi_http::Result<()>;

impl WasiHttpHooks for NoRequests {
    fn send_request(
        &mut self,
        _: Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Later<Sent>,
    ) -> Later<wasmtime_wasi_http::Result<(Response<WasiBody>, Later<Sent>)>> {
        Box::new(std::future::ready(Err(wasmtime_wasi_http::Error::HttpRequestDenied)))
    }
}

pub fn link(linker: &mut Linker<State>, component: &Component) -> Result<(), Error> {
    wasmtime_wasi::p2::add_to_linker_sync(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_sync(linker)?;
    let engine = linker.engine().clone();
    for (name, import) in component.component_type().imports(&engine) {
        // The linker knows another version of an interface by itself. A definition under the name of that
        // version would hide the real one.
        if REAL.iter().any(|real| name.starts_with(real)) {
            continue;
        }
        let ComponentItem::ComponentInstance(interface) = import.ty else {
            return Err(format!("the guest imports {name}, which is no interface").into());
        };
        let mut instance = linker.instance(name)?;
        for (function, item) in interface.exports(&engine) {
            let ComponentItem::ComponentFunc(_) = item.ty else { continue };
            if name.starts_with(LOG) {
                instance.func_new(function, |_, _, _, _| Ok(()))?;
                continue;
            }
            let called = format!("{name}#{function}");
            instance.func_new(function, move |_, _, _, _| wasmtime::bail!("the guest calls {called}"))?;
        }
    }
    Ok(())
}
