//! Examines a whole queue: whether each task is in exactly one place, nothing is stuck and no key is
//! orphaned.
//!
//!     walk the places ─▶ suspects ─▶ a moment later, one script for each ─▶ findings (mended, if asked for)
//!
//! In: a queue, quiet or at work, and the hosts that announced themselves. Out: a [`DoctorReport`]. It never
//! contains a task that is merely in motion: a script decides on each suspicion, and looks at all places of
//! the task at one moment. Not here: the calls of those scripts (`mend`), the pages of the walk (`walk`),
//! looking at flows (`flows`), the data in Redis and its writers (`queue`), what another consumer left
//! (`adopt`).

pub(crate) mod adopt;
mod adopt_dead;
mod adopt_look;
mod adopt_outside;
pub(crate) mod dead_format;
mod flows;
pub(crate) mod give_back;
pub mod mend;
mod strays;
mod walk;

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde::Serialize;

use crate::queue::hosts::HostInfo;
use crate::queue::{Census, Queue, QueueResult, codec};
use adopt_look::WrongKey;
pub(crate) use mend::FaultKind;
use mend::{Judgement, KeySuspects, Suspect};
pub(crate) use strays::{Stray, strays};
use walk::{FEW, FIRST, SCAN, START};

/// How long a suspect has to move on.
const MOMENT: Duration = Duration::from_millis(500);
/// How long a task that looks stuck has to move on: a host may wait for some seconds after an outage.
const LONG_MOMENT: Duration = Duration::from_secs(7);
/// How long a task may be stuck because of a host that was killed, which counts as alive for 15 seconds.
const GRACE: Duration = Duration::from_secs(20);
/// Suspects that get their second look together.
const BATCH: usize = 2000;
/// Tasks that are searched for in the stream together: each search may read the whole stream.
const TASK_BATCH: usize = 20_000;
/// Tasks of the stream that are remembered, at about 16 bytes each. Further ones are searched for again.
const SEEN: usize = 2_000_000;
/// Findings of one kind that are listed; the others are only counted.
const LISTED: usize = 100;

/// The contents of a queue, and its faults.
#[derive(Debug, Default)]
pub(crate) struct DoctorReport {
    pub census: Census,
    /// Tasks that have ended and whose status is kept.
    pub ended: u64,
    pub findings: Vec<Finding>,
    /// How many findings of each kind are not listed.
    pub more: BTreeMap<FaultKind, u64>,
    /// Facts that are worth knowing, but are no faults.
    pub warnings: Vec<Warning>,
    /// How many findings there are, and how many of them were not mended.
    pub found: u64,
    pub open: u64,
}

/// One fault. The names are stable as JSON.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    pub kind: FaultKind,
    /// The id of the task, or its entry if the id is not known any more.
    pub task: Option<String>,
    pub key: String,
    pub what: String,
    pub fixed: bool,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Warning {
    pub kind: &'static str,
    pub what: String,
}

impl From<&Stray> for Warning {
    fn from(Stray { beside, stream, entries }: &Stray) -> Warning {
        let what = format!(
            "the stream {stream:?} has entries ({entries}), and no queue reads it: if a producer means this \
             queue, its stream is {beside:?}"
        );
        Warning { kind: "unread-stream", what }
    }
}

/// A walk in progress.
struct Examination<'q> {
    queue: &'q Queue,
    /// All queues of the configuration: children of flows may be in each of them.
    others: &'q [Queue],
    mend: bool,
    report: DoctorReport,
    suspects: Vec<Suspect>,
    /// Fingerprints of the ids of tasks that were in the stream during the walk. A task that waits there
    /// under an entry that its status does not name need not be searched for again.
    seen: HashSet<u64>,
    /// Findings that are listed, so that a key that a scan gives twice is listed once.
    listed: HashSet<(FaultKind, String)>,
}

/// Examines the queue; mends what can be mended if `mend`. `others` are all queues of the configuration, and
/// `hosts` those that announced themselves.
pub(crate) async fn examine(
    queue: &Queue,
    others: &[Queue],
    hosts: &[HostInfo],
    mend: bool,
) -> QueueResult<DoctorReport> {
    let mut examination = Examination {
        queue,
        others,
        mend,
        report: DoctorReport::default(),
        suspects: Vec::new(),
        seen: HashSet::new(),
        listed: HashSet::new(),
    };
    if examination.types().await? {
        examination.report.census = queue.census().await?;
        examination.group(hosts).await?;
        let claims = examination.claims().await?;
        examination.stream().await?;
        examination.delayed().await?;
        examination.dead().await?;
        examination.keys().await?;
        examination.tracks().await?;
        examination.standing(claims, hosts).await?;
    }
    Ok(examination.report)
}

impl Examination<'_> {
    /// Whether the queue's own keys have the right types. If not, the scripts cannot work on them.
    async fn types(&mut self) -> QueueResult<bool> {
        let keys = &self.queue.keys;
        let own = [
            (&keys.stream, "stream"),
            (&keys.delayed, "zset"),
            (&keys.parked, "hash"),
            (&keys.history, "hash"),
            (&keys.owners, "hash"),
            (&keys.tracks, "zset"),
            (&keys.dead, "stream"),
        ];
        let wrong = self.queue.wrong_types(&own).await?;
        let are_good = wrong.is_empty();
        for WrongKey { key, holds, expected } in wrong {
            let what = format!("it holds a {holds}, not a {expected}");
            self.add(Finding { kind: FaultKind::WrongType, task: None, key, what, fixed: false });
        }
        Ok(are_good)
    }

    async fn group(&mut self, hosts: &[HostInfo]) -> QueueResult {
        // A running host creates the group as soon as it notices.
        let patience = if hosts.is_empty() { MOMENT } else { LONG_MOMENT };
        let mut waited = Duration::ZERO;
        while self.queue.lacks_group().await? {
            if waited >= patience {
                return self.add_group().await;
            }
            tokio::time::sleep(MOMENT).await;
            waited += MOMENT;
        }
        Ok(())
    }

    async fn add_group(&mut self) -> QueueResult {
        let mut what = format!("it has no group {}: nobody can take its tasks", self.queue.rules.group);
        let mut fixed = self.mend;
        if self.mend
            && let Err(error) = self.queue.ensure_group().await
        {
            let Some(why) = error.unfit(&self.queue.rules.name) else { return Err(error) };
            (what, fixed) = (format!("{what}; {why}"), false);
        }
        let key = self.queue.keys.stream.clone();
        self.add(Finding { kind: FaultKind::NoGroup, task: None, key, what, fixed });
        Ok(())
    }

    /// Walks the pending entries. Returns how many were not kept alive for a lease.
    async fn claims(&mut self) -> QueueResult<u64> {
        let lease = self.queue.rules.lease;
        let mut abandoned = 0;
        let mut next = Some(FIRST.to_owned());
        while let Some(from) = next {
            let page = self.queue.claimed(&from).await?;
            for claim in page.items {
                abandoned += u64::from(u128::from(claim.idle_ms) > lease.as_millis());
                if !claim.is_there {
                    let (kind, stream) = (FaultKind::DeletedEntry, self.queue.keys.stream.as_str());
                    let suspect = Suspect::new(kind, &claim.entry, &claim.entry, stream);
                    self.suspects.push(Suspect { patience: lease, ..suspect });
                }
            }
            next = page.next;
            self.decide(BATCH).await?;
        }
        self.decide(1).await?;
        Ok(abandoned)
    }

    async fn stream(&mut self) -> QueueResult {
        let stream = &self.queue.keys.stream;
        let mut history: u64 = 0;
        let mut next = Some(FIRST.to_owned());
        while let Some(from) = next {
            let page = self.queue.survey(stream, &from).await?;
            for seen in page.items {
                history += u64::from(seen.is_history);
                if seen.id != seen.entry && self.seen.len() < SEEN {
                    self.seen.insert(fingerprint(&seen.id));
                }
                if seen.skipped {
                    self.suspect(FaultKind::Undeliverable, &seen.entry, &seen.id, stream);
                }
            }
            next = page.next;
            self.decide(BATCH).await?;
        }
        if history > 0 {
            let what = format!(
                "{history} entries were read, and not deleted, before tqhost first used this group; \
                 the doctor leaves them as they are"
            );
            self.warn("history", what);
        }
        self.decide(1).await
    }

    async fn delayed(&mut self) -> QueueResult {
        let keys = &self.queue.keys;
        let mut next = Some(START.to_owned());
        while let Some(cursor) = next {
            let page = self.queue.delayed_without_fields(&cursor).await?;
            for member in page.items {
                let id = id_of_member(&member);
                self.suspect(FaultKind::DelayedWithoutFields, &member, id, &keys.delayed);
            }
            next = page.next;
            self.decide(BATCH).await?;
        }
        let mut next = Some(START.to_owned());
        let mut count = FEW;
        while let Some(cursor) = next {
            let (page, more) = self.queue.parked(&cursor, count).await?;
            count = more;
            for parked in page.items.into_iter().filter(|parked| parked.forgotten || parked.unreadable) {
                let kind = if parked.forgotten {
                    FaultKind::FieldsWithoutDelay
                } else {
                    FaultKind::UnreadableFields
                };
                let id = parked.id.as_deref().unwrap_or_else(|| id_of_member(&parked.member));
                self.suspect(kind, &parked.member, id, &keys.parked);
            }
            next = page.next;
            self.decide(BATCH).await?;
        }
        self.decide(1).await
    }

    /// Walks the dead letters, for tasks that live or are completed.
    async fn dead(&mut self) -> QueueResult {
        let dead = &self.queue.keys.dead;
        let mut next = Some(FIRST.to_owned());
        while let Some(from) = next {
            let page = self.queue.survey(dead, &from).await?;
            let ids: Vec<&str> = page.items.iter().map(|seen| seen.id.as_str()).collect();
            let not_dead = self.queue.not_dead(&ids).await?;
            for (seen, not_dead) in page.items.iter().zip(not_dead) {
                if not_dead {
                    self.suspect(FaultKind::DeadButAlive, &seen.entry, &seen.id, dead);
                }
            }
            next = page.next;
            self.decide(BATCH).await?;
        }
        self.decide(1).await
    }

    /// Walks the statuses and markers.
    async fn keys(&mut self) -> QueueResult {
        let mut found = KeySuspects::default();
        let mut next = Some(START.to_owned());
        while let Some(cursor) = next {
            let page = self.queue.keys(&cursor, SCAN).await?;
            self.flows(&page.items).await?;
            self.queue.look_at(page.items, &mut found).await?;
            found.tasks.retain(|task| !task.waits() || !self.seen.contains(&fingerprint(&task.id)));
            next = page.next;
            if found.len() >= TASK_BATCH || next.is_none() {
                self.decide_keys(std::mem::take(&mut found)).await?;
            }
        }
        Ok(())
    }

    /// Looks at the tracks of the queue, after lost tasks have given their turns back.
    async fn tracks(&mut self) -> QueueResult {
        for fault in self.queue.look_at_tracks(self.mend, Duration::ZERO).await? {
            let (kind, what) = match fault.kind.as_str() {
                "turn-without-task" => (
                    FaultKind::TurnWithoutTask,
                    "it has the turn of its key, and is in no place any more".to_owned(),
                ),
                "track-without-turn" => (
                    FaultKind::TrackWithoutTurn,
                    format!("{} is held, and no task of its key has its turn", fault.subject),
                ),
                _ => (
                    FaultKind::BrokenTrack,
                    format!(
                        "the turns of a key and the tasks that are held for it do not match: {}",
                        fault.subject
                    ),
                ),
            };
            let task = (kind == FaultKind::TurnWithoutTask).then_some(fault.subject);
            self.add(Finding { kind, task, key: self.queue.keys.tracks.clone(), what, fixed: self.mend });
        }
        Ok(())
    }

    async fn decide_keys(&mut self, mut found: KeySuspects) -> QueueResult {
        self.report.ended += found.ended;
        for key in std::mem::take(&mut found.wrong_type) {
            let key = String::from_utf8_lossy(&key).into_owned();
            let what = "it is not of the type that tqhost writes".to_owned();
            self.add(Finding { kind: FaultKind::WrongType, task: None, key, what, fixed: false });
        }
        self.queue.take_back(&mut found, usize::MAX).await?;
        if found.len() > 0 {
            tokio::time::sleep(MOMENT).await;
        }
        let judged = self.queue.judge_tasks(&found.tasks, self.mend).await?;
        for (task, judgement) in found.tasks.into_iter().zip(judged) {
            if let Judgement::Wrong { mended } = judgement {
                let status = task.status.map_or("none", |status| status.into_str());
                let what = match task.kind {
                    FaultKind::LostTask => format!("its status is {status}, but it is in no place any more"),
                    FaultKind::EndedButThere => {
                        format!("its status is {status}, but its entry is still there")
                    }
                    _ => format!("its status is {status}, and nothing lets it expire"),
                };
                let key = self.queue.keys.task(&task.id);
                self.add(Finding { kind: task.kind, task: Some(task.id), key, what, fixed: mended });
            }
        }
        self.suspects.append(&mut found.markers);
        self.decide(1).await
    }

    /// Warns of tasks that wait, and looks for tasks that are stuck. `abandoned` tasks had no heartbeat for a
    /// lease.
    async fn standing(&mut self, abandoned: u64, hosts: &[HostInfo]) -> QueueResult {
        let rules = &self.queue.rules;
        let serving = hosts.iter().flat_map(|host| host.queues.iter().filter(|queue| queue.serves(rules)));
        let states: Vec<&str> = serving.map(|queue| queue.state.as_str()).collect();
        let is_reading = states.contains(&"reading");
        self.warn_of_waits(abandoned, &states);
        self.warn_of_gone_consumers(hosts);
        if states.is_empty() {
            return Ok(());
        }
        let mut suspects = Vec::new();
        let (census, keys) = (&self.report.census, &self.queue.keys);
        let patience = (rules.lease * 3).max(GRACE + rules.lease);
        if census.pause.is_none() && census.held.is_none() && is_reading {
            let abandoned = match self.queue.first_abandoned("-", patience).await {
                Err(error) if error.is_no_group() => None,
                abandoned => abandoned?,
            };
            let stuck =
                |entry: String| Suspect::new(FaultKind::StuckClaim, &entry, &entry, keys.stream.as_str());
            suspects.extend(abandoned.map(|entry| Suspect { patience, ..stuck(entry) }));
        }
        if let Some(member) = self.queue.first_overdue(GRACE).await? {
            let id = id_of_member(&member);
            let suspect = Suspect::new(FaultKind::StuckDelayed, &member, id, keys.delayed.as_str());
            suspects.push(Suspect { patience: GRACE, ..suspect });
        }
        if suspects.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(LONG_MOMENT).await;
        self.suspects.append(&mut suspects);
        self.judge().await
    }

    /// `states` are those of the queue in each host that serves it.
    fn warn_of_waits(&mut self, abandoned: u64, states: &[&str]) {
        let census = &self.report.census;
        let (is_paused, is_held) = (census.pause.is_some(), census.held.is_some());
        let waiting = census.waiting() + census.delayed + census.held_tasks + abandoned;
        if states.is_empty() && waiting > 0 {
            self.warn("no-host", format!("no host of this queue runs; {waiting} tasks wait for one"));
        }
        if abandoned > 0 && !states.is_empty() && !is_held && !states.contains(&"reading") {
            let what = format!(
                "{abandoned} tasks of hosts that fell silent wait for a host that is ready (now: {})",
                states.join(", ")
            );
            self.warn("waiting-for-host", what);
        }
        if is_paused && waiting > 0 {
            self.warn("paused", format!("the queue is paused; {waiting} tasks wait"));
        }
    }

    fn warn_of_gone_consumers(&mut self, hosts: &[HostInfo]) {
        let lives = |name: &str| hosts.iter().any(|host| name.starts_with(&host.id));
        let consumers = self.report.census.consumers.iter();
        let gone = consumers.filter(|one| one.pending == 0 && one.idle_ms > 3_600_000 && !lives(&one.name));
        let count = gone.count();
        if count > 0 {
            let what = format!(
                "{count} consumers are gone and have nothing pending; a running host removes their names"
            );
            self.warn("gone-consumers", what);
        }
    }

    fn suspect(&mut self, kind: FaultKind, subject: &str, id: &str, key: &str) {
        self.suspects.push(Suspect::new(kind, subject, id, key));
    }

    fn warn(&mut self, kind: &'static str, what: String) {
        self.report.warnings.push(Warning { kind, what });
    }

    /// Waits a moment and looks at the suspects again, if there are at least this many.
    async fn decide(&mut self, least: usize) -> QueueResult {
        if self.suspects.len() < least {
            return Ok(());
        }
        tokio::time::sleep(MOMENT).await;
        self.judge().await
    }

    async fn judge(&mut self) -> QueueResult {
        let mut suspects = std::mem::take(&mut self.suspects);
        // Ending a lost task frees its idempotency key.
        let lost: Vec<usize> =
            (0..suspects.len()).filter(|n| suspects[*n].kind == FaultKind::DelayedWithoutFields).collect();
        let ids: Vec<&str> = lost.iter().map(|n| suspects[*n].id.as_str()).collect();
        let markers = self.queue.markers_of(&ids).await?;
        for (n, marker) in lost.into_iter().zip(markers) {
            suspects[n].marker = marker;
        }
        let judged = self.queue.judge(&suspects, self.mend).await?;
        for (suspect, judgement) in suspects.into_iter().zip(judged) {
            if let Judgement::Wrong { mended } = judgement {
                let what = sentence(&suspect);
                let key = String::from_utf8_lossy(&suspect.key).into_owned();
                self.add(Finding { kind: suspect.kind, task: Some(suspect.id), key, what, fixed: mended });
            }
        }
        Ok(())
    }

    fn add(&mut self, finding: Finding) {
        let report = &mut self.report;
        let is_listed = report.findings.iter().filter(|known| known.kind == finding.kind).count() < LISTED;
        let name = finding.task.clone().unwrap_or_default() + &finding.key;
        if is_listed && !self.listed.insert((finding.kind, name)) {
            return;
        }
        report.found += 1;
        report.open += u64::from(!finding.fixed);
        if is_listed {
            report.findings.push(finding);
        } else {
            *report.more.entry(finding.kind).or_default() += 1;
        }
    }
}

fn fingerprint(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Describes the fault of a task in words.
fn sentence(suspect: &Suspect) -> String {
    let Suspect { subject, patience, .. } = suspect;
    let flow = subject.split_once(' ').map_or(subject.as_str(), |(_, flow)| flow);
    match suspect.kind {
        FaultKind::DeletedEntry => {
            format!("entry {subject} is pending, but somebody deleted it from the stream")
        }
        FaultKind::Undeliverable => {
            format!("entry {subject} was read by the group and is not pending: nobody will deliver it")
        }
        FaultKind::DelayedWithoutFields => format!("{subject} is delayed, but its fields were deleted"),
        FaultKind::FieldsWithoutDelay => {
            format!("the fields of {subject} exist, but not the time when it is due")
        }
        FaultKind::UnreadableFields => format!("the fields of {subject} cannot be read"),
        FaultKind::DeadButAlive => {
            format!(
                "its dead letter is {subject}, but its status says that it has not failed \
                 (or two tasks have this id)"
            )
        }
        FaultKind::OrphanedKey => "it holds this idempotency key, but it has ended or is unknown".to_owned(),
        FaultKind::StuckClaim => {
            format!(
                "entry {subject} has had no heartbeat for {} seconds or more, \
                 and no ready host takes it over",
                patience.as_secs()
            )
        }
        FaultKind::StuckDelayed => {
            format!(
                "{subject} has been due for {} seconds or more, and the running hosts do not move it",
                patience.as_secs()
            )
        }
        FaultKind::LostChild => format!("the flow {flow} waits for it, but it is in no place any more"),
        FaultKind::UncountedChild => {
            format!("the flow {flow} waits for it, but its status does not say so, or it has ended")
        }
        FaultKind::UnreleasedChildren => format!("nothing will enqueue the children that {flow} still has"),
        FaultKind::UnjoinedFlow => format!("all children of {flow} have completed, and it was not enqueued"),
        FaultKind::FlowWithoutTask => format!("the flow {flow} ends in it, but its status does not say so"),
        _ => String::new(),
    }
}

/// The id of the task that is delayed under this member, if the member contains it: the task was enqueued
/// with a delay, or its id is that of its entry.
fn id_of_member(member: &str) -> &str {
    if codec::is_entry_id(member) { member } else { member.strip_prefix("new/").unwrap_or(member) }
}
