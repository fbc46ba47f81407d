//! `tqhost:handler/blobs`: files in the plugin's own part of the object store.
//!
//! In: names and bytes of a guest. Out: the store's answers. The length of an argument is checked before its
//! bytes are copied, and the size of a blob before it is read: both count as the guest's memory.
//!
//! Not here: names and the store (`crate::blobs`).

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmList};

use crate::blobs::BlobError;
use crate::blobs::name::{BlobName, content_type};
use crate::sandbox::effects::CallError;
use crate::sandbox::granted::Granted;
use crate::sandbox::state::GuestState;
use error::Refusal;

const NAME: &str = "tqhost:handler/blobs@0.1.0";

#[allow(unsafe_code, reason = "derived")]
mod error {
    use wasmtime::component::{ComponentType, Lift, Lower};

    #[derive(ComponentType, Lift, Lower)]
    #[component(variant)]
    pub(super) enum Refusal {
        #[component(name = "invalid-name")]
        InvalidName(String),
        #[component(name = "not-found")]
        NotFound(String),
        #[component(name = "too-large")]
        TooLarge(String),
        #[component(name = "unavailable")]
        Unavailable(String),
    }
}

/// One call, with its checked name.
struct BlobCall {
    granted: Arc<Granted>,
    plugin: Arc<str>,
    name: BlobName,
}

impl BlobCall {
    /// Waits for a place among the calls of the plugin.
    async fn place(&self) -> Result<OwnedSemaphorePermit, BlobCallError> {
        let places = self.granted.owner.share().blob_calls.clone();
        let place = places.acquire_owned().await;
        Ok(place.map_err(|_| Refusal::Unavailable("the host stops".into()))?)
    }
}

type BlobCallError = CallError<Refusal>;

type Reply<T> = wasmtime::Result<(Result<T, Refusal>,)>;

pub(super) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    let mut blobs = linker.instance(NAME)?;
    blobs.func_wrap_async(
        "put",
        |cx: StoreContextMut<'_, GuestState>, (name, kind, data): (String, String, WasmList<u8>)| {
            Box::new(async move { reply(put(cx, name, kind, data).await) })
        },
    )?;
    blobs.func_wrap_async("get", |cx: StoreContextMut<'_, GuestState>, (name,): (String,)| {
        Box::new(async move { reply(get(cx, name).await) })
    })
}

async fn put(
    mut cx: StoreContextMut<'_, GuestState>,
    name: String,
    kind: String,
    data: WasmList<u8>,
) -> Result<String, BlobCallError> {
    let checked = cx.data().check_public(&kind, "content type");
    let kind = checked.and_then(|()| content_type(kind)).map_err(Refusal::InvalidName)?;
    let call = begin(cx.data(), name)?;
    let size = data.len() as u64;
    call.granted.blobs.check_size(size)?;
    let _place = call.place().await?;
    cx.data_mut().borrow_memory(size)?;
    let data = {
        let bytes = data.as_le_slice(&cx);
        Bytes::from(cx.data().log().mask().bytes(bytes).into_owned())
    };
    let put = call.granted.blobs.put(&call.plugin, &call.name, kind, data).await;
    cx.data_mut().return_memory();
    Ok(put?)
}

async fn get(mut cx: StoreContextMut<'_, GuestState>, name: String) -> Result<Vec<u8>, BlobCallError> {
    let call = begin(cx.data(), name)?;
    let _place = call.place().await?;
    let found = call.granted.blobs.find(&call.plugin, &call.name).await?;
    cx.data_mut().borrow_memory(found.size)?;
    let data = found.read().await;
    // The bytes become memory of the guest now, which is counted as it grows.
    cx.data_mut().return_memory();
    Ok(data?)
}

/// Checks that the guest may make the call.
fn begin(state: &GuestState, name: String) -> Result<BlobCall, Refusal> {
    let Some(plugin) = state.attempt.plugin.clone() else {
        return Err(Refusal::Unavailable("the call belongs to no task, so it has no blobs".into()));
    };
    let checked = state.check_public(&name, "name");
    let name = checked.and_then(|()| BlobName::new(name)).map_err(Refusal::InvalidName)?;
    Ok(BlobCall { granted: state.granted.clone(), plugin, name })
}

impl GuestState {
    /// Counts bytes of a blob as memory of the guest.
    fn borrow_memory(&mut self, bytes: u64) -> Result<(), BlobCallError> {
        let room = self.limits.room();
        if bytes > room {
            let why = format!("the blob has {bytes} bytes; the plugin's memory has room for {room}");
            return Err(Refusal::TooLarge(why).into());
        }
        self.borrowed = bytes;
        if !self.count() {
            return Err(wasmtime::format_err!("all handlers together have no more memory").into());
        }
        Ok(())
    }

    fn return_memory(&mut self) {
        self.borrowed = 0;
        self.count();
    }
}

fn reply<T>(result: Result<T, BlobCallError>) -> Reply<T> {
    match result {
        Ok(value) => Ok((Ok(value),)),
        Err(CallError::Refused(error)) => Ok((Err(error),)),
        Err(CallError::Trap(error)) => Err(error),
    }
}

impl From<Refusal> for BlobCallError {
    fn from(error: Refusal) -> BlobCallError {
        CallError::Refused(error)
    }
}

impl From<BlobError> for BlobCallError {
    fn from(error: BlobError) -> BlobCallError {
        CallError::Refused(match error {
            BlobError::NotFound(why) => Refusal::NotFound(why),
            BlobError::TooLarge(why) => Refusal::TooLarge(why),
            BlobError::Unavailable(why) => Refusal::Unavailable(why),
        })
    }
}
