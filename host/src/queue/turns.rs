//! Claims from a queue that limits which tasks run at the same time, in all hosts together; and looks after
//! its tracks. A track is the line of tasks with one value in the field that the rules name; without such a
//! field, all tasks are in one track. A task has its turn while it is one of those that may run. A task whose
//! track is busy is held: it is parked among the delayed tasks until it gets its turn.
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

/// The time at which held tasks are due, which never comes (`scripts/turns.lua`).
pub(crate) const HELD: &str = "9007199254740991";

/// The result of one claim.
#[derive(Debug, PartialEq, Eq)]
pub struct Claimed {
    pub entries: Vec<StreamEntry>,
    /// The tasks that this claim held, as far as they have the field in which an alias is looked for.
    pub held: Vec<HeldTask>,
    pub stopped_by: ClaimStop,
}

/// A task that was held just now, and has the field in which an alias is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTask {
    pub id: String,
    pub enqueued_at_ms: u64,
    /// The whole field. The alias may be a part of its JSON.
    pub alias_field: Vec<u8>,
}

/// Why a claim brought no more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStop {
    /// The stream has no more entries.
    Empty,
    /// As many tasks run as the queue allows.
    Limit,
    /// The claim brought as many entries as were wanted, or looked at as many as one call does.
    Enough,
    /// Consumers of another program have not acknowledged some entries. The reclaimer takes these over first,
    /// since they are older.
    ForeignPending,
}

/// A fault in the tracks of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackFault {
    /// The name of the kind of fault.
    pub kind: String,
    /// The id of a task, or the member of the sorted set `tracks` that stands for a held task.
    pub subject: String,
}

impl Queue {
    /// Claims up to `count` new entries over `link`, as far as the queue's limits allow. Entries whose track
    /// is busy are held.
    pub async fn claim(&self, link: &Link, consumer: &str, count: usize) -> QueueResult<Claimed> {
        let call = self.call(&script::CLAIM).arg("consumer", consumer).arg("want", count);
        let call = self.with_limits(call);
        let reply = link.script(&call).await?;
        self.shaped("claim", claim_reply(reply))
    }

    /// Adds the arguments `most`, `field` and `alias`: how many tasks may run (each pending entry counts),
    /// and the fields in which a task has its track and its alias.
    pub(super) fn with_limits(&self, call: ScriptCall) -> ScriptCall {
        let turns = &self.rules.turns;
        let most = turns.max_running.map_or_else(String::new, |most| most.to_string());
        let field = turns.tracks.as_ref().and_then(|tracks| tracks.field.as_deref()).unwrap_or_default();
        let alias = self.rules.id.as_ref().map(|place| place.field.as_str()).unwrap_or_default();
        call.arg("most", most).arg("field", field).arg("alias", alias)
    }

    /// The command that counts held tasks. None: this queue never holds tasks.
    pub(super) fn ask_held(&self) -> Option<Cmd> {
        self.rules.turns.tracks.as_ref()?;
        Some(redis::cmd("ZCOUNT").arg(&self.keys.delayed).arg(HELD).arg(HELD).to_owned())
    }

    /// The command that counts delayed tasks without the held ones. None: this queue never holds tasks.
    pub(super) fn ask_not_held(&self) -> Option<Cmd> {
        self.rules.turns.tracks.as_ref()?;
        Some(redis::cmd("ZCOUNT").arg(&self.keys.delayed).arg("-inf").arg(format!("({HELD}")).to_owned())
    }

    /// Looks for faults in the tracks, such as a turn whose task is gone. Mends them if `mend`. Pauses after
    /// each part of the tracks.
    pub async fn look_at_tracks(&self, mend: bool, pause: Duration) -> QueueResult<Vec<TrackFault>> {
        const PART: usize = 500;
        let mut faults = Vec::new();
        if self.rules.turns.tracks.is_none() {
            return Ok(faults);
        }
        // The tasks that have their turn, and then the tasks that are held.
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
                tokio::time::sleep(pause).await;
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
        3 => ClaimStop::ForeignPending,
        _ => return Err(UnexpectedShape),
    };
    Ok(Claimed { entries: reply::stream_entries(found)?, held: held_reply(held)?, stopped_by })
}

/// Leaves out a task whose id is not UTF-8, or whose time is no number: it is found malformed when it is
/// delivered.
pub(super) fn held_reply(reply: Value) -> Shaped<Vec<HeldTask>> {
    let held = reply::each(reply, |item| {
        let [id, at, field] = reply::tuple(item)?;
        let (id, at) = (String::from_utf8(reply::bytes(id)?).ok(), reply::text(at)?.parse().ok());
        let alias_field = reply::bytes(field)?;
        Ok(id.zip(at).map(|(id, enqueued_at_ms)| HeldTask { id, enqueued_at_ms, alias_field }))
    })?;
    Ok(held.into_iter().flatten().collect())
}

/// Adds the faults in a reply of tracks.lua. Returns the next cursor.
fn tracks_reply(reply: Value, faults: &mut Vec<TrackFault>) -> Shaped<String> {
    let [cursor, found] = reply::tuple(reply)?;
    for (kind, subject) in reply::pairs(found)? {
        let [kind, subject] = [kind, subject].map(|text| String::from_utf8_lossy(&text).into_owned());
        faults.push(TrackFault { kind, subject });
    }
    reply::text(cursor)
}
