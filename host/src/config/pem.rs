//! Files of certificates and keys in PEM.
//!
//! In: a path. Out: the text of the file, and the certificates in it; or what is wrong with it, without any
//! of its text. Not here: which files there are (`http`, `blobs`, `redis_login`).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::field::without_bom;
use crate::tls;

const MAX_BYTES: u64 = 1 << 20;

/// Reads the file as it is, but for a mark at its beginning: that would hide the first certificate.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    // Reading a pipe or a device could block or never end.
    if !path.metadata().map_err(|error| format!("cannot be read: {error}"))?.is_file() {
        return Err("is not a regular file".into());
    }
    let mut pem = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut pem));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if pem.len() as u64 > MAX_BYTES {
        return Err("is bigger than 1MiB".into());
    }
    Ok(without_bom(&pem).to_vec())
}

/// The certificates of authorities; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = chain(pem)?;
    let mut store = RootCertStore::empty();
    for (index, certificate) in found.iter().enumerate() {
        let added = store.add(certificate.clone());
        added.map_err(|error| {
            format!(
                "holds a certificate (number {}) that cannot be used: {}",
                index + 1,
                tls::unusable(&error)
            )
        })?;
    }
    Ok(found)
}

/// The certificates of one server or client, whatever they are for; at least one.
pub(super) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found =
        found.map_err(|_| "is not PEM: a part of it between BEGIN and END cannot be read".to_owned())?;
    if found.is_empty() {
        return Err("holds no certificate: it has to have lines with BEGIN CERTIFICATE".into());
    }
    Ok(found)
}

/// A private key. No message shows a part of it.
pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        "holds no private key without a passphrase: it has to have lines with BEGIN PRIVATE KEY".into()
    })
}

/// Whether the key is the one that the first certificate is about.
pub(super) fn belong_together(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(), String> {
    let made = CertifiedKey::from_der(chain, key, &ring::default_provider());
    made.map(drop).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => "is not the key of redis.cert".to_owned(),
        error => format!("cannot be used with redis.cert: {}", tls::unusable(&error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_at_the_beginning_hides_nothing() {
        let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let (one, other) = (made(), made());
        let folder = tempfile::tempdir().expect("a folder");
        let written = |text: String| {
            let path = folder.path().join("file.pem");
            std::fs::write(&path, text).expect("write");
            read(&path).expect("a file")
        };
        for mark in ["", "\u{feff}"] {
            let both = written(format!("{mark}{}{}", one.cert.pem(), other.cert.pem()));
            assert_eq!(certificates(&both).expect("certificates").len(), 2, "{mark:?}");
            assert_eq!(chain(&both).expect("certificates")[0], *one.cert.der(), "{mark:?}");
            let key = written(format!("{mark}{}", one.signing_key.serialize_pem()));
            private_key(&key).expect("a key");
        }
    }
}
