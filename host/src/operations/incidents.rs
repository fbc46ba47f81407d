//! Incidents: alarms that have one cause, with since when there is one, what has changed just before, and who
//! has acknowledged it.
//!
//! In: the alarms, what hosts announce, and the notes in Redis. Out: [`Incident`]s, the urgent ones first,
//! and of these the newest. Whoever looks notes what is new, so that a reload and another host show the same;
//! a note that nobody has renewed for [`OVER_MS`] is forgotten.
//!
//!     alarms ─▶ fold: one for each cause ─▶ with what was noted ─▶ in their order
//!
//! Not here: what is an alarm (`alarms`), how incidents are shown (`dashboard`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::alarms::{Alarm, AlarmSources, AlarmSubject, alarms};
use super::changes::{self, ChangeKind, ChangeView, check_why};
use super::error::{OperationError, OperationResult};
use super::history::Lately;
use super::queues::QueueView;
use crate::clock::ms;
use crate::config::units::parse_duration;
use crate::queue::hosts::{HostChange, HostInfo, LostHost};
use crate::queue::incidents::{self, Acknowledgement, IncidentNotes, SeenIncident};
use crate::queue::{Link, QueueError, QueueResult};

/// The most incidents that are noted.
const MOST: usize = 500;
/// An incident that was not seen for this long has ended.
const OVER_MS: u64 = 5 * 60_000;
/// A note is renewed when it is older.
const RENEWED_MS: u64 = 30_000;
/// A change within this time before an incident may be its cause. Counts are by the minute, so the change may
/// also come up to a minute after the first failures.
const BEFORE_MS: u64 = 15 * 60_000;
const AFTER_MS: u64 = 60_000;
/// The longest time for which an incident can be acknowledged.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// Changes of operators are looked at up to this age.
const DAY_MS: u64 = 86_400_000;

/// Alarms with one cause. The names are stable. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Incident {
    /// The name of its cause: the kind of its alarm, and what it is about.
    pub id: String,
    #[serde(flatten)]
    pub alarm: AlarmView,
    /// When it began; with `is_exact` false, when it was first seen.
    pub since_ms: u64,
    pub is_exact: bool,
    /// The change just before.
    pub before: Option<ChangeBefore>,
    /// An order that would help: `resume`, `roll-back`, `reload` or `requeue`.
    pub action: Option<&'static str>,
    /// The operator who knows of it.
    pub acknowledged: Option<Acknowledgement>,
    /// Other alarms that end with it.
    pub more: Vec<AlarmView>,
}

/// An alarm as JSON. The names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct AlarmView {
    pub kind: &'static str,
    /// Tasks are not done because of it.
    pub is_urgent: bool,
    pub queue: Option<String>,
    pub plugin: Option<String>,
    /// SHA-256 of the version that it is about.
    pub version: Option<String>,
    /// The trouble in a sentence.
    pub what: String,
    /// The way out in a sentence.
    pub way_out: String,
    #[serde(skip)]
    pub about: AlarmSubject,
}

/// Something that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ChangeBefore {
    pub at_ms: u64,
    /// A part of a sentence, like "the load of version 3f1c of plugin mail".
    pub what: String,
    /// Its queue, plugin or host. None: everything.
    #[serde(skip)]
    plugin: Option<String>,
    #[serde(skip)]
    queue: Option<String>,
}

impl From<Alarm> for AlarmView {
    fn from(alarm: Alarm) -> AlarmView {
        let Alarm { kind, is_urgent, about, version, what, way_out, .. } = alarm;
        let (queue, plugin) = (about.queue().map(str::to_owned), about.plugin().map(str::to_owned));
        AlarmView { kind, is_urgent, queue, plugin, version, what, way_out, about }
    }
}

impl Incident {
    /// Whether nobody has acknowledged it.
    pub(crate) fn is_open(&self) -> bool {
        self.acknowledged.is_none()
    }

    /// All its alarms.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = &AlarmView> {
        std::iter::once(&self.alarm).chain(&self.more)
    }
}

fn action(alarm: &Alarm) -> Option<&'static str> {
    match alarm.kind {
        "paused" | "held" => Some("resume"),
        "bad-version" => Some("roll-back"),
        "plugin-missing" | "plugin-refused" => Some("reload"),
        "dead-letters" => Some("requeue"),
        _ => None,
    }
}

/// The facts beside the alarms.
pub(crate) struct Surroundings<'s> {
    pub seen: &'s AlarmSources<'s>,
    /// The last changes of operators.
    pub changes: &'s [ChangeView],
    pub notes: &'s IncidentNotes,
}

impl Surroundings<'_> {
    /// The notes, and what operators have changed within the last day. Without the right to read one of them
    /// it is missing.
    pub(crate) async fn read(link: &Link, now_ms: u64) -> QueueResult<(IncidentNotes, Vec<ChangeView>)> {
        let notes = match incidents::list(link).await {
            Err(error) if error.is_connection() => return Err(error),
            notes => notes.unwrap_or_default(),
        };
        let from = format!("{}-0", now_ms.saturating_sub(DAY_MS));
        let changes = changes::after(link, &from).await.unwrap_or_default();
        Ok((notes, changes.into_iter().map(|(_, change)| change).collect()))
    }
}

/// The plugin of each queue.
type PluginOfQueue<'q> = HashMap<&'q str, &'q str>;

/// Makes incidents of alarms.
pub(crate) fn of(alarms: Vec<Alarm>, around: &Surroundings<'_>) -> Vec<Incident> {
    let changes = changes(around);
    let plugins: PluginOfQueue =
        around.seen.queues.iter().map(|view| (&*view.queue, &*view.plugin)).collect();
    let mut incidents: Vec<Incident> = folded(alarms, &plugins)
        .into_iter()
        .map(|(alarm, more)| incident(alarm, more, around, (&plugins, &changes)))
        .collect();
    incidents.sort_by(|a, b| {
        let rank = |one: &Incident| (!one.alarm.is_urgent, Reverse(one.since_ms));
        rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
    });
    incidents
}

fn incident(
    alarm: Alarm,
    more: Vec<Alarm>,
    around: &Surroundings<'_>,
    (plugins, changes): (&PluginOfQueue, &[ChangeBefore]),
) -> Incident {
    let id = alarm.cause();
    let noted = around.notes.seen.get(&id).filter(|noted| !is_over(noted, around.seen.now_ms));
    let since_ms = [alarm.since_ms, noted.map(|noted| noted.since)].into_iter().flatten().min();
    let since_ms = since_ms.unwrap_or(around.seen.now_ms);
    let acknowledged = around.notes.acknowledged.get(&id);
    let acknowledged =
        acknowledged.filter(|note| noted.is_some() && !is_past(note, around.seen.now_ms)).cloned();
    let (action, is_exact) = (action(&alarm), alarm.since_ms.is_some());
    let before = before(&alarm, since_ms, plugins, changes);
    let more = more.into_iter().map(AlarmView::from).collect();
    Incident { id, alarm: alarm.into(), since_ms, is_exact, before, action, acknowledged, more }
}

fn is_over(noted: &SeenIncident, now_ms: u64) -> bool {
    noted.seen.saturating_add(OVER_MS) < now_ms
}

fn is_past(note: &Acknowledgement, now_ms: u64) -> bool {
    note.until.is_some_and(|until| until <= now_ms)
}

/// Puts alarms with one cause together: those that have the same name, and those that follow from another
/// one.
fn folded(alarms: Vec<Alarm>, plugins: &PluginOfQueue) -> Vec<(Alarm, Vec<Alarm>)> {
    let mut folded: Vec<(Alarm, Vec<Alarm>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let (causes, effects): (Vec<Alarm>, Vec<Alarm>) =
        alarms.iter().cloned().partition(|alarm| !alarms.iter().any(|cause| explains(cause, alarm, plugins)));
    for alarm in causes {
        let place = *places.entry(alarm.cause()).or_insert(folded.len());
        match folded.get_mut(place) {
            Some((first, more)) => {
                first.since_ms = [first.since_ms, alarm.since_ms].into_iter().flatten().min();
                first.is_urgent |= alarm.is_urgent;
                more.push(alarm);
            }
            None => folded.push((alarm, Vec::new())),
        }
    }
    for alarm in effects {
        let of_cause = folded.iter_mut().find(|(cause, _)| explains(cause, &alarm, plugins));
        if let Some((cause, more)) = of_cause {
            cause.is_urgent |= alarm.is_urgent;
            more.push(alarm);
        }
    }
    folded
}

/// Whether the second alarm ends with the first one. No alarm that is explained explains another one.
fn explains(cause: &Alarm, effect: &Alarm, plugins: &PluginOfQueue) -> bool {
    let of_plugin = |queue: &str, plugin: &str| plugins.get(queue) == Some(&plugin);
    match (cause.kind, &cause.about, effect.kind, &effect.about) {
        (
            "plugin-missing" | "plugin-refused",
            AlarmSubject::Plugin(plugin),
            "waits-for-plugin",
            AlarmSubject::Queue(queue),
        ) => of_plugin(queue, plugin),
        // Its dead letters are work for later: they stay when the version has gone.
        ("bad-version", AlarmSubject::Plugin(plugin), "attempts-fail", AlarmSubject::Queue(queue)) => {
            of_plugin(queue, plugin)
        }
        ("redis-full", _, "no-host" | "redis-memory", _) => true,
        _ => false,
    }
}

/// The latest change before an incident that may have to do with it.
fn before(
    alarm: &Alarm,
    since_ms: u64,
    plugins: &PluginOfQueue,
    changes: &[ChangeBefore],
) -> Option<ChangeBefore> {
    // It tells of the hosts itself.
    if alarm.kind == "host-lost" {
        return None;
    }
    let plugin = match &alarm.about {
        AlarmSubject::Queue(queue) | AlarmSubject::Dead(queue) => plugins.get(queue.as_str()).copied(),
        AlarmSubject::Plugin(plugin) => Some(plugin.as_str()),
        AlarmSubject::Hosts | AlarmSubject::Redis => None,
    };
    let span = since_ms.saturating_sub(BEFORE_MS)..=since_ms.saturating_add(AFTER_MS);
    let is_meant = |change: &&ChangeBefore| {
        change.plugin.as_deref().is_none_or(|of| Some(of) == plugin)
            && change.queue.as_deref().is_none_or(|of| Some(of) == alarm.about.queue())
            && span.contains(&change.at_ms)
    };
    changes.iter().filter(is_meant).max_by_key(|change| change.at_ms).cloned()
}

/// The changes that hosts tell: versions of plugins, configurations, hosts that ended without a word.
fn changes(around: &Surroundings<'_>) -> Vec<ChangeBefore> {
    let mut changes = Vec::new();
    for plugin in around.seen.hosts.iter().flat_map(|host| &host.plugins) {
        for (at, change) in plugin.history.iter().enumerate() {
            // The first version that a host loads is the one that it ran before its start.
            let is_other = |known: &HostChange| known.version.is_some() && known.version != change.version;
            let did = match change.what.as_str() {
                "loaded" if plugin.history[..at].iter().any(is_other) => "the load",
                "restored" => "the return",
                "regranted" => "other grants",
                "rolled-back" => "the rollback",
                _ => continue,
            };
            let version = change.version.as_deref().map(|version| plugin.builds.words(version));
            let version = version.unwrap_or_default();
            let what = format!("{did} of version {version} of plugin {}", plugin.name);
            let plugin = Some(plugin.name.clone());
            changes.push(ChangeBefore { at_ms: change.at, what, plugin, queue: None });
        }
    }
    for host in around.seen.hosts {
        if let Some(at_ms) = host.configured_at {
            let what = format!("another configuration of host {}", host.id);
            changes.push(ChangeBefore { at_ms, what, plugin: None, queue: None });
        }
    }
    for LostHost { id, seen_ms, .. } in around.seen.lost {
        let what = format!("the end of host {id}, which did not stop");
        changes.push(ChangeBefore { at_ms: *seen_ms, what, plugin: None, queue: None });
    }
    let acknowledges: &str = ChangeKind::Acknowledge.into();
    for ChangeView { at, who, what, queue, plugin, why, .. } in around.changes {
        if what == acknowledges {
            continue;
        }
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        let what = format!("a change by {who}: {what}{why}");
        let (queue, plugin) = (queue.clone(), plugin.clone());
        changes.push(ChangeBefore { at_ms: *at, what, plugin, queue });
    }
    changes
}

/// Writes down what is new, and forgets what has ended. It never fails a look.
pub(crate) async fn note(link: &Link, incidents: &[Incident], notes: &IncidentNotes, now_ms: u64) {
    let is_old = |incident: &&Incident| {
        notes.seen.get(&incident.id).is_none_or(|noted| {
            noted.seen.saturating_add(RENEWED_MS) < now_ms || noted.since > incident.since_ms
        })
    };
    let renewed: Vec<(&str, SeenIncident)> = incidents
        .iter()
        .take(MOST)
        .filter(is_old)
        .map(|incident| (incident.id.as_str(), SeenIncident { since: incident.since_ms, seen: now_ms }))
        .collect();
    let is_known = |id: &&str| incidents.iter().any(|incident| incident.id == **id);
    let ended = notes.seen.iter().filter(|(_, noted)| is_over(noted, now_ms));
    let mut ended: Vec<&str> = ended.map(|(id, _)| id.as_str()).filter(|id| !is_known(id)).collect();
    let unseen = notes.acknowledged.keys().filter(|id| !notes.seen.contains_key(*id));
    ended.extend(unseen.map(String::as_str));
    let past = notes.acknowledged.iter().filter(|(_, note)| is_past(note, now_ms));
    let past: Vec<&str> = past.map(|(id, _)| id.as_str()).collect();
    let written = async {
        if !renewed.is_empty() {
            incidents::note_seen(link, &renewed).await?;
        }
        if !ended.is_empty() {
            incidents::forget(link, &ended, true).await?;
        }
        if !past.is_empty() {
            incidents::forget(link, &past, false).await?;
        }
        Ok::<(), QueueError>(())
    };
    if let Err(error) = written.await {
        tracing::debug!(%error, "could not note incidents");
    }
}

/// The incidents among the alarms about one queue.
pub(crate) async fn of_queue(
    link: &Link,
    view: &QueueView,
    hosts: &[HostInfo],
    lately: Option<&Lately>,
) -> QueueResult<Vec<Incident>> {
    let now_ms = link.now_ms().await?;
    let (notes, changes) = Surroundings::read(link, now_ms).await?;
    let queues = std::slice::from_ref(view);
    let lately = lately.map(|lately| BTreeMap::from([(view.queue.clone(), lately.clone())]));
    let sources = AlarmSources { queues, hosts, lately: lately.as_ref(), now_ms, ..AlarmSources::default() };
    let mut alarms = alarms(&sources);
    alarms.retain(|alarm| alarm.about.plugin().is_none_or(|plugin| plugin == view.plugin));
    let found = of(alarms, &Surroundings { seen: &sources, changes: &changes, notes: &notes });
    note(link, &found, &notes, now_ms).await;
    Ok(found)
}

/// Says that an operator knows of an incident, for a time like `1h`, or until it ends. `0s` takes that back.
/// Returns what is noted now.
pub(crate) async fn acknowledge(
    link: &Link,
    id: &str,
    time: Option<&str>,
    why: &str,
    by: &str,
) -> OperationResult<Option<Acknowledgement>> {
    let invalid = |what: String| OperationError::Invalid(what);
    let time = time.map(|text| parse_duration(text.trim())).transpose();
    let time = time.map_err(|error| invalid(format!("for: {error}")))?;
    if time.is_some_and(|time| time > LONGEST) {
        return Err(invalid("for: write 30d or less".to_owned()));
    }
    check_why(why)?;
    let now_ms = link.now_ms().await?;
    let notes = incidents::list(link).await?;
    if notes.seen.get(id).is_none_or(|noted| is_over(noted, now_ms)) {
        return Err(OperationError::UnknownIncident(format!("there is no incident {id:?} (any more)")));
    }
    let change = ChangeView::new(ChangeKind::Acknowledge, by).why(why);
    if time == Some(Duration::ZERO) {
        incidents::forget(link, &[id], false).await?;
        changes::note(link, change.detail(&format!("{id}, open again"))).await;
        return Ok(None);
    }
    let until = time.map(|time| now_ms.saturating_add(ms(time)));
    let note = Acknowledgement { by: by.to_owned(), at: now_ms, until, why: why.to_owned() };
    incidents::acknowledge(link, id, &note).await?;
    changes::note(link, change.detail(id)).await;
    Ok(Some(note))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::queue::Census;
    use crate::queue::hosts::HostPlugin;

    const NOW: u64 = 1_700_000_600_000;

    fn alarm(kind: &'static str, is_urgent: bool, about: AlarmSubject, since_ms: Option<u64>) -> Alarm {
        let (what, way_out) = (format!("{kind}."), String::new());
        Alarm { kind, is_urgent, about, version: None, what, way_out, since_ms }
    }

    fn queue(name: &str) -> AlarmSubject {
        AlarmSubject::Queue(name.to_owned())
    }

    fn view(queue: &str, plugin: &str) -> QueueView {
        let text = format!("[queues.{queue}]\nplugin = \"{plugin}\"\n");
        let config = Config::parse(&text, Path::new("/srv/tqhost.toml"), &|_| None).expect("valid");
        QueueView::new(&config.queues[0], &Census::default(), &[], NOW)
    }

    fn incidents(alarms: Vec<Alarm>, hosts: &[HostInfo], notes: &IncidentNotes) -> Vec<Incident> {
        let queues = [view("mail", "send"), view("news", "send"), view("bill", "pay")];
        let changes = [ChangeView {
            at: NOW - 3,
            queue: Some("news".to_owned()),
            why: "a deploy".to_owned(),
            ..ChangeView::new(ChangeKind::Pause, "ada")
        }];
        let seen = AlarmSources { queues: &queues, hosts, now_ms: NOW, ..AlarmSources::default() };
        of(alarms, &Surroundings { seen: &seen, changes: &changes, notes })
    }

    fn ids(incidents: &[Incident]) -> Vec<(&str, usize)> {
        incidents.iter().map(|incident| (incident.id.as_str(), incident.more.len())).collect()
    }

    #[test]
    fn alarms_with_one_cause_are_one_incident() {
        let plugin = |name: &str| AlarmSubject::Plugin(name.to_owned());
        let alarms = vec![
            alarm("waits-for-plugin", true, queue("mail"), None),
            alarm("waits-for-plugin", true, queue("news"), None),
            alarm("waits-for-plugin", true, queue("bill"), None),
            alarm("plugin-missing", false, plugin("send"), Some(NOW - 5)),
            alarm("silent-consumer", true, queue("bill"), Some(NOW - 9)),
            alarm("silent-consumer", true, queue("bill"), Some(NOW - 90)),
        ];
        let told = incidents(alarms, &[], &IncidentNotes::default());
        let expected =
            [("waits-for-plugin:bill", 0), ("plugin-missing:send", 2), ("silent-consumer:bill", 1)];
        assert_eq!(ids(&told), expected);
        // It is as urgent as what follows from it, and as old as the oldest of its kind.
        assert!(told.iter().all(|incident| incident.alarm.is_urgent));
        assert_eq!(told[2].since_ms, NOW - 90);
        let bad = Alarm {
            version: Some("8adb84085186".repeat(5)),
            ..alarm("bad-version", true, plugin("send"), Some(NOW))
        };
        let failing = ["mail", "bill"].map(|name| alarm("attempts-fail", false, queue(name), None));
        let told = incidents([bad].into_iter().chain(failing).collect(), &[], &IncidentNotes::default());
        assert_eq!(ids(&told), [("bad-version:send@8adb84085186", 1), ("attempts-fail:bill", 0)]);
    }

    #[test]
    fn the_urgent_and_newest_ones_come_first_and_keep_since_when_they_are_there() {
        let alarms = || {
            vec![
                alarm("paused", false, queue("mail"), None),
                alarm("held", true, queue("news"), Some(NOW - 60_000)),
                alarm("stalled", true, queue("bill"), None),
            ]
        };
        let first = incidents(alarms(), &[], &IncidentNotes::default());
        assert_eq!(ids(&first), [("stalled:bill", 0), ("held:news", 0), ("paused:mail", 0)]);
        assert_eq!((first[0].since_ms, first[0].is_exact), (NOW, false));
        assert_eq!((first[1].since_ms, first[1].is_exact), (NOW - 60_000, true));
        // The note from before counts, unless it ended meanwhile.
        let noted = |since, seen| SeenIncident { since, seen };
        let notes = IncidentNotes {
            seen: [
                ("stalled:bill".to_owned(), noted(NOW - 90_000, NOW - 20_000)),
                ("held:news".to_owned(), noted(NOW - 30_000, NOW - 20_000)),
                ("paused:mail".to_owned(), noted(NOW - 9_000_000, NOW - OVER_MS - 1)),
            ]
            .into(),
            ..IncidentNotes::default()
        };
        let told = incidents(alarms(), &[], &notes);
        let since: Vec<_> = told.iter().map(|one| (one.alarm.kind, NOW - one.since_ms)).collect();
        assert_eq!(since, [("held", 60_000), ("stalled", 90_000), ("paused", 0)]);
    }

    #[test]
    fn an_incident_is_acknowledged_until_its_end() {
        let told = |until, seen| {
            let note = Acknowledgement { by: "ada".into(), at: NOW, until, why: String::new() };
            let id = "paused:mail".to_owned();
            let notes = IncidentNotes {
                seen: [(id.clone(), SeenIncident { since: NOW - 1, seen })].into(),
                acknowledged: [(id, note)].into(),
            };
            let told = incidents(vec![alarm("paused", false, queue("mail"), None)], &[], &notes);
            told[0].acknowledged.is_some()
        };
        assert!(told(None, NOW) && told(Some(NOW + 1), NOW));
        assert!(!told(Some(NOW), NOW));
        // It had ended, and this is another one.
        assert!(!told(None, NOW - OVER_MS - 1));
    }

    #[test]
    fn the_change_just_before_is_told() {
        let change = |at: u64, what: &str, version: &str| {
            let version = Some(version.to_owned());
            HostChange { at, what: what.into(), version, ..HostChange::default() }
        };
        let host = |configured_at: u64, history: Vec<HostChange>| {
            let plugins = vec![HostPlugin { name: "send".into(), history, ..HostPlugin::default() }];
            let configured_at = Some(configured_at);
            HostInfo { id: "box".into(), configured_at, plugins, ..HostInfo::default() }
        };
        let before = |host: HostInfo, about: AlarmSubject| {
            let alarms = vec![alarm("attempts-fail", true, about, Some(NOW))];
            let mut told = incidents(alarms, &[host], &IncidentNotes::default());
            told.remove(0).before.map(|change| (change.what, NOW.abs_diff(change.at_ms)))
        };
        let loaded = || vec![change(NOW - 80_000, "loaded", "aa"), change(NOW - 50_000, "loaded", "ab")];
        let version = "the load of version ab of plugin send".to_owned();
        assert_eq!(before(host(0, loaded()), queue("mail")), Some((version, 50_000)));
        // Another plugin, the first version after the start of a host, and what is long ago.
        assert_eq!(before(host(0, loaded()), queue("bill")), None);
        assert_eq!(before(host(0, vec![change(NOW - 9, "loaded", "ab")]), queue("mail")), None);
        assert_eq!(before(host(NOW - BEFORE_MS - 1, vec![]), queue("mail")), None);
        let paused = "a change by ada: pause (a deploy)".to_owned();
        assert_eq!(before(host(0, loaded()), queue("news")), Some((paused, 3)));
        let configured = "another configuration of host box".to_owned();
        assert_eq!(before(host(NOW - 7, loaded()), queue("mail")), Some((configured, 7)));
    }
}
