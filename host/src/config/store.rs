//! The settings of `[blobs]` as the rest of the host reads them.
//!
//! Not here: reading and checking them (`blobs`).

use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::secret::Secret;

/// Where handlers keep their files, and the limits of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct BlobSettings {
    pub store: BlobStore,
    /// Bytes of one blob.
    pub max_blob: u64,
    /// One call as a whole, with its retries.
    pub timeout: Duration,
    /// Certificates that are trusted in addition to those of the system.
    pub ca: Vec<CertificateDer<'static>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BlobStore {
    Files(PathBuf),
    S3 {
        bucket: Bucket,
        /// The server's URL. None: Amazon's.
        endpoint: Option<String>,
        region: Option<String>,
        /// None: those of the environment, or of the machine.
        key: Option<S3Key>,
    },
    Google {
        bucket: Bucket,
        endpoint: Option<String>,
        /// The JSON of a service account's key. None: as for S3.
        service_account: Option<Secret>,
    },
    Azure {
        bucket: Bucket,
        endpoint: Option<String>,
        account: String,
        /// None: as for S3.
        account_key: Option<Secret>,
    },
}

/// A bucket, or a container of Azure, and the part of it that is tqhost's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    /// Without slashes at its ends; empty for the whole bucket.
    pub prefix: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct S3Key {
    pub id: Secret,
    pub secret: Secret,
    pub session_token: Option<Secret>,
}
