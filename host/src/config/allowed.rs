//! Where handlers may send requests, as values.
//!
//! In: hosts, as texts. Out: hosts in a canonical form, so that two spellings of a host are one host.
//!
//! Not here: how the file's entries are read (`hosts`, `addresses`), which addresses are public (the
//! sandbox).

use std::fmt;

use ipnet::IpNet;
use strum::{EnumString, IntoStaticStr};
pub(crate) use url::Host;

/// One entry: requests with this scheme, to this host and this port, may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    pub scheme: Scheme,
    pub host: HostPattern,
    pub port: u16,
    /// Non-public addresses that its name, or the names below it, may resolve to.
    pub private_addresses: Vec<IpNet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Scheme {
    Http,
    Https,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// A name in lower case and ASCII, without a dot at its end; or an address.
    Exactly(Host<String>),
    /// Every name that ends in a dot and this name, but not the name itself.
    Below(String),
}

impl AllowedHost {
    /// Whether this entry allows requests to `host`, a name in the same form as here.
    pub fn allows(&self, scheme: Scheme, host: &Host<String>, port: u16) -> bool {
        let is_host = match (&self.host, host) {
            (HostPattern::Exactly(allowed), host) => allowed == host,
            (HostPattern::Below(parent), Host::Domain(name)) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|labels| labels.len() > 1 && labels.ends_with('.')),
            (HostPattern::Below(_), _) => false,
        };
        is_host && self.scheme == scheme && self.port == port
    }
}

impl Scheme {
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme.into_str())?;
        match &self.host {
            HostPattern::Exactly(host) => write!(f, "{host}")?,
            HostPattern::Below(parent) => write!(f, "*.{parent}")?,
        }
        if self.port == self.scheme.default_port() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Converts a host to its canonical form: names in lower case and ASCII, one spelling for each address.
pub(crate) fn parse_host(text: &str) -> Option<Host<String>> {
    match Host::parse(text).ok()? {
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            let is_name =
                name.len() <= 253 && name.split('.').all(|label| !label.is_empty() && label.len() <= 63);
            is_name.then(|| Host::Domain(name.to_owned()))
        }
        address => Some(address),
    }
}
