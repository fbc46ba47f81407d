//! Sessions of browsers, as all hosts know them: the key that signs sessions, and the sessions that ended by
//! a logout.
//!
//! In: texts. Out: texts. All of this works on a full Redis, too. Not here: what is signed, and how
//! (`dashboard::session`).

use std::time::Duration;

use super::error::QueueResult;
use super::keys;
use super::link::Link;
use super::reply;
use crate::clock::ms;

/// The most ended sessions of a token that are kept: the ones that would have lasted longest. Only a user
/// with the token itself can end so many that an earlier one is forgotten.
const MAX_ENDED: i64 = 1000;

/// The key of all hosts. If there is none yet, `candidate` becomes the key.
pub(crate) async fn key(link: &Link, candidate: &str) -> QueueResult<String> {
    const WHAT: &str = "get the key of sessions";
    let get = redis::cmd("GET").arg(keys::SESSIONS).to_owned();
    if let Some(found) = link.read(WHAT, &get, reply::optional).await? {
        return Ok(found);
    }
    // Another host may set its candidate at the same time: NX lets the first one win.
    let set = redis::cmd("SET").arg(keys::SESSIONS).arg(candidate).arg("NX").arg("GET").to_owned();
    let found = link.shaped(WHAT, reply::optional(link.write(WHAT, &set).await?))?;
    Ok(found.unwrap_or_else(|| candidate.to_owned()))
}

/// Ends a session of this token on all hosts. `until_ms`: when the session would have ended by itself.
/// `longest`: how long sessions last at most.
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
