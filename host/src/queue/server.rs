//! Checks the configured Redis before anything uses it.
//!
//! In: a connection. Out: the server's version; or why the server cannot be used.

use super::error::QueueError;
use super::link::Link;
use super::reply;

/// Streams of older servers lack what the scripts need: an XCLAIM that drops deleted entries, TIME before
/// writes.
const OLDEST: (u32, u32) = (7, 0);

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

/// Connects, and checks the version and the mode. Gives the version, or an empty text if the server does not
/// tell it.
pub(crate) async fn check(link: &Link) -> Result<String, Unusable> {
    link.command("connect", &redis::cmd("PING")).await?;
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
