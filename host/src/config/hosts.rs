//! `allowed_hosts` of a plugin: where its handlers may send requests.
//!
//! In: strings like `https://api.example.com`, `http://127.0.0.1:8080` and `https://*.example.org`, or tables
//! of such a string and the non-public addresses that it may resolve to. Out: [`AllowedHost`]s, whose names
//! and addresses have the same canonical form as those of a request, so that two spellings of a host are one
//! host.
//!
//! Not here: the values themselves (`allowed`), looking names up (the sandbox).

use std::borrow::Cow;

use super::allowed::{AllowedHost, Host, HostPattern, Scheme, parse_host};
use super::reader::Item;
use super::units::show_text;
use super::{addresses, keys};

/// An entry with addresses of its own.
const WITH_ADDRESSES: &str = "{ host = \"https://ledger.internal\", private_addresses = [\"10.4.0.0/16\"] }";
const FORM: &str = "write scheme://host or scheme://host:port, like \"https://api.example.com\"";

pub(super) fn read(item: &Item) -> Vec<AllowedHost> {
    let mut hosts: Vec<AllowedHost> = Vec::new();
    for entry in item.list().unwrap_or_default() {
        match read_entry(&entry) {
            None => {}
            Some(host) if hosts.contains(&host) => entry.warn("is in the list already"),
            Some(host) => {
                if matches!(&host.host, HostPattern::Below(parent) if !parent.contains('.')) {
                    entry.warn("allows every name of a top-level domain");
                }
                hosts.push(host);
            }
        }
    }
    hosts
}

fn read_entry(entry: &Item) -> Option<AllowedHost> {
    if entry.value().is_str() {
        return read_host(entry);
    }
    let wanted = format!("a string like \"https://api.example.com\", or a table like {WITH_ADDRESSES}");
    let table = entry.table_as(&keys::ALLOWED_HOST, &wanted);
    let private = table.get("private_addresses");
    let entries = private.as_ref().and_then(Item::list).unwrap_or_default();
    let private_addresses = addresses::read(&entries);
    let host = read_host(&table.required("host", &format!("write {WITH_ADDRESSES}"))?)?;
    if let (Some(private), HostPattern::Exactly(Host::Ipv4(_) | Host::Ipv6(_))) = (private, &host.host) {
        private.warn("has no effect: the host is an address, so that no name is looked up");
    }
    Some(AllowedHost { private_addresses, ..host })
}

fn read_host(item: &Item) -> Option<AllowedHost> {
    let text = item.string()?;
    parse(text).map_err(|why| item.problem(format!("{} {why}", show_text(&without_user(text))))).ok()
}

const HAS_USER: &str = "has a user name in it: take it out, requests carry their own authorization";

/// The part of an entry that messages may show: a user name may come with a password.
fn without_user(text: &str) -> Cow<'_, str> {
    let begin = text.find("://").map_or(0, |at| at + 3);
    match text[begin..].rfind('@') {
        Some(at) => format!("{}…{}", &text[..begin], &text[begin + at..]).into(),
        None => text.into(),
    }
}

/// The error continues a sentence that begins with the text.
fn parse(text: &str) -> Result<AllowedHost, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        if text.contains('@') {
            return Err(HAS_USER.into());
        }
        let is_host = !text.contains(['*', '/']) && text.split(':').next().and_then(parse_host).is_some();
        return Err(match is_host {
            true => format!("has no scheme: write {}", show_text(&format!("https://{text}"))),
            false => format!("is not a host: {FORM}"),
        });
    };
    let scheme: Scheme = scheme
        .to_ascii_lowercase()
        .parse()
        .map_err(|_| "has a scheme that handlers cannot use: write https:// or http://")?;
    if rest.contains('@') {
        return Err(HAS_USER.into());
    }
    if rest.contains(['/', '?', '#', '\\']) {
        let host = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        return Err(format!(
            "has a path: hosts are allowed as a whole, write {}",
            show_text(&format!("{}://{host}", scheme.into_str()))
        ));
    }
    let (host, port) = split_port(rest)?;
    let port = match port {
        None => scheme.default_port(),
        Some(port) => {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let number = port.parse().ok().filter(|port| is_number && *port != 0);
            number.ok_or("has a port that is not one: write 1 to 65535, or leave it out")?
        }
    };
    Ok(AllowedHost { scheme, host: parse_pattern(host)?, port, private_addresses: Vec::new() })
}

/// A port is behind the last colon; those within brackets belong to an address.
fn split_port(rest: &str) -> Result<(&str, Option<&str>), String> {
    if !rest.starts_with('[') {
        if rest.matches(':').count() > 1 {
            return Err("has too many colons: an IPv6 address stands in brackets, \
                        as in \"http://[2001:db8::1]:8080\""
                .into());
        }
        return Ok(rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))));
    }
    let end = rest.find(']').ok_or("has a bracket that is not closed")? + 1;
    match (&rest[..end], rest[end..].strip_prefix(':')) {
        (host, Some(port)) => Ok((host, Some(port))),
        (host, None) if rest.len() == end => Ok((host, None)),
        _ => Err(format!("is not a host: {FORM}")),
    }
}

fn parse_pattern(text: &str) -> Result<HostPattern, String> {
    let (name, is_wildcard) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
    if name.contains('*') || name.is_empty() && is_wildcard {
        return Err("has a wildcard in a place where it cannot be: it stands for names below a domain, \
             as in \"https://*.example.org\""
            .into());
    }
    let host =
        parse_host(name).filter(|_| !name.contains('%')).ok_or_else(|| format!("is not a host: {FORM}"))?;
    match &host {
        Host::Domain(name) if is_wildcard => return Ok(HostPattern::Below(name.clone())),
        Host::Domain(_) => return Ok(HostPattern::Exactly(host)),
        _ if is_wildcard => {
            return Err("has a wildcard in front of an address, which has nothing below it".into());
        }
        Host::Ipv4(address) => {
            if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
                return Err("is not the address of a host".into());
            }
        }
        Host::Ipv6(address) => {
            if address.is_unspecified() || address.is_multicast() {
                return Err("is not the address of a host".into());
            }
            if let Some(v4) = address.to_ipv4_mapped() {
                return Err(format!("is an IPv4 address in IPv6's clothes: write {v4}"));
            }
        }
    }
    // One address has many spellings; the configuration must show plainly which one is allowed.
    if host.to_string().eq_ignore_ascii_case(name) || matches!(host, Host::Ipv6(_)) {
        Ok(HostPattern::Exactly(host))
    } else {
        Err(format!("is an odd spelling of an address: write {host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse as config, refusals, table};
    use super::*;

    #[test]
    fn entries_are_brought_into_one_form() {
        let table = [
            ("https://api.example.com", "https://api.example.com"),
            ("HTTPS://API.Example.COM", "https://api.example.com"),
            ("https://api.example.com:443", "https://api.example.com"),
            ("https://api.example.com:8443", "https://api.example.com:8443"),
            ("https://api.example.com.", "https://api.example.com"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]", "http://[::1]"),
            ("http://[2001:DB8:0:0::1]:81", "http://[2001:db8::1]:81"),
            ("https://*.example.org", "https://*.example.org"),
            ("https://*.b\u{fc}cher.example", "https://*.xn--bcher-kva.example"),
            ("http://localhost:3000", "http://localhost:3000"),
        ];
        for (text, shown) in table {
            assert_eq!(parse(text).map(|host| host.to_string()), Ok(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn wrong_entries() {
        let texts = [
            "api.example.com",
            "api.example.com:8080",
            "",
            "*",
            "ftp://example.com",
            "*://example.com",
            "https://example.com/",
            "https://example.com/v1/chat",
            "https://example.com?x=1",
            "https://example.com#x",
            "https://example.com\\x",
            "https://user:secret@example.com",
            "https://",
            "https://*",
            "https://*.",
            "https://api.*.com",
            "https://*example.com",
            "https://*.*.example.com",
            "https://*.10.0.0.1",
            "https://exa mple.com",
            "https://a..b",
            "https://%65xample.com",
            "https://example.com:0",
            "https://example.com:",
            "https://example.com:99999",
            "https://example.com:+443",
            "https://example.com:*",
            "http://::1",
            "http://[::1",
            "http://[::1]x",
            "http://[fe80::1%25eth0]",
            "http://[::ffff:127.0.0.1]",
            "http://0x7f.1",
            "http://2130706433",
            "http://0.0.0.0",
            "http://[::]",
            "http://224.0.0.1",
            "http://999.0.0.1",
        ];
        insta::assert_snapshot!(table(&texts, |text| parse(text).expect_err(text)));
        let lists = [
            "[\"https://fine.example\", \"x/y\", 5]",
            "[\"https://me:hunter2@example.com\", \"me:hunter2@example.com\"]",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[plugins.a]\nallowed_hosts = {}", &lists), @"
        [\"https://fine.example\", \"x/y\", 5]
            line 3: plugins.a.allowed_hosts[1]: \"x/y\" is not a host: write scheme://host or \
            scheme://host:port, like \"https://api.example.com\"
            line 3: plugins.a.allowed_hosts[2]: is an integer, but must be a string like \
            \"https://api.example.com\", or a table like { host = \"https://ledger.internal\", \
            private_addresses = [\"10.4.0.0/16\"] }
        [\"https://me:hunter2@example.com\", \"me:hunter2@example.com\"]
            line 3: plugins.a.allowed_hosts[0]: \"https://…@example.com\" has a user name in it: take it \
            out, requests carry their own authorization
            line 3: plugins.a.allowed_hosts[1]: \"…@example.com\" has a user name in it: take it out, \
            requests carry their own authorization
        ");
    }

    #[test]
    fn entries_with_private_addresses() {
        let text = r#"
            [queues.a]
            [plugins.a]
            allowed_hosts = [
                "http://hooks.partner.example",
                { host = "https://LEDGER.internal:443", private_addresses = [
                    "10.0.0.0/8", "127.0.0.1", "fd00::/8", "0.0.0.0/0",
                ] },
                { host = "https://*.example.org" },
            ]
        "#;
        let blocks = |host: &AllowedHost| {
            host.private_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let entry = |host: &AllowedHost| (host.to_string(), blocks(host));
        let hosts: Vec<_> =
            config(text).expect("valid").plugins["a"].allowed_hosts.iter().map(entry).collect();
        let expected = [
            ("http://hooks.partner.example", ""),
            ("https://ledger.internal", "10.0.0.0/8 127.0.0.1/32 fd00::/8 0.0.0.0/0"),
            ("https://*.example.org", ""),
        ];
        assert_eq!(hosts, expected.map(|(host, blocks)| (host.to_owned(), blocks.to_owned())));
        let of_tables = "[[plugins.a.allowed_hosts]]\nhost = \"http://x.test\"\n\
                         private_addresses = [\"10.1.2.3\"]\n[queues.a]";
        assert_eq!(
            config(of_tables).expect("valid").plugins["a"].allowed_hosts[0].private_addresses.len(),
            1
        );
    }

    #[test]
    fn wrong_entries_with_private_addresses() {
        let entries = [
            "{ host = \"ledger.internal\" }",
            "{ host = 5 }",
            "{}",
            "{ private_addresses = [\"10.0.0.0/8\"] }",
            "{ hosts = \"http://x.test\" }",
        ];
        let list = "[queues.a]\n[plugins.a]\nallowed_hosts = [\"https://fine.example\", {}]";
        insta::assert_snapshot!(refusals(list, &entries));
        let blocks = [
            "\"10.0.0.0/8\"",
            "[5]",
            "[\"10.0.0.0/33\"]",
            "[\"::1\", \"10.0.0.1/8\"]",
            "[\"010.0.0.0/8\"]",
            "[\"10.0.0.0/\"]",
            "[\"10.0.0.0/264\"]",
            "[\"10.0.0.0/+8\"]",
            "[\"localhost\"]",
        ];
        let list = list.replace("{}", "{ host = \"http://x.test\", private_addresses = {} }");
        insta::assert_snapshot!(refusals(&list, &blocks));
    }

    #[test]
    fn an_entry_allows_its_own_host_scheme_and_port_only() {
        let table = [
            ("https://example.com", "https", "example.com", 443, true),
            ("https://example.com", "http", "example.com", 443, false),
            ("https://example.com", "https", "example.com", 8443, false),
            ("https://example.com", "https", "EXAMPLE.com.", 443, true),
            ("https://example.com", "https", "api.example.com", 443, false),
            ("https://example.com", "https", "example.com.evil.net", 443, false),
            ("https://example.com", "https", "notexample.com", 443, false),
            ("https://*.example.com", "https", "api.example.com", 443, true),
            ("https://*.example.com", "https", "a.b.example.com", 443, true),
            ("https://*.example.com", "https", "example.com", 443, false),
            ("https://*.example.com", "https", "notexample.com", 443, false),
            ("https://*.example.com", "https", "api.example.com.evil.net", 443, false),
            ("http://127.0.0.1", "http", "127.0.0.1", 80, true),
            ("http://127.0.0.1", "http", "0x7f000001", 80, true),
            ("http://127.0.0.1", "http", "127.0.0.2", 80, false),
            ("http://127.0.0.1", "http", "localhost", 80, false),
            ("http://127.0.0.1", "http", "[::ffff:127.0.0.1]", 80, false),
            ("http://[::1]", "http", "[0:0:0:0:0:0:0:1]", 80, true),
            ("https://xn--bcher-kva.example", "https", "B\u{dc}CHER.example", 443, true),
        ];
        for (entry, scheme, host, port, allowed) in table {
            let scheme = scheme.parse().expect(scheme);
            let host = parse_host(host).expect(host);
            assert_eq!(
                parse(entry).expect(entry).allows(scheme, &host, port),
                allowed,
                "{entry} and {host}:{port}"
            );
        }
    }

    #[test]
    fn odd_lists_are_warned_about() {
        let text = r#"
            [queues.a]
            [plugins.a]
            allowed_hosts = [
                "https://a.example",
                "https://A.example:443",
                "https://*.com",
                { host = "https://a.example", private_addresses = ["10.1.2.3"] },
                { host = "http://10.1.2.3", private_addresses = ["10.1.2.4"] },
            ]
        "#;
        let config = config(text).expect("valid");
        // Two entries add up.
        assert_eq!(config.plugins["a"].allowed_hosts.len(), 4);
        insta::assert_snapshot!(config.warnings.join("\n"), @"
        line 6: plugins.a.allowed_hosts[1]: is in the list already
        line 7: plugins.a.allowed_hosts[2]: allows every name of a top-level domain
        line 9: plugins.a.allowed_hosts[4].private_addresses: has no effect: the host is an address, so \
        that no name is looked up
        ");
    }
}
