//! Checks the configured Redis before anything uses it.
//!
//! In: a connection, and how long a server that cannot be reached may take to come. Out: the server's
//! version; or why the server cannot be used.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::QueueError;
use super::link::Link;
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
        "Redis at {address} is a node of a cluster, which tqhost cannot use yet: \
         set redis.url to a primary that is in no cluster"
    )]
    Cluster { address: String },
}

/// Connects and checks, again and again for this long while the server cannot be reached or is not ready.
pub(crate) async fn wait_for(link: &Link, patience: Duration) -> Result<String, Unusable> {
    let end = Instant::now() + patience;
    let mut is_told = false;
    loop {
        // A host writes, so a Redis that refuses writes cannot be used yet.
        let checked = match link.command("connect", &redis::cmd("PING")).await {
            Ok(_) => check(link).await,
            Err(error) => Err(error.into()),
        };
        let error = match checked {
            Err(Unusable::Redis(error)) if error.may_pass() && !error.is_authentication() => error,
            checked => return checked,
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error.into());
        }
        if !is_told {
            tracing::warn!(
                redis = link.address(),
                seconds = patience.as_secs(),
                error = chain(&error),
                "Redis cannot be used yet; the host waits for it (redis.wait)"
            );
            is_told = true;
        }
        sleep(AGAIN.min(left)).await;
    }
}

/// Connects, and checks the version and the mode. A server that refuses writes can be used, too. Gives the
/// version, or an empty text if the server does not tell it.
pub(crate) async fn check(link: &Link) -> Result<String, Unusable> {
    link.ping_for("connect").await?;
    // This user may not be allowed INFO; the host can work without it.
    let Ok(info) = link.command("ask for the version", redis::cmd("INFO").arg("server")).await else {
        return Ok(String::new());
    };
    let info = reply::text(info).unwrap_or_default();
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    };
    if field("redis_mode") == "cluster" {
        return Err(Unusable::Cluster { address: link.address().to_owned() });
    }
    let version = field("redis_version");
    match parse(&version) {
        Some(found) if found < OLDEST => {
            Err(Unusable::TooOld { address: link.address().to_owned(), version })
        }
        _ => Ok(version),
    }
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(
            parse("6.2.14") < Some(OLDEST)
                && parse("7.0.15") >= Some(OLDEST)
                && parse("10.1.0") > Some(OLDEST)
        );
        assert_eq!(parse("unstable"), None);
    }
}
