//! The TLS settings of the host's own clients.
//!
//! In: certificates that the configuration adds. Out: settings that trust these and the system's.

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// Makes the settings. It reads and parses the system's certificates, which takes a moment.
pub(crate) fn client(ca: &[CertificateDer<'static>]) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    roots.add_parsable_certificates(system.certs);
    // These certificates were checked when the configuration was read.
    roots.add_parsable_certificates(ca.iter().cloned());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
