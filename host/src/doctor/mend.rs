//! Decides on suspicions, and mends what is wrong: one script for each, which looks and writes at one moment.
//!
//! In: suspects that `walk` or a scan of the keys found a moment ago. Out: which of them are really wrong,
//! and which were mended. Not here: finding suspects, and how long to wait before the second look (`doctor`,
//! and `tend` for the janitor).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use redis::Value;
use serde::Serialize;
use strum::IntoStaticStr;

use super::walk::{self, FIRST, START};
use crate::queue::reply::{self, Shaped, UnexpectedShape, optional};
use crate::queue::script::{EXAMINE, EXAMINE_LOOK, MEND, MEND_LOOK};
use crate::queue::{Link, Queue, QueueError, QueueResult, Status, keys, millis};

/// Statuses in one call of the script.
const STATUSES: usize = 100;

/// The kinds of faults in a queue. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, Serialize)]
#[strum(serialize_all = "kebab-case", const_into_str)]
#[serde(into = "&'static str")]
pub enum FaultKind {
    WrongType,
    NoGroup,
    DeletedEntry,
    Undeliverable,
    DelayedWithoutFields,
    FieldsWithoutDelay,
    UnreadableFields,
    LostTask,
    EndedButThere,
    DeadButAlive,
    NoExpiry,
    OrphanedKey,
    LostChild,
    UncountedChild,
    UnreleasedChildren,
    UnjoinedFlow,
    FlowWithoutTask,
    TurnWithoutTask,
    TrackWithoutTurn,
    BrokenTrack,
    StuckClaim,
    StuckDelayed,
}

/// A possible fault of one task.
#[derive(Debug, Clone)]
pub(super) struct Suspect {
    pub kind: FaultKind,
    /// The entry, member or task id that it is about.
    pub subject: String,
    pub id: String,
    /// The place where it was seen.
    pub key: Vec<u8>,
    pub marker: Option<Vec<u8>>,
    /// How long a task must have made no progress to count as stuck.
    pub patience: Duration,
    /// The status of the task, if the task belongs to another queue.
    pub status: Option<String>,
}

impl Suspect {
    pub(super) fn new(kind: FaultKind, subject: &str, id: &str, key: impl Into<Vec<u8>>) -> Suspect {
        let (subject, id) = (subject.to_owned(), id.to_owned());
        Suspect { kind, subject, id, key: key.into(), marker: None, patience: Duration::ZERO, status: None }
    }
}

/// The result of a second look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The task has moved on.
    Fine,
    Wrong {
        mended: bool,
    },
}

/// A task whose status does not match its place.
#[derive(Debug, Clone)]
pub(super) struct TaskSuspect {
    pub id: String,
    pub kind: FaultKind,
    pub status: Option<Status>,
    /// The form of its status, as one text.
    look: Vec<u8>,
    marker: Option<Vec<u8>>,
    /// It may be in the stream under another entry than its status names, added at this time or later.
    waits_since: Option<u64>,
}

impl TaskSuspect {
    /// Whether it may be in the stream under an entry that its status does not name.
    pub(super) fn waits(&self) -> bool {
        self.waits_since.is_some()
    }

    fn asked(&self) -> Asked<'_> {
        Asked { id: &self.id, look: &self.look, marker: self.marker.as_deref() }
    }
}

/// The result of a look at keys.
#[derive(Debug, Default)]
pub(super) struct KeySuspects {
    pub tasks: Vec<TaskSuspect>,
    pub markers: Vec<Suspect>,
    /// Keys of another type. They need no second look.
    pub wrong_type: Vec<Vec<u8>>,
    /// The number of tasks that have ended and whose status expires.
    pub ended: u64,
    /// Tasks that only their marker names.
    unknown: HashSet<String>,
}

impl KeySuspects {
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.markers.len()
    }
}

impl Queue {
    /// Looks again at each suspect, and mends it if `mend`.
    pub(super) async fn judge(&self, suspects: &[Suspect], mend: bool) -> QueueResult<Vec<Judgement>> {
        let keys = &self.keys;
        let call = |suspect: &Suspect| {
            let call = self
                .call(if mend { &MEND } else { &MEND_LOOK })
                .key("status", suspect.status.clone().unwrap_or_else(|| keys.task(&suspect.id)))
                .key("marker", suspect.marker.as_deref().unwrap_or(keys.stream.as_bytes()))
                .arg("suspicion", suspect.kind.into_str())
                .arg("mends", u8::from(mend));
            let call = call.arg("subject", &suspect.subject).arg("id", &suspect.id);
            call.arg("patience", millis(suspect.patience))
        };
        let replies = self.link.scripts("look again", &suspects.iter().map(call).collect::<Vec<_>>()).await?;
        let judgement = |reply: Value| {
            let [is_wrong, mended] = reply::tuple(reply)?;
            let mended = reply::int(&mended)? == 1;
            Ok(if reply::int(&is_wrong)? == 1 { Judgement::Wrong { mended } } else { Judgement::Fine })
        };
        replies.into_iter().map(|reply| self.shaped("mend", judgement(reply?))).collect()
    }

    /// Looks at statuses and markers for the first time.
    pub(super) async fn look_at(&self, keys: Vec<Vec<u8>>, found: &mut KeySuspects) -> QueueResult {
        let (markers, others): (Vec<Vec<u8>>, Vec<Vec<u8>>) =
            keys.into_iter().partition(|key| self.keys.is_marker(key));
        let ids: Vec<String> = others.iter().filter_map(|key| self.keys.task_of(key)).collect();
        for some in ids.chunks(STATUSES) {
            let asked: Vec<Asked> = some.iter().map(|id| Asked { id, look: b"", marker: None }).collect();
            for (id, seen) in some.iter().zip(self.examine(&asked, false).await?) {
                match seen.verdict {
                    1 => found.ended += 1,
                    2 => found.wrong_type.push(self.keys.task(id).into_bytes()),
                    _ => found.tasks.extend(seen.suspect(id)),
                }
            }
        }
        for some in markers.chunks(STATUSES) {
            self.look_at_markers(some, found).await?;
        }
        Ok(())
    }

    async fn look_at_markers(&self, markers: &[Vec<u8>], found: &mut KeySuspects) -> QueueResult {
        const WHAT: &str = "look at idempotency keys";
        let ask = |marker: &Vec<u8>| {
            [redis::cmd("PTTL").arg(marker).to_owned(), redis::cmd("GET").arg(marker).to_owned()]
        };
        let mut replies =
            self.link.pipeline(WHAT, &markers.iter().flat_map(ask).collect::<Vec<_>>()).await?.into_iter();
        let mut held = Vec::new();
        for marker in markers {
            let (Some(expires), Some(id)) = (replies.next(), replies.next()) else { break };
            match id {
                Err(error) if error.is_wrong_type() => found.wrong_type.push(marker.clone()),
                // A marker that expires frees its key by itself.
                id => {
                    if let (-1, Some(id)) =
                        (self.shaped(WHAT, reply::int(&expires?))?, self.shaped(WHAT, optional(id?))?)
                    {
                        held.push((marker.clone(), id));
                    }
                }
            }
        }
        let ask =
            |(_, id): &(Vec<u8>, String)| redis::cmd("HGET").arg(self.keys.task(id)).arg("status").to_owned();
        let replies = self.link.pipeline(WHAT, &held.iter().map(ask).collect::<Vec<_>>()).await?;
        for ((marker, id), status) in held.into_iter().zip(replies) {
            let status = match status {
                Err(error) if error.is_wrong_type() => continue,
                status => self.shaped(WHAT, optional(status?))?.and_then(|text| text.parse::<Status>().ok()),
            };
            match status {
                Some(status) if !status.is_end() => continue,
                Some(_) => {}
                None => drop(found.unknown.insert(id.clone())),
            }
            let suspect = Suspect::new(FaultKind::OrphanedKey, &id, &id, marker.clone());
            found.markers.push(Suspect { marker: Some(marker), ..suspect });
        }
        Ok(())
    }

    /// Searches about `limit` tasks of the stream and of the delayed ones, and removes the suspects that it
    /// finds. If there are more tasks than that, it removes the suspects that it did not find, too: they may
    /// be among the others.
    pub(super) async fn take_back(&self, suspects: &mut KeySuspects, limit: usize) -> QueueResult {
        let waiting = suspects.tasks.iter().filter(|task| task.waits());
        let mut ids: HashSet<String> =
            waiting.map(|task| task.id.clone()).chain(suspects.unknown.iter().cloned()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let all = ids.clone();
        let since = suspects.tasks.iter().filter_map(|task| task.waits_since).min().unwrap_or(0);
        let from =
            if suspects.unknown.is_empty() && since > 0 { format!("{since}-0") } else { FIRST.to_owned() };
        let is_whole = self.find_all(&mut ids, &from, limit).await?;
        let is_innocent = |id: &String| all.contains(id) && (!is_whole || !ids.contains(id));
        suspects.tasks.retain(|task| !task.waits() || !is_innocent(&task.id));
        suspects.markers.retain(|marker| !is_innocent(&marker.id));
        Ok(())
    }

    /// Looks again at tasks, and mends them if `mend`.
    pub(super) async fn judge_tasks(
        &self,
        suspects: &[TaskSuspect],
        mend: bool,
    ) -> QueueResult<Vec<Judgement>> {
        let mut out = Vec::with_capacity(suspects.len());
        for some in suspects.chunks(STATUSES) {
            let asked: Vec<Asked> = some.iter().map(TaskSuspect::asked).collect();
            for seen in self.examine(&asked, mend).await? {
                let wrong = Judgement::Wrong { mended: seen.mended };
                out.push(if seen.verdict >= 3 { wrong } else { Judgement::Fine });
            }
        }
        Ok(out)
    }

    /// Asks the script about tasks.
    async fn examine(&self, asked: &[Asked<'_>], mend: bool) -> QueueResult<Vec<Examined>> {
        let keys = &self.keys;
        let mut call = self.call(if mend { &EXAMINE } else { &EXAMINE_LOOK }).arg("mends", u8::from(mend));
        for task in asked {
            // Whoever may write a status could name any key there.
            let marker = task.marker.filter(|key| keys.is_marker(key)).unwrap_or(keys.stream.as_bytes());
            call = call.key("status", keys.task(task.id)).key("marker", marker);
            call = call.arg("id", task.id).arg("before", task.look);
        }
        let reply = self.link.script(&call).await?;
        let is_whole = |all: &Vec<Examined>| all.len() == asked.len();
        let examined = reply::each(reply, Examined::read);
        self.shaped("examine", examined.and_then(|all| Some(all).filter(is_whole).ok_or(UnexpectedShape)))
    }
}

/// A task that the script is asked about.
struct Asked<'a> {
    id: &'a str,
    /// The form of its status before; empty at the first look.
    look: &'a [u8],
    marker: Option<&'a [u8]>,
}

/// The answer of the script for one task.
struct Examined {
    /// A number that the header of examine.lua explains. From 3 on, something is wrong.
    verdict: i64,
    /// The form of its status, as one text.
    look: Vec<u8>,
    /// The earliest time (ms) of the entry under which it may wait.
    came_after: u64,
    marker: Option<Vec<u8>>,
    status: Option<Status>,
    mended: bool,
}

impl Examined {
    fn read(item: Value) -> Shaped<Examined> {
        let [verdict, look, came_after, marker, status, mended] = reply::tuple(item)?;
        Ok(Examined {
            verdict: reply::int(&verdict)?,
            look: reply::bytes(look)?,
            came_after: u64::try_from(reply::int(&came_after)?).unwrap_or(0),
            marker: if matches!(marker, Value::Nil) { None } else { Some(reply::bytes(marker)?) },
            status: optional(status)?.and_then(|text| text.parse().ok()),
            mended: reply::int(&mended)? == 1,
        })
    }

    fn suspect(self, id: &str) -> Option<TaskSuspect> {
        let kind = match self.verdict {
            3 => FaultKind::NoExpiry,
            4 => FaultKind::EndedButThere,
            5 | 6 => FaultKind::LostTask,
            _ => return None,
        };
        let waits_since = (self.verdict == 6).then_some(self.came_after);
        Some(TaskSuspect {
            id: id.to_owned(),
            kind,
            status: self.status,
            look: self.look,
            marker: self.marker,
            waits_since,
        })
    }
}

/// The findings of a janitor at some of a queue's keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JanitorFindings {
    /// Ids of tasks that were in no place any more, and are FAILED now.
    pub lost: Vec<String>,
    /// How many of these were PENDING: queued or delayed.
    pub never_ran: u64,
    /// Idempotency keys without a living task.
    pub freed: u64,
    /// Statuses that would never have expired.
    pub expiring: u64,
}

/// One part of a scan over all keys in Redis.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScanPart {
    /// The position of the next part; none after the last one.
    pub next: Option<String>,
    /// The statuses and markers in it that do not expire, by the index of their queue in the call.
    pub kept: BTreeMap<usize, Vec<Vec<u8>>>,
    /// How many statuses and markers were checked.
    pub asked: usize,
}

/// Looks at about `count` keys of the whole Redis, from the end of the last part. Skips keys that expire, and
/// keys that Redis refuses.
pub async fn scan_part(
    link: &Link,
    queues: &[&Queue],
    from: Option<&str>,
    count: usize,
) -> QueueResult<ScanPart> {
    const WHAT: &str = "look through the keys";
    let page = walk::all_keys(link, from.unwrap_or(START), count).await?;
    let places: HashMap<&[u8], usize> =
        queues.iter().enumerate().map(|(place, queue)| (queue.keys.base.as_bytes(), place)).collect();
    let owned = |key: Vec<u8>| {
        let place = keys::bases(&key).find_map(|base| places.get(base).copied())?;
        Some((place, key))
    };
    let owned: Vec<(usize, Vec<u8>)> = page.items.into_iter().filter_map(owned).collect();
    let ask = |(_, key): &(usize, Vec<u8>)| redis::cmd("PTTL").arg(key).to_owned();
    let replies = link.pipeline(WHAT, &owned.iter().map(ask).collect::<Vec<_>>()).await?;
    let mut part = ScanPart { next: page.next, asked: owned.len(), ..ScanPart::default() };
    for ((place, key), reply) in owned.into_iter().zip(replies) {
        let reply = match reply {
            Err(error) if error.is_denied_key() => continue,
            reply => reply?,
        };
        let ms =
            reply::int(&reply).map_err(|UnexpectedShape| QueueError::unexpected(WHAT, link.address()))?;
        if ms == -1 {
            part.kept.entry(place).or_default().push(key);
        }
    }
    Ok(part)
}

/// Mends orphans among these statuses and markers, which get a second look after `moment`. It searches at
/// most 10,000 tasks of the stream for suspects. Several hosts may do this at once.
pub async fn tend(queue: &Queue, keys: Vec<Vec<u8>>, moment: Duration) -> QueueResult<JanitorFindings> {
    const LOOK: usize = 10_000;
    let mut found = KeySuspects::default();
    queue.look_at(keys, &mut found).await?;
    found.tasks.retain(|task| task.kind != FaultKind::EndedButThere);
    queue.take_back(&mut found, LOOK).await?;
    let mut findings = JanitorFindings::default();
    if found.len() == 0 {
        return Ok(findings);
    }
    tokio::time::sleep(moment).await;
    for (task, judgement) in found.tasks.iter().zip(queue.judge_tasks(&found.tasks, true).await?) {
        match (task.kind, judgement) {
            (FaultKind::LostTask, Judgement::Wrong { mended: true }) => {
                findings.never_ran += u64::from(task.status == Some(Status::Pending));
                findings.lost.push(task.id.clone());
            }
            (_, Judgement::Wrong { mended: true }) => findings.expiring += 1,
            _ => {}
        }
    }
    let judged = queue.judge(&found.markers, true).await?;
    findings.freed =
        judged.into_iter().filter(|judgement| *judgement == Judgement::Wrong { mended: true }).count() as u64;
    Ok(findings)
}
