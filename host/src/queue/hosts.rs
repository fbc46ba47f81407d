//! Announcements of hosts, for the commands: each running host with its queues and plugin versions. A host
//! announces itself every few seconds, and its announcement expires when it does not.
//!
//! Not here: what a host announces (`announcer`), and the choice of the hosts that have duties (`duties`).

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{QueueError, QueueResult};
use super::keys;
use super::link::Link;
use super::reply;
use super::script;
use crate::builds::Builds;
use crate::clock::{ms, now_ms};
use crate::config::QueueRules;

/// An announcement expires after this time.
const EXPIRES: Duration = Duration::from_secs(15);
/// The time between two announcements of a host.
pub(crate) const EVERY: Duration = Duration::from_secs(3);
/// The state of a queue on a host that stops in order.
pub(crate) const STOPPING: &str = "stopping";
/// How long a host is known after its last announcement.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The most hosts in a list.
const MAX_HOSTS: usize = 1000;

/// One running host.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, ToSchema)]
pub(crate) struct HostInfo {
    /// Its consumer name, unique for each start.
    pub id: String,
    pub version: String,
    pub pid: u32,
    /// Milliseconds since the Unix epoch, by the host's clock.
    pub started_at: u64,
    pub queues: Vec<HostQueue>,
    /// Why the present configuration file was rejected; none while the host runs with it.
    #[serde(default)]
    pub config_error: Option<String>,
    pub plugins: Vec<HostPlugin>,
    /// When it last took over a changed configuration file.
    #[serde(default)]
    pub configured_at: Option<u64>,
    /// Its memory in RAM, in steps of 16 MiB.
    #[serde(default)]
    pub memory: Option<u64>,
    /// The most memory that it may use: all of the machine's, or the limit of its control group.
    #[serde(default)]
    pub memory_most: Option<u64>,
    /// The attempts that it may run at once, of all queues together.
    #[serde(default)]
    pub capacity: Option<u64>,
}

/// The work of one host for one queue since its start.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, ToSchema)]
pub(crate) struct HostQueue {
    pub name: String,
    /// Empty: an older host does not tell.
    #[serde(default)]
    pub stream: String,
    /// A digest of its rules: hosts with the same one treat its tasks alike.
    #[serde(default)]
    pub rules: String,
    /// The state of the fetch loop, `stopping` or `stalled`.
    pub state: String,
    /// Why it is stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub running: u64,
    pub completed: u64,
    pub retried: u64,
    pub dead: u64,
    /// Tasks completed per second over the last minute.
    pub rate: f64,
    /// The ends of attempts in the last minute.
    #[serde(default)]
    pub last_minute: LastMinute,
    /// The attempts on the last versions of its plugin, the newest last.
    #[serde(default)]
    pub versions: Vec<HostVersion>,
}

/// Attempts of one host at the tasks of one queue, in about a minute.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq, ToSchema)]
pub(crate) struct LastMinute {
    pub completed: u64,
    /// Attempts that failed, and tasks that died without one.
    pub failed: u64,
}

/// Attempts on one version of a plugin at the tasks of one queue, in the last ten minutes in which it ran.
/// Attempts that were deferred, or found a service down, are left out.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, ToSchema)]
pub(crate) struct HostVersion {
    /// `name@digest`, with the first digits.
    pub version: String,
    pub attempts: u64,
    /// The number of `attempts` that did not complete their task.
    pub failures: u64,
}

impl HostVersion {
    /// Whether it is the version of this plugin with this digest, which has all its digits.
    pub(crate) fn is_of(&self, plugin: &str, digest: &str) -> bool {
        self.version
            .rsplit_once('@')
            .is_some_and(|(name, digits)| name == plugin && digest.starts_with(digits))
    }
}

impl HostQueue {
    /// Whether it takes tasks from the queue with these rules. Its own configuration may give the stream
    /// another name.
    pub(crate) fn serves(&self, rules: &QueueRules) -> bool {
        if self.stream.is_empty() { self.name == rules.name } else { self.stream == rules.stream }
    }
}

/// The state of one plugin in one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, ToSchema)]
pub(crate) struct HostPlugin {
    pub name: String,
    /// `active`, `failed`, `quarantined` or `missing`.
    pub state: String,
    /// SHA-256 of the version that runs tasks, in hexadecimal.
    pub version: Option<String>,
    /// SHA-256 of the version that is being compiled and checked.
    #[serde(default)]
    pub compiling: Option<String>,
    /// Since when it is compiled and checked; the clock is that of `loaded_at`.
    #[serde(default)]
    pub compiling_since: Option<u64>,
    pub error: Option<String>,
    /// When the file that failed is tried again; the clock is that of `loaded_at`.
    #[serde(default)]
    pub retry_at: Option<u64>,
    /// Milliseconds since the Unix epoch, by the host's clock.
    pub loaded_at: Option<u64>,
    pub compile_ms: Option<u64>,
    pub from_cache: bool,
    pub bytes: Option<u64>,
    pub attempts: u64,
    pub failures: u64,
    /// The attempts of the version that runs tasks, without those that were deferred or found a service down.
    #[serde(default)]
    pub version_attempts: u64,
    /// The number of `version_attempts` that did not complete their task.
    #[serde(default)]
    pub version_failures: u64,
    pub peak_memory: u64,
    pub reloads: u64,
    pub failed_reloads: u64,
    #[serde(default)]
    pub rolled_back: u64,
    /// The version replaced a good one and is not confirmed yet.
    #[serde(default)]
    pub on_probation: bool,
    /// Whether another version takes over if the one that runs tasks is withdrawn. None: no version runs, or
    /// an older host does not tell.
    #[serde(default)]
    pub can_go_back: Option<bool>,
    /// SHA-256 of the version that takes over.
    #[serde(default)]
    pub back_to: Option<String>,
    /// The version took the place of another one within the last hour.
    #[serde(default)]
    pub is_new: bool,
    /// The latest changes of its versions, oldest first.
    #[serde(default)]
    pub history: Vec<HostChange>,
    /// The builds of these versions, by their SHA-256, as far as the host knows them.
    #[serde(default)]
    pub builds: Builds,
}

/// An event in the life of a plugin version.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, ToSchema)]
pub(crate) struct HostChange {
    /// Milliseconds since the Unix epoch, by the host's clock.
    pub at: u64,
    /// `loaded`, `failed`, `self-check-failed`, `confirmed`, `regranted`, `rolled-back`, `quarantined`,
    /// `lifted`, `restored` or `removed`. The version is the one that it happened to: of `rolled-back`, the
    /// bad one.
    pub what: String,
    pub version: Option<String>,
    /// How long it took to load the version, or to notice the event.
    pub took_ms: Option<u64>,
    pub reason: Option<String>,
}

/// Whether a consumer's name is that of a host: it ends in the number of a process, 12 hexadecimal digits,
/// and perhaps a dot and a number, but not in a UUID. `scripts/places.lua` has the same rule.
pub(crate) fn is_host(consumer: &str) -> bool {
    let name = host_of(consumer);
    let Some((rest, unique)) = name.rsplit_once('-') else { return false };
    let process = rest.rsplit_once('-').map_or("", |(_, process)| process);
    is_number(process) && is_hex(unique, 12) && !ends_in_uuid(name)
}

/// The host to which a consumer belongs: its name without the number of the worker.
pub(crate) fn host_of(consumer: &str) -> &str {
    consumer.rsplit_once('.').filter(|(_, number)| is_number(number)).map_or(consumer, |(name, _)| name)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a name ends in a UUID, as the names of other programs' consumers often do.
fn ends_in_uuid(name: &str) -> bool {
    let mut parts = name.rsplit('-');
    let ends = [12, 4, 4, 4].into_iter().all(|digits| parts.next().is_some_and(|part| is_hex(part, digits)));
    ends && parts.next().is_some_and(|first| {
        let (before, digits) = first.split_at_checked(first.len().saturating_sub(8)).unwrap_or((first, ""));
        is_hex(digits, 8) && !before.ends_with(|last: char| last.is_ascii_hexdigit())
    })
}

/// Announces a host. `last` is its last announcement: while nothing changes, only the expiry is renewed.
pub(crate) async fn announce(link: &Link, host: &HostInfo, last: &mut Option<String>) -> QueueResult {
    const WHAT: &str = "announce this host";
    let json = serde_json::to_string(host).unwrap_or_default();
    let now = now_ms();
    let (key, expires) = (keys::host(&host.id), ms(EXPIRES));
    let add = script::write(redis::cmd("ZADD").arg(keys::HOSTS).arg(now).arg(&host.id));
    if last.as_ref() == Some(&json) {
        let renew = script::write(redis::cmd("PEXPIRE").arg(&key).arg(expires));
        let replies = link.scripts(WHAT, &[renew, add.clone()]).await?;
        let [kept, added] = replies.try_into().map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
        added?;
        if kept? == redis::Value::Int(1) {
            return Ok(());
        }
    }
    // Hosts without an announcement for a long time are removed from the set.
    let long_ago = now.saturating_sub(ms(REMEMBERED));
    let calls = [
        script::write(redis::cmd("SET").arg(key).arg(&json).arg("PX").arg(expires)),
        add,
        script::write(redis::cmd("ZREMRANGEBYSCORE").arg(keys::HOSTS).arg("-inf").arg(long_ago)),
    ];
    link.scripts(WHAT, &calls).await?.into_iter().try_for_each(|reply| reply.map(drop))?;
    *last = Some(json);
    Ok(())
}

/// Deletes the announcement at shutdown.
pub(crate) async fn withdraw(link: &Link, id: &str) -> QueueResult {
    let commands = [
        redis::cmd("DEL").arg(keys::host(id)).to_owned(),
        redis::cmd("ZREM").arg(keys::HOSTS).arg(id).to_owned(),
    ];
    link.pipeline("withdraw this host", &commands).await?.into_iter().try_for_each(|reply| reply.map(drop))
}

/// The hosts with an announcement.
pub(crate) async fn list(link: &Link) -> QueueResult<Vec<HostInfo>> {
    read_all(link, false).await
}

/// Like [`list`], without the hosts whose announcements lie on a node that is away. For people.
pub(crate) async fn list_known(link: &Link) -> QueueResult<Vec<HostInfo>> {
    read_all(link, true).await
}

async fn read_all(link: &Link, skips_nodes_away: bool) -> QueueResult<Vec<HostInfo>> {
    const WHAT: &str = "list hosts";
    let range = redis::cmd("ZREVRANGE").arg(keys::HOSTS).arg(0).arg(MAX_HOSTS - 1).to_owned();
    let ids = reply::each(link.command(WHAT, &range).await?, reply::text)
        .map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // In a cluster each announcement has a slot of its own.
    let is_skipped = |error: &QueueError| skips_nodes_away && link.is_cluster() && error.is_connection();
    let mut hosts = Vec::new();
    let replies = match link.pipeline(WHAT, &about_each(&ids, "GET", keys::host)).await {
        Err(error) if is_skipped(&error) => return Ok(hosts),
        replies => replies?,
    };
    for reply in replies {
        let announcement = match reply {
            Err(error) if is_skipped(&error) => continue,
            reply => reply::bytes(reply?).ok(),
        };
        // Another version may have written another form, which is skipped.
        hosts.extend(announcement.and_then(|json| serde_json::from_slice(&json).ok()));
    }
    Ok(hosts)
}

/// A command for each host, whose key `key` makes of the host's id.
fn about_each(
    ids: &[impl AsRef<str>],
    command: &'static str,
    key: impl Fn(&str) -> String,
) -> Vec<redis::Cmd> {
    ids.iter().map(|id| redis::cmd(command).arg(key(id.as_ref())).to_owned()).collect()
}

/// A host that is gone, and did not stop in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct LostHost {
    pub id: String,
    /// When it announced itself last, in milliseconds since the Unix epoch, by its own clock.
    pub seen_ms: u64,
    /// The attempts that ended with it, as far as other hosts have taken the tasks over.
    pub lost_attempts: u64,
}

/// The hosts that have ended within the last hour without withdrawing their announcement.
pub(crate) async fn lost(link: &Link, now_ms: u64) -> QueueResult<Vec<LostHost>> {
    const WHAT: &str = "look after hosts";
    let ask = redis::cmd("ZREVRANGE").arg(keys::HOSTS).arg(0).arg(MAX_HOSTS - 1).arg("WITHSCORES").to_owned();
    let known = reply::pairs(link.command(WHAT, &ask).await?)
        .map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
    let read = |(id, seen): (Vec<u8>, Vec<u8>)| {
        let seen: f64 = std::str::from_utf8(&seen).ok()?.parse().ok()?;
        Some(LostHost { id: String::from_utf8(id).ok()?, seen_ms: seen as u64, lost_attempts: 0 })
    };
    let mut hosts: Vec<LostHost> = known.into_iter().filter_map(read).collect();
    // The set is tidied when a host announces something new, which may be later.
    hosts.retain(|host| host.seen_ms.saturating_add(ms(REMEMBERED)) > now_ms);
    if hosts.is_empty() {
        return Ok(hosts);
    }
    let replies = link.pipeline(WHAT, &about_each(&ids_of(&hosts), "EXISTS", keys::host)).await?;
    let mut is_gone = replies.into_iter().map(|reply| matches!(reply, Ok(redis::Value::Int(0))));
    hosts.retain(|_| is_gone.next().unwrap_or_default());
    if hosts.is_empty() {
        return Ok(hosts);
    }
    let counts = link.pipeline(WHAT, &about_each(&ids_of(&hosts), "GET", keys::lost_attempts)).await?;
    for (host, count) in hosts.iter_mut().zip(counts) {
        host.lost_attempts = count.ok().and_then(|count| reply::text(count).ok()?.parse().ok()).unwrap_or(0);
    }
    Ok(hosts)
}

fn ids_of(hosts: &[LostHost]) -> Vec<&str> {
    hosts.iter().map(|host| host.id.as_str()).collect()
}

/// Counts attempts that ended with their hosts. Each attempt is given by the consumer that made it.
pub(crate) async fn count_lost(link: &Link, attempts: &[&str]) -> QueueResult {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for consumer in attempts {
        *counts.entry(host_of(consumer)).or_default() += 1;
    }
    // In a cluster each host's count has a slot of its own, so a node that is away holds up no other count.
    let mut calls = Vec::new();
    for (host, count) in counts {
        let key = keys::lost_attempts(host);
        calls.push(script::write(redis::cmd("INCRBY").arg(&key).arg(count)));
        calls.push(script::write(redis::cmd("PEXPIRE").arg(&key).arg(ms(REMEMBERED))));
    }
    link.scripts("count lost attempts", &calls).await?.into_iter().try_for_each(|reply| reply.map(drop))
}

/// How long ago (ms) these hosts announced themselves. A host without an announcement is left out.
pub(crate) async fn announced_ago<'h>(
    link: &Link,
    ids: impl IntoIterator<Item = &'h str>,
) -> QueueResult<HashMap<&'h str, u64>> {
    let ids: Vec<&str> = ids.into_iter().collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let replies = link.pipeline("look after hosts", &about_each(&ids, "PTTL", keys::host)).await?;
    // Each announcement sets the whole time to live anew.
    let age = |reply: QueueResult<redis::Value>| match reply {
        Ok(redis::Value::Int(left)) => Some(ms(EXPIRES).saturating_sub(u64::try_from(left).ok()?)),
        _ => None,
    };
    Ok(ids.into_iter().zip(replies).filter_map(|(id, reply)| Some((id, age(reply)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn a_host_is_known_by_its_name() {
        let hosts = ["web-1-3041-0123456789ab", "host-1-aaaaaaaaaaaa.12"];
        assert!(hosts.into_iter().all(is_host));
        let others =
            ["analyze-consumer-1", "web-1-3041-0123456789abc", "a-b-0123456789ab", "0123456789ab", ""];
        assert!(!others.into_iter().any(is_host));
        let uuids = [
            "550e8400-e29b-41d4-8716-446655440000",
            "consumer-550e8400-e29b-41d4-8716-446655440000",
            "consumer:550E8400-E29B-41D4-8716-446655440000",
            "grün550e8400-e29b-41d4-8716-446655440000",
            "worker_0190b8e4-61a9-7000-8505-001122334455.3",
        ];
        assert_eq!(uuids.into_iter().filter(|name| is_host(name)).count(), 0);
        // Names that only look like a UUID: other numbers of digits.
        let hosts = ["web-550e8400-e29b-41d4-871-446655440000", "x550e840-e29b-41d4-8716-446655440000"];
        assert!(hosts.into_iter().all(is_host));
    }
}
