//! One repository of a registry: the digest of a tag, the manifest, the layer.
//!
//! In: a reference. Out: digests and bytes that were checked, or why there are none, and what to do about it.
//! Not here: requests (`http`), credentials (`auth`), the form of a manifest (`manifest`).

use http::header::{ACCEPT, HeaderName};
use http::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::auth::{Access, Authority};
use super::call::{Call, OciError, digest_of, shown_digest};
use super::http::{Answer, RegistryHttp};
use super::manifest::{self, Layer, Manifest};
use crate::config::{OciReference, is_digest};
use crate::file::MAX_BYTES;

/// The most bytes of a manifest.
const MAX_MANIFEST: u64 = 1 << 20;
const DIGEST_HEADER: HeaderName = HeaderName::from_static("docker-content-digest");

/// One repository of a registry, and the authentication of this host there.
pub(crate) struct Repository {
    pub(super) reference: OciReference,
    pub(super) http: RegistryHttp,
    authority: Authority,
}

impl Repository {
    /// The repository of a plugin that is pulled.
    pub(crate) fn new(http: RegistryHttp, reference: &OciReference) -> Repository {
        Repository::with(http, reference, Access::Pull)
    }

    pub(super) fn with(http: RegistryHttp, reference: &OciReference, access: Access) -> Repository {
        let authority = Authority::new(reference, access);
        Repository { reference: reference.clone(), http, authority }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}/v2/{}/{path}", self.reference.origin(), self.reference.repository)
    }

    /// Sends a call to the registry, a second time with credentials if it asks for them.
    pub(super) async fn send(&self, url: &str, call: &Call) -> Result<Answer, OciError> {
        let header = self.authority.header();
        let had_header = header.is_some();
        let mut answer = self.http.send(url, call, header).await?;
        // Registries of AWS answer with these to a header that has expired, and do not say how to get a new
        // one. They say it in the answer to a call without a header.
        if had_header && matches!(answer.status, StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) {
            self.authority.forget();
            answer = self.http.send(url, call, None).await?;
        }
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        match self.authority.answer(&self.http, &answer).await? {
            Some(header) => self.http.send(url, call, Some(header)).await,
            None => Ok(answer),
        }
    }

    /// The digest of the manifest under the tag now, without a pull. None: the registry does not tell it.
    pub(crate) async fn digest(&self) -> Result<Option<String>, OciError> {
        let url = self.url(&format!("manifests/{}", self.reference.wanted()));
        let call = Call::new(Method::HEAD).with(ACCEPT, manifest::ACCEPTED);
        let answer = self.send(&url, &call).await?;
        if answer.status != StatusCode::OK {
            // An answer to HEAD has no body, and so no code.
            return Err(self.refusal(answer.status, None));
        }
        let digest = answer.headers.get(DIGEST_HEADER).and_then(|value| value.to_str().ok());
        Ok(digest.filter(|digest| is_digest(digest)).map(str::to_owned))
    }

    /// The manifest. It is an error if the reference has another digest than the manifest.
    pub(crate) async fn manifest(&self) -> Result<Manifest, OciError> {
        let url = self.url(&format!("manifests/{}", self.reference.wanted()));
        let call = Call::new(Method::GET).with(ACCEPT, manifest::ACCEPTED);
        let answer = self.expect(self.send(&url, &call).await?, StatusCode::OK).await?;
        let bytes = answer.bytes(MAX_MANIFEST).await?;
        let digest = digest_of(&bytes);
        if let Some(wanted) = self.reference.digest.as_ref().filter(|wanted| **wanted != digest) {
            let why =
                format!("the registry gave another manifest than that of {wanted}: its digest is {digest}");
            return Err(OciError::lasting(why));
        }
        let manifest = manifest::read(&bytes, digest)?;
        let size = manifest.layer.size;
        if size > MAX_BYTES {
            let why = format!("the plugin has {size} bytes, and may have {} MiB", MAX_BYTES >> 20);
            return Err(OciError::lasting(why));
        }
        Ok(manifest)
    }

    /// Writes the component to `to`, and checks its size and its digest. After an error, the caller deletes
    /// what was written.
    pub(crate) async fn layer(
        &self,
        layer: &Layer,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), OciError> {
        let url = self.url(&format!("blobs/{}", layer.digest));
        let answer = self.send(&url, &Call::new(Method::GET)).await?;
        // Many registries keep layers in an object store.
        let answer = self.http.followed(&url, answer).await?;
        let mut answer = self.expect(answer, StatusCode::OK).await?;
        let (mut left, mut hash) = (layer.size, Sha256::new());
        while let Some(bytes) = answer.next().await? {
            let Some(rest) = left.checked_sub(bytes.len() as u64) else {
                let size = layer.size;
                let why = format!("the layer is longer than the {size} bytes of its manifest");
                return Err(OciError::lasting(why));
            };
            left = rest;
            hash.update(&bytes);
            to.write_all(&bytes).await.map_err(unwritable)?;
        }
        to.flush().await.map_err(unwritable)?;
        if left > 0 {
            return Err(OciError::passing(format!("the layer ended {left} bytes early")));
        }
        let found = shown_digest(&hash.finalize());
        if found != layer.digest {
            let digest = &layer.digest;
            return Err(OciError::lasting(format!(
                "the layer is not the one of its manifest: its digest is {found}, not {digest}"
            )));
        }
        Ok(())
    }

    /// Returns an answer with the `wanted` status. Otherwise returns an error with the registry's own code.
    pub(super) async fn expect(&self, answer: Answer, wanted: StatusCode) -> Result<Answer, OciError> {
        if answer.status == wanted {
            return Ok(answer);
        }
        let status = answer.status;
        let code = answer.code().await;
        Err(self.refusal(status, code.as_deref()))
    }

    fn refusal(&self, status: StatusCode, code: Option<&str>) -> OciError {
        let OciReference { registry, repository, .. } = &self.reference;
        let code = code.map_or_else(String::new, |code| format!(" {code}"));
        let told = format!("{}{code}", status.as_u16());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => OciError::lasting(format!(
                "the registry {registry} refuses it ({told}): {}",
                self.authority.way_out()
            )),
            StatusCode::NOT_FOUND => OciError::lasting(format!(
                "the registry {registry} has no {repository} with {} ({told}): push it, or correct the \
                 reference",
                self.reference.wanted()
            )),
            StatusCode::TOO_MANY_REQUESTS => {
                OciError::passing(format!("the registry {registry} was asked too often ({told})"))
            }
            status if status.is_server_error() => {
                OciError::passing(format!("the registry {registry} does not work ({told})"))
            }
            _ => OciError::lasting(format!("the registry {registry} answers {told}")),
        }
    }
}

fn unwritable(error: std::io::Error) -> OciError {
    OciError::passing(format!("the plugin cannot be written: {error}"))
}
