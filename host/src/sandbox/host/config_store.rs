//! `wasi:config/store`: the plugin's `config` table, read only.
//!
//! Two incompatible pre-release versions are in use, so the same functions are linked under both names.

use crate::sandbox::state::GuestState;
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

pub(super) const NAMES: &[&str] = &["wasi:config/store@0.2.0-draft", "wasi:config/store@0.2.0-rc.1"];

/// The interface's error; reading from memory never fails, but the type belongs to the signature.
#[allow(unsafe_code, reason = "derived")]
mod error {
    use wasmtime::component::{ComponentType, Lift, Lower};

    #[derive(ComponentType, Lift, Lower)]
    #[component(variant)]
    pub(super) enum Error {
        #[component(name = "upstream")]
        Upstream(String),
        #[component(name = "io")]
        Io(String),
    }
}

type Reply<T> = (Result<T, error::Error>,);

pub(super) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    for name in NAMES {
        let mut store = linker.instance(name)?;
        store.func_wrap(
            "get",
            |cx: StoreContextMut<'_, GuestState>,
             (key,): (String,)|
             -> wasmtime::Result<Reply<Option<String>>> {
                Ok((Ok(cx.data().granted.config.get(&key).map(|value| value.expose().to_owned())),))
            },
        )?;
        store.func_wrap(
            "get-all",
            |cx: StoreContextMut<'_, GuestState>, (): ()| -> wasmtime::Result<Reply<Vec<(String, String)>>> {
                let config = cx.data().granted.config.iter();
                Ok((Ok(config.map(|(key, value)| (key.clone(), value.expose().to_owned())).collect()),))
            },
        )?;
    }
    Ok(())
}
