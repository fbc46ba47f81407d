//! Where a request goes: its scheme, host and port.
//!
//! In: the URI of a guest's request. Out: its [`Target`], in one spelling.
//!
//! Not here: whether the target is allowed (`grant`), its addresses (`connect`).

use std::fmt;

use crate::config::allowed::{Host, Scheme, parse_host};

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) scheme: Scheme,
    pub(super) host: Host<String>,
    pub(super) port: u16,
}

impl Target {
    /// Returns None for another scheme, a user name in the URI, or a host that is neither a name nor an
    /// address.
    pub(super) fn of(uri: &http::Uri) -> Option<Target> {
        let scheme: Scheme = uri.scheme_str()?.parse().ok()?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = parse_host(authority.host())?;
        // The host is followed by a colon and a port, or by nothing. `port_u16` gives None for an invalid
        // port.
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" | ":" => scheme.default_port(),
            _ => authority.port_u16()?,
        };
        Some(Target { scheme, host, port })
    }

    /// The value of the header `Host`.
    pub(super) fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.into_str(), self.authority())
    }
}
