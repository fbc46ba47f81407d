//! References to plugins in registries: `oci://registry/team/x:1.4@sha256:…`.
//!
//! In: the text of `source`, or an argument of `tqhost plugins push`. Out: its parts, each checked, so that
//! they can stand in a path of a request. Not here: requests (`oci`).

use std::fmt;
use std::net::IpAddr;

pub(crate) const SCHEME: &str = "oci://";
const DIGEST: &str = "sha256:";
const HEX_DIGITS: usize = 64;
const MAX_REPOSITORY: usize = 255;
const MAX_TAG: usize = 128;
/// The registry that answers for this name has another one.
const DOCKER_HUB: &str = "docker.io";

/// An artifact in a registry, by tag, by the digest of its manifest, or by both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciReference {
    /// Host with an optional port.
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: Option<String>,
}

impl OciReference {
    /// The error continues a sentence that begins with the text.
    pub fn parse(text: &str) -> Result<OciReference, String> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(format!("does not begin with {SCHEME}: write {SCHEME}registry/team/plugin:1.4"));
        };
        let (rest, digest) = match rest.split_once('@') {
            // A user in front of a registry.
            Some((before, _)) if !before.contains('/') => {
                return Err("has credentials: leave them out, and run docker login for the registry".into());
            }
            Some((rest, digest)) => (rest, Some(checked_digest(digest)?)),
            None => (rest, None),
        };
        let Some((registry, path)) = rest.split_once('/') else {
            return Err(format!("has no repository: write {SCHEME}registry/team/plugin:1.4"));
        };
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(checked_tag(tag)?)),
            None => (path, None),
        };
        check_registry(registry)?;
        check_repository(repository)?;
        if tag.is_none() && digest.is_none() {
            return Err("has neither tag nor digest: add a tag, as in :1.4, or @sha256:…".into());
        }
        let repository = match registry == DOCKER_HUB && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        Ok(OciReference { registry: registry.to_owned(), repository, tag, digest })
    }

    /// Where requests go: TLS, except on this machine.
    pub(crate) fn origin(&self) -> String {
        match self.registry.as_str() {
            DOCKER_HUB => "https://registry-1.docker.io".to_owned(),
            registry if is_local(registry) => format!("http://{registry}"),
            registry => format!("https://{registry}"),
        }
    }

    /// The registry's name in docker's configuration.
    pub(crate) fn login(&self) -> &str {
        if self.registry == DOCKER_HUB { "https://index.docker.io/v1/" } else { &self.registry }
    }

    /// The part that the registry is asked for: the digest where there is one.
    pub(crate) fn wanted(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or_default()
    }

    /// The same artifact, by this digest for ever.
    pub(crate) fn pinned(&self, digest: &str) -> OciReference {
        OciReference { digest: Some(digest.to_owned()), ..self.clone() }
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OciReference { registry, repository, tag, digest } = self;
        write!(f, "{SCHEME}{registry}/{repository}")?;
        tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
    }
}

/// Whether this is a digest that can be checked: `sha256:` and 64 hexadecimal digits.
pub(crate) fn is_digest(text: &str) -> bool {
    let is_hex = |hex: &str| hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.strip_prefix(DIGEST).is_some_and(|hex| hex.len() == HEX_DIGITS && is_hex(hex))
}

fn checked_digest(text: &str) -> Result<String, String> {
    match is_digest(text) {
        true => Ok(text.to_owned()),
        false => Err("has a digest of another form: write @sha256: and 64 digits of 0-9 and a-f".into()),
    }
}

fn checked_tag(text: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_');
    match begins && text.len() <= MAX_TAG && text.bytes().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "has a tag of another form: write 1 to {MAX_TAG} letters, digits, `_`, `.` and `-`, and none of \
             the last two at its beginning"
        )),
    }
}

fn check_registry(text: &str) -> Result<(), String> {
    let (host, port) = split_port(text);
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let is_ip = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).is_some_and(is_ip);
    let is_host = is_ip || (!host.is_empty() && host.bytes().all(is_name));
    match is_host && is_port {
        true => Ok(()),
        false => {
            Err(format!("has no registry that can be reached: write {SCHEME}HOST/… or {SCHEME}HOST:PORT/…"))
        }
    }
}

fn check_repository(text: &str) -> Result<(), String> {
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_good = |byte: u8| is_edge(&byte) || matches!(byte, b'.' | b'_' | b'-');
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(is_edge) && bytes.last().is_some_and(is_edge) && part.bytes().all(is_good)
    };
    match text.len() <= MAX_REPOSITORY && text.split('/').all(|part| is_part(part) && !part.contains("..")) {
        true => Ok(()),
        false => {
            Err("has a repository of another form: its parts have a-z, 0-9, and between these `.`, `_` \
                      and `-`"
                .into())
        }
    }
}

/// Host and port. An IPv6 address is in brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Whether the registry is on this machine.
pub(crate) fn is_local(registry: &str) -> bool {
    let host = split_port(registry).0;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_read_and_shown() {
        let digest = format!("sha256:{HEX}");
        for (text, registry, repository, tag, pinned) in [
            ("oci://ghcr.io/team/x:1.4", "ghcr.io", "team/x", Some("1.4"), false),
            ("oci://localhost:5000/x:a_B-1", "localhost:5000", "x", Some("a_B-1"), false),
            (&format!("oci://r.example/a/b/c@{digest}"), "r.example", "a/b/c", None, true),
            (&format!("oci://[::1]:5000/a__b/c--d:1@{digest}"), "[::1]:5000", "a__b/c--d", Some("1"), true),
        ] {
            let read = OciReference::parse(text).unwrap_or_else(|why| panic!("{text} {why}"));
            let wanted = pinned.then(|| digest.clone());
            assert_eq!(
                (&*read.registry, &*read.repository, read.tag.as_deref(), read.digest.clone()),
                (registry, repository, tag, wanted),
                "{text}"
            );
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn only_this_machine_is_asked_without_tls() {
        for (registry, origin) in [
            ("localhost:5000", "http://localhost:5000"),
            ("127.0.0.1", "http://127.0.0.1"),
            ("[::1]:5000", "http://[::1]:5000"),
            ("localhost.example", "https://localhost.example"),
            ("10.0.0.1:5000", "https://10.0.0.1:5000"),
            ("docker.io", "https://registry-1.docker.io"),
        ] {
            let reference = OciReference::parse(&format!("oci://{registry}/x:1")).expect(registry);
            assert_eq!(reference.origin(), origin);
        }
        let hub = OciReference::parse("oci://docker.io/x:1").expect("Docker Hub");
        assert_eq!((&*hub.repository, hub.login()), ("library/x", "https://index.docker.io/v1/"));
    }

    #[test]
    fn bad_references_say_what_to_write() {
        for (text, why) in [
            ("ghcr.io/team/x:1", "does not begin with oci://"),
            ("https://ghcr.io/team/x:1", "does not begin with oci://"),
            ("oci://ghcr.io", "has no repository"),
            ("oci:///x:1", "has no registry"),
            ("oci://gh cr.io/x:1", "has no registry"),
            ("oci://ghcr.io:0/x:1", "has no registry"),
            ("oci://ghcr.io:http/x:1", "has no registry"),
            ("oci://user:pass@ghcr.io/x:1", "has credentials"),
            ("oci://ghcr.io/team/x", "has neither tag nor digest"),
            ("oci://ghcr.io/team/x:", "has a tag of another form"),
            ("oci://ghcr.io/team/x:a b", "has a tag of another form"),
            ("oci://ghcr.io/team/x:1/../2", "has a tag of another form"),
            ("oci://ghcr.io/Team/x:1", "has a repository of another form"),
            ("oci://ghcr.io/../x:1", "has a repository of another form"),
            ("oci://ghcr.io/a//x:1", "has a repository of another form"),
            ("oci://ghcr.io/a/x?y:1", "has a repository of another form"),
            ("oci://ghcr.io/team/x@sha256:12", "has a digest of another form"),
            (&format!("oci://ghcr.io/team/x@sha512:{HEX}"), "has a digest of another form"),
            (&format!("oci://ghcr.io/x@sha256:{}", HEX.to_uppercase()), "has a digest of another form"),
        ] {
            let told = OciReference::parse(text).expect_err(text);
            assert!(told.contains(why), "{text} {told}");
        }
    }
}
