//! A call to a registry, why it failed, and digests in the form of registries.
//!
//! Not here: sending a call (`http`).

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::HeaderName;
use sha2::{Digest as _, Sha256};

use crate::secrets::hex;

/// How long a whole pull or push may take.
pub(crate) const TRANSFER: Duration = Duration::from_secs(600);

/// Why a pull or a push failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct OciError {
    pub why: String,
    /// Whether a later try may succeed: the registry cannot be reached, or is slow or busy.
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

/// A request without its url.
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

/// The digest of these bytes, as registries write it.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    shown_digest(&Sha256::digest(bytes))
}

/// Returns a SHA-256 as registries write it: `sha256:` and the digits.
pub(crate) fn shown_digest(hash: &[u8]) -> String {
    format!("sha256:{}", hex(hash))
}
