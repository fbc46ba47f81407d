//! Decides which addresses a request may be sent to.
//!
//! In: the address of a host name, and the private addresses that the configuration allows. Out: yes, or the
//! kind of the address. An address that is not known to be public is refused: the ranges of IANA's
//! special-purpose registries, all of IPv6 that is not global unicast, the address at which each machine of
//! Azure finds its platform, and this machine's own addresses, even if they are public.
//!
//! Not here: the lookup (`connect`), whether the host is allowed at all (`config::allowed`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::allowed::Host;

/// Whether a request may connect to `address`; the error is the kind of the address. `private` has the
/// private addresses that the matching entries of allowed_hosts allow. An address that the request's URL
/// names is allowed, since an entry has to name it, too: a wildcard allows names only.
pub(super) fn check(host: &Host<String>, address: IpAddr, private: &[IpNet]) -> Result<(), &'static str> {
    let own = || is_own(address).then_some("an address of this machine");
    let Some(kind) = special(address).or_else(own) else { return Ok(()) };
    let is_named = match host {
        Host::Ipv4(named) => address == *named,
        Host::Ipv6(named) => address == *named,
        Host::Domain(name) => name == "localhost" && address.is_loopback(),
    };
    if is_named || private.iter().any(|block| block.contains(&address)) { Ok(()) } else { Err(kind) }
}

const RESERVED: &str = "a reserved address";
const EXAMPLE: &str = "an address for documentation";

const V4: [(Ipv4Net, &str); 17] = [
    (v4([0, 0, 0, 0], 8), "an unspecified address"),
    (v4([10, 0, 0, 0], 8), "a private address"),
    (v4([100, 64, 0, 0], 10), "a carrier's private address"),
    (v4([127, 0, 0, 0], 8), "a loopback address"),
    (v4([168, 63, 129, 16], 32), "the address of a cloud's platform"),
    (v4([169, 254, 0, 0], 16), "a link-local address"),
    (v4([172, 16, 0, 0], 12), "a private address"),
    (v4([192, 0, 0, 0], 24), RESERVED),
    (v4([192, 0, 2, 0], 24), EXAMPLE),
    (v4([192, 88, 99, 0], 24), "a 6to4 relay's address"),
    (v4([192, 168, 0, 0], 16), "a private address"),
    (v4([198, 18, 0, 0], 15), "an address for benchmarks"),
    (v4([198, 51, 100, 0], 24), EXAMPLE),
    (v4([203, 0, 113, 0], 24), EXAMPLE),
    (v4([224, 0, 0, 0], 4), "a multicast address"),
    (v4([255, 255, 255, 255], 32), "a broadcast address"),
    (v4([240, 0, 0, 0], 4), RESERVED),
];

/// Special ranges of IPv6. The first match counts. Other addresses outside of global unicast are reserved.
const V6: [(Ipv6Net, &str); 12] = [
    (v6([0; 8], 128), "an unspecified address"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "a loopback address"),
    (v6([0; 8], 96), "an IPv4-compatible address"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "a Teredo address"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), RESERVED),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), EXAMPLE),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a 6to4 address"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), EXAMPLE),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "a unique local address"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "a link-local address"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "a site-local address"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "a multicast address"),
];

const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const fn v4(address: [u8; 4], bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_octets(address), bits)
}

const fn v6(address: [u16; 8], bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::from_segments(address), bits)
}

/// The kind of an address that is not public.
fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// Whether this is an address of this machine, where something may listen. The machine does not know an
/// address that a gateway translates to it.
fn is_own(address: IpAddr) -> bool {
    let has = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    // No machine has an address for documentation. One that binds to it is set up to bind to any, as load
    // balancers are.
    let foreign: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    has(address) && !has(foreign)
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    V4.iter().find(|(range, _)| range.contains(&address)).map(|(_, kind)| *kind)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = address.to_ipv4_mapped() {
        return special_v4(inner);
    }
    // On networks without IPv4, the lookup of an IPv4 host gives such an address.
    if NAT64.contains(&address) {
        let [.., a, b, c, d] = address.octets();
        return special_v4(Ipv4Addr::new(a, b, c, d));
    }
    let known = V6.iter().find(|(range, _)| range.contains(&address)).map(|(_, kind)| *kind);
    known.or_else(|| (!GLOBAL_UNICAST.contains(&address)).then_some(RESERVED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::allowed::parse_host;

    /// Ranges of special addresses: a word of their kind, addresses in them, with the first and the last one
    /// where it matters, and their public neighbours.
    const RANGES: &[(&str, &str, &str)] = &[
        ("unspecified", "0.0.0.0 0.255.255.255", "1.0.0.0 1.1.1.1"),
        ("private", "10.0.0.0 10.255.255.255", "9.255.255.255 11.0.0.0"),
        ("carrier", "100.64.0.0 100.127.255.255", "100.63.255.255 100.128.0.0"),
        ("loopback", "127.0.0.1 127.255.255.254", "126.255.255.255 128.0.0.0"),
        ("platform", "168.63.129.16 ::ffff:168.63.129.16", "168.63.129.15 168.63.129.17"),
        ("link-local", "169.254.0.0 169.254.169.254 169.254.255.255", "169.253.255.255 169.255.0.0"),
        ("private", "172.16.0.0 172.31.255.255", "172.15.255.255 172.32.0.0"),
        ("reserved", "192.0.0.1 192.0.0.255", "191.255.255.255 192.0.1.0"),
        ("documentation", "192.0.2.1", "192.0.3.0"),
        ("6to4", "192.88.99.1", ""),
        ("private", "192.168.0.0 192.168.255.255", "192.167.255.255 192.169.0.0"),
        ("benchmarks", "198.18.0.0 198.19.255.255", "198.17.255.255 198.20.0.0"),
        ("documentation", "198.51.100.7", "198.51.101.0"),
        ("documentation", "203.0.113.255", "203.0.114.0"),
        ("multicast", "224.0.0.1 239.255.255.255", "223.255.255.255"),
        ("reserved", "240.0.0.0 255.255.255.254", ""),
        ("broadcast", "255.255.255.255", "8.8.8.8"),
        ("unspecified", "::", ""),
        ("loopback", "::1", ""),
        ("IPv4-compatible", "::2 ::127.0.0.1 ::8.8.8.8", ""),
        // Addresses of IPv4 in IPv6.
        ("loopback", "::ffff:127.0.0.1 64:ff9b::127.0.0.1", "::ffff:8.8.8.8 64:ff9b::8.8.8.8"),
        ("private", "::ffff:10.1.2.3 64:ff9b::192.168.1.1", ""),
        ("link-local", "::ffff:169.254.169.254 64:ff9b::a9fe:a9fe", ""),
        ("reserved", "::ffff:0:127.0.0.1 64:ff9b:0:0:0:1:8.8.8.8 64:ff9b:1::8.8.8.8", ""),
        ("reserved", "100::1 1fff:ffff::1", ""),
        ("Teredo", "2001::7f00:1", ""),
        ("reserved", "2001:2::1 2001:10::1 2001:20::1 2001:1ff:ffff::1", "2001:200::1 2001:4860:4860::8888"),
        ("documentation", "2001:db8::1", "2001:db7:ffff::1 2001:db9::1"),
        ("6to4", "2002:7f00:1::1 2002:808:808::1", "2003::1 2606:4700::1111 2a00:1450::1"),
        ("documentation", "3fff::1 3fff:fff:ffff::1", "3ffe:ffff::1 3fff:1000::1"),
        ("reserved", "4000::1 5f00::1 fbff::1 fe00::1", ""),
        ("unique local", "fc00::1 fd00:ec2::254", ""),
        ("link-local", "fe80::1 febf::1", ""),
        ("site-local", "fec0::1 feff::1", ""),
        ("multicast", "ff02::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ""),
    ];

    #[test]
    fn only_public_addresses_are_public() {
        let kind_of = |address: &str| special(address.parse().expect(address));
        for (kind, within, beside) in RANGES {
            for address in within.split_whitespace() {
                let found = kind_of(address);
                assert!(found.is_some_and(|found| found.contains(kind)), "{address}: {found:?}");
            }
            for address in beside.split_whitespace() {
                assert_eq!(kind_of(address), None, "{address}");
            }
        }
    }

    #[test]
    fn the_addresses_of_this_machine_are_known() {
        let table = [("127.0.0.1", true), ("127.9.9.9", true), ("203.0.113.7", false), ("8.8.8.8", false)];
        for (address, expected) in table {
            assert_eq!(is_own(address.parse().expect(address)), expected, "{address}");
        }
        // The address from which this machine speaks to others, if it does.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        if socket.connect("203.0.113.7:9").is_ok() {
            assert!(is_own(socket.local_addr().expect("an address").ip()));
        }
    }

    #[test]
    fn an_address_that_the_configuration_names_may_be_special() {
        let private = [v4([10, 1, 0, 0], 16).into(), v6([0xfd00, 0, 0, 0, 0, 0, 0, 1], 128).into()];
        let table = [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("0x7f.0.0.1", "127.0.0.1", true),
            ("[::1]", "::1", true),
            ("[::1]", "127.0.0.1", false),
            ("169.254.169.254", "169.254.169.254", true),
            ("localhost", "127.0.0.1", true),
            ("LOCALHOST.", "::1", true),
            ("localhost", "10.0.0.1", false),
            ("localhost.example.com", "127.0.0.1", false),
            ("api.localhost", "127.0.0.1", false),
            ("internal.example.com", "10.1.2.3", true),
            ("internal.example.com", "::ffff:10.1.2.3", false),
            ("internal.example.com", "10.2.0.0", false),
            ("internal.example.com", "fd00::1", true),
            ("internal.example.com", "fd00::2", false),
            ("internal.example.com", "169.254.169.254", false),
            ("internal.example.com", "8.8.8.8", true),
        ];
        for (host, address, allowed) in table {
            let checked = check(&parse_host(host).expect(host), address.parse().expect(address), &private);
            assert_eq!(checked.is_ok(), allowed, "{host} at {address}: {checked:?}");
        }
    }
}
