//! The notes about incidents, which all hosts share: since when there is an alarm, and who acknowledged it.
//!
//! In: causes of alarms. Out: [`IncidentNotes`]. Causes are few: each is a kind of alarm about a queue, a
//! plugin, hosts or Redis. Notes are written on a full Redis, too.
//!
//! Not here: which alarms there are, and when a note is forgotten (`operations::incidents`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

use super::error::QueueResult;
use super::keys;
use super::link::Link;
use super::reply;

/// The beginnings of the fields.
const SEEN: &str = "seen ";
const ACKNOWLEDGED: &str = "ack ";

/// An alarm as hosts have seen it. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenIncident {
    pub since: u64,
    /// When somebody last looked and found it.
    pub seen: u64,
}

/// An operator knows of an incident. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Acknowledgement {
    pub by: String,
    pub at: u64,
    /// When the acknowledgement ends. None: with the incident.
    #[serde(default)]
    pub until: Option<u64>,
    #[serde(default)]
    pub why: String,
}

/// The notes, by the causes of alarms.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IncidentNotes {
    pub seen: BTreeMap<String, SeenIncident>,
    pub acknowledged: BTreeMap<String, Acknowledgement>,
}

/// All notes. A note in another form, from another version of tqhost, is left out.
pub(crate) async fn list(link: &Link) -> QueueResult<IncidentNotes> {
    let ask = redis::cmd("HGETALL").arg(keys::INCIDENTS).to_owned();
    let pairs = link.read("list incidents", &ask, reply::pairs).await?;
    let mut notes = IncidentNotes::default();
    for (field, json) in pairs {
        let Ok(field) = String::from_utf8(field) else { continue };
        if let Some(cause) = field.strip_prefix(SEEN) {
            put(&mut notes.seen, cause, &json);
        } else if let Some(cause) = field.strip_prefix(ACKNOWLEDGED) {
            put(&mut notes.acknowledged, cause, &json);
        }
    }
    Ok(notes)
}

/// Adds a note, if it can be read.
fn put<T: DeserializeOwned>(notes: &mut BTreeMap<String, T>, cause: &str, json: &[u8]) {
    if let Ok(note) = serde_json::from_slice(json) {
        notes.insert(cause.to_owned(), note);
    }
}

/// Notes that these alarms were seen.
pub(crate) async fn note_seen(link: &Link, seen: &[(&str, SeenIncident)]) -> QueueResult {
    let mut command = redis::cmd("HSET");
    command.arg(keys::INCIDENTS);
    for (cause, seen) in seen {
        command.arg(format!("{SEEN}{cause}")).arg(serde_json::to_string(seen).unwrap_or_default());
    }
    link.write("note incidents", &command).await.map(drop)
}

/// Notes who has acknowledged the incident with this cause.
pub(crate) async fn acknowledge(link: &Link, cause: &str, note: &Acknowledgement) -> QueueResult {
    let json = serde_json::to_string(note).unwrap_or_default();
    let field = format!("{ACKNOWLEDGED}{cause}");
    let command = redis::cmd("HSET").arg(keys::INCIDENTS).arg(field).arg(json).to_owned();
    link.write("acknowledge an incident", &command).await.map(drop)
}

/// Forgets these incidents, and who has acknowledged them.
pub(crate) async fn forget(link: &Link, causes: &[&str]) -> QueueResult {
    forget_fields(link, causes, &[SEEN, ACKNOWLEDGED]).await
}

/// Forgets who has acknowledged these incidents.
pub(crate) async fn forget_acknowledgements(link: &Link, causes: &[&str]) -> QueueResult {
    forget_fields(link, causes, &[ACKNOWLEDGED]).await
}

async fn forget_fields(link: &Link, causes: &[&str], kinds: &[&str]) -> QueueResult {
    let fields = causes.iter().flat_map(|cause| kinds.iter().map(move |kind| format!("{kind}{cause}")));
    let fields: Vec<String> = fields.collect();
    link.command("forget incidents", redis::cmd("HDEL").arg(keys::INCIDENTS).arg(fields)).await.map(drop)
}
