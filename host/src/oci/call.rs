//! A call to a registry, and why it failed.
//!
//! Plain data, and digests in the form of registries. Not here: how it is sent (`http`).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::HeaderName;
use sha2::{Digest as _, Sha256};

use crate::secrets::hex;

/// How long a whole pull or push may take.
pub(crate) const TRANSFER: Duration = Duration::from_secs(600);

/// Why a registry gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OciError {
    pub why: String,
    /// The registry is away, slow or busy; nothing is known to be wrong with the reference.
    pub may_pass: bool,
}

impl OciError {
    pub(crate) fn lasting(why: impl Into<String>) -> OciError {
        OciError { why: why.into(), may_pass: false }
    }

    pub(crate) fn passing(why: impl Into<String>) -> OciError {
        OciError { why: why.into(), may_pass: true }
    }
}

impl fmt::Display for OciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for OciError {}

/// A request without its place.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn new(method: Method) -> Call {
        Call { method, headers: Vec::new(), body: Bytes::new() }
    }

    pub(super) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Call {
        self.headers.push((name, value.into()));
        self
    }
}

/// `sha256:` and the digits.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    shown_digest(&Sha256::digest(bytes))
}

/// Returns a digest as registries write it.
pub(crate) fn shown_digest(hash: &[u8]) -> String {
    format!("sha256:{}", hex(hash))
}
