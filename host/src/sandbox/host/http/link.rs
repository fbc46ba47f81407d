//! Links wasi:http, with bounds on what a guest may make the host keep.
//!
//! Not here: the request itself (`http`).

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, LinkerInstance, Resource};
use wasmtime_wasi_http::WasiHttp;
use wasmtime_wasi_http::p2::bindings;
use wasmtime_wasi_http::p2::bindings::http::types::{
    ErrorCode, HostOutgoingRequest as _, Method, OutgoingRequest,
};

use super::exchange;
use crate::sandbox::state::GuestState;

/// Bytes of a request's method, authority and path, which the host holds until the request is dropped.
const MAX_METHOD: usize = 64;
const MAX_AUTHORITY: usize = 1024;
const MAX_PATH: usize = 16 * 1024;
/// The name under which the interface is linked; older versions of its series resolve to it.
const TYPES: &str = "wasi:http/types@0.2.12";

pub(in crate::sandbox::host) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    let options = bindings::LinkOptions::default();
    bindings::http::outgoing_handler::add_to_linker::<_, WasiHttp>(linker, GuestState::http)?;
    bindings::http::types::add_to_linker::<_, WasiHttp>(linker, &(&options).into(), GuestState::http)?;
    // The crate's own function does not know the errors that end a body, so this one takes its place.
    linker.allow_shadowing(true);
    linker.instance(TYPES)?.func_wrap(
        "http-error-code",
        |mut cx: StoreContextMut<'_, GuestState>,
         (error,): (Resource<bindings::http::types::IoError>,)|
         -> wasmtime::Result<(Option<ErrorCode>,)> {
            let error = cx.data_mut().table.get(&error)?;
            Ok((error
                .downcast_ref::<ErrorCode>()
                .cloned()
                .or_else(|| error.downcast_ref().and_then(exchange::body_error_code)),))
        },
    )?;
    add_bounds(&mut linker.instance(TYPES)?)?;
    linker.allow_shadowing(false);
    Ok(())
}

type Taken = wasmtime::Result<(Result<(), ()>,)>;

/// Bounds the texts of a request. The crate takes texts of any length, and each handle of a guest may be a
/// request.
fn add_bounds(types: &mut LinkerInstance<'_, GuestState>) -> wasmtime::Result<()> {
    type Request = Resource<OutgoingRequest>;
    let fits = |text: Option<&String>, most| text.is_none_or(|text| text.len() <= most);
    types.func_wrap(
        "[method]outgoing-request.set-method",
        move |mut cx: StoreContextMut<'_, GuestState>, (request, method): (Request, Method)| -> Taken {
            let other = if let Method::Other(other) = &method { Some(other) } else { None };
            Ok((if fits(other, MAX_METHOD) {
                cx.data_mut().http().set_method(request, method)?
            } else {
                Err(())
            },))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-authority",
        move |mut cx: StoreContextMut<'_, GuestState>, (request, text): (Request, Option<String>)| -> Taken {
            Ok((if fits(text.as_ref(), MAX_AUTHORITY) {
                cx.data_mut().http().set_authority(request, text)?
            } else {
                Err(())
            },))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-path-with-query",
        move |mut cx: StoreContextMut<'_, GuestState>, (request, text): (Request, Option<String>)| -> Taken {
            Ok((if fits(text.as_ref(), MAX_PATH) {
                cx.data_mut().http().set_path_with_query(request, text)?
            } else {
                Err(())
            },))
        },
    )
}
