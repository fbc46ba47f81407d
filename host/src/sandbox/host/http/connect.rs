//! Connects to an allowed target.
//!
//! In: a [`Target`]. Out: a TCP or TLS stream to one of its addresses. Each address is checked, and the
//! connection is made to the checked address, so a name cannot change its address after the check. No proxy
//! is used.
//!
//! The connector of hyper-util could be given this lookup. Its errors, however, do not tell a failed lookup
//! from a refused connection, and wasi:http asks for that.
//!
//! ```text
//! name ─▶ lookup ─▶ address::check of each ─▶ TCP ─▶ TLS with the name that was asked for
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::Error;

use super::address;
use super::grant::{Grant, MAX_ADDRESSES};
use super::kept::HttpStream;
use super::target::Target;
use crate::config::allowed::{Host, Scheme};
use crate::tls::{self, Trust};

/// Characters of a logged TLS error.
const MAX_REASON: usize = 300;

/// Why there is no connection, and the text to log.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    pub(super) log: Option<String>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, log: None }
    }
}

/// Connects within the time until `end`.
pub(super) async fn connect(
    grant: &Arc<Grant>,
    target: &Target,
    end: Instant,
) -> Result<Box<dyn HttpStream>, Refused> {
    let addresses =
        tokio::time::timeout_at(end, lookup(grant, target)).await.map_err(|_| Error::DnsTimeout)??;
    let addresses = checked(grant, target, addresses)?;
    let tcp = tcp(&addresses, end).await?;
    if target.scheme == Scheme::Http {
        return Ok(Box::new(tcp));
    }
    tokio::time::timeout_at(end, tls(grant, target, tcp)).await.map_err(|_| Error::ConnectionTimeout)?
}

async fn lookup(grant: &Arc<Grant>, target: &Target) -> Result<Vec<SocketAddr>, Refused> {
    let name = match &target.host {
        Host::Ipv4(address) => return Ok(vec![SocketAddr::new((*address).into(), target.port)]),
        Host::Ipv6(address) => return Ok(vec![SocketAddr::new((*address).into(), target.port)]),
        Host::Domain(name) => name.clone(),
    };
    // A lookup cannot be cancelled. It keeps its place until it ends, even if nobody waits for it.
    let place = grant.owner.share().lookups.clone().acquire_owned().await.map_err(|_| Error::DnsTimeout)?;
    let (find, port) = (grant.lookup, target.port);
    let found = tokio::task::spawn_blocking(move || {
        let found = find(&name, port);
        drop(place);
        found
    });
    match found.await {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(dns_error("the name has no address")),
        Ok(Err(error)) => Err(dns_error(&error.to_string())),
        Err(_) => Err(Error::InternalError(Some("the lookup failed".into())).into()),
    }
}

fn dns_error(why: &str) -> Refused {
    Error::DnsError { rcode: Some(why.to_owned()), info_code: None }.into()
}

/// Returns the addresses that may be connected to, or an error if there are none.
fn checked(
    grant: &Grant,
    target: &Target,
    mut addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, Refused> {
    let mut refused = None;
    // Only the entries that allow this request count. Somebody else may control the names of other entries.
    let private: Vec<IpNet> =
        grant.entries(target).flat_map(|entry| &entry.private_addresses).copied().collect();
    addresses.truncate(MAX_ADDRESSES);
    addresses.retain(|address| {
        let at = address.ip();
        let Err(kind) = address::check(&target.host, at, &private) else { return true };
        refused = Some(format!(
            "it is at {at}, {kind}, which is not in private_addresses of its entry in allowed_hosts"
        ));
        false
    });
    if addresses.is_empty() {
        Err(Refused { error: Error::DestinationIpProhibited, log: refused })
    } else {
        Ok(addresses)
    }
}

/// Tries the addresses one after the other, each for its part of the time that is left.
async fn tcp(addresses: &[SocketAddr], end: Instant) -> Result<TcpStream, Error> {
    let mut last = Error::ConnectionTimeout;
    for (tried, address) in addresses.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let part = left / u32::try_from(addresses.len() - tried).unwrap_or(1);
        match tokio::time::timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small requests must not wait for more data. A failure makes requests slower, no more.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = connect_error(&error),
            Err(_) => last = Error::ConnectionTimeout,
        }
    }
    Err(last)
}

fn connect_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        io::ErrorKind::TimedOut => Error::ConnectionTimeout,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Error::ConnectionTerminated,
        _ => Error::DestinationUnavailable,
    }
}

async fn tls(grant: &Arc<Grant>, target: &Target, tcp: TcpStream) -> Result<Box<dyn HttpStream>, Refused> {
    let name = match &target.host {
        Host::Ipv4(address) => ServerName::from(std::net::IpAddr::from(*address)),
        Host::Ipv6(address) => ServerName::from(std::net::IpAddr::from(*address)),
        Host::Domain(name) => ServerName::try_from(name.clone()).map_err(|_| Error::HttpRequestUriInvalid)?,
    };
    let config = tls_settings(grant).await.ok_or(Error::ConfigurationError)?;
    let stream = TlsConnector::from(config).connect(name, tcp).await.map_err(|error| not_secure(&error))?;
    Ok(Box::new(stream))
}

/// Returns the TLS settings. The first call reads and parses the system's certificates on a thread of its
/// own, since lookups may fill the runtime's pool.
async fn tls_settings(grant: &Arc<Grant>) -> Option<Arc<ClientConfig>> {
    let make = async || {
        let (made, settings) = oneshot::channel();
        let grant = grant.clone();
        let make = move || drop(made.send(client_config(&grant.bounds.ca)));
        std::thread::Builder::new().name("tq-tls".into()).spawn(make).ok()?;
        settings.await.ok().flatten()
    };
    grant.tls.get_or_init(make).await.clone()
}

/// The error of a TLS handshake: a code for the guest, and the cause for the log.
fn not_secure(error: &io::Error) -> Refused {
    let cause = tls::cause(error);
    // The text may list all names of a certificate, so it is cut.
    let log = cause.map(|cause| tls::words(cause).chars().take(MAX_REASON).collect());
    Refused { error: tls_error(cause), log }
}

fn tls_error(cause: Option<&rustls::Error>) -> Error {
    match cause {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            Error::TlsCertificateError
        }
        Some(rustls::Error::AlertReceived(alert)) => Error::TlsAlertReceived {
            alert_id: Some((*alert).into()),
            alert_message: Some(tls::alert_words(*alert)),
        },
        Some(_) => Error::TlsProtocolError,
        None => Error::ConnectionTerminated,
    }
}

fn client_config(ca: &[rustls::pki_types::CertificateDer<'static>]) -> Option<Arc<ClientConfig>> {
    let config = tls::client(&Trust::SystemAnd(ca), None)
        .inspect_err(|error| tracing::error!(%error, "no TLS for handlers"));
    let mut config = config.ok()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(Arc::new(config))
}

/// The end of a timeout that begins now, but no later than `end`.
pub(super) fn until(timeout: Duration, end: Instant) -> Instant {
    Instant::now().checked_add(timeout).map_or(end, |until| until.min(end))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{grant_with, target};
    use super::*;

    fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let addresses: &[&str] = match name {
            "metadata.example" => &["169.254.169.254"],
            "inside.example" => &["10.1.2.3"],
            "both.example" => &["127.0.0.1", "93.184.215.14", "fd00::1", "2606:4700::1111"],
            "mapped.example" => &["::ffff:127.0.0.1"],
            "nat64.example" => &["64:ff9b::7f00:1"],
            "empty.example" => &[],
            _ => return Err(io::Error::other("no such name")),
        };
        Ok(addresses
            .iter()
            .map(|address| SocketAddr::new(address.parse().expect("an address"), port))
            .collect())
    }

    async fn found(url: &str) -> Result<Vec<String>, Refused> {
        found_with("[]", url).await
    }

    /// Looks up the host of `url` with this list of `allowed_hosts`.
    async fn found_with(hosts: &str, url: &str) -> Result<Vec<String>, Refused> {
        let grant = Arc::new(grant_with(hosts, look_up));
        let target = target(url);
        let found = checked(&grant, &target, lookup(&grant, &target).await?)?;
        Ok(found.iter().map(SocketAddr::to_string).collect())
    }

    #[tokio::test]
    async fn names_of_addresses_that_are_not_public_are_refused() {
        for (url, kind) in [
            ("http://metadata.example", "169.254.169.254, a link-local address"),
            ("https://inside.example", "10.1.2.3, a private address"),
            ("http://mapped.example", "a loopback address"),
            ("http://nat64.example", "a loopback address"),
        ] {
            let refused = found(url).await.expect_err(url);
            assert!(matches!(refused.error, Error::DestinationIpProhibited), "{url}: {refused:?}");
            assert!(refused.log.as_deref().is_some_and(|log| log.contains(kind)), "{url}: {refused:?}");
        }
        assert_eq!(
            found("https://both.example").await.expect("two are public"),
            ["93.184.215.14:443", "[2606:4700::1111]:443"]
        );
        for url in ["http://empty.example", "http://unknown.example"] {
            assert!(matches!(found(url).await.expect_err(url).error, Error::DnsError { .. }), "{url}");
        }
    }

    #[tokio::test]
    async fn addresses_that_the_request_spells_out_are_not_looked_up() {
        assert_eq!(found("http://127.0.0.1:8080").await.expect("named"), ["127.0.0.1:8080"]);
        assert_eq!(found("http://[::1]").await.expect("named"), ["[::1]:80"]);
    }

    #[tokio::test]
    async fn private_addresses_belong_to_their_entry() {
        let hosts = r#"[
            "http://inside.example",
            { host = "https://inside.example", private_addresses = ["10.1.0.0/16"] },
            { host = "https://both.example", private_addresses = ["127.0.0.1", "10.0.0.0/8"] },
            { host = "http://*.example:81", private_addresses = ["10.0.0.0/8"] },
            "http://inside.example:81",
            { host = "http://inside.example:82", private_addresses = ["10.1.2.4", "fd00::/8"] },
        ]"#;
        for (url, address) in [
            ("https://inside.example", "10.1.2.3:443"),
            // Two entries allow this request, and one of them names the address.
            ("http://inside.example:81", "10.1.2.3:81"),
        ] {
            assert_eq!(found_with(hosts, url).await.expect(url), [address]);
        }
        let three = ["127.0.0.1:443", "93.184.215.14:443", "[2606:4700::1111]:443"];
        assert_eq!(found_with(hosts, "https://both.example").await.expect("three"), three);
        for url in ["http://inside.example", "http://inside.example:82", "http://metadata.example:81"] {
            let refused = found_with(hosts, url).await.expect_err(url);
            assert!(matches!(refused.error, Error::DestinationIpProhibited), "{url}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn the_checked_address_is_connected_to() {
        use std::sync::atomic::{AtomicU16, Ordering};
        static LOOKUPS: AtomicU16 = AtomicU16::new(0);
        // Returns another address from the second lookup on.
        fn rebinds(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            let last = if LOOKUPS.fetch_add(1, Ordering::SeqCst) == 0 { 1 } else { 2 };
            Ok(vec![SocketAddr::from(([127, 0, 0, last], port))])
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let url = format!("http://rebinds.example:{}", listener.local_addr().expect("an address").port());
        let grant =
            grant_with(&format!("[{{ host = {url:?}, private_addresses = [\"127.0.0.1\"] }}]"), rebinds);
        let (grant, end) = (Arc::new(grant), Instant::now() + Duration::from_secs(20));
        let target = target(&url);
        let (first, accepted) = tokio::join!(connect(&grant, &target, end), listener.accept());
        assert!(first.is_ok() && accepted.is_ok());
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 1);
        let second = connect(&grant, &target, end).await.map(drop).expect_err("another address");
        assert!(matches!(second.error, Error::DestinationIpProhibited), "{second:?}");
    }

    #[test]
    fn settings_for_tls_do_not_wait_for_lookups() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        let (answer, no_answer) = std::sync::mpsc::channel::<()>();
        let lookup = runtime.spawn_blocking(move || no_answer.recv());
        let grant = {
            let _within = runtime.enter();
            Arc::new(grant_with("[]", look_up))
        };
        for _ in 0..2 {
            let settings = runtime.block_on(async {
                tokio::time::timeout(Duration::from_secs(60), tls_settings(&grant)).await
            });
            assert!(settings.expect("in time").is_some());
        }
        drop(answer);
        assert!(runtime.block_on(lookup).expect("no panic").is_err());
    }

    #[tokio::test]
    async fn a_lookup_that_gets_no_answer_ends_in_time() {
        let grant = Arc::new(grant_with("[]", look_up));
        let lookups = &grant.owner.share().lookups;
        let places = u32::try_from(lookups.available_permits()).expect("a few");
        let _taken = lookups.acquire_many(places).await.expect("all places");
        let refused = connect(&grant, &target("http://both.example"), Instant::now())
            .await
            .map(drop)
            .expect_err("no place");
        assert!(matches!(refused.error, Error::DnsTimeout), "{refused:?}");
    }
}
