//! Checks the configured Redis before anything uses it.
//!
//! In: a link, and how long to wait for a server that cannot be reached. Out: the server's version, or why
//! the server cannot be used.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::error::QueueError;
use super::link::Link;
use super::orders::{self, Orders};
use super::reply;
use crate::chain::chain;

/// Streams of older servers lack what the scripts need: an XCLAIM that drops deleted entries, TIME before
/// writes.
const OLDEST: (u32, u32) = (7, 0);

/// The time between two tries to reach a server.
const AGAIN: Duration = Duration::from_millis(500);

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error(transparent)]
    Redis(#[from] QueueError),
    #[error("Redis at {address} is version {version}; tqhost needs Redis or Valkey 7.0 or newer")]
    TooOld { address: String, version: String },
    #[error(
        "Redis at {address} is a node of a cluster: write redis.url as a list of urls of some of its nodes, \
         like [\"{address}\"]"
    )]
    Cluster { address: String },
    #[error("Redis at {address} is in no cluster: write redis.url as one url, not as a list")]
    NoCluster { address: String },
    #[error(
        "{address} is a Sentinel, which holds no tasks: write its url into redis.sentinel in place of \
         redis.url, like sentinel = {{ master = \"main\", urls = [\"{address}\"] }}"
    )]
    Sentinel { address: String },
}

/// Connects, checks, and reads the orders that stand. Tries again until `patience` is over while the server
/// cannot be reached or is not ready. Returns the version as [`check`] does, and the orders.
pub(crate) async fn wait_for(link: &Link, patience: Duration) -> Result<(String, Orders), Unusable> {
    let end = Instant::now() + patience;
    let mut has_warned = false;
    loop {
        // A host writes, so a Redis that refuses writes cannot be used yet.
        let checked = async {
            let ping = link.command("connect", &redis::cmd("PING")).await;
            ping.map_err(|error| unusable(link, error))?;
            Ok((check(link).await?, orders::list(link).await?))
        };
        let error = match checked.await {
            Err(Unusable::Redis(error))
                if (error.may_pass() || error.cannot_save()) && !error.is_authentication() =>
            {
                error
            }
            checked => return checked,
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error.into());
        }
        if !has_warned {
            tracing::warn!(
                redis = link.address(),
                seconds = patience.as_secs(),
                error = chain(&error),
                "Redis cannot be used yet; the host waits for it (redis.wait)"
            );
            has_warned = true;
        }
        sleep(AGAIN.min(left)).await;
    }
}

/// Connects, and checks the version and the mode. A server that refuses writes can be used, and so can a
/// cluster some of whose nodes do not answer. Returns the version, or an empty text if the server does not
/// tell its version.
pub(crate) async fn check(link: &Link) -> Result<String, Unusable> {
    let nodes = link.at_each_node().await.map_err(|error| unusable(link, error))?;
    let (mut versions, mut away) = (Vec::new(), None);
    for checked in join_all(nodes.iter().map(|node| check_node(link, node))).await {
        match checked {
            Ok(version) if versions.contains(&version) => {}
            Ok(version) => versions.push(version),
            Err(Unusable::Redis(error)) if link.is_cluster() && error.is_connection() => away = Some(error),
            Err(unusable) => return Err(unusable),
        }
    }
    match away {
        Some(error) if versions.is_empty() => Err(error.into()),
        _ => Ok(versions.join(", ")),
    }
}

async fn check_node(link: &Link, node: &Link) -> Result<String, Unusable> {
    node.ping_for("connect").await?;
    // This user may not be allowed INFO; the host can work without it.
    let info = node.command("ask for the version", redis::cmd("INFO").arg("server")).await;
    let info = info.ok().and_then(|info| reply::text(info).ok()).unwrap_or_default();
    let address = if link.is_cluster() { node.address() } else { link.address() };
    judge(&info, address, link.is_cluster())
}

fn unusable(link: &Link, error: QueueError) -> Unusable {
    if error.is_no_cluster() {
        Unusable::NoCluster { address: link.address().to_owned() }
    } else {
        Unusable::Redis(error)
    }
}

/// Reads the section `server` of INFO, and returns the version in it. Valkey has names of its own for some
/// fields, and `redis_version` is the version of Redis with which it is compatible.
fn judge(info: &str, address: &str, in_cluster: bool) -> Result<String, Unusable> {
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    };
    let address = || address.to_owned();
    let modes = [field("redis_mode"), field("server_mode")];
    if !in_cluster && modes.iter().any(|mode| mode == "cluster") {
        return Err(Unusable::Cluster { address: address() });
    }
    if modes.iter().any(|mode| mode == "sentinel") {
        return Err(Unusable::Sentinel { address: address() });
    }
    let version = field("redis_version");
    match (major_and_minor(&version), field("valkey_version")) {
        (Some(found), _) if found < OLDEST => Err(Unusable::TooOld { address: address(), version }),
        (_, valkey) if !valkey.is_empty() => Ok(format!("Valkey {valkey}")),
        _ => Ok(version),
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_tell_what_they_are() {
        let judged = |info: &str| judge(info, "a:1", false).map_err(|error| error.to_string());
        assert_eq!(judged("redis_version:7.0.15\r\nredis_mode:standalone\r\n").as_deref(), Ok("7.0.15"));
        assert_eq!(judged("redis_version:10.1.0\r\n").as_deref(), Ok("10.1.0"), "versions are numbers");
        assert_eq!(judged("redis_version:unstable\r\n").as_deref(), Ok("unstable"));
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\nserver_mode:";
        assert_eq!(judged(&format!("{valkey}standalone\r\n")).as_deref(), Ok("Valkey 9.1.2"));
        for refused in [
            ("redis_version:7.0.15\r\nredis_mode:cluster\r\n".to_owned(), "a node of a cluster"),
            (format!("{valkey}cluster\r\n"), "a node of a cluster"),
            ("redis_version:7.0.15\r\nredis_mode:sentinel\r\n".to_owned(), "a:1 is a Sentinel"),
            (format!("{valkey}sentinel\r\n"), "a:1 is a Sentinel"),
            ("redis_version:6.2.5\r\n".to_owned(), "version 6.2.5; tqhost needs"),
            ("redis_version:6.10.1\r\n".to_owned(), "version 6.10.1; tqhost needs"),
        ] {
            let error = judged(&refused.0).expect_err("refused");
            assert!(error.contains(refused.1), "{error}");
        }
        let node = "redis_version:7.0.15\r\nredis_mode:cluster\r\n";
        assert_eq!(judge(node, "a:1", true).map_err(|error| error.to_string()).as_deref(), Ok("7.0.15"));
    }
}
