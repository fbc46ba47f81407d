//! The requests that one version of a plugin is granted, and the resources that its attempts share for them.
//!
//! In: the plugin's configuration. Out: a [`Grant`], which says where requests may go, and holds the
//! connections, the lookup and the TLS settings of the version.
//!
//! Not here: using them (`connect`, `exchange`), what an entry of allowed_hosts allows (`config::allowed`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};

use super::kept::KeptConnections;
use super::target::Target;
use crate::config::{self, AllowedHost};
use crate::sandbox::share::Owner;
use crate::sandbox::slices::Polls;

/// Largest number of addresses tried for one name.
pub(super) const MAX_ADDRESSES: usize = 8;

/// A function that looks up a name, and blocks. Tests have one of their own.
pub(super) type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

fn system_lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    std::net::ToSocketAddrs::to_socket_addrs(&(name, port)).map(|found| found.take(MAX_ADDRESSES).collect())
}

/// The TLS settings of one version, made when they are first needed.
pub(super) type Tls = OnceCell<Option<Arc<ClientConfig>>>;

/// The requests that one version of a plugin is granted, and the resources that its attempts share.
pub(in crate::sandbox) struct Grant {
    pub(super) hosts: Vec<AllowedHost>,
    pub(super) bounds: config::Http,
    /// Free places for connections that serve a request.
    pub(super) connections: Arc<Semaphore>,
    /// Open connections that serve no request.
    pub(super) kept: Arc<KeptConnections>,
    pub(super) lookup: Lookup,
    pub(super) tls: Tls,
    pub(super) runtime: Handle,
    pub(super) polls: Polls,
    pub(super) owner: Arc<Owner>,
}

impl Grant {
    pub(in crate::sandbox) fn new(
        plugin: &config::Plugin,
        runtime: Handle,
        polls: Polls,
        owner: Arc<Owner>,
    ) -> Grant {
        Grant {
            hosts: plugin.allowed_hosts.clone(),
            bounds: plugin.http.clone(),
            connections: Arc::new(Semaphore::new(plugin.http.max_connections as usize)),
            kept: Arc::new(KeptConnections::new(plugin.http.keep_alive, runtime.clone())),
            lookup: system_lookup,
            tls: Tls::default(),
            runtime,
            polls,
            owner,
        }
    }

    /// Whether no request is allowed.
    pub(in crate::sandbox) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The entries that allow requests to `target`.
    pub(super) fn entries(&self, target: &Target) -> impl Iterator<Item = &AllowedHost> {
        self.hosts.iter().filter(move |entry| entry.allows(target.scheme, &target.host, target.port))
    }
}
