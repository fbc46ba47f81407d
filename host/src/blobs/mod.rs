//! The files of handlers, in an object store: local files, S3, Google Cloud Storage or Azure.
//!
//! In: a plugin, a [`BlobName`], and bytes. Out: the blob's URL, its bytes, or a [`BlobError`]. Each plugin
//! has a prefix of its own. A blob is written as a whole or not at all. Calls run on a thread of their own,
//! so a slow store holds up neither the host nor its guests.
//!
//! Not here: the interface for guests and their memory (`sandbox::host`), the settings (`config`).

mod connect;
pub(crate) mod name;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::{Attribute, Attributes, ObjectStore as _, ObjectStoreExt as _, PutOptions, PutPayload};
use thiserror::Error;
use tokio::runtime::{Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::chain::chain;
use crate::config::BlobSettings;
use name::BlobName;
use store::{BlobPlace, Found};

/// Threads for local files. A thread holds at most one blob.
const MAX_THREADS: usize = 16;
/// Characters of a store's own words that a handler gets.
const MAX_REASON: usize = 300;

/// Why a call has failed. The store has changed nothing, unless it did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum BlobError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    Unavailable(String),
}

/// The object store of a host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Blobs(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    place: BlobPlace,
    max_blob: u64,
    timeout: Duration,
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    runs_on: Handle,
}

/// A blob whose size is known, and whose bytes are not read yet.
pub(crate) struct FoundBlob {
    pub(crate) size: u64,
    name: String,
    chunks: BoxStream<'static, object_store::Result<Bytes>>,
    blobs: Blobs,
}

impl Blobs {
    pub(crate) fn open(settings: &BlobSettings) -> anyhow::Result<Blobs> {
        Blobs::with(BlobPlace::open(settings)?, settings.max_blob, settings.timeout)
    }

    /// A store that is empty, and forgotten with this value.
    pub(crate) fn in_memory(max_blob: u64) -> anyhow::Result<Blobs> {
        Blobs::with(BlobPlace::Memory(Arc::default()), max_blob, Duration::from_secs(30))
    }

    fn with(place: BlobPlace, max_blob: u64, timeout: Duration) -> anyhow::Result<Blobs> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tq-blobs")
            .max_blocking_threads(MAX_THREADS)
            .enable_io()
            .enable_time()
            .build()
            .context("cannot start the thread for blobs")?;
        let runs_on = runtime.handle().clone();
        Ok(Blobs(Arc::new(Opened { place, max_blob, timeout, runtime: Some(runtime), runs_on })))
    }

    /// The paths and sizes of the first `most` blobs of a store in memory. Of another store: an empty list.
    pub(crate) async fn kept(&self, most: usize) -> anyhow::Result<Vec<(String, u64)>> {
        let BlobPlace::Memory(store) = &self.0.place else { return Ok(Vec::new()) };
        let found: Vec<_> = store.list(None).take(most).try_collect().await?;
        Ok(found.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect())
    }

    /// The most bytes of a blob.
    pub(crate) fn max_blob(&self) -> u64 {
        self.0.max_blob
    }

    /// Refuses the size of a blob that is too large.
    pub(crate) fn check_size(&self, size: u64) -> Result<(), BlobError> {
        let most = self.max_blob();
        if size > most {
            return Err(BlobError::TooLarge(format!("the blob has {size} bytes; max_blob is {most}")));
        }
        Ok(())
    }

    /// Writes a blob in the place of an earlier one of this name. Returns its URL.
    pub(crate) async fn put(
        &self,
        plugin: &str,
        name: &BlobName,
        content_type: String,
        data: Bytes,
    ) -> Result<String, BlobError> {
        self.check_size(data.len() as u64)?;
        let (path, shown) = (format!("{plugin}/{}", name.0), name.0.clone());
        let opened = self.0.clone();
        self.run(async move {
            let url = opened.place.url(&path);
            let mut options = PutOptions::default();
            if opened.place.keeps_types() {
                options.attributes = Attributes::from_iter([(Attribute::ContentType, content_type)]);
            }
            let Some((store, key)) = find(opened, path, true).await? else {
                return Err(BlobError::Unavailable("the folder for blobs is gone".into()));
            };
            let put =
                object_store::ObjectStore::put_opts(&*store, &key, PutPayload::from_bytes(data), options);
            // A bucket that does not exist must not look like a blob that does not exist.
            put.await.map(|_| url).map_err(|error| unavailable(&shown, "cannot be written", &error))
        })
        .await
    }

    /// Whether other hosts find the blobs of this one. A folder may belong to this machine alone, so it
    /// counts as not shared.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0.place, BlobPlace::Network { .. })
    }

    /// Removes a blob, if it is there.
    pub(crate) async fn remove(&self, plugin: &str, name: &BlobName) -> Result<(), BlobError> {
        let (path, shown) = (format!("{plugin}/{}", name.0), name.0.clone());
        let opened = self.0.clone();
        self.run(async move {
            let Some((store, key)) = find(opened, path, false).await? else { return Ok(()) };
            match store.delete(&key).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(unavailable(&shown, "cannot be removed", &error)),
            }
        })
        .await
    }

    /// Finds a blob, and refuses one that is too large before its bytes are read.
    pub(crate) async fn find(&self, plugin: &str, name: &BlobName) -> Result<FoundBlob, BlobError> {
        let (path, shown) = (format!("{plugin}/{}", name.0), name.0.clone());
        let (opened, blobs) = (self.0.clone(), self.clone());
        self.run(async move {
            let Some((store, key)) = find(opened, path, false).await? else { return Err(not_found(&shown)) };
            let found = store.get(&key).await.map_err(|error| match error {
                object_store::Error::NotFound { .. } => not_found(&shown),
                error => unavailable(&shown, "cannot be read", &error),
            })?;
            let size = found.meta.size;
            blobs.check_size(size)?;
            Ok(FoundBlob { size, name: shown, chunks: found.into_stream(), blobs })
        })
        .await
    }

    /// Runs a call on the thread for blobs, within the time for one call. Ends the call when this is dropped.
    async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, BlobError>> + Send + 'static,
    ) -> Result<T, BlobError> {
        let timeout = self.0.timeout;
        let running = self.0.runs_on.spawn(async move {
            let ended = tokio::time::timeout(timeout, call).await;
            let late =
                || BlobError::Unavailable(format!("the object store gave no answer within {timeout:?}"));
            ended.unwrap_or_else(|_| Err(late()))
        });
        let ended = AbortOnDropHandle::new(running).await;
        ended.unwrap_or_else(|_| Err(BlobError::Unavailable("the host stops".into())))
    }
}

impl FoundBlob {
    /// Reads the bytes: exactly as many as were announced.
    pub(crate) async fn read(self) -> Result<Vec<u8>, BlobError> {
        let FoundBlob { size, name, mut chunks, blobs } = self;
        let call = async move {
            let mut data = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|error| unavailable(&name, "cannot be read to its end", &error))?;
                if (data.len() + chunk.len()) as u64 > size {
                    let why = format!("`{name}` has changed while it was read");
                    return Err(BlobError::Unavailable(why));
                }
                data.extend_from_slice(&chunk);
            }
            if (data.len() as u64) < size {
                let why = format!("`{name}` ended after {} of {size} bytes", data.len());
                return Err(BlobError::Unavailable(why));
            }
            Ok(data)
        };
        blobs.run(call).await
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The last owner may be an async function, where a wait for threads would panic.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn find(opened: Arc<Opened>, path: String, makes_folder: bool) -> Result<Found, BlobError> {
    let looked = tokio::task::spawn_blocking(move || opened.place.find(&path, makes_folder)).await;
    let found = looked.map_err(|_| BlobError::Unavailable("the host stops".into()))?;
    found.map_err(|why| BlobError::Unavailable(format!("the object store cannot be used: {why}")))
}

fn not_found(name: &str) -> BlobError {
    BlobError::NotFound(format!("there is no blob `{name}`"))
}

fn unavailable(name: &str, what: &str, error: &object_store::Error) -> BlobError {
    let reason: String = chain(error).chars().take(MAX_REASON).collect();
    let refused = match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            "the object store refuses the host's credentials: "
        }
        _ => "",
    };
    BlobError::Unavailable(format!("`{name}` {what}: {refused}{reason}"))
}
