//! The TLS settings of the host's own clients, and what their failures mean in words.
//!
//! In: certificates that the configuration adds. Out: settings that trust these and the system's. For an
//! error of the TLS library, also its cause and the way out.
//!
//!     the server's certificate ─▶ is it signed by a trusted one? ─▶ its name and its dates decide
//!                         └─ is it an authority's, and itself in `ca`? ─▶ its name and its dates decide
//!
//! `openssl req -x509` makes certificates of the second kind unless it is told otherwise.
//!
//! Not here: files with certificates (`config::pem`).

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

/// The beginning of every text of [`words`].
pub(crate) const NOT_SECURE: &str = "there is no secure connection";
/// The most names of a certificate in a message.
const MAX_NAMES: usize = 5;

/// The certificates that a client trusts.
pub(crate) enum Trust<'c> {
    /// The system's certificates, and these.
    SystemAnd(&'c [CertificateDer<'static>]),
    Only(&'c [CertificateDer<'static>]),
}

/// A client's certificate with those that signed it, and its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Makes the settings. It may read and parse the system's certificates, which takes a moment.
pub(crate) fn client(trust: &Trust, identity: Option<Identity>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    let named = match trust {
        Trust::SystemAnd(named) => {
            let system = rustls_native_certs::load_native_certs();
            for error in &system.errors {
                tracing::warn!(%error, "some of the system's certificates cannot be read");
            }
            roots.add_parsable_certificates(system.certs);
            named
        }
        Trust::Only(named) => named,
    };
    // These certificates were checked when the configuration was read.
    roots.add_parsable_certificates(named.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = if roots.is_empty() {
        // A verifier needs a root. Without any, no certificate is trusted.
        builder.with_root_certificates(roots)
    } else {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let inner = inner.map_err(|error| Error::General(error.to_string()))?;
        let verifier = Verifier { inner, named: named.to_vec() };
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Verifies as usual, but also accepts a server that shows an authority's certificate, if that one is
/// `named`.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The verifier checks the dates before it returns this error.
            Err(Error::InvalidCertificate(error))
                if pki(&error) == Some(&webpki::Error::CaUsedAsEndEntity)
                    && self.named.iter().any(|named| named.as_ref() == end_entity.as_ref()) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The error of the library that checks certificates, where the TLS library has no word for it.
fn pki(error: &CertificateError) -> Option<&webpki::Error> {
    match error {
        CertificateError::Other(other) => other.0.downcast_ref(),
        _ => None,
    }
}

/// The error of the TLS library in this error: itself, or the cause of an error of a stream.
pub(crate) fn cause<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Error> {
    // The crate redis shares its causes.
    let shared = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>();
    let error: &(dyn StdError + 'static) = shared.map_or(error, |shared| shared.as_ref());
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.downcast_ref().or_else(|| inner?.downcast_ref())
}

/// Why there is no secure connection, and the way out.
pub(crate) fn words(error: &Error) -> String {
    let why = match error {
        Error::InvalidCertificate(error) => format!("the certificate of the server {}", fault(error)),
        Error::NoCertificatesPresented => "the server shows no certificate".to_owned(),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server asks for a certificate of the client".to_owned()
        }
        Error::AlertReceived(alert) => format!("the server refuses it ({})", alert_words(*alert)),
        Error::PeerIncompatible(_) => {
            "the server has no version or cipher of TLS that the host has: TLS 1.2 and 1.3".to_owned()
        }
        Error::InvalidMessage(_) => "the server does not speak TLS".to_owned(),
        _ => "the server does not keep to TLS".to_owned(),
    };
    format!("{NOT_SECURE}: {why}")
}

/// Why a certificate or key of the configuration cannot be used.
pub(crate) fn unusable(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => format!("the certificate {}", fault(error)),
        _ => "the host does not know its kind".to_owned(),
    }
}

/// The fault of a certificate, as the rest of a sentence about it.
fn fault(error: &CertificateError) -> String {
    use webpki::Error as Pki;
    let text = match error {
        CertificateError::UnknownIssuer => {
            "is signed by nobody that is trusted: name the certificate of its authority in `ca`, or its own \
             if it is signed by itself"
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            return wrong_name(&expected.to_str(), presented);
        }
        CertificateError::NotValidForName => "is for another name",
        CertificateError::ExpiredContext { not_after, .. } => {
            return format!("was good until {}", date(*not_after));
        }
        CertificateError::Expired => "has expired",
        CertificateError::NotValidYetContext { not_before, .. } => {
            return format!("is good from {} on, which has not come by the host's clock", date(*not_before));
        }
        CertificateError::NotValidYet => "is not good yet",
        CertificateError::BadSignature => "has a signature that is not of the authority that it names",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for servers: its extended key usage lacks serverAuth"
        }
        CertificateError::BadEncoding => "cannot be read",
        CertificateError::UnhandledCriticalExtension => {
            "has a critical extension that the host does not know"
        }
        CertificateError::Revoked => "is revoked",
        error => match pki(error) {
            Some(Pki::CaUsedAsEndEntity) => {
                "is that of an authority (CA:TRUE): name this very certificate in `ca`, or make one for a \
                 server, with -addext basicConstraints=critical,CA:FALSE for openssl req"
            }
            Some(Pki::UnsupportedCertVersion) => {
                "is of X.509 version 1, which has no names: make one with -addext subjectAltName=DNS:… for \
                 openssl req -x509"
            }
            Some(
                Pki::UnsupportedCriticalExtension
                | Pki::NameConstraintViolation
                | Pki::PathLenConstraintViolated
                | Pki::EndEntityUsedAsCa,
            ) => "breaks a rule of the certificates that signed it",
            _ => "cannot be used: its key, its signature or an extension is of an unknown kind",
        },
    };
    text.to_owned()
}

/// The fault of a certificate that is for other names: `presented`, such as `DnsName("example.com")`.
fn wrong_name(expected: &str, presented: &[String]) -> String {
    let name = |text: &String| {
        let inner = text.split_once('(').map_or(text.as_str(), |(_, inner)| inner.trim_end_matches(')'));
        inner.trim_matches('"').to_owned()
    };
    let names: Vec<String> = presented.iter().take(MAX_NAMES).map(name).collect();
    let more = if presented.len() > MAX_NAMES { " and others" } else { "" };
    match names.is_empty() {
        true => {
            format!("is not for {expected}: it has no subjectAltName, where names and addresses have to be")
        }
        false => format!("is for {}{more}, not for {expected}", names.join(", ")),
    }
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a far time".to_owned(), |time| time.to_string())
}

/// The name of an alert in words, such as `handshake failure`.
pub(crate) fn alert_words(alert: AlertDescription) -> String {
    let mut words = String::new();
    for letter in format!("{alert:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_as_they_are_written() {
        let presented: Vec<String> =
            ["DnsName(\"a.example\")", "IpAddress(127.0.0.1)"].map(str::to_owned).to_vec();
        assert_eq!(wrong_name("b.example", &presented), "is for a.example, 127.0.0.1, not for b.example");
        assert!(wrong_name("b.example", &[]).contains("no subjectAltName"));
        let many = vec!["DnsName(\"a\")".to_owned(); 7];
        assert_eq!(wrong_name("b", &many), "is for a, a, a, a, a and others, not for b");
    }

    #[test]
    fn no_text_of_the_library_is_shown() {
        let errors = [
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::ExpiredContext {
                time: UnixTime::now(),
                not_after: UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_700_000_000)),
            }),
            Error::InvalidCertificate(CertificateError::Other(rustls::OtherError(Arc::new(
                webpki::Error::UnsupportedCertVersion,
            )))),
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
        ];
        let texts = errors.map(|error| words(&error));
        assert!(texts[1].ends_with("was good until 2023-11-14T22:13:20Z"), "{texts:?}");
        assert!(texts[2].contains("X.509 version 1"), "{texts:?}");
        assert!(texts[3].ends_with("(handshake failure)"), "{texts:?}");
        for text in texts {
            assert!(text.starts_with(NOT_SECURE) && !text.contains("Error") && !text.contains('{'), "{text}");
        }
    }
}
