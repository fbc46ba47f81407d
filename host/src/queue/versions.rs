//! The files of good versions of plugins, for hosts that do not have them.
//!
//! In: the bytes of a file, under its SHA-256. Out: the bytes. Not here: which versions are good (`orders`
//! has the lists), how many are kept and who trusts them (`plugins::shelf`).

use super::error::QueueResult;
use super::keys;
use super::link::Link;
use super::reply;

/// How many more bytes of files Redis may hold: half of its memory is left to tasks. None: Redis has no limit
/// for its memory, or does not tell it.
pub(crate) async fn room(link: &Link) -> Option<u64> {
    let info = link.command("ask for its memory", redis::cmd("INFO").arg("memory")).await.ok()?;
    let info = reply::text(info).ok()?;
    let number = |name: &str| -> Option<u64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    let most = number("maxmemory").filter(|most| *most > 0)?;
    Some((most / 2).saturating_sub(number("used_memory").unwrap_or(u64::MAX)))
}

pub(crate) async fn put(link: &Link, digest: &str, bytes: &[u8]) -> QueueResult {
    let put = redis::cmd("SET").arg(keys::version(digest)).arg(bytes).to_owned();
    link.command("keep a version", &put).await.map(drop)
}

/// The file with this digest, if it has the expected number of bytes. The caller compares the digest.
pub(crate) async fn get(link: &Link, digest: &str, bytes: u64) -> QueueResult<Option<Vec<u8>>> {
    const WHAT: &str = "get a version";
    let length = link.command(WHAT, redis::cmd("STRLEN").arg(keys::version(digest))).await?;
    if reply::count(&length).ok() != Some(bytes) {
        return Ok(None);
    }
    let found = link.command(WHAT, redis::cmd("GET").arg(keys::version(digest))).await?;
    match found {
        redis::Value::Nil => Ok(None),
        found => link.shaped(WHAT, reply::bytes(found)).map(Some),
    }
}

pub(crate) async fn remove(link: &Link, digest: &str) -> QueueResult {
    let remove = redis::cmd("UNLINK").arg(keys::version(digest)).to_owned();
    link.command("remove a version", &remove).await.map(drop)
}
