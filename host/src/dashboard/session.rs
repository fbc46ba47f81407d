//! Sessions of browsers: who has logged in with a token, until when, and the token of their forms.
//!
//! In: the caller that a token proved. Out: the value of a cookie, and later the session that it stands for.
//! Sessions are kept in the memory of this process, by the digest of the cookie's value, so they end with the
//! process, and a logout ends one for good.
//!
//! Not here: cookies and forms (`guard`, `login`), comparing tokens (`admin::tokens`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::admin::tokens::Caller;

/// A session ends after this time.
pub(super) const LIFE: Duration = Duration::from_secs(12 * 3600);
/// The most sessions of each token. When there are more, the oldest one of this token ends: logins with one
/// token end no session of another.
const MAX_SESSIONS: usize = 500;
/// The field of a form with its token.
pub(super) const FORM_TOKEN: &str = "form-token";

/// Somebody who looks at pages.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub caller: Caller,
    /// Each form carries it. A page of another origin cannot know it.
    pub form_token: Arc<str>,
    /// Whether there is a session that can be ended.
    pub has_session: bool,
}

impl Visitor {
    pub(super) fn may_change(&self) -> bool {
        self.caller.may_change
    }

    pub(super) fn is_form_token(&self, given: &str) -> bool {
        given.as_bytes().ct_eq(self.form_token.as_bytes()).into()
    }
}

struct Session {
    caller: Caller,
    form_token: Arc<str>,
    ends: Instant,
}

pub(super) struct Sessions {
    open: Mutex<HashMap<[u8; 32], Session>>,
    /// The token of the forms of those who have no session.
    form_token: Arc<str>,
}

impl Sessions {
    pub(super) fn new() -> Sessions {
        Sessions { open: Mutex::default(), form_token: random().into() }
    }

    /// Begins a session. Gives the value of its cookie.
    pub(super) fn begin(&self, caller: Caller) -> String {
        let (secret, now) = (random(), Instant::now());
        let session = Session { caller, form_token: random().into(), ends: now + LIFE };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, session| session.ends > now);
        let of_token = || open.iter().filter(|(_, session)| session.caller.name == caller.name);
        if of_token().count() >= MAX_SESSIONS {
            let oldest = of_token().min_by_key(|(_, session)| session.ends).map(|(key, _)| *key);
            oldest.map(|key| open.remove(&key));
        }
        open.insert(key(&secret), session);
        secret
    }

    /// The visitor with this cookie.
    pub(super) fn visitor(&self, secret: &str) -> Option<Visitor> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let session = open.get(&key(secret)).filter(|session| session.ends > Instant::now())?;
        let Session { caller, form_token, .. } = session;
        Some(Visitor { caller: *caller, form_token: Arc::clone(form_token), has_session: true })
    }

    /// A visitor without a session.
    pub(super) fn visitor_without(&self, caller: Caller) -> Visitor {
        Visitor { caller, form_token: Arc::clone(&self.form_token), has_session: false }
    }

    pub(super) fn end(&self, secret: &str) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(secret));
    }
}

fn key(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// 256 random bits in hexadecimal.
fn random() -> String {
    let mut bytes = [0; 32];
    let filled = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    // Without random bytes every session could be guessed.
    assert!(filled.is_ok(), "the operating system gives no random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_until_its_end_and_there_are_not_too_many() {
        let (sessions, caller) = (Sessions::new(), Caller { name: "token", may_change: true });
        let first = sessions.begin(caller);
        let visitor = sessions.visitor(&first).expect("a session");
        assert!(visitor.has_session && visitor.may_change() && visitor.is_form_token(&visitor.form_token));
        assert!(!visitor.is_form_token("") && !visitor.is_form_token(&sessions.form_token));
        assert!(sessions.visitor("").is_none() && sessions.visitor(&first[1..]).is_none());
        let second = sessions.begin(caller);
        assert_ne!(first, second);
        sessions.end(&second);
        assert!(sessions.visitor(&second).is_none() && sessions.visitor(&first).is_some());
        for _ in 0..=MAX_SESSIONS {
            sessions.begin(Caller { name: "read_token", may_change: false });
        }
        assert!(sessions.visitor(&first).is_some(), "logins with another token end none");
        for _ in 0..MAX_SESSIONS {
            sessions.begin(caller);
        }
        assert!(sessions.visitor(&first).is_none(), "the oldest one has ended");
        assert_eq!(sessions.open.lock().unwrap().len(), 2 * MAX_SESSIONS);
    }
}
