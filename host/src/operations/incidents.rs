//! Incidents: the alarms of one cause, with the time when it began, what has changed just before, and who has
//! acknowledged it.
//!
//! In: the alarms, what hosts announce, and the notes in Redis. Out: [`Incident`]s, the urgent ones first,
//! and of these the newest. Each look notes what is new, so that a page shows the same when it is loaded
//! again, or by another host. A note that no look has renewed for [`OVER_MS`] is forgotten.
//!
//!     alarms ─▶ fold: one for each cause ─▶ with what was noted ─▶ in their order
//!
//! Not here: what is an alarm (`alarms`), changes that may be a cause (`change_before`), how incidents are
//! shown (`dashboard`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::alarms::{Alarm, AlarmSources, alarms};
use super::change_before::{ChangeBefore, last_before, recent_changes};
use super::changes::{self, ChangeKind, ChangeView, check_why};
use super::error::{OperationError, OperationResult};
use super::history::Lately;
use super::queues::QueueView;
use crate::clock::ms;
use crate::config::units::parse_duration;
use crate::queue::hosts::HostInfo;
use crate::queue::incidents::{self, Acknowledgement, IncidentNotes, SeenIncident};
use crate::queue::{Link, QueueError, QueueResult};

/// The most incidents that are noted.
const MOST: usize = 500;
/// An incident that was not seen for this long has ended.
const OVER_MS: u64 = 5 * 60_000;
/// A note is renewed when it is older than this.
const RENEWED_MS: u64 = 30_000;
/// The longest time for which an incident can be acknowledged.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// Changes of operators are looked at up to this age.
const DAY_MS: u64 = 86_400_000;

/// Alarms with one cause. The names of fields are stable, and so are the ids. Times are milliseconds since
/// the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Incident {
    /// The name of its cause: the kind of its alarm, and what it is about.
    pub id: String,
    #[serde(flatten)]
    pub alarm: Alarm,
    /// When it began; with `is_exact` false, when it was first seen.
    pub since_ms: u64,
    pub is_exact: bool,
    /// The change just before.
    pub before: Option<ChangeBefore>,
    /// An order that would help: `resume`, `roll-back`, `reload` or `requeue`.
    pub action: Option<&'static str>,
    /// The operator who knows of it.
    pub acknowledged: Option<Acknowledgement>,
    /// Other alarms that go when it goes.
    pub more: Vec<Alarm>,
}

impl Incident {
    /// Whether nobody has acknowledged it.
    pub(crate) fn is_open(&self) -> bool {
        self.acknowledged.is_none()
    }

    /// All its alarms.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = &Alarm> {
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

/// Makes incidents of these alarms, with what is noted of them in Redis, and notes what is new.
pub(crate) async fn look(
    link: &Link,
    alarms: Vec<Alarm>,
    sources: &AlarmSources<'_>,
) -> QueueResult<Vec<Incident>> {
    // A host whose user of Redis may not read notes or changes does without them. Only a lost connection is
    // an error.
    let notes = match incidents::list(link).await {
        Err(error) if error.is_connection() => return Err(error),
        notes => notes.unwrap_or_default(),
    };
    let a_day_ago = format!("{}-0", sources.now_ms.saturating_sub(DAY_MS));
    let changes = changes::after(link, &a_day_ago).await.unwrap_or_default();
    let changes: Vec<ChangeView> = changes.into_iter().map(|(_, change)| change).collect();
    let found = incidents_of(alarms, sources, &changes, &notes);
    note(link, &found, &notes, sources.now_ms).await;
    Ok(found)
}

/// The facts beside the alarms.
struct Surroundings<'s> {
    now_ms: u64,
    plugins: PluginOfQueue<'s>,
    changes: Vec<ChangeBefore>,
    notes: &'s IncidentNotes,
}

/// The plugin of each queue.
type PluginOfQueue<'q> = HashMap<&'q str, &'q str>;

fn incidents_of(
    alarms: Vec<Alarm>,
    sources: &AlarmSources<'_>,
    changes: &[ChangeView],
    notes: &IncidentNotes,
) -> Vec<Incident> {
    let plugins = sources.queues.iter().map(|view| (&*view.queue, &*view.plugin)).collect();
    let changes = recent_changes(sources, changes);
    let around = Surroundings { now_ms: sources.now_ms, plugins, changes, notes };
    let folded = folded(alarms, &around.plugins);
    let mut incidents: Vec<Incident> =
        folded.into_iter().map(|(alarm, more)| incident(alarm, more, &around)).collect();
    incidents.sort_by_cached_key(|one| (!one.alarm.is_urgent, Reverse(one.since_ms), one.id.clone()));
    incidents
}

fn incident(alarm: Alarm, more: Vec<Alarm>, around: &Surroundings<'_>) -> Incident {
    let (id, now_ms) = (alarm.cause(), around.now_ms);
    let last_seen = around.notes.seen.get(&id).filter(|seen| !has_ended(seen, now_ms));
    let since_ms = [alarm.since_ms, last_seen.map(|seen| seen.since)].into_iter().flatten().min();
    let since_ms = since_ms.unwrap_or(now_ms);
    let acknowledged = around.notes.acknowledged.get(&id);
    let acknowledged = acknowledged.filter(|by| last_seen.is_some() && !has_expired(by, now_ms)).cloned();
    let (action, is_exact) = (action(&alarm), alarm.since_ms.is_some());
    let plugin = alarm.plugin.as_deref().or_else(|| around.plugins.get(alarm.queue.as_deref()?).copied());
    let before = last_before(&alarm, since_ms, plugin, &around.changes);
    Incident { id, alarm, since_ms, is_exact, before, action, acknowledged, more }
}

fn has_ended(noted: &SeenIncident, now_ms: u64) -> bool {
    noted.seen.saturating_add(OVER_MS) < now_ms
}

fn has_expired(note: &Acknowledgement, now_ms: u64) -> bool {
    note.until.is_some_and(|until| until <= now_ms)
}

/// Puts alarms with one cause together: alarms whose causes have the same name, and alarms that another alarm
/// explains.
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
        debug_assert!(
            of_cause.is_some(),
            "the cause of this alarm is itself an effect of another one: {alarm:?}"
        );
        if let Some((cause, more)) = of_cause {
            cause.is_urgent |= alarm.is_urgent;
            more.push(alarm);
        }
    }
    folded
}

/// Whether `effect` goes away when `cause` does. An alarm that is explained must not explain another one.
fn explains(cause: &Alarm, effect: &Alarm, plugins: &PluginOfQueue) -> bool {
    let is_of_plugin = || {
        let plugin = effect.queue.as_deref().and_then(|queue| plugins.get(queue).copied());
        plugin.is_some() && plugin == cause.plugin.as_deref()
    };
    match (cause.kind, effect.kind) {
        ("plugin-missing" | "plugin-refused", "waits-for-plugin") => is_of_plugin(),
        // Not `dead-letters`: they stay when the bad version has gone.
        ("bad-version", "attempts-fail") => is_of_plugin(),
        ("redis-full", "no-host" | "redis-memory") => true,
        _ => false,
    }
}

/// The incidents of one queue.
pub(crate) async fn of_queue(
    link: &Link,
    view: &QueueView,
    hosts: &[HostInfo],
    lately: Option<&Lately>,
) -> QueueResult<Vec<Incident>> {
    let now_ms = link.now_ms().await?;
    let queues = std::slice::from_ref(view);
    let lately = lately.map(|lately| BTreeMap::from([(view.queue.clone(), lately.clone())]));
    let sources = AlarmSources { queues, hosts, lately: lately.as_ref(), now_ms, ..AlarmSources::default() };
    let mut alarms = alarms(&sources);
    alarms.retain(|alarm| alarm.plugin.as_ref().is_none_or(|plugin| *plugin == view.plugin));
    look(link, alarms, &sources).await
}

/// Notes what is new, and forgets what has ended. An error of Redis does not fail the look.
async fn note(link: &Link, incidents: &[Incident], notes: &IncidentNotes, now_ms: u64) {
    let needs_note = |incident: &&Incident| {
        notes.seen.get(&incident.id).is_none_or(|noted| {
            noted.seen.saturating_add(RENEWED_MS) < now_ms || noted.since > incident.since_ms
        })
    };
    let renewed: Vec<(&str, SeenIncident)> = incidents
        .iter()
        .take(MOST)
        .filter(needs_note)
        .map(|incident| (incident.id.as_str(), SeenIncident { since: incident.since_ms, seen: now_ms }))
        .collect();
    let is_known = |id: &&str| incidents.iter().any(|incident| incident.id == **id);
    let ended = notes.seen.iter().filter(|(_, noted)| has_ended(noted, now_ms));
    let mut ended: Vec<&str> = ended.map(|(id, _)| id.as_str()).filter(|id| !is_known(id)).collect();
    let unseen = notes.acknowledged.keys().filter(|id| !notes.seen.contains_key(*id));
    ended.extend(unseen.map(String::as_str));
    let past = notes.acknowledged.iter().filter(|(_, note)| has_expired(note, now_ms));
    let past: Vec<&str> = past.map(|(id, _)| id.as_str()).collect();
    let written = async {
        if !renewed.is_empty() {
            incidents::note_seen(link, &renewed).await?;
        }
        if !ended.is_empty() {
            incidents::forget(link, &ended).await?;
        }
        if !past.is_empty() {
            incidents::forget_acknowledgements(link, &past).await?;
        }
        Ok::<(), QueueError>(())
    };
    if let Err(error) = written.await {
        tracing::debug!(%error, "could not note incidents");
    }
}

/// Says that an operator knows of an incident, for a time like `1h`, or until it ends. `0s` takes that back.
/// `time` is the field `for` of a request. Returns what is noted now.
pub(crate) async fn acknowledge(
    link: &Link,
    id: &str,
    time: Option<&str>,
    why: &str,
    by: &str,
) -> OperationResult<Option<Acknowledgement>> {
    let time = time.map(|text| parse_duration(text.trim())).transpose();
    let time = time.map_err(|error| OperationError::Invalid(format!("for: {error}")))?;
    if time.is_some_and(|time| time > LONGEST) {
        return Err(OperationError::Invalid("for: write 30d or less".to_owned()));
    }
    check_why(why)?;
    let now_ms = link.now_ms().await?;
    let notes = incidents::list(link).await?;
    if notes.seen.get(id).is_none_or(|noted| has_ended(noted, now_ms)) {
        return Err(OperationError::NotFound(format!("there is no incident {id:?} (any more)")));
    }
    let change = ChangeView::new(ChangeKind::Acknowledge, by).why(why);
    if time == Some(Duration::ZERO) {
        incidents::forget_acknowledgements(link, &[id]).await?;
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

    use super::super::alarms::{AlarmSubject, alarm as plain_alarm};
    use super::*;
    use crate::config::Config;
    use crate::operations::change_before::BEFORE_MS;
    use crate::queue::Census;
    use crate::queue::hosts::{HostChange, HostPlugin};

    const NOW: u64 = 1_700_000_600_000;

    fn alarm(kind: &'static str, is_urgent: bool, about: AlarmSubject, since_ms: Option<u64>) -> Alarm {
        Alarm { since_ms, ..plain_alarm(kind, is_urgent, about, format!("{kind}."), "") }
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
        let sources = AlarmSources { queues: &queues, hosts, now_ms: NOW, ..AlarmSources::default() };
        incidents_of(alarms, &sources, &changes, notes)
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
        // An incident is as urgent as its most urgent alarm, and as old as the oldest alarm of its cause.
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
    fn the_urgent_and_newest_ones_come_first_and_keep_their_beginning() {
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
        let ago = |since_ms, seen_ms| SeenIncident { since: NOW - since_ms, seen: NOW - seen_ms };
        let notes = IncidentNotes {
            seen: [
                ("stalled:bill".to_owned(), ago(90_000, 20_000)),
                ("held:news".to_owned(), ago(30_000, 20_000)),
                ("paused:mail".to_owned(), ago(9_000_000, OVER_MS + 1)),
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
        let is_acknowledged = |until, seen| {
            let note = Acknowledgement { by: "ada".into(), at: NOW, until, why: String::new() };
            let id = "paused:mail".to_owned();
            let notes = IncidentNotes {
                seen: [(id.clone(), SeenIncident { since: NOW - 1, seen })].into(),
                acknowledged: [(id, note)].into(),
            };
            let incidents = incidents(vec![alarm("paused", false, queue("mail"), None)], &[], &notes);
            incidents[0].acknowledged.is_some()
        };
        assert!(is_acknowledged(None, NOW) && is_acknowledged(Some(NOW + 1), NOW));
        assert!(!is_acknowledged(Some(NOW), NOW));
        // It had ended, and this is another one.
        assert!(!is_acknowledged(None, NOW - OVER_MS - 1));
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
        // None of these is told: a load of another plugin, the first load after a start, a change long ago.
        assert_eq!(before(host(0, loaded()), queue("bill")), None);
        assert_eq!(before(host(0, vec![change(NOW - 9, "loaded", "ab")]), queue("mail")), None);
        assert_eq!(before(host(NOW - BEFORE_MS - 1, vec![]), queue("mail")), None);
        let paused = "a change by ada: pause (a deploy)".to_owned();
        assert_eq!(before(host(0, loaded()), queue("news")), Some((paused, 3)));
        let configured = "another configuration of host box".to_owned();
        assert_eq!(before(host(NOW - 7, loaded()), queue("mail")), Some((configured, 7)));
    }
}
