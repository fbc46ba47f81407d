//! Opens the object store that the configuration names.
//!
//! In: [`BlobSettings`]. Out: a [`BlobPlace`], which says where the blobs of all plugins are. A store in the
//! network gets no request before the first call, and a folder is not made before its first file.

use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

use super::connect::StoreConnector;
use crate::config::{BlobSettings, BlobStore, Bucket};
use crate::tls::{self, Trust};

const MAX_TRIES_AGAIN: usize = 3;

/// A store, and the key of a blob in it. None if the store is a folder that does not exist.
pub(super) type Found = Option<(Arc<dyn ObjectStore>, Path)>;

/// A store, and the part of it that is for blobs.
#[derive(Debug)]
pub(super) enum BlobPlace {
    Files {
        root: PathBuf,
        /// The URL of the folder, without a slash at its end.
        url: String,
        /// Set once the folder exists.
        store: OnceLock<Arc<LocalFileSystem>>,
    },
    Network {
        store: Arc<dyn ObjectStore>,
        /// Comes before a plugin's name; empty, or with a slash at its end.
        prefix: String,
        /// The URL of the bucket with the prefix, without a slash at its end.
        url: String,
    },
    Memory(Arc<InMemory>),
}

impl BlobPlace {
    pub(super) fn open(settings: &BlobSettings) -> anyhow::Result<BlobPlace> {
        let connector = || {
            let tls = tls::client(&Trust::SystemAnd(&settings.ca), None)
                .context("blobs: no TLS for the object store")?;
            anyhow::Ok(StoreConnector::new(tls))
        };
        let retry = RetryConfig {
            max_retries: MAX_TRIES_AGAIN,
            retry_timeout: settings.timeout.min(Duration::from_secs(180)),
            ..RetryConfig::default()
        };
        let (bucket, scheme, store): (&Bucket, _, Arc<dyn ObjectStore>) = match &settings.store {
            BlobStore::Files(root) => return BlobPlace::files(root),
            BlobStore::S3 { bucket, endpoint, region, key } => {
                let mut builder = match key {
                    None => AmazonS3Builder::from_env(),
                    Some(key) => AmazonS3Builder::new()
                        .with_access_key_id(key.id.expose())
                        .with_secret_access_key(key.secret.expose()),
                };
                if let Some(token) = key.as_ref().and_then(|key| key.session_token.as_ref()) {
                    builder = builder.with_token(token.expose());
                }
                builder = builder.with_bucket_name(&bucket.name);
                builder = builder.with_retry(retry).with_http_connector(connector()?);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint).with_allow_http(true);
                }
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                (bucket, "s3", Arc::new(builder.build().map_err(unusable)?))
            }
            BlobStore::Google { bucket, endpoint, service_account } => {
                let mut builder = match service_account {
                    None => GoogleCloudStorageBuilder::from_env(),
                    Some(key) => GoogleCloudStorageBuilder::new().with_service_account_key(key.expose()),
                };
                builder = builder.with_bucket_name(&bucket.name);
                builder = builder.with_retry(retry).with_http_connector(connector()?);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                (bucket, "gs", Arc::new(builder.build().map_err(unusable)?))
            }
            BlobStore::Azure { bucket, endpoint, account, account_key } => {
                let mut builder = match account_key {
                    None => MicrosoftAzureBuilder::from_env(),
                    Some(key) => MicrosoftAzureBuilder::new().with_access_key(key.expose()),
                };
                builder = builder.with_account(account).with_container_name(&bucket.name);
                builder = builder.with_retry(retry).with_http_connector(connector()?);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint.clone()).with_allow_http(true);
                }
                (bucket, "az", Arc::new(builder.build().map_err(unusable)?))
            }
        };
        let (prefix, url) = match &*bucket.prefix {
            "" => (String::new(), format!("{scheme}://{}", bucket.name)),
            prefix => (format!("{prefix}/"), format!("{scheme}://{}/{prefix}", bucket.name)),
        };
        Ok(BlobPlace::Network { store, prefix, url })
    }

    fn files(root: &FilePath) -> anyhow::Result<BlobPlace> {
        let shown = || format!("blobs.url: {} cannot be written as a url", root.display());
        let url = url::Url::from_directory_path(root).map_err(|()| anyhow!(shown()))?;
        let url = url.as_str().trim_end_matches('/').to_owned();
        Ok(BlobPlace::Files { root: root.to_owned(), url, store: OnceLock::new() })
    }

    /// The store and the key of a blob. `path` is the plugin's name, a slash, and the blob's name. For local
    /// files this blocks, and `makes_folder` says whether a missing folder is made.
    pub(super) fn find(&self, path: &str, makes_folder: bool) -> Result<Found, String> {
        let (store, key): (Arc<dyn ObjectStore>, _) = match self {
            BlobPlace::Network { store, prefix, .. } => (store.clone(), format!("{prefix}{path}")),
            BlobPlace::Memory(store) => (store.clone(), path.to_owned()),
            BlobPlace::Files { root, store, .. } => match folder(root, store, makes_folder)? {
                None => return Ok(None),
                Some(store) => {
                    refuse_links(root, path)?;
                    (store, path.to_owned())
                }
            },
        };
        let key = Path::parse(&key).map_err(|error| format!("{key} is no key of the store: {error}"))?;
        Ok(Some((store, key)))
    }

    pub(super) fn url(&self, path: &str) -> String {
        match self {
            BlobPlace::Files { url, .. } | BlobPlace::Network { url, .. } => format!("{url}/{path}"),
            BlobPlace::Memory(_) => format!("memory:///{path}"),
        }
    }

    /// Whether the store keeps a blob's content type.
    pub(super) fn keeps_types(&self) -> bool {
        !matches!(self, BlobPlace::Files { .. })
    }
}

fn folder(
    root: &FilePath,
    store: &OnceLock<Arc<LocalFileSystem>>,
    makes_folder: bool,
) -> Result<Option<Arc<LocalFileSystem>>, String> {
    if let Some(store) = store.get() {
        return Ok(Some(store.clone()));
    }
    let failed = |what: &str, why: &dyn std::fmt::Display| format!("{} {what}: {why}", root.display());
    if makes_folder {
        std::fs::create_dir_all(root).map_err(|error| failed("cannot be made", &error))?;
    } else if !root.try_exists().map_err(|error| failed("cannot be looked at", &error))? {
        return Ok(None);
    }
    let opened =
        LocalFileSystem::new_with_prefix(root).map_err(|error| failed("cannot be opened", &error))?;
    Ok(Some(store.get_or_init(|| Arc::new(opened.with_fsync(true))).clone()))
}

/// Refuses a path with a symbolic link, which could lead out of the folder.
fn refuse_links(root: &FilePath, path: &str) -> Result<(), String> {
    let mut at = root.to_owned();
    for part in path.split('/') {
        at.push(part);
        match at.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                return Err(format!("{} is a symbolic link: put a file or a folder there", at.display()));
            }
            Ok(_) => {}
            // The rest of the path does not exist either. The call itself reports other errors.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn unusable(error: object_store::Error) -> anyhow::Error {
    anyhow!("blobs: the settings of the object store cannot be used: {error}")
}
