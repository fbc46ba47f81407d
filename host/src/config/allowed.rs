//! Where handlers may send requests, as values: hosts, and blocks of addresses.
//!
//! In: names and addresses, as texts. Out: the same in a canonical form, so that two spellings of a host are
//! one host.
//!
//! Not here: how the file's entries are read (`hosts`, `addresses`), which addresses are public (the
//! sandbox).

use std::fmt;
use std::net::IpAddr;

pub(crate) use url::Host;

/// One entry: requests with this scheme, to this host and this port, may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    pub scheme: Scheme,
    pub host: HostPattern,
    pub port: u16,
    /// Non-public addresses that its name, or the names below it, may resolve to.
    pub private_addresses: Vec<Block>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme.name())?;
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

/// One address, or all addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    address: IpAddr,
    bits: u32,
}

impl Block {
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(block), IpAddr::V4(address)) => {
                (block.to_bits() ^ address.to_bits()).leading_zeros() >= self.bits
            }
            (IpAddr::V6(block), IpAddr::V6(address)) => {
                (block.to_bits() ^ address.to_bits()).leading_zeros() >= self.bits
            }
            _ => false,
        }
    }

    /// The error continues a sentence that begins with the text.
    pub(crate) fn parse(text: &str) -> Result<Block, String> {
        let wrong = || {
            "is not an address or a block of them: write \"10.1.2.3\", \"10.0.0.0/8\" or \"fd00::/8\""
                .to_owned()
        };
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(wrong());
            }
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        let rest = match address {
            IpAddr::V4(address) => address.to_bits().checked_shl(bits).unwrap_or(0) != 0,
            IpAddr::V6(address) => address.to_bits().checked_shl(bits).unwrap_or(0) != 0,
        };
        if rest {
            Err(format!("has bits of its address set beyond the first {bits}"))
        } else {
            Ok(Block { address, bits })
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}
