//! Claims from a queue that limits which tasks run beside each other, in all hosts together; and looks after
//! its tracks.
//!
//! In: a consumer, and how many entries it can take. Out: entries, and why there were not more. The rules are
//! in `scripts/turns.lua`.
//!
//! Not here: reads of other queues (`claim`), when to claim (`worker::fetcher`).

use std::time::Duration;

use redis::{Cmd, Value};

use super::codec::StreamEntry;
use super::error::QueueResult;
use super::handle::Queue;
use super::link::Link;
use super::reply::{self, Shaped, UnexpectedShape};
use super::script::{self, ScriptCall};

/// The time at which held tasks are due (`scripts/turns.lua`).
pub(crate) const HELD: &str = "9007199254740991";

/// The result of one claim.
#[derive(Debug, PartialEq, Eq)]
pub struct Claimed {
    pub entries: Vec<StreamEntry>,
    /// The tasks with aliases that it held.
    pub held: Vec<HeldTask>,
    pub stopped_by: ClaimStop,
}

/// A task that was held just now, and that may have an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTask {
    pub id: String,
    pub enqueued_at_ms: u64,
    /// The value of the field that has its alias.
    pub value: Vec<u8>,
}

/// Why a claim brought no more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStop {
    /// There are no more.
    Empty,
    /// As many tasks run as may.
    Limit,
    /// It brought as many as were wanted, or looked at as many as one call does.
    Enough,
    /// Entries that consumers of another program left are to be taken over first.
    Older,
}

/// A fault in the tracks of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackFault {
    /// The name of the kind of fault.
    pub kind: String,
    /// The id of a task, or a member of the tracks.
    pub subject: String,
}

impl Queue {
    /// Claims up to `count` new entries over `link`, as far as the queue's limits allow. Entries whose track
    /// is busy are held.
    pub async fn claim(&self, link: &Link, consumer: &str, count: usize) -> QueueResult<Claimed> {
        let call = self.call(&script::CLAIM).arg("consumer", consumer).arg("want", count);
        let call = self.within_limits(call);
        let reply = link.script(&call).await?;
        self.shaped("claim", claim_reply(reply))
    }

    /// Adds how many entries may be pending, and the fields that name a task's track and its alias.
    pub(super) fn within_limits(&self, call: ScriptCall) -> ScriptCall {
        let turns = &self.rules.turns;
        let most = turns.max_running.map_or_else(String::new, |most| most.to_string());
        let field = turns.tracks.as_ref().and_then(|tracks| tracks.field.as_deref()).unwrap_or_default();
        let alias = self.rules.id.as_ref().map(|place| place.field.as_str()).unwrap_or_default();
        call.arg("most", most).arg("field", field).arg("alias", alias)
    }

    /// Counts the tasks that are held. None: the queue holds none.
    pub(super) fn ask_held(&self) -> Option<Cmd> {
        self.rules.turns.tracks.as_ref()?;
        Some(redis::cmd("ZCOUNT").arg(&self.keys.delayed).arg(HELD).arg(HELD).to_owned())
    }

    /// Counts the delayed tasks that are not held. None: the queue holds none.
    pub(super) fn ask_not_held(&self) -> Option<Cmd> {
        self.rules.turns.tracks.as_ref()?;
        Some(redis::cmd("ZCOUNT").arg(&self.keys.delayed).arg("-inf").arg(format!("({HELD}")).to_owned())
    }

    /// Looks for turns that nobody uses, and mends them if `mend`. It goes in parts, which are `apart`.
    pub async fn look_at_tracks(&self, mend: bool, apart: Duration) -> QueueResult<Vec<TrackFault>> {
        const PART: usize = 500;
        let mut faults = Vec::new();
        if self.rules.turns.tracks.is_none() {
            return Ok(faults);
        }
        for what in ["owners", "tracks"] {
            let mut cursor = "0".to_owned();
            loop {
                let call = self.call(if mend { &script::TRACKS } else { &script::TRACKS_LOOK });
                let call = call.arg("cursor", &cursor).arg("count", PART).arg("what", what);
                let call = call.arg("mends", u8::from(mend));
                cursor =
                    self.shaped("look at tracks", tracks_reply(self.link.script(&call).await?, &mut faults))?;
                if cursor == "0" {
                    break;
                }
                tokio::time::sleep(apart).await;
            }
        }
        Ok(faults)
    }
}

fn claim_reply(reply: Value) -> Shaped<Claimed> {
    let [stopped_by, found, held] = reply::tuple(reply)?;
    let stopped_by = match reply::int(&stopped_by)? {
        0 => ClaimStop::Empty,
        1 => ClaimStop::Limit,
        2 => ClaimStop::Enough,
        3 => ClaimStop::Older,
        _ => return Err(UnexpectedShape),
    };
    let entry = |item| {
        let [id, fields] = reply::tuple(item)?;
        Ok(StreamEntry { id: reply::text(id)?, fields: reply::pairs(fields)?, deliveries: 1 })
    };
    let entries = reply::array(found)?.into_iter().map(entry).collect::<Shaped<_>>()?;
    Ok(Claimed { entries, held: held_reply(held)?, stopped_by })
}

/// Leaves out what cannot be the id or the time of a task: its delivery finds it malformed.
pub(super) fn held_reply(reply: Value) -> Shaped<Vec<HeldTask>> {
    let held = |item| {
        let [id, at, value] = reply::tuple(item)?;
        let (id, at) = (String::from_utf8(reply::bytes(id)?), String::from_utf8(reply::bytes(at)?));
        let known = id.ok().zip(at.ok().and_then(|at| at.parse().ok()));
        let value = reply::bytes(value)?;
        Ok(known.map(|(id, enqueued_at_ms)| HeldTask { id, enqueued_at_ms, value }))
    };
    reply::array(reply)?.into_iter().filter_map(|item| held(item).transpose()).collect()
}

/// Adds the faults, and gives the next cursor.
fn tracks_reply(reply: Value, faults: &mut Vec<TrackFault>) -> Shaped<String> {
    let [cursor, found] = reply::tuple(reply)?;
    for (kind, subject) in reply::pairs(found)? {
        let [kind, subject] = [kind, subject].map(|text| String::from_utf8_lossy(&text).into_owned());
        faults.push(TrackFault { kind, subject });
    }
    reply::text(cursor)
}
