//! Tells callers apart: by the bearer tokens of `[admin]`, or by the name that a trusted proxy tells.
//!
//! In: the headers of a request, and the address that it came from. Out: the [`Caller`], or none where the
//! token is missing or wrong. Only digests of tokens are kept, and all of them are compared in constant time.
//!
//! Not here: what a caller may do (`roles`), sessions of browsers (`dashboard`).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::{ApiProblem, ProblemCode};
use crate::config::model::Admin;
use crate::config::{AUDIT_NAMES, AccessRole, TrustedProxy};
use crate::secrets::{Bytes32, from_hex};

/// The longest name of a user that a proxy tells.
const MAX_USER: usize = 128;
/// Names that belong to no user and no token.
const NOT_USERS: [&str; 2] = [ANYBODY, NOBODY];
const ANYBODY: &str = "anybody";
const NOBODY: &str = "nobody";

/// The tokens that are set, and the proxy that is trusted. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Tokens(Arc<Credentials>);

#[derive(Default)]
struct Credentials {
    tokens: Vec<Credential>,
    proxy: Option<TrustedProxy>,
    /// Whether the log has a line about a name of a user that did not come from the proxy.
    has_warned: AtomicBool,
}

/// A token.
pub(crate) struct Credential {
    pub caller: Caller,
    pub digest: Bytes32,
}

/// Somebody who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the user or of the token, never the token itself.
    pub name: Arc<str>,
    pub role: AccessRole,
}

impl Caller {
    pub(crate) fn new(name: &str, role: AccessRole) -> Caller {
        Caller { name: name.into(), role }
    }

    /// A caller of a host without tokens, where everybody who reaches the address may do everything.
    pub(crate) fn anybody() -> Caller {
        Caller::new(ANYBODY, AccessRole::Admin)
    }

    /// A caller without a valid token.
    pub(crate) fn nobody() -> Caller {
        Caller::new(NOBODY, AccessRole::Read)
    }

    /// Whether the name belongs to a user or a token.
    pub(crate) fn is_known(&self) -> bool {
        !NOT_USERS.contains(&&*self.name)
    }

    pub(crate) fn may(&self, needed: AccessRole) -> bool {
        self.role >= needed
    }
}

impl Tokens {
    pub(crate) fn of(admin: &Admin) -> Tokens {
        let in_clear =
            [("token", &admin.token, AccessRole::Admin), ("read_token", &admin.read_token, AccessRole::Read)];
        let in_clear = in_clear.into_iter().filter_map(|(name, token, role)| {
            let digest = Sha256::digest(token.as_ref()?.expose()).into();
            Some(Credential { caller: Caller::new(name, role), digest })
        });
        let hashed = admin.tokens.iter().filter_map(|token| {
            let digest = from_hex(token.hash.expose())?;
            Some(Credential { caller: Caller::new(&token.name, token.role), digest })
        });
        let (tokens, proxy) = (in_clear.chain(hashed).collect(), admin.proxy.clone());
        Tokens(Arc::new(Credentials { tokens, proxy, has_warned: AtomicBool::new(false) }))
    }

    /// Whether requests need a token.
    pub(crate) fn are_set(&self) -> bool {
        !self.0.tokens.is_empty()
    }

    /// The sender of a request with these headers. Without tokens it is anybody who reaches the address.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        if !self.are_set() {
            return Some(Caller::anybody());
        }
        self.caller_with(bearer(headers)?)
    }

    /// The caller that has this token.
    pub(crate) fn caller_with(&self, given: &[u8]) -> Option<Caller> {
        let given = Sha256::digest(given);
        let mut found = None;
        // The time must not tell which token is like the given one, so all of them are compared.
        for Credential { caller, digest } in &self.0.tokens {
            if bool::from(given.as_slice().ct_eq(digest)) {
                found = Some(caller);
            }
        }
        found.cloned()
    }

    /// The token of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Credential> {
        self.0.tokens.iter().find(|known| &*known.caller.name == name)
    }

    /// The user that the proxy names. None: there is no proxy, or it names nobody.
    pub(crate) fn proxied(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Option<Caller>, ApiProblem> {
        let Some(proxy) = &self.0.proxy else { return Ok(None) };
        let mut names = headers.get_all(&proxy.header).iter();
        let Some(name) = names.next() else { return Ok(None) };
        let header = &proxy.header;
        if !proxy.trusts(peer) {
            if !self.0.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    %peer,
                    %header,
                    "a header with the name of a user is ignored, as it does not come from trusted_proxies \
                     of [admin] (told once)"
                );
            }
            return Ok(None);
        }
        // Several headers are the same as one with commas, so a comma may hide a second name.
        let is_sane = |name: &&str| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",;\"<>".contains(&byte);
            (1..=MAX_USER).contains(&name.len()) && name.bytes().all(is_plain)
        };
        let bad = |detail: String| Err(ApiProblem::new(ProblemCode::BadRequest, detail));
        let Some(name) = name.to_str().ok().filter(is_sane).filter(|_| names.next().is_none()) else {
            return bad(format!(
                "{header} must be there once, with one name of 1 to {MAX_USER} visible ASCII characters and \
                 no comma: let the proxy set it"
            ));
        };
        // The audit tells users and tokens apart by their names alone.
        if self.named(name).is_some() || AUDIT_NAMES.contains(&name) {
            return bad(format!("{header} is {name}, which is the name of somebody else here"));
        }
        // A proxy sends several groups in one line, or a line for each.
        let lines = proxy.groups.iter().flat_map(|(header, _)| headers.get_all(header));
        let groups = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
        Ok(Some(Caller::new(name, proxy.role_of(groups.map(str::trim)))))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Secret;
    use crate::config::model::NamedToken;
    use crate::secrets::hex;

    /// `[admin]` with these tokens, and one with a name and a hash for each further one.
    pub(in super::super) fn admin(token: Option<&str>, read: Option<&str>, named: &[&str]) -> Admin {
        let named = named.iter().map(|token| NamedToken {
            name: format!("of-{token}"),
            role: AccessRole::Operate,
            hash: Secret::new(hex(&Sha256::digest(token))),
        });
        Admin {
            listen: "127.0.0.1:0".parse().unwrap(),
            token: token.map(Secret::new),
            read_token: read.map(Secret::new),
            tokens: named.collect(),
            proxy: None,
            base_path: String::new(),
            mask: Vec::new(),
            histograms: None,
        }
    }

    #[test]
    fn a_caller_is_known_by_the_token() {
        use AccessRole::{Admin, Operate, Read};
        let set = |token, read, named| Tokens::of(&admin(token, read, named));
        let table = [
            (set(None, None, &[]), None, Some(("anybody", Admin))),
            (set(None, None, &[]), Some("Bearer x"), Some(("anybody", Admin))),
            (set(Some("a"), None, &[]), None, None),
            (set(Some("a"), None, &[]), Some("a"), None),
            (set(Some("a"), None, &[]), Some("Basic a"), None),
            (set(Some("a"), None, &[]), Some("Bearer b"), None),
            (set(Some("a"), None, &[]), Some("Bearer "), None),
            (set(Some("a"), None, &[]), Some("Bearer aa"), None),
            (set(Some("a"), None, &[]), Some("bearer a"), Some(("token", Admin))),
            (set(Some("a"), Some("b"), &[]), Some("Bearer a"), Some(("token", Admin))),
            (set(Some("a"), Some("b"), &[]), Some("Bearer b"), Some(("read_token", Read))),
            (set(Some("a"), Some("b"), &[]), Some("Bearer c"), None),
            (set(Some("a"), None, &["c", "d"]), Some("Bearer d"), Some(("of-d", Operate))),
            (set(None, None, &["c"]), Some("Bearer c"), Some(("of-c", Operate))),
            (set(None, None, &["c"]), None, None),
        ];
        for (tokens, header, expected) in table {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            let caller = tokens.caller(&headers);
            let found = caller.as_ref().map(|caller| (&*caller.name, caller.role));
            assert_eq!(found, expected, "{header:?}");
        }
        // The hash itself is no token.
        let tokens = set(None, None, &["c"]);
        assert_eq!(tokens.caller_with(hex(&Sha256::digest("c")).as_bytes()), None);
        assert_eq!(tokens.caller_with(&Sha256::digest("c")), None);
    }

    #[test]
    fn a_name_counts_only_from_the_proxy_and_only_if_it_is_one() {
        let (header, role) = ("x-user".parse().unwrap(), AccessRole::Operate);
        let proxy = TrustedProxy { header, role, groups: None, from: vec!["10.0.0.0/8".parse().unwrap()] };
        let tokens = Tokens::of(&Admin { proxy: Some(proxy), ..admin(Some("a"), None, &[]) });
        let name = |peer: &str, lines: &[&str]| {
            let lines = lines.iter().map(|line| ("x-user".parse().unwrap(), line.parse().unwrap()));
            let found = tokens.proxied(peer.parse().unwrap(), &lines.collect());
            found.map(|caller| caller.map(|caller| (caller.name.to_string(), caller.role)))
        };
        let alice = Some(("alice@example.com".to_owned(), AccessRole::Operate));
        assert_eq!(name("10.1.2.3", &["alice@example.com"]).unwrap(), alice);
        assert_eq!(name("::ffff:10.1.2.3", &["alice@example.com"]).unwrap(), alice);
        assert_eq!(name("10.1.2.3", &[]).unwrap(), None);
        assert_eq!(name("11.1.2.3", &["alice"]).unwrap(), None);
        assert_eq!(name("127.0.0.1", &["alice", ""]).unwrap(), None);
        for taken in ["token", "nobody", "anybody"] {
            let problem = name("10.1.2.3", &[taken]).unwrap_err();
            assert_eq!(problem.code, ProblemCode::BadRequest, "{taken}");
        }
        for bad in [&[""][..], &["a b"], &["a,b"], &["a;b"], &["<b>"], &["a", "b"], &[&"x".repeat(129)]] {
            let problem = name("10.1.2.3", bad).unwrap_err();
            assert!(problem.code == ProblemCode::BadRequest && problem.detail.contains("x-user"), "{bad:?}");
        }
    }
}
