//! Removes old consumers, ends tasks whose entries were deleted, and finds what may make this Redis lose
//! tasks.
//!
//! Not here: when to do it (`worker::janitor`, `app`).

use std::time::Duration;

use super::census;
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply;
use super::script::{self, ScriptCall};

impl Queue {
    /// Removes up to `limit` consumers that have no pending entries and sent no request for `idle`. Returns
    /// their number.
    pub async fn sweep_consumers(&self, idle: Duration, limit: usize) -> QueueResult<u64> {
        const WHAT: &str = "sweep";
        let consumers = match self.link.read(WHAT, &self.ask_consumers(), census::read_consumers).await {
            Err(error) if error.is_no_group() => return Ok(0),
            consumers => consumers?,
        };
        let old =
            consumers.iter().filter(|consumer| consumer.pending == 0 && consumer.idle_ms > millis(idle));
        let calls: Vec<ScriptCall> = old.take(limit).map(|old| self.leaving(&old.name, 0)).collect();
        if calls.is_empty() {
            return Ok(0);
        }
        let mut removed = 0;
        for reply in self.link.scripts(WHAT, &calls).await? {
            removed += self.shaped(WHAT, reply::count(&reply?))?;
        }
        Ok(removed)
    }

    /// Ends tasks whose entries somebody deleted from the stream, and notes that in their statuses.
    pub async fn end_deleted(&self, entries: &[String]) -> QueueResult {
        let ids: Vec<&str> = entries.iter().map(String::as_str).collect();
        let markers = self.markers_of(&ids).await?;
        let call = |(entry, marker): (&String, Option<Vec<u8>>)| {
            let marker = marker.unwrap_or_else(|| self.keys.marker(None));
            let call = self.call(&script::END_DELETED).key("status", self.keys.task(entry));
            call.key("marker", marker).arg("entry", entry)
        };
        let calls: Vec<ScriptCall> = entries.iter().zip(markers).map(call).collect();
        self.link.scripts("note lost tasks", &calls).await?.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// For each task, the marker of its idempotency key, if its status names one of this queue.
    pub(crate) async fn markers_of(&self, ids: &[&str]) -> QueueResult<Vec<Option<Vec<u8>>>> {
        const WHAT: &str = "look at idempotency keys";
        let ask = |id: &&str| redis::cmd("HGET").arg(self.keys.task(id)).arg("marker").to_owned();
        let replies = self.link.pipeline(WHAT, &ids.iter().map(ask).collect::<Vec<_>>()).await?;
        let marker = |reply: QueueResult<redis::Value>| {
            let named = reply::bytes(reply.ok()?).ok()?;
            Some(named).filter(|key| self.keys.is_marker(key))
        };
        Ok(replies.into_iter().map(marker).collect())
    }
}

/// Something about this Redis that may make it lose tasks or refuse new ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Danger {
    /// Its kind, for programs: a stable name.
    pub kind: &'static str,
    /// Whether it happens now or is about to happen.
    pub is_urgent: bool,
    /// A sentence that says what is wrong.
    pub what: String,
    /// A sentence that says what to do.
    pub way_out: &'static str,
}

/// Finds what is dangerous about this Redis. Finds nothing if Redis does not tell its state.
pub(crate) async fn dangers(link: &Link) -> Vec<Danger> {
    let mut found = Vec::new();
    for node in link.at_each_node().await.unwrap_or_default() {
        for mut danger in dangers_of(&node).await {
            if link.is_cluster() {
                danger.what = format!("{}: {}", node.address(), danger.what);
            }
            found.push(danger);
        }
    }
    found
}

async fn dangers_of(link: &Link) -> Vec<Danger> {
    let ask = redis::cmd("INFO").arg(&["memory", "persistence", "stats"]).to_owned();
    let info = link.command("ask for its state", &ask).await.ok().and_then(|info| reply::text(info).ok());
    let ask = redis::cmd("CONFIG").arg("GET").arg("save").arg("min-replicas-to-write").to_owned();
    let set = link.command("ask for its configuration", &ask).await.ok();
    let set = set.and_then(|reply| reply::pairs(reply).ok()).unwrap_or_default();
    let may_lag = link.redis.is_watched() && reply::value_of(&set, "min-replicas-to-write") == Some(b"0");
    let snapshots = reply::value_of(&set, "save").map(|points| !points.is_empty());
    judge(&info.unwrap_or_default(), snapshots, may_lag)
}

/// Judges the answer of INFO. `snapshots`: whether a save point is configured, if that is known. `may_lag`:
/// whether after a failover the new primary may lack the last writes of this one.
fn judge(info: &str, snapshots: Option<bool>, may_lag: bool) -> Vec<Danger> {
    let field =
        |name: &str| info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()));
    let number = |name| field(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
    let mut found = Vec::new();
    let mut add = |kind, is_urgent, what: String, way_out| {
        found.push(Danger { kind, is_urgent, what, way_out });
    };
    let (used, most) = (number("used_memory"), number("maxmemory"));
    let way_out = "Raise maxmemory, purge dead letters with --no-undo, or shorten retention.";
    if most > 0 && used >= most {
        let what = "Redis is full: it refuses new tasks. Those that it has go on to their ends.";
        add("redis-full", true, what.to_owned(), way_out);
    } else if most > 0 && used > most / 10 * 9 {
        let percent = used as f64 / most as f64 * 100.0;
        let what =
            format!("Redis uses {percent:.0} % of its maxmemory, and refuses new tasks when it is full.");
        add("redis-memory", true, what, way_out);
    }
    let writes = ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"];
    if let Some(failed) = writes.into_iter().find(|name| field(name) == Some("err")) {
        let what = format!("Redis cannot write to its disk ({failed}); it may refuse all writes.");
        add("redis-disk", true, what, "Make room on its disk, and see its log.");
    }
    let evicted = number("evicted_keys");
    if evicted > 0 {
        let what = format!("Redis has evicted keys since its start ({evicted}), and may have lost tasks.");
        let way_out = "Set maxmemory-policy to noeviction; `tqhost doctor` finds what is broken.";
        add("redis-evicts", true, what, way_out);
    } else if field("maxmemory_policy").is_some_and(|policy| policy != "noeviction") {
        let what = "Redis may evict keys when its memory is full, and with them whole queues.";
        add("redis-may-evict", false, what.to_owned(), "Set maxmemory-policy to noeviction.");
    }
    if may_lag {
        let what = "A failover loses what the primary took last: its min-replicas-to-write is 0.";
        let way_out = "Set it to 1 on the primary and its replicas; then one server alone takes no writes.";
        add("redis-replicas", false, what.to_owned(), way_out);
    }
    let loss = match (field("aof_enabled"), snapshots) {
        (Some("0"), Some(false)) => Some("Redis keeps nothing on disk: a restart loses all tasks."),
        (Some("0"), Some(true)) => {
            Some("Redis only makes snapshots: a crash loses what came after the last one.")
        }
        _ => None,
    };
    if let Some(what) = loss {
        add("redis-keeps-nothing", false, what.to_owned(), "Set appendonly to yes.");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_may_lose_tasks_are_told() {
        assert_eq!(judge("", None, false), []);
        let good = "# Memory\r\nused_memory:90\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n\
                    # Persistence\r\naof_enabled:1\r\naof_last_write_status:ok\r\n\
                    # Stats\r\nevicted_keys:0\r\n";
        assert_eq!(judge(good, Some(false), false), []);
        assert_eq!(judge(good, Some(false), true).len(), 1);
        let cases = [
            ("maxmemory_policy:noeviction", "maxmemory_policy:allkeys-lru", true, false, "whole queues"),
            ("evicted_keys:0", "evicted_keys:7", true, true, "(7)"),
            ("used_memory:90", "used_memory:91", true, true, "91 %"),
            ("used_memory:90", "used_memory:100", true, true, "Redis is full"),
            ("write_status:ok", "write_status:err", true, true, "(aof_last_write_status)"),
            ("aof_enabled:1", "aof_enabled:0", false, false, "nothing on disk"),
            ("aof_enabled:1", "aof_enabled:0", true, false, "snapshots"),
        ];
        for (from, to, snapshots, is_urgent, part) in cases {
            let told = judge(&good.replace(from, to), Some(snapshots), false);
            let [danger] = &told[..] else { panic!("{part}: {told:?}") };
            assert!(danger.what.contains(part) && danger.is_urgent == is_urgent, "{part}: {danger:?}");
        }
        assert_eq!(judge(&good.replace("aof_enabled:1", "aof_enabled:0"), None, false), []);
    }
}
