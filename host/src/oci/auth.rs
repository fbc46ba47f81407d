//! Authenticates this host at a registry.
//!
//! In: an answer of the registry with 401, which says how to authenticate. Out: the header `authorization`
//! for the next call. It has a user and a password, or a token that the registry's own service gives for
//! them.
//!
//! ```text
//! 401, Basic  ─▶ credentials of docker's configuration ─▶ header
//! 401, Bearer ─▶ GET realm, with credentials if there are any ─▶ token ─▶ header
//! ```
//!
//! Not here: docker's configuration (`docker`).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use url::Url;

use super::call::{Call, OciError};
use super::docker::{self, Credential};
use super::http::{Answer, RegistryHttp, place};
use crate::config::{OciReference, is_local};
use crate::guarded::Guarded;

/// The most bytes of an answer with a token.
const MAX_TOKEN: u64 = 256 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) enum Access {
    Pull,
    Push,
}

/// The authentication of this host for one repository.
pub(super) struct Authority {
    reference: OciReference,
    access: Access,
    known: Guarded<KnownHeader>,
}

#[derive(Default)]
struct KnownHeader {
    /// The last header. None: there is none yet, or the registry has refused it.
    header: Option<HeaderValue>,
    /// Whether docker's configuration had credentials when they were last looked for.
    had_credentials: bool,
}

/// The way in which a registry wants credentials.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

#[derive(Deserialize)]
struct TokenJson {
    token: Option<String>,
    access_token: Option<String>,
}

impl Authority {
    pub(super) fn new(reference: &OciReference, access: Access) -> Authority {
        Authority { reference: reference.clone(), access, known: Guarded::default() }
    }

    /// The header that the last call had.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.known.lock().header.clone()
    }

    /// Forgets the header, which the registry has refused.
    pub(super) fn forget(&self) {
        self.known.lock().header = None;
    }

    /// The header for a second call, after the answer `refused`. None: docker's configuration has no
    /// credentials of the kind that the registry asks for, or its service for tokens refuses them.
    pub(super) async fn answer(
        &self,
        http: &RegistryHttp,
        refused: &Answer,
    ) -> Result<Option<HeaderValue>, OciError> {
        // Docker's file may have changed since the last time.
        let credential = docker::credential(self.reference.login()).await?;
        *self.known.lock() = KnownHeader { header: None, had_credentials: credential.is_some() };
        let asked = refused.headers.get_all(WWW_AUTHENTICATE).iter();
        let asked = asked.filter_map(|value| challenge(value.to_str().ok()?)).next();
        let header = match (asked, credential) {
            (Some(Challenge::Basic), Some(Credential::Password(user, password))) => {
                basic_header(&user, &password)
            }
            (Some(Challenge::Bearer { realm, service }), credential) => {
                let token = self.token(http, &realm, service.as_deref(), credential).await?;
                token.and_then(|token| secret_header(&format!("Bearer {token}")))
            }
            _ => None,
        };
        self.known.lock().header.clone_from(&header);
        Ok(header)
    }

    /// Asks the service at `realm` for a token. None: the service refuses the credentials.
    async fn token(
        &self,
        http: &RegistryHttp,
        realm: &str,
        service: Option<&str>,
        credential: Option<Credential>,
    ) -> Result<Option<String>, OciError> {
        let wrong = || OciError::lasting("the registry names a service for tokens that is not on TLS");
        let mut url = Url::parse(realm).map_err(|_| wrong())?;
        // A registry without TLS on this machine may have its service there, too.
        let may_be_plain =
            self.reference.origin().starts_with("http://") && url.host_str().is_some_and(is_local);
        if !(url.scheme() == "https" || may_be_plain && url.scheme() == "http") {
            return Err(wrong());
        }
        let actions = match self.access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let scope = format!("repository:{}:{actions}", self.reference.repository);
        let (mut call, mut header) = (Call::new(Method::GET), None);
        let mut asked: Vec<(&str, &str)> = vec![("scope", &scope)];
        asked.extend(service.map(|service| ("service", service)));
        if let Some(Credential::Token(token)) = &credential {
            asked.extend([
                ("grant_type", "refresh_token"),
                ("refresh_token", token),
                ("client_id", "tqhost"),
            ]);
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(asked).finish();
            call = Call::new(Method::POST).with(CONTENT_TYPE, "application/x-www-form-urlencoded");
            call.body = Bytes::from(form);
        } else {
            url.query_pairs_mut().extend_pairs(asked);
            if let Some(Credential::Password(user, password)) = &credential {
                header = basic_header(user, password);
            }
        }
        let answer = http.send(url.as_str(), &call, header).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => return Ok(None),
            status => {
                let why = format!("{}, which gives tokens, answers {}", place(realm), status.as_u16());
                return Err(OciError::passing(why));
            }
        }
        let bytes = answer.bytes(MAX_TOKEN).await?;
        let told: Option<TokenJson> = serde_json::from_slice(&bytes).ok();
        let token = told.and_then(|told| told.token.or(told.access_token));
        token.map(Some).ok_or_else(|| OciError::lasting(format!("{} gave no token", place(realm))))
    }

    /// Says what an operator can do about a refusal.
    pub(super) fn way_out(&self) -> String {
        let file = docker::file().map_or_else(
            || "docker's configuration (set DOCKER_CONFIG, there is no HOME)".to_owned(),
            |file| file.display().to_string(),
        );
        let registry = &self.reference.registry;
        if self.known.lock().had_credentials {
            format!("look at the credentials for {registry} in {file}, and at their rights")
        } else {
            format!("there are no credentials for {registry} in {file}: docker login writes them")
        }
    }
}

fn basic_header(user: &str, password: &str) -> Option<HeaderValue> {
    secret_header(&format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
}

/// A header that hyper does not print. None: the text cannot be one.
fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Reads the header `www-authenticate`: `Bearer realm="…",service="…"` or `Basic …`. None: it asks for
/// something else.
fn challenge(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, None);
    while let Some((name, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        match name.trim_start_matches([',', ' ']) {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            _ => {}
        }
        rest = after;
    }
    Some(Challenge::Bearer { realm: realm?, service })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
        };
        for (text, read) in [
            ("Basic realm=\"Registry\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://auth.example/token\",service=\"r.example\",scope=\"a:b,c:pull\"",
                bearer("https://auth.example/token", Some("r.example")),
            ),
            ("bearer service=\"s\", realm=\"https://a\"", bearer("https://a", Some("s"))),
            ("Bearer realm=\"https://a\"", bearer("https://a", None)),
            ("Bearer service=\"s\"", None),
            ("Bearer realm=\"https://a", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(challenge(text), read, "{text}");
        }
    }
}
