//! Requests to registries.
//!
//! In: a url and a call. Out: the answer, whose body is read in parts or up to a limit. Redirects are
//! followed only if the caller asks for it: a few, without credentials, and never from TLS to plain HTTP.
//!
//! Not here: credentials (`auth`), the meaning of an answer (`repository`).

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use url::Url;

use super::call::{Call, OciError, TRANSFER};
use crate::chain::chain;
use crate::https::{self, HttpsClient};
use crate::tls::{self, Trust};

/// The longest time from a request without a body to the head of its answer.
const HEAD: Duration = Duration::from_secs(30);
/// The longest time between two parts of a body.
const PART: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 3;
/// The most bytes of an answer with an error.
const MAX_ERROR: u64 = 8 << 10;
/// The longest code of an error that is shown.
const MAX_CODE: usize = 40;

/// The client of all registries. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RegistryHttp(HttpsClient<Full<Bytes>>);

/// The head of an answer, and its body, of which nothing is read yet.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<RegistryError>,
}

#[derive(Deserialize)]
struct RegistryError {
    code: String,
}

impl RegistryHttp {
    /// Makes the client. Reads the system's certificates, which takes a moment.
    pub(crate) fn new() -> Result<RegistryHttp, OciError> {
        let tls = tls::client(&Trust::SystemAnd(&[]), None);
        let tls = tls.map_err(|error| OciError::lasting(tls::unusable(&error)))?;
        Ok(RegistryHttp(https::client(tls)))
    }

    /// Sends a call, and waits for the head of its answer. An answer with any status is no error.
    pub(super) async fn send(
        &self,
        url: &str,
        call: &Call,
        authorization: Option<HeaderValue>,
    ) -> Result<Answer, OciError> {
        let mut request = Request::builder().method(call.method.clone()).uri(url);
        request = request.header(USER_AGENT, concat!("tqhost/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let host = place(url);
        let request = request
            .body(Full::new(call.body.clone()))
            .map_err(|_| OciError::lasting(format!("{host} leads to a url of a wrong form")))?;
        let wait = if call.body.is_empty() { HEAD } else { TRANSFER };
        let away = |why: &str| OciError::passing(format!("{host} cannot be reached: {why}"));
        match tokio::time::timeout(wait, self.0.request(request)).await {
            Err(_) => Err(away(&format!("it did not answer within {} s", wait.as_secs()))),
            Ok(Err(error)) => Err(away(&chain(&error))),
            Ok(Ok(answer)) => {
                let (head, body) = answer.into_parts();
                Ok(Answer { status: head.status, headers: head.headers, body })
            }
        }
    }

    /// Follows the redirects of an answer to a request at `url`. Returns the first answer that is no
    /// redirect.
    pub(super) async fn followed(&self, url: &str, mut answer: Answer) -> Result<Answer, OciError> {
        let mut at = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            at = answer.location(&at)?;
            answer = self.send(&at, &Call::new(Method::GET), None).await?;
        }
        if answer.status.is_redirection() {
            return Err(OciError::lasting(format!("{} redirects too often", place(url))));
        }
        Ok(answer)
    }
}

impl Answer {
    /// The url to which the answer to a request at `from` redirects.
    pub(super) fn location(&self, from: &str) -> Result<String, OciError> {
        let wrong = |why: &str| OciError::lasting(format!("{} leads to {why}", place(from)));
        let to = self.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let to = to.ok_or_else(|| wrong("nowhere"))?;
        let from = Url::parse(from).map_err(|_| wrong("nowhere"))?;
        let to = from.join(to).map_err(|_| wrong("a url of a wrong form"))?;
        match (from.scheme(), to.scheme()) {
            (_, "https") | ("http", "http") => Ok(to.into()),
            _ => Err(wrong("a place without TLS")),
        }
    }

    /// The next part of the body. None: the body is at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, OciError> {
        loop {
            let frame = tokio::time::timeout(PART, self.body.frame()).await;
            let frame =
                frame.map_err(|_| OciError::passing("the registry stopped in the middle of an answer"))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame
                .map_err(|error| OciError::passing(format!("an answer broke off: {}", chain(&error))))?;
            // Trailers are left out.
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Returns the whole body. It is an error if the body has more than `most` bytes.
    pub(super) async fn bytes(mut self, most: u64) -> Result<Vec<u8>, OciError> {
        let mut all = Vec::new();
        while let Some(part) = self.next().await? {
            all.extend_from_slice(&part);
            if all.len() as u64 > most {
                return Err(OciError::lasting(format!(
                    "an answer of the registry has more than {most} bytes"
                )));
            }
        }
        Ok(all)
    }

    /// The code of the first error in an answer, such as `MANIFEST_UNKNOWN`. Other text of a registry is not
    /// shown to users.
    pub(super) async fn code(self) -> Option<String> {
        let bytes = self.bytes(MAX_ERROR).await.ok()?;
        let told: Errors = serde_json::from_slice(&bytes).ok()?;
        let code = told.errors.into_iter().next()?.code;
        let is_code = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
        (!code.is_empty() && code.len() <= MAX_CODE && code.bytes().all(is_code)).then_some(code)
    }
}

/// Host and port of a url, for messages.
pub(super) fn place(url: &str) -> String {
    let url = Url::parse(url).ok();
    // Not the authority, which may have a password in it.
    let place = url.as_ref().and_then(|url| Some((url.host_str()?, url.port())));
    match place {
        Some((host, Some(port))) => format!("{host}:{port}"),
        Some((host, None)) => host.to_owned(),
        None => "the registry".to_owned(),
    }
}
