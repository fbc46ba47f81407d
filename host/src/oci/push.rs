//! Pushes a component to a registry.
//!
//! In: a component with its names, and a reference with a tag. Out: the digest of its manifest. The blobs are
//! pushed before the manifest, so that a tag never leads to a missing blob. Not here: whether a component can
//! be a plugin (`cli::push`).

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, StatusCode};
use url::Url;

use super::auth::Access;
use super::call::{Call, OciError, digest_of};
use super::http::RegistryHttp;
use super::manifest::{self, MANIFEST_TYPE};
use super::repository::Repository;
use crate::config::OciReference;

/// A component and the names of its interfaces.
pub(crate) struct Pushed {
    pub wasm: Bytes,
    pub exports: Vec<String>,
    pub imports: Vec<String>,
}

/// Pushes a component. Returns the digest of its manifest, which can be pulled by this digest even if the tag
/// moves.
pub(crate) async fn push(
    http: RegistryHttp,
    reference: &OciReference,
    pushed: &Pushed,
) -> Result<String, OciError> {
    let repository = Repository::with(http, reference, Access::Push);
    let (config, manifest) = manifest::make(&pushed.wasm, &pushed.exports, &pushed.imports);
    repository.put_blob(pushed.wasm.clone()).await?;
    repository.put_blob(Bytes::from(config)).await?;
    repository.put_manifest(Bytes::from(manifest)).await
}

impl Repository {
    /// Pushes a blob, unless the repository has it already.
    async fn put_blob(&self, bytes: Bytes) -> Result<(), OciError> {
        let digest = digest_of(&bytes);
        let there = self.send(&self.url(&format!("blobs/{digest}")), &Call::new(Method::HEAD)).await?;
        if there.status == StatusCode::OK {
            return Ok(());
        }
        let url = self.url("blobs/uploads/");
        let begun = self.send(&url, &Call::new(Method::POST).with(CONTENT_LENGTH, "0")).await?;
        let begun = self.expect(begun, StatusCode::ACCEPTED).await?;
        let wrong = |_| OciError::lasting("the registry names a wrong place for the plugin");
        let mut place = Url::parse(&begun.location(&url)?).map_err(wrong)?;
        let own = Url::parse(&url).map_err(wrong)?;
        place.query_pairs_mut().append_pair("digest", &digest);
        let mut call = Call::new(Method::PUT).with(CONTENT_TYPE, "application/octet-stream");
        call.body = bytes;
        let answer = if place.origin() == own.origin() {
            self.send(place.as_str(), &call).await?
        } else {
            // Another server gets no credentials.
            self.http.send(place.as_str(), &call, None).await?
        };
        self.expect(answer, StatusCode::CREATED).await.map(drop)
    }

    /// Pushes the manifest under the tag of the reference. Returns its digest.
    async fn put_manifest(&self, bytes: Bytes) -> Result<String, OciError> {
        let digest = digest_of(&bytes);
        let url = self.url(&format!("manifests/{}", self.reference.wanted()));
        let mut call = Call::new(Method::PUT).with(CONTENT_TYPE, MANIFEST_TYPE);
        call.body = bytes;
        let answer = self.send(&url, &call).await?;
        self.expect(answer, StatusCode::CREATED).await?;
        Ok(digest)
    }
}
