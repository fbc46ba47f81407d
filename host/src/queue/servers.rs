//! The servers of Redis as the configuration names them.
//!
//! In: urls, and the host's login. Out: a [`Redis`], which has not connected yet. Not here: connections
//! (`connections`), calls (`link`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::cluster::Cluster;
use super::connect::Endpoint;
use super::error::{QueueError, QueueResult};
use super::node::Node;
use super::nodes::Nodes;
use super::sentinels::Sentinels;
use crate::config::{RedisLogin, SentinelWatch};

/// The servers of Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Redis {
    pub(super) nodes: Nodes,
    /// Their addresses without a password, for messages.
    address: Arc<str>,
    database: i64,
    pub(super) reconnects: Arc<AtomicU64>,
    /// Whether Redis has the library of functions (`library`).
    pub(super) has_library: Arc<AtomicBool>,
}

impl Redis {
    /// Takes a `redis://`, `rediss://` or `redis+unix://` URL. Does not connect yet.
    pub fn open(url: &str) -> QueueResult<Redis> {
        Redis::open_as(url, &RedisLogin::default())
    }

    /// Like [`Redis::open`], with this user and these certificates.
    pub(crate) fn open_as(url: &str, login: &RedisLogin) -> QueueResult<Redis> {
        let address: Arc<str> = without_password(url).into();
        let endpoint = endpoint(url, login)?;
        let database = endpoint.client.get_connection_info().redis_settings().db();
        Ok(Redis::of(Nodes::Single(Node::only(endpoint, address.clone())), address, database))
    }

    /// A cluster, by the urls of some of its nodes: at least one.
    pub(crate) fn open_cluster<'u>(
        urls: impl Iterator<Item = &'u str> + Clone,
        login: &RedisLogin,
    ) -> QueueResult<Redis> {
        let address: Vec<String> = urls.clone().map(without_password).collect();
        let seeds = urls.map(|url| endpoint(url, login)).collect::<Result<_, _>>()?;
        Ok(Redis::of(Nodes::Cluster(Cluster::new(seeds)), address.join(", ").into(), 0))
    }

    /// The primary that Sentinels name.
    pub(crate) fn open_watched(watch: &SentinelWatch, login: &RedisLogin) -> QueueResult<Redis> {
        let urls = || watch.urls.iter().map(|url| url.expose());
        let at_sentinels = RedisLogin {
            username: watch.username.clone(),
            password: watch.password.clone(),
            ..login.clone()
        };
        let all = urls().map(|url| endpoint(url, &at_sentinels)).collect::<Result<_, _>>()?;
        let primary = endpoint(urls().next().unwrap_or_default(), login)?;
        let address: Vec<String> = urls().map(without_password).collect();
        let address = format!("{} of the Sentinels {}", watch.master, address.join(", "));
        let sentinels = Sentinels::new(watch.master.clone(), all, primary);
        Ok(Redis::of(Nodes::Sentinel(sentinels), address.into(), 0))
    }

    fn of(nodes: Nodes, address: Arc<str>, database: i64) -> Redis {
        Redis { nodes, address, database, reconnects: Arc::default(), has_library: Arc::default() }
    }

    /// The address without its password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of its database.
    pub(crate) fn database(&self) -> i64 {
        self.database
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.nodes.is_cluster()
    }

    /// Whether Sentinels name the server.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self.nodes, Nodes::Sentinel(_))
    }

    /// How many connections were replaced after a failure, since the start.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

fn endpoint(url: &str, login: &RedisLogin) -> QueueResult<Endpoint> {
    Endpoint::new(url, login).map_err(|error| QueueError::new("read [redis]", &without_password(url), error))
}

/// The URL for display: without user, password and query.
fn without_password(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_no_password() {
        assert_eq!(without_password("redis://user:p@ss@host:6379/2?x=secret"), "redis://host:6379/2");
        assert_eq!(
            without_password("redis+unix:///run/redis.sock?pass=secret"),
            "redis+unix:///run/redis.sock"
        );
        assert_eq!(without_password("redis://127.0.0.1"), "redis://127.0.0.1");
    }
}
