//! Every Redis key that tqhost reads or writes. Nowhere else is a key put together.
//!
//! | key | type | holds | written by |
//! |---|---|---|---|
//! | `S` | stream | queued and running tasks, one group | producers, enqueue, fire, settle, promote, requeue, mend, and claim and all that end tasks in queues with tracks |
//! | `tq:{S}:delayed` | zset | parked members by due time (ms); held ones by a time that never comes | settle, enqueue, promote, mend, claim |
//! | `tq:{S}:parked` | hash | member → the fields of the delayed task (MessagePack) | settle, enqueue, promote, claim |
//! | `tq:{S}:dead`, or the queue's `dead_letter` | stream | dead letters | settle, requeue, purge, import |
//! | `tq:{S}:key:<key>` | string | the id of the task with this key, for its life and the window | enqueue, begin, settle, cancel, mend, examine |
//! | `tq:{S}:attempts:<id>` | hash | number → a failed attempt of a task, as JSON, the last ones; `last` → the last number; expires with the status, or 30 days after the last one | settle, and all that end tasks |
//! | `tq:{S}:alias:<alias>` | zset | the ids of the newest tasks with this alias, by the time of enqueueing (ms); expires | alias |
//! | `tq:{S}:owners` | hash | id of a task that has its turn → its track and its entry | claim, return, and all that end tasks |
//! | `tq:{S}:tracks` | zset | the tasks of all tracks that have their turn or are held, by name | claim, cancel, return, and all that end tasks |
//! | `tq:{S}:rate` | string | the time up to which places are taken (µs); expires | rate |
//! | `tq:{S}:hold` | string | failures in a row for a cause outside, or the hold, as JSON; expires | hold, resume |
//! | `tq:{S}:limits` | string | the limits that an operator has set, and until when, as JSON; expires at their end | limit |
//! | `tq:{S}:paused` | string | who paused the queue, when, why, and until when, as JSON; exists during the pause | pause, resume |
//! | `tq:{S}:history` | hash | group → its last entry when a host first used it (0-0: a host made the group) | group |
//! | `tq:{S}:minutes:<hour>` | hash | what became of tasks in each minute of an hour, and how full the queue was; expires | tally, recorder |
//! | `tq:{S}:minutes:10m:<number>` | hash | the same in steps of ten minutes, of six hours; expires | recorder |
//! | `tq:{S}:minutes:1h:<day>` | hash | the same in steps of an hour, of a day; expires | recorder |
//! | `tq:{S}:adopted` | hash | another group of S → when an operator confirmed that its entries may be deleted (ms) | adopt |
//! | `tq:{S}:dead-list` | list | items of a list at the place of the dead letters, while they become dead letters | convert |
//! | `tq:{S}:events` | stream | the last moves and ends of tasks, if the queue keeps events | settle and all that end tasks |
//! | `tq:{S}:flow:<id>` | hash | a flow that ends in the task `id`: how many children are left, the task, and the children's spans | settle |
//! | `tq:{S}:flow:<id>:children` | list | children that are not enqueued yet (MessagePack); expires before the commit | stage, unstage, promote |
//! | `tq:{S}:flow:<id>:results` | hash | index of a child → how it ended, and `<index>:value` → its result | all that end tasks |
//! | `tq:{S}:kept:<job>` | stream | what a job took away, has exported, or is to bring back, in the form of dead letters; expires | purge, cancel, keep, import, requeue |
//! | `tq:{S}:schedule` | hash | schedule → up to which time it was handled (ms) | fire, and the scheduler's begin, reset, forget |
//! | `tq:{S}:out` | stream | in a cluster, tasks for queues in other slots, until a host has taken them there | settle and all that end tasks; relay |
//! | `tq:{S}:settled:<consumer>:<lane>` | string | the last reply to one lane of a consumer; expires | settle, leave |
//! | `tq:{S}:-` | none | never exists: the last key of each call of several keys in a cluster ([`freeze`]) | nobody |
//! | `tq:{S}:task:<id>` | hash | status and result of a task; expires after its end | begin, heartbeat, settle, enqueue, fire, requeue, import, mend, examine |
//! | `tq:{tag}:state:<plugin>:<key>` | string | a value of a plugin's state, for all queues whose streams have this tag | settle |
//! | the queue's `list` | list | items that are not tasks yet; producers LPUSH | producers, move, due, restore |
//! | `schedule`, `retry` | zset | jobs of Sidekiq by when they are due (s), of all its queues | Sidekiq, due |
//! | `unacked`, `unacked_index` | hash, zset | messages that workers of Celery have taken, of all its queues | Celery, restore |
//! | `tq:hosts` | zset | host id by the time it was last seen (ms) | announce |
//! | `tq:host:<id>` | string | the announcement of a host, as JSON; expires | announce |
//! | `tq:host:<id>:lost` | string | how many attempts ended with a host that is gone; expires | reclaimer |
//! | `tq:hosts:incidents` | hash | `seen <cause>` → since when there is an alarm, and when it was seen last; `ack <cause>` → who acknowledged it, until when; as JSON | overview, acknowledge |
//! | `tq:hosts:duties` | hash | duty → the host that has it | duties, release |
//! | `tq:hosts:leases:{tq:hosts:duties}` | zset | host id by the time when its lease of duties ends (ms) | duties, leave |
//! | `tq:hosts:orders` | hash | plugin → the last order about one of its versions, as JSON; `plugin/version` → the order that withdrew it; `plugin/good` → its last good versions, as JSON; `plugin/reload` → when it was to be reloaded (ms); `/job/id` → a job, as JSON | orders, job |
//! | `tq:hosts:changes` | stream | what operators have changed, as JSON; the last 500 | changes |
//! | `tq:hosts:version:<digest>` | string | the file of a good version of a plugin | versions |
//! | `tq:hosts:sessions` | string | the key under which all hosts sign sessions of browsers (hexadecimal) | sessions |
//! | `tq:hosts:sessions:<token>` | zset | the sessions of a token that a logout ended, by when they would have ended (ms); expires | sessions |
//! | `tq:hosts:told` | stream | one entry for each signal to hosts to look; about the last hundred | tell |
//!
//! All keys of a queue share S's hash slot, so that its scripts may touch them together on a cluster.

use crate::config::hash_tag;

/// The set of hosts that announced themselves.
pub(crate) const HOSTS: &str = "tq:hosts";

/// The host of each duty, and the end of each host's lease. One script writes both keys, so the second one
/// has the slot of the first.
pub(crate) const DUTIES: &str = "tq:hosts:duties";
pub(crate) const DUTY_HOSTS: &str = "tq:hosts:leases:{tq:hosts:duties}";

/// The orders of operators about plugins.
pub(crate) const ORDERS: &str = "tq:hosts:orders";

/// The log of changes.
pub(crate) const CHANGES: &str = "tq:hosts:changes";

/// The file of a good version of a plugin.
pub(crate) fn version(digest: &str) -> String {
    format!("tq:hosts:version:{digest}")
}

/// The key under which hosts sign sessions of browsers.
pub(crate) const SESSIONS: &str = "tq:hosts:sessions";

/// The sessions of the token of this name that were ended.
pub(crate) fn ended_sessions(token: &str) -> String {
    format!("{SESSIONS}:{token}")
}

/// Wakes the hosts that wait for new entries.
pub(crate) const LOOK_REQUESTED: &str = "tq:hosts:told";

/// The announcement of the host `id`.
pub(crate) fn host(id: &str) -> String {
    format!("tq:host:{id}")
}

/// The number of attempts that ended with the host `id`.
pub(crate) fn lost_attempts(id: &str) -> String {
    host(&format!("{id}:lost"))
}

/// The notes about incidents between two looks.
pub(crate) const INCIDENTS: &str = "tq:hosts:incidents";

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(crate) struct QueueKeys {
    pub stream: String,
    pub delayed: String,
    pub parked: String,
    pub dead: String,
    pub paused: String,
    pub hold: String,
    pub limits: String,
    pub rate: String,
    pub schedule: String,
    pub history: String,
    pub adopted: String,
    pub dead_list: String,
    pub events: String,
    pub owners: String,
    pub tracks: String,
    pub out: String,
    /// The stream in which a job keeps the tasks that it takes away. The queue's own stream if this is not
    /// for a job.
    pub kept: String,
    /// A glob pattern for all keys of the queue except the stream and a dead letter key with its own name.
    pub all: String,
    /// The common prefix of all these keys except the stream.
    pub base: String,
    task_prefix: String,
    settled_prefix: String,
    minutes_prefix: String,
    marker_prefix: String,
    alias_prefix: String,
    attempts_prefix: String,
    state_prefix: String,
    flow_prefix: String,
    kept_prefix: String,
}

/// A glob pattern for all keys that this file builds, except streams and keys that an operator named.
pub(crate) const EVERYTHING: &str = "tq:*";

/// If this key is a status or a marker, the [`QueueKeys::base`] of each queue to which it may belong.
pub(crate) fn bases(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_end = |at: &usize| key[*at..].starts_with(b":task:") || key[*at..].starts_with(b":key:");
    (0..key.len()).filter(is_end).map(|end| &key[..end])
}

impl QueueKeys {
    /// The key that scripts know by this name.
    pub(super) fn named(&self, name: &str) -> Option<&str> {
        Some(match name {
            "stream" => &self.stream,
            "delayed" => &self.delayed,
            "parked" => &self.parked,
            "dead" => &self.dead,
            "history" => &self.history,
            "adopted" => &self.adopted,
            "owners" => &self.owners,
            "tracks" => &self.tracks,
            "schedule" => &self.schedule,
            "rate" => &self.rate,
            "dead_list" => &self.dead_list,
            "kept" => &self.kept,
            _ => return None,
        })
    }

    /// The keys of the queue with this stream. `dead_letter` replaces the default key of the dead letters.
    pub(crate) fn new(stream: &str, dead_letter: Option<&str>) -> QueueKeys {
        let base =
            if hash_tag(stream).is_some() { format!("tq:{stream}") } else { format!("tq:{{{stream}}}") };
        QueueKeys {
            stream: stream.to_owned(),
            delayed: format!("{base}:delayed"),
            parked: format!("{base}:parked"),
            dead: dead_letter.map_or_else(|| format!("{base}:dead"), str::to_owned),
            paused: format!("{base}:paused"),
            hold: format!("{base}:hold"),
            limits: format!("{base}:limits"),
            rate: format!("{base}:rate"),
            schedule: format!("{base}:schedule"),
            history: format!("{base}:history"),
            adopted: format!("{base}:adopted"),
            dead_list: format!("{base}:dead-list"),
            events: format!("{base}:events"),
            owners: format!("{base}:owners"),
            tracks: format!("{base}:tracks"),
            out: format!("{base}:out"),
            kept: stream.to_owned(),
            all: format!("{}:*", literal(&base)),
            task_prefix: format!("{base}:task:"),
            settled_prefix: format!("{base}:settled:"),
            minutes_prefix: format!("{base}:minutes:"),
            marker_prefix: format!("{base}:key:"),
            alias_prefix: format!("{base}:alias:"),
            attempts_prefix: format!("{base}:attempts:"),
            flow_prefix: format!("{base}:flow:"),
            kept_prefix: format!("{base}:kept:"),
            state_prefix: format!("tq:{{{}}}:state:", hash_tag(stream).unwrap_or(stream)),
            base,
        }
    }

    /// The status of the task `id`.
    pub(crate) fn task(&self, id: &str) -> String {
        format!("{}{id}", self.task_prefix)
    }

    /// The failed attempts of the task `id`.
    pub(crate) fn attempts(&self, id: &str) -> String {
        format!("{}{id}", self.attempts_prefix)
    }

    /// The last reply to the settlements that `consumer` sends in this lane.
    pub(crate) fn settled(&self, consumer: &str, lane: usize) -> String {
        format!("{}{consumer}:{lane}", self.settled_prefix)
    }

    /// The minutes of an hour, which is counted from the Unix epoch.
    pub(crate) fn minutes(&self, hour: u64) -> String {
        format!("{}{hour}", self.minutes_prefix)
    }

    /// The history of six hours in steps of ten minutes. They are counted from the Unix epoch.
    pub(crate) fn ten_minutes(&self, six_hours: u64) -> String {
        format!("{}10m:{six_hours}", self.minutes_prefix)
    }

    /// The history of a day in steps of an hour. The day is counted from the Unix epoch.
    pub(crate) fn hours(&self, day: u64) -> String {
        format!("{}1h:{day}", self.minutes_prefix)
    }

    /// The flow that ends in the task `id` of this queue.
    pub(crate) fn flow(&self, id: &str) -> FlowKeys {
        FlowKeys::of(&format!("{}{id}", self.flow_prefix))
    }

    /// Glob patterns for the keys with a name at their end that `tqhost enqueue` needs: statuses, markers,
    /// aliases, and failed attempts, which expire with a lost task.
    pub(crate) fn of_enqueuers(&self) -> [String; 4] {
        let prefixes = [&self.task_prefix, &self.marker_prefix, &self.alias_prefix, &self.attempts_prefix];
        prefixes.map(|prefix| literal(prefix) + "*")
    }

    /// The tasks that the job with this id keeps.
    pub(crate) fn kept_stream(&self, job: &str) -> String {
        format!("{}{job}", self.kept_prefix)
    }

    /// The keys for a job that keeps the tasks that it takes away.
    pub(crate) fn keeping(&self, job: &str) -> QueueKeys {
        QueueKeys { kept: self.kept_stream(job), ..self.clone() }
    }

    /// The keys with the tasks that a job keeps in the place of the dead letters.
    pub(crate) fn of_kept(&self, job: &str) -> QueueKeys {
        QueueKeys { dead: self.kept_stream(job), ..self.clone() }
    }

    /// A glob pattern for all states of plugins.
    pub(crate) fn states(&self) -> String {
        literal(&self.state_prefix) + "*"
    }

    /// One key of each kind that only tqhost uses. If the keys of a kind end in a name, this name is `*`.
    pub(crate) fn samples(&self) -> Vec<String> {
        let named = [&self.task_prefix, &self.marker_prefix, &self.alias_prefix, &self.settled_prefix];
        let more = [&self.attempts_prefix, &self.flow_prefix, &self.state_prefix, &self.kept_prefix];
        let named = named.into_iter().chain(more);
        let whole = [&self.delayed, &self.parked, &self.owners, &self.tracks, &self.out];
        let whole = whole.into_iter().chain(self.of_hosts()).cloned();
        whole.chain(named.map(|prefix| format!("{prefix}*"))).collect()
    }

    /// The id of the task that joins the flow, if this key is a flow or the list of its children.
    pub(crate) fn flow_of(&self, key: &[u8]) -> Option<String> {
        let id = std::str::from_utf8(key.strip_prefix(self.flow_prefix.as_bytes())?).ok()?;
        let id = id.strip_suffix(":children").unwrap_or(id);
        (!id.ends_with(":results")).then(|| id.to_owned())
    }

    /// A value of the state of `plugin`. Queues whose streams have a hash tag in common share it.
    pub(crate) fn state(&self, plugin: &str, key: &str) -> String {
        format!("{}{plugin}:{key}", self.state_prefix)
    }

    /// The id of the task whose status this key is.
    pub(crate) fn task_of(&self, key: &[u8]) -> Option<String> {
        let id = key.strip_prefix(self.task_prefix.as_bytes())?;
        String::from_utf8(id.to_vec()).ok()
    }

    /// The keys without a name at their end that only hosts need, while they serve the queue.
    fn of_hosts(&self) -> [&String; 8] {
        let QueueKeys { paused, hold, limits, rate, schedule, history, adopted, events, .. } = self;
        [paused, hold, limits, rate, schedule, history, adopted, events]
    }

    /// Whether only hosts need this key, while they serve the queue.
    pub(crate) fn is_of_hosts(&self, key: &[u8]) -> bool {
        let prefixes = [&self.settled_prefix, &self.minutes_prefix, &self.attempts_prefix, &self.kept_prefix];
        self.of_hosts().iter().any(|known| known.as_bytes() == key)
            || prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
    }

    /// The marker that the status of a task names, or [`QueueKeys::marker`] of none if that is no marker of
    /// this queue.
    pub(crate) fn known_marker(&self, named: Option<Vec<u8>>) -> Vec<u8> {
        named.filter(|key| self.is_marker(key)).unwrap_or_else(|| self.marker(None))
    }

    /// Whether this key is the marker of an idempotency key.
    pub(crate) fn is_marker(&self, key: &[u8]) -> bool {
        key.starts_with(self.marker_prefix.as_bytes())
    }

    /// The tasks that have this alias.
    pub(crate) fn alias(&self, alias: &[u8]) -> Vec<u8> {
        [self.alias_prefix.as_bytes(), alias].concat()
    }

    /// The marker of an idempotency key, which holds the id of the task with this key. A task without a key
    /// has the stream as its marker: scripts take the same number of keys for every task, all in one slot.
    pub(crate) fn marker(&self, key: Option<&[u8]>) -> Vec<u8> {
        match key {
            Some(key) => [self.marker_prefix.as_bytes(), key].concat(),
            None => self.stream.as_bytes().to_vec(),
        }
    }
}

/// The keys of one flow.
#[derive(Debug, Clone)]
pub(crate) struct FlowKeys {
    pub about: String,
    pub children: String,
    pub results: String,
}

impl FlowKeys {
    /// The keys of the flow whose first key this is.
    pub(crate) fn of(about: &str) -> FlowKeys {
        FlowKeys {
            about: about.to_owned(),
            children: format!("{about}:children"),
            results: format!("{about}:results"),
        }
    }
}

/// A key that never exists, in the slot of `key`.
pub(crate) fn freeze(key: &str) -> String {
    format!("tq:{{{}}}:-", hash_tag(key).unwrap_or(key))
}

/// A glob pattern for the announcements of all hosts.
pub(crate) fn hosts() -> String {
    host("*")
}

/// Text as a glob pattern that matches only this text.
pub(crate) fn literal(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '^' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_queue_have_the_slot_of_its_stream() {
        let keys = QueueKeys::new("resume:analyze:stream", None);
        assert_eq!(keys.delayed, "tq:{resume:analyze:stream}:delayed");
        assert_eq!(keys.parked, "tq:{resume:analyze:stream}:parked");
        assert_eq!(keys.dead, "tq:{resume:analyze:stream}:dead");
        assert_eq!(keys.task("1-0"), "tq:{resume:analyze:stream}:task:1-0");
        assert_eq!(QueueKeys::new("s", Some("resume:dead")).dead, "resume:dead");
    }

    #[test]
    fn a_stream_with_a_hash_tag_keeps_it_and_its_name() {
        let keys = QueueKeys::new("app:{orders}:a", None);
        assert_eq!(keys.delayed, "tq:app:{orders}:a:delayed");
        assert_ne!(keys.delayed, QueueKeys::new("app:{orders}:b", None).delayed);
        assert_eq!(QueueKeys::new("odd{}", None).delayed, "tq:{odd{}}:delayed");
    }

    #[test]
    fn queues_with_a_common_tag_share_their_plugins_state() {
        let state = |stream| QueueKeys::new(stream, None).state("p", "k");
        assert_eq!(state("app:{orders}:a"), "tq:{orders}:state:p:k");
        assert_eq!(state("app:{orders}:a"), state("b{orders}"));
        assert_eq!(state("s"), "tq:{s}:state:p:k");
    }

    #[test]
    fn a_key_tells_what_it_is() {
        let keys = QueueKeys::new("a*[b]", None);
        assert_eq!(keys.task_of(keys.task("1-0").as_bytes()).as_deref(), Some("1-0"));
        assert!(keys.task_of(&keys.marker(Some(b"k"))).is_none() && keys.is_marker(&keys.marker(Some(b"k"))));
        assert!(!keys.is_marker(keys.delayed.as_bytes()));
        assert!(keys.is_of_hosts(keys.attempts("1-0").as_bytes()));
        assert_eq!(keys.all, "tq:{a\\*\\[b\\]}:*");
        let flow = keys.flow("7");
        let ids = [&flow.about, &flow.children, &flow.results].map(|key| keys.flow_of(key.as_bytes()));
        assert_eq!(ids, [Some("7".into()), Some("7".into()), None]);
        assert_eq!(keys.flow_of(keys.task("7").as_bytes()), None);
    }

    #[test]
    fn a_key_tells_to_which_queues_it_may_belong() {
        let keys = QueueKeys::new("a:task:b", None);
        let (status, marker) = (keys.task("x:key:y"), keys.marker(Some(b"k")));
        assert!(bases(status.as_bytes()).any(|base| base == keys.base.as_bytes()));
        assert!(bases(&marker).any(|base| base == keys.base.as_bytes()));
        assert_eq!(bases(keys.paused.as_bytes()).filter(|base| *base == keys.base.as_bytes()).count(), 0);
    }

    #[test]
    fn a_freeze_key_is_in_the_slot_of_its_key() {
        assert_eq!(
            [freeze("s"), freeze("app:{t}:s"), freeze("tq:{s}:task:1")],
            ["tq:{s}:-", "tq:{t}:-", "tq:{s}:-"]
        );
    }
}
