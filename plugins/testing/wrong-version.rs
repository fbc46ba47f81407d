//! Exports `tqhost:handler/handler@0.2.0`, a version that the host does not know. The host must refuse to
//! load it.
#![cfg(target_family = "wasm")]

wit_bindgen::generate!({ path: "wit-next", world: "tqhost:handler/task-handler" });

struct Next;

impl exports::tqhost::handler::handler::Guest for Next {
    fn handle(payload: Vec<u8>) -> Result<Vec<u8>, String> {
        Ok(payload)
    }
}

export!(Next);
