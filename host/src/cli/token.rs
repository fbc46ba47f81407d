//! `tqhost token`: makes a token for the admin address.
//!
//! Out: 256 random bits as text, and their SHA-256, which is all that a configuration needs. Nothing keeps
//! the token. Not here: how tokens are compared (`admin::tokens`), the form of their hashes
//! (`config::access`).

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::output::Out;
use crate::secrets::{hex, random};

pub(super) fn run(out: &mut Out) {
    let token = hex(&random());
    let hash = format!("sha256:{}", hex(&Sha256::digest(&token)));
    let view = json!({ "token": token, "hash": hash });
    out.show(&view, |_| format!("token  {token}\nhash   {hash}"));
}
