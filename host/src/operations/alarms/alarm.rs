//! An alarm: what is wrong, about what, since when, and the way out. The files beside this one find them.
//!
//! Not here: alarms that have one cause in common (`incidents`).

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::builds::short;
use crate::config::units::{plural, show_duration};

/// Names of hosts in a sentence; where there are more, their number is told.
const NAMED: usize = 3;

/// Something that is wrong. The names as JSON are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AlarmView)]
pub(crate) struct Alarm {
    /// Its kind, for programs. It does not change.
    pub kind: &'static str,
    /// Whether tasks are not done because of it.
    pub is_urgent: bool,
    pub queue: Option<String>,
    pub plugin: Option<String>,
    /// SHA-256 of the version that it is about.
    pub version: Option<String>,
    /// The trouble in a sentence.
    pub what: String,
    /// The way out in a sentence.
    pub way_out: String,
    /// The subject, whose name is that of the queue or the plugin.
    #[serde(skip)]
    pub about: AlarmSubject,
    /// When it began, in milliseconds since the Unix epoch. None: nothing tells.
    #[serde(skip)]
    pub since_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AlarmSubject {
    Queue(String),
    /// The dead letters of a queue.
    Dead(String),
    Plugin(String),
    Hosts,
    Redis,
}

impl Alarm {
    pub(super) fn since(self, since_ms: Option<u64>) -> Alarm {
        Alarm { since_ms: since_ms.filter(|since| *since > 0), ..self }
    }

    pub(super) fn of_version(self, version: &str) -> Alarm {
        Alarm { version: Some(version.to_owned()), ..self }
    }

    /// The name of its cause, which is the same on all hosts and at every look: its kind, and what it is
    /// about.
    pub(crate) fn cause(&self) -> String {
        let name = self.queue.as_ref().or(self.plugin.as_ref());
        let name = name.map(|name| format!(":{name}")).unwrap_or_default();
        let version = self.version.as_deref().map(|version| format!("@{}", short(version)));
        format!("{}{name}{}", self.kind, version.unwrap_or_default())
    }
}

/// An alarm without a version and a time.
pub(crate) fn alarm(
    kind: &'static str,
    is_urgent: bool,
    about: AlarmSubject,
    what: impl Into<String>,
    way_out: impl Into<String>,
) -> Alarm {
    let (queue, plugin) = match &about {
        AlarmSubject::Queue(name) | AlarmSubject::Dead(name) => (Some(name.clone()), None),
        AlarmSubject::Plugin(name) => (None, Some(name.clone())),
        AlarmSubject::Hosts | AlarmSubject::Redis => (None, None),
    };
    let (version, what, way_out, since_ms) = (None, what.into(), way_out.into(), None);
    Alarm { kind, is_urgent, queue, plugin, version, what, way_out, about, since_ms }
}

/// Like `3 tasks wait`.
pub(super) fn tasks_wait(count: u64) -> String {
    format!("{} {}", plural(count, "task"), if count == 1 { "waits" } else { "wait" })
}

/// A time in whole seconds, or whole minutes if it is long.
pub(super) fn time(ms: u64) -> String {
    let unit = if ms < 120_000 { 1_000 } else { 60_000 };
    show_duration(Duration::from_millis(ms / unit * unit))
}

/// Hosts by their names: one alone, or how many there are and the first ones in their order.
pub(super) fn named(mut hosts: Vec<&str>) -> String {
    hosts.sort_unstable();
    match hosts.as_slice() {
        [one] => (*one).to_owned(),
        _ => {
            let more = if hosts.len() > NAMED { ", …" } else { "" };
            let names = hosts.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            format!("{} ({names}{more})", plural(hosts.len() as u64, "host"))
        }
    }
}
