//! Tells callers apart by the bearer tokens of `[admin]`.
//!
//! In: the headers of a request. Out: the [`Caller`], or none where the token is missing or wrong. Not here:
//! what a caller may do (`api::guard`).

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::{self, Secret};

/// The tokens that are set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    pub token: Option<Secret>,
    pub read_token: Option<Secret>,
}

/// Somebody who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the token, for the audit: never its text.
    pub name: &'static str,
    pub may_change: bool,
}

impl Tokens {
    pub(crate) fn of(admin: &config::model::Admin) -> Tokens {
        Tokens { token: admin.token.clone(), read_token: admin.read_token.clone() }
    }

    /// Whether requests need a token.
    pub(crate) fn are_set(&self) -> bool {
        self.token.is_some() || self.read_token.is_some()
    }

    /// The sender of a request with these headers. Without tokens it is anybody who reaches the address.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        if !self.are_set() {
            return Some(Caller { name: "anybody", may_change: true });
        }
        let given = bearer(headers)?;
        // Both are compared, whatever the first one says.
        let (token, read_token) = (is(given, self.token.as_ref()), is(given, self.read_token.as_ref()));
        match (token, read_token) {
            (true, _) => Some(Caller { name: "token", may_change: true }),
            (false, true) => Some(Caller { name: "read_token", may_change: false }),
            (false, false) => None,
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Compares the digests of the two in constant time: the time tells neither where they differ nor how long
/// the token is.
fn is(given: &[u8], expected: Option<&Secret>) -> bool {
    let Some(expected) = expected else { return false };
    let (given, expected) = (Sha256::digest(given), Sha256::digest(expected.expose()));
    given.as_slice().ct_eq(expected.as_slice()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_known_by_the_token() {
        let set = |token: Option<&str>, read: Option<&str>| Tokens {
            token: token.map(Secret::new),
            read_token: read.map(Secret::new),
        };
        let table = [
            (set(None, None), None, Some(("anybody", true))),
            (set(None, None), Some("Bearer x"), Some(("anybody", true))),
            (set(Some("a"), None), None, None),
            (set(Some("a"), None), Some("a"), None),
            (set(Some("a"), None), Some("Basic a"), None),
            (set(Some("a"), None), Some("Bearer b"), None),
            (set(Some("a"), None), Some("Bearer "), None),
            (set(Some("a"), None), Some("Bearer aa"), None),
            (set(Some("a"), None), Some("bearer a"), Some(("token", true))),
            (set(Some("a"), Some("b")), Some("Bearer a"), Some(("token", true))),
            (set(Some("a"), Some("b")), Some("Bearer b"), Some(("read_token", false))),
            (set(Some("a"), Some("b")), Some("Bearer c"), None),
        ];
        for (tokens, header, expected) in table {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            let caller = tokens.caller(&headers).map(|caller| (caller.name, caller.may_change));
            assert_eq!(caller, expected, "{tokens:?} {header:?}");
        }
    }
}
