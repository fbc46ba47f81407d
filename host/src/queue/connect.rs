//! Opens connections to Redis: in the clear, through a socket, or with the host's own TLS.
//!
//! In: a URL, the host's login, and the certificates that it trusts. Out: connections, each of which ends
//! when its last clone is dropped. Not here: when to open one (`link`), to which server (`nodes`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisError, RedisResult,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::config::RedisLogin;
use crate::tls::{self, Trust};

/// How long a connection attempt may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection ends when the server confirms none of the bytes sent for this time: a firewall on the way may
/// have forgotten the connection.
const UNCONFIRMED: Duration = Duration::from_secs(10);

/// Where Redis is, and how to speak to it.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) client: Client,
    secure: Option<Arc<Secure>>,
}

/// A server that speaks TLS.
#[derive(Clone)]
struct Secure {
    connector: TlsConnector,
    name: ServerName<'static>,
    host: String,
    port: u16,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} with TLS", self.host, self.port)
    }
}

/// An open connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct OpenConnection {
    pub(super) calls: MultiplexedConnection,
    /// The task that carries the bytes of a connection with TLS. For others the crate redis has one.
    _carrier: Option<Arc<AbortOnDropHandle<()>>>,
}

impl Endpoint {
    /// The server with this URL. Does not connect yet.
    pub(super) fn new(url: &str, login: &RedisLogin) -> RedisResult<Endpoint> {
        // The crate redis reads the URL, and does not need to know of TLS.
        let plain = url.strip_prefix("rediss://").map(|rest| format!("redis://{rest}"));
        let mut info = plain.as_deref().unwrap_or(url).into_connection_info()?;
        if let Some(password) = &login.password {
            let mut settings = info.redis_settings().clone().set_password(password.expose());
            if let Some(username) = &login.username {
                settings = settings.set_username(username);
            }
            info = info.set_redis_settings(settings);
        }
        // A call must not wait until the one before it is confirmed.
        let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(UNCONFIRMED);
        info = info.set_tcp_settings(tcp);
        let secure = match info.addr() {
            ConnectionAddr::Tcp(host, port) if plain.is_some() => Some(Arc::new(secure(host, *port, login)?)),
            _ => None,
        };
        Ok(Endpoint { client: Client::open(info)?, secure })
    }

    /// A server of the same kind at another address, for the same user.
    pub(super) fn at(&self, host: &str, port: u16) -> RedisResult<Endpoint> {
        let info = self.client.get_connection_info().clone();
        let client = Client::open(info.set_addr(ConnectionAddr::Tcp(host.to_owned(), port)))?;
        let secure = match self.secure.as_deref() {
            Some(secure) => {
                let connector = secure.connector.clone();
                Some(Arc::new(Secure { connector, name: server_name(host)?, host: host.to_owned(), port }))
            }
            None => None,
        };
        Ok(Endpoint { client, secure })
    }

    /// The same server, for connections on which it may send messages unasked.
    pub(super) fn taking_messages(&self) -> RedisResult<Endpoint> {
        let info = self.client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        Ok(Endpoint { client, secure: self.secure.clone() })
    }

    /// Its host and port; none for a socket.
    pub(super) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Some((host, *port)),
            _ => None,
        }
    }

    /// Opens a connection, with TLS within [`CONNECT_TIMEOUT`], and otherwise within the time of `config`.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<OpenConnection> {
        let Some(secure) = &self.secure else {
            let calls = self.client.get_multiplexed_async_connection_with_config(config).await?;
            return Ok(OpenConnection { calls, _carrier: None });
        };
        let connected = async {
            let addresses = lookup_host((secure.host.as_str(), secure.port)).await?;
            // A name may have several addresses, and no server behind some of them: the first reply counts.
            let tries: Vec<_> = addresses.map(|address| Box::pin(secure.open(address))).collect();
            if tries.is_empty() {
                return Err(RedisError::from(io::Error::other("the name has no address")));
            }
            let (stream, _) = select_ok(tries).await?;
            let settings = self.client.get_connection_info().redis_settings();
            MultiplexedConnection::new_with_config(settings, stream, config.clone()).await
        };
        let in_time = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
        let (calls, carrier) =
            in_time.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        let carrier = AbortOnDropHandle::new(tokio::spawn(carrier));
        Ok(OpenConnection { calls, _carrier: Some(Arc::new(carrier)) })
    }
}

impl Secure {
    async fn open(&self, address: std::net::SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_user_timeout(Some(UNCONFIRMED))?;
        let secured = self.connector.connect(self.name.clone(), stream).await;
        secured.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), "it closed the connection before TLS was agreed on")
            }
            _ => error,
        })
    }
}

fn secure(host: &str, port: u16, login: &RedisLogin) -> RedisResult<Secure> {
    let unusable = |what: &'static str| RedisError::from((ErrorKind::InvalidClientConfig, what));
    // The certificates and the key were checked when the configuration was read.
    let certificates =
        |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).flatten().collect::<Vec<_>>();
    let named = login.ca.as_deref().map(certificates);
    let trust = named.as_deref().map_or(Trust::SystemAnd(&[]), Trust::Only);
    let identity = match &login.identity {
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_slice(identity.key.expose().as_bytes());
            Some((certificates(&identity.cert), key.map_err(|_| unusable("redis.key cannot be used"))?))
        }
        None => None,
    };
    let settings = tls::client(&trust, identity).map_err(|_| unusable("redis.cert cannot be used"))?;
    let connector = TlsConnector::from(Arc::new(settings));
    Ok(Secure { connector, name: server_name(host)?, host: host.to_owned(), port })
}

/// The name that the certificate must have.
fn server_name(host: &str) -> RedisResult<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| RedisError::from((ErrorKind::InvalidClientConfig, "the host has no name of DNS")))
}
