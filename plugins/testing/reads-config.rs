//! Returns its granted configuration: `{"model": …, "not-granted": …, "all": {…}}`. A key without a value is
//! null.
#![cfg(target_family = "wasm")]

use serde_json::{Map, Value, json};
use tqhost_handler::{Failure, Json, Task, config, handler};

fn handle(_: Task) -> Result<Json<Value>, Failure> {
    let all: Map<String, Value> =
        config::all()?.into_iter().map(|(key, value)| (key, value.into())).collect();
    Ok(Json(
        json!({ "model": config::get("model")?, "not-granted": config::get("not-granted")?, "all": all }),
    ))
}

handler!(handle);
