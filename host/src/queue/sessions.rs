//! Sessions of browsers, as all hosts know them: the key that signs them, and those that a logout ended.
//!
//! In: texts. Out: texts. Both work on a full Redis. Not here: what is signed, and how
//! (`dashboard::session`).

use std::time::Duration;

use super::error::{QueueError, QueueResult};
use super::keys;
use super::link::Link;
use super::reply;
use crate::clock::ms;

/// The most ended sessions of a token that are kept: those that would have lasted longest. Only somebody with
/// the token itself can make another one forgotten.
const MAX_ENDED: i64 = 1000;

/// The key of all hosts. Where there is none, it is `candidate` from now on.
pub(crate) async fn key(link: &Link, candidate: &str) -> QueueResult<String> {
    const WHAT: &str = "get the key of sessions";
    let shaped = |found| reply::optional(found).map_err(|_| QueueError::unexpected(WHAT, link.address()));
    if let Some(found) = shaped(link.command(WHAT, redis::cmd("GET").arg(keys::SESSIONS)).await?)? {
        return Ok(found);
    }
    // Another host may be as quick: one of the two candidates becomes the key.
    let set = redis::cmd("SET").arg(keys::SESSIONS).arg(candidate).arg("NX").arg("GET").to_owned();
    Ok(shaped(link.write(WHAT, &set).await?)?.unwrap_or_else(|| candidate.to_owned()))
}

/// Ends a session of this token on all hosts, until it would have ended by itself.
pub(crate) async fn end(
    link: &Link,
    token: &str,
    session: &str,
    until_ms: u64,
    longest: Duration,
) -> QueueResult {
    const WHAT: &str = "end a session";
    let command = |name: &'static str| redis::cmd(name).arg(keys::ended_sessions(token)).to_owned();
    link.write(WHAT, command("ZADD").arg(until_ms).arg(session)).await?;
    link.command(WHAT, command("ZREMRANGEBYRANK").arg(0).arg(-MAX_ENDED - 1)).await?;
    link.command(WHAT, command("PEXPIRE").arg(ms(longest))).await.map(drop)
}

/// Whether a logout has ended the session.
pub(crate) async fn has_ended(link: &Link, token: &str, session: &str) -> QueueResult<bool> {
    let score = redis::cmd("ZSCORE").arg(keys::ended_sessions(token)).arg(session).to_owned();
    let found = link.command("look for an ended session", &score).await?;
    Ok(!matches!(found, redis::Value::Nil))
}
