//! Sessions of browsers: who has logged in with a token, until when, and the token of their forms.
//!
//! In: the caller that a token proved. Out: the value of a cookie, and later, on any host of the same Redis
//! and the same tokens, the visitor that it stands for.
//!
//!     cookie = name of the token . end (ms) . id . mark
//!     mark   = HMAC under: the key that hosts share in Redis, and the digest of the token
//!
//! So nobody can make a cookie with the configuration or with Redis alone, and a token that is replaced ends
//! its sessions. A logout notes the id in Redis, for all hosts. While Redis is away, pages believe the mark
//! alone, and changes are refused. The key of a host that has never seen Redis's one is its own.
//!
//! Not here: which requests need a session (`guard`), the form for a token (`login`), the key and the ended
//! sessions in Redis (`queue::sessions`).

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::tokens::{Caller, Credential, Tokens};
use crate::chain::chain;
use crate::clock::{ms, now_ms};
use crate::config::AccessRole;
use crate::queue::{Link, QueueResult, sessions};
use crate::secrets::{Bytes32, from_hex, hex, hmac, random};

/// A session ends after this time.
pub(super) const LIFE: Duration = Duration::from_secs(12 * 3600);
/// The field of a form with its token.
pub(super) const FORM_TOKEN: &str = "form-token";
/// How often a host asks for the shared key while pages are looked at: Redis may have lost it.
const AGAIN: Duration = Duration::from_secs(2);
/// How long Redis may take to tell of a session.
const REDIS_ANSWERS: Duration = Duration::from_secs(1);

/// Somebody who looks at pages.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub caller: Caller,
    /// Each form carries it. A page of another origin cannot know it.
    pub form_token: Arc<str>,
    /// The session, if there is one that can be ended.
    pub session: Option<SessionId>,
    /// How many incidents are open, as this host saw last: for the titles of pages.
    pub open: usize,
    /// The path of the page, for the header.
    pub path: String,
}

/// A session that a cookie stands for.
#[derive(Debug, Clone)]
pub(super) struct SessionId {
    id: String,
    ends_ms: u64,
}

impl Visitor {
    pub(super) fn may_change(&self) -> bool {
        self.caller.may(AccessRole::Operate)
    }

    pub(super) fn may_administer(&self) -> bool {
        self.caller.may(AccessRole::Admin)
    }

    pub(super) fn is_form_token(&self, given: &str) -> bool {
        given.as_bytes().ct_eq(self.form_token.as_bytes()).into()
    }
}

/// The key of this host for sessions.
pub(super) struct Sessions(Mutex<SharedKey>);

struct SharedKey {
    key: Bytes32,
    asked: Option<Instant>,
}

impl Sessions {
    pub(super) fn new() -> Sessions {
        Sessions(Mutex::new(SharedKey { key: random(), asked: None }))
    }

    /// The present key: the one that all hosts share, if Redis has told it.
    pub(super) async fn key(&self, link: &Link) -> SessionKey {
        // Other requests wait: sessions that they sign with an earlier key would not be valid.
        let mut shared = self.0.lock().await;
        if shared.asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            // A new key is proposed, and not the earlier one: where Redis has lost its data, it has also lost
            // which sessions were ended, and these would be valid again under the earlier key.
            match timeout(REDIS_ANSWERS, sessions::key(link, &hex(&random()))).await {
                Ok(Ok(told)) => shared.key = from_hex(&told).unwrap_or(shared.key),
                Ok(Err(error)) => tracing::debug!(%error, "the key of sessions is not known"),
                Err(_) => {}
            }
            shared.asked = Some(Instant::now());
        }
        SessionKey(shared.key)
    }
}

/// Signs sessions, and finds out whether they are signed.
pub(super) struct SessionKey(Bytes32);

impl SessionKey {
    /// The name of the cookie. Hosts of another Redis have another one: browsers do not tell ports apart.
    pub(super) fn cookie_name(&self) -> String {
        format!("tqhost-{}", &hex(&hmac(&self.0, b"cookie"))[..8])
    }

    /// A visitor without a session.
    pub(super) fn visitor_without(&self, caller: Caller) -> Visitor {
        let form_token = hex(&hmac(&self.0, format!("form\0{}", caller.name).as_bytes())).into();
        Visitor { caller, form_token, session: None, open: 0, path: String::new() }
    }

    /// The value of the cookie of a new session.
    pub(super) fn begin(&self, tokens: &Tokens, caller: &Caller) -> Option<String> {
        let of = tokens.named(&caller.name)?;
        let id = &hex(&random())[..32];
        let text = format!("{}.{}.{id}", caller.name, now_ms() + ms(LIFE));
        Some(format!("{text}.{}", hex(&hmac(&self.of(of), text.as_bytes()))))
    }

    /// The visitor with this cookie, if it is signed, and its time is not over.
    fn signed(&self, tokens: &Tokens, cookie: &str) -> Option<Visitor> {
        let (text, mark) = cookie.rsplit_once('.')?;
        let mut parts = text.rsplitn(3, '.');
        let (id, ends_ms, name) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let of = tokens.named(name)?;
        let key = self.of(of);
        if !bool::from(hmac(&key, text.as_bytes()).ct_eq(&from_hex(mark)?)) || ends_ms <= now_ms() {
            return None;
        }
        let form_token = hex(&hmac(&key, format!("form\0{id}").as_bytes())).into();
        let session = Some(SessionId { id: id.to_owned(), ends_ms });
        Some(Visitor { caller: of.caller.clone(), form_token, session, open: 0, path: String::new() })
    }

    /// The visitor whose cookie is in these headers, unless a logout has ended the session.
    pub(super) async fn visitor(
        &self,
        link: &Link,
        tokens: &Tokens,
        headers: &HeaderMap,
        is_change: bool,
    ) -> Result<Option<Visitor>, ApiProblem> {
        let name = self.cookie_name();
        let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut cookies = lines
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().strip_prefix(name.as_str())?.strip_prefix('='));
        let visitor = cookies.next().and_then(|cookie| self.signed(tokens, cookie));
        let Some(Visitor { caller, session: Some(session), .. }) = &visitor else { return Ok(None) };
        let asked = sessions::has_ended(link, &caller.name, &session.id);
        let why = match timeout(REDIS_ANSWERS, asked).await {
            Ok(Ok(true)) => return Ok(None),
            Ok(Ok(false)) => return Ok(visitor),
            Ok(Err(error)) => chain(&error),
            Err(_) => "it does not answer".to_owned(),
        };
        if is_change {
            let what = "Redis does not tell whether this session was ended, so it may only read";
            return Err(ApiProblem::new(ProblemCode::RedisUnavailable, format!("{what}: {why}")));
        }
        Ok(visitor)
    }

    /// The key for the sessions of one token.
    fn of(&self, token: &Credential) -> Bytes32 {
        hmac(&self.0, &[b"session\0", &token.digest[..]].concat())
    }
}

/// Ends the session of a visitor on all hosts.
pub(super) async fn end(link: &Link, visitor: &Visitor) -> QueueResult {
    let Some(SessionId { id, ends_ms }) = &visitor.session else { return Ok(()) };
    sessions::end(link, &visitor.caller.name, id, *ends_ms, LIFE).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use crate::config::model::{Admin, NamedToken};

    fn tokens(token: &str, named: &[(&str, AccessRole, u8)]) -> Tokens {
        let named = named.iter().map(|(name, role, byte)| NamedToken {
            name: (*name).to_owned(),
            role: *role,
            hash: Secret::new(hex(&[*byte; 32])),
        });
        Tokens::of(&Admin {
            listen: "127.0.0.1:0".parse().unwrap(),
            token: Some(Secret::new(token)),
            read_token: None,
            tokens: named.collect(),
            proxy: None,
            base_path: String::new(),
            mask: Vec::new(),
            histograms: None,
        })
    }

    #[test]
    fn a_session_is_signed_by_the_shared_key_and_its_token() {
        use AccessRole::{Admin, Operate, Read};
        let (key, other) = (SessionKey(random()), SessionKey(random()));
        assert_ne!(key.cookie_name(), other.cookie_name());
        let all = tokens("a", &[("j.doe", Operate, 1), ("eye", Read, 2)]);
        let cookie = key.begin(&all, &Caller::new("j.doe", Operate)).unwrap();
        let visitor = key.signed(&all, &cookie).unwrap();
        assert!(&*visitor.caller.name == "j.doe" && visitor.may_change() && !visitor.may_administer());
        assert!(visitor.is_form_token(&visitor.form_token) && !visitor.is_form_token(""));
        let again = key.begin(&all, &Caller::new("j.doe", Operate)).unwrap();
        let again = key.signed(&all, &again).unwrap();
        assert!(!again.is_form_token(&visitor.form_token), "each session has its own");
        // The key or the token is another one, or the token was removed.
        assert!(other.signed(&all, &cookie).is_none());
        assert!(key.signed(&tokens("a", &[("j.doe", Operate, 3)]), &cookie).is_none());
        assert!(key.signed(&tokens("b", &[]), &cookie).is_none());
        // The role is the one of now.
        let promoted = key.signed(&tokens("a", &[("j.doe", Admin, 1)]), &cookie).unwrap();
        assert!(promoted.may_administer());
        // Every part counts.
        let mut parts: Vec<&str> = cookie.rsplitn(4, '.').collect();
        parts.reverse();
        let [name, ends, id, mark] = parts[..] else { panic!("{cookie}") };
        let later = (ends.parse::<u64>().unwrap() + 1).to_string();
        let zeros = "0".repeat(64);
        for forged in [
            ["eye", ends, id, mark],
            ["token", ends, id, mark],
            [name, &later, id, mark],
            [name, ends, &id[1..], mark],
            [name, ends, id, &zeros],
            [name, ends, id, ""],
            [name, "", id, mark],
        ] {
            assert!(key.signed(&all, &forged.join(".")).is_none(), "{forged:?}");
        }
        for forged in ["", ".", "...", "j.doe", &cookie[..cookie.len() - 1], &format!("{cookie}0")] {
            assert!(key.signed(&all, forged).is_none(), "{forged}");
        }
        // Its time is over, although it is signed.
        let of = all.named("j.doe").unwrap();
        let over = format!("j.doe.{}.{id}", now_ms());
        let over = format!("{over}.{}", hex(&hmac(&key.of(of), over.as_bytes())));
        assert!(key.signed(&all, &over).is_none());
    }

    #[test]
    fn visitors_without_a_session_share_their_form_token_on_all_hosts_by_name() {
        let bytes = random();
        let of = |key: Bytes32, name| SessionKey(key).visitor_without(Caller::new(name, AccessRole::Read));
        assert_eq!(of(bytes, "nobody").form_token, of(bytes, "nobody").form_token);
        assert_ne!(of(bytes, "nobody").form_token, of(bytes, "alice").form_token);
        assert_ne!(of(bytes, "nobody").form_token, of(random(), "nobody").form_token);
    }
}
