//! Removes old consumers, ends lost tasks, finds other groups, and warns of settings of Redis that may lose
//! tasks.
//!
//! Not here: when to do it (`worker::janitor`, `app`).

use std::time::Duration;

use super::census;
use super::error::QueueError;
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply;
use super::script::{self, ScriptCall};

impl Queue {
    /// Removes up to `limit` consumers that have no pending entries and sent no request for `idle`. Gives
    /// their number.
    pub async fn sweep_consumers(&self, idle: Duration, limit: usize) -> Result<u64, QueueError> {
        const WHAT: &str = "sweep";
        let consumers = match self.link.command(WHAT, &self.ask_consumers()).await {
            Err(error) if error.is_no_group() => return Ok(0),
            reply => self.shaped(WHAT, census::read_consumers(reply?))?,
        };
        let gone =
            consumers.iter().filter(|consumer| consumer.pending == 0 && consumer.idle_ms > millis(idle));
        let calls: Vec<ScriptCall> = gone.take(limit).map(|gone| self.leaving(&gone.name, 0)).collect();
        if calls.is_empty() {
            return Ok(0);
        }
        let mut removed = 0;
        for reply in self.link.scripts(WHAT, &calls).await? {
            removed += self.shaped(WHAT, reply::count(&reply?))?;
        }
        Ok(removed)
    }

    /// Ends tasks whose entries were deleted from outside: their statuses say so.
    pub async fn end_deleted(&self, entries: &[String]) -> Result<(), QueueError> {
        let ids: Vec<&str> = entries.iter().map(String::as_str).collect();
        let markers = self.markers_of(&ids).await?;
        let call = |(entry, marker): (&String, Option<Vec<u8>>)| {
            let marker = marker.unwrap_or_else(|| self.keys.marker(None));
            self.ending_call(&script::END_DELETED).key(self.keys.task(entry)).key(marker).arg(entry)
        };
        let calls: Vec<ScriptCall> = entries.iter().zip(markers).map(call).collect();
        self.link.scripts("note lost tasks", &calls).await?.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// The marker that each task's status names.
    pub(crate) async fn markers_of(&self, ids: &[&str]) -> Result<Vec<Option<Vec<u8>>>, QueueError> {
        const WHAT: &str = "look at idempotency keys";
        let ask = |id: &&str| redis::cmd("HGET").arg(self.keys.task(id)).arg("marker").to_owned();
        let replies = self.link.pipeline(WHAT, &ids.iter().map(ask).collect::<Vec<_>>()).await?;
        Ok(replies.into_iter().map(|reply| reply.ok().and_then(|reply| reply::bytes(reply).ok())).collect())
    }

    /// The stream's other consumer groups that no operator has confirmed. tqhost deletes entries when it
    /// settles them, whether or not these groups have read them.
    pub async fn other_groups(&self) -> Result<Vec<String>, QueueError> {
        let others = self.stand().await?.map(|stand| stand.others).unwrap_or_default();
        Ok(others.into_iter().filter(|group| !group.is_confirmed).map(|group| group.name).collect())
    }
}

/// The settings of this Redis that may lose tasks: one sentence each, with the way out. Empty where Redis
/// does not tell its settings.
pub(crate) async fn dangers(link: &Link) -> Vec<&'static str> {
    let info = async |section| match link.command("ask for its state", redis::cmd("INFO").arg(section)).await
    {
        Ok(reply) => reply::text(reply).unwrap_or_default(),
        Err(_) => String::new(),
    };
    let save = link.command("ask for its configuration", redis::cmd("CONFIG").arg("GET").arg("save")).await;
    let snapshots =
        save.ok().and_then(|reply| reply::pairs(reply).ok()).and_then(|pairs| pairs.into_iter().next());
    judge(&info("memory").await, &info("persistence").await, snapshots.map(|(_, value)| !value.is_empty()))
}

/// `snapshots`: whether a save point is configured; none where that is not known.
fn judge(memory: &str, persistence: &str, snapshots: Option<bool>) -> Vec<&'static str> {
    let field = |info: &str, name: &str| {
        info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
    };
    let mut found = Vec::new();
    if field(memory, "maxmemory_policy").is_some_and(|policy| policy != "noeviction") {
        found.push(
            "Redis may evict keys when its memory is full, and with them whole queues: \
             set maxmemory-policy to noeviction",
        );
    }
    match (field(persistence, "aof_enabled").as_deref(), snapshots) {
        (Some("0"), Some(false)) => {
            found.push("Redis keeps nothing on disk: a restart loses all tasks. Set appendonly to yes");
        }
        (Some("0"), Some(true)) => {
            found.push(
                "Redis only makes snapshots: a crash loses what came after the last one. \
                 Set appendonly to yes",
            );
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_lose_tasks_is_told() {
        let memory = |policy: &str| format!("# Memory\r\nmaxmemory_policy:{policy}\r\n");
        let aof = |on: &str| format!("# Persistence\r\naof_enabled:{on}\r\n");
        assert!(judge(&memory("noeviction"), &aof("1"), Some(false)).is_empty());
        assert!(judge("", "", None).is_empty());
        let told = |policy, on, snapshots| judge(&memory(policy), &aof(on), snapshots).join(" ");
        assert!(told("allkeys-lru", "1", Some(true)).contains("maxmemory-policy"));
        assert!(told("noeviction", "0", Some(false)).contains("nothing on disk"));
        assert!(told("noeviction", "0", Some(true)).contains("snapshots"));
        assert!(told("noeviction", "0", None).is_empty());
    }
}
