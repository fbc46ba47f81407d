//! Messages and jobs of a queue outside of its lists: messages that stopped workers of Celery had taken, and
//! jobs of Sidekiq that are due later.
//!
//! In: a queue with a list of theirs. Out: counts, and messages that are in the list again. Everything is
//! gone through in pages. Not here: the lists (`adopt_look`), moving jobs that are due (`worker::poller`).

use redis::Value;
use serde::de::IgnoredAny;

use super::walk::START;
use crate::config::Items;
use crate::queue::reply;
use crate::queue::script::RESTORE;
use crate::queue::{Queue, QueueResult};

/// Messages in one step.
const PAGE: usize = 100;
/// The hash with the messages that workers of Celery have taken, and when they took each.
const UNACKED: [&str; 2] = ["unacked", "unacked_index"];

/// The counts of messages and jobs outside of the lists.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Messages of this queue that workers of Celery have taken.
    pub unacked: u64,
    /// How long ago (ms) a worker of Celery took the last message of any queue.
    pub taken_ms_ago: Option<u64>,
    /// The sorted sets of Sidekiq with the numbers of jobs in them, for all queues.
    pub later: Vec<(String, u64)>,
}

/// A message that a worker has taken.
struct Taken {
    tag: Vec<u8>,
    /// The message, its exchange and its routing key, as JSON.
    value: Vec<u8>,
    /// Where the message is in `value`.
    message: std::ops::Range<usize>,
}

impl Queue {
    /// The keys that are looked at, with their types.
    pub(super) fn keys_outside(&self) -> Vec<(String, &'static str)> {
        let Some(list) = &self.rules.list else { return Vec::new() };
        let sets = list.sidekiq().into_iter().flat_map(|sidekiq| sidekiq.sets);
        let unacked = if list.items == Items::Celery { &UNACKED[..] } else { &[] };
        let unacked = unacked.iter().zip(["hash", "zset"]).map(|(key, kind)| ((*key).to_owned(), kind));
        sets.map(|set| (set, "zset")).chain(unacked).collect()
    }

    pub(super) async fn look_outside(&self) -> QueueResult<Outside> {
        const WHAT: &str = "look at the keys of another queue";
        let mut found = Outside::default();
        let Some(list) = &self.rules.list else { return Ok(found) };
        for set in list.sidekiq().into_iter().flat_map(|sidekiq| sidekiq.sets) {
            let reply = self.link.command(WHAT, redis::cmd("ZCARD").arg(&set)).await?;
            found.later.push((set, self.shaped(WHAT, reply::count(&reply))?));
        }
        if list.items != Items::Celery {
            return Ok(found);
        }
        let mut cursor = Some(START.to_owned());
        while let Some(from) = cursor {
            let (next, taken) = self.taken(&from).await?;
            found.unacked += taken.len() as u64;
            cursor = next;
        }
        let mut last = redis::cmd("ZREVRANGE");
        last.arg(UNACKED[1]).arg(0).arg(0).arg("WITHSCORES");
        let rows = self.shaped(WHAT, reply::array(self.link.command(WHAT, &last).await?))?;
        if let Some(score) = rows.into_iter().nth(1) {
            let seconds: f64 = self.shaped(WHAT, reply::text(score))?.parse().unwrap_or_default();
            found.taken_ms_ago = Some(self.now_ms().await?.saturating_sub((seconds * 1000.0) as u64));
        }
        Ok(found)
    }

    /// Puts messages of this queue that workers of Celery have taken back into its list. Returns how many.
    pub(super) async fn restore_taken(&self) -> QueueResult<u64> {
        let (mut restored, mut cursor) = (0, Some(START.to_owned()));
        let Some(list) = &self.rules.list else { return Ok(0) };
        while let Some(from) = cursor {
            let (next, taken) = self.taken(&from).await?;
            // HSCAN may find more than it is asked for.
            for some in taken.chunks(PAGE) {
                let call = self.call(&RESTORE).key("unacked", UNACKED[0]).key("index", UNACKED[1]);
                let call = some.iter().fold(call.key("list", &list.key), |call, one| {
                    let item = &one.value[one.message.clone()];
                    call.arg("tag", &one.tag).arg("value", &one.value).arg("item", item)
                });
                let reply = self.link.script(&call).await?;
                restored += self.shaped("restore", reply::count(&reply))?;
            }
            cursor = next;
        }
        Ok(restored)
    }

    /// A page of the messages that were taken from this queue's lists. Returns where the next page begins.
    async fn taken(&self, cursor: &str) -> QueueResult<(Option<String>, Vec<Taken>)> {
        const WHAT: &str = "look at messages that were taken";
        let list = self.rules.list.as_ref().map_or("", |list| &list.key);
        let scan = redis::cmd("HSCAN").arg(UNACKED[0]).arg(cursor).arg("COUNT").arg(PAGE).to_owned();
        let [next, found] = self.shaped(WHAT, reply::tuple::<2>(self.link.command(WHAT, &scan).await?))?;
        let next = self.shaped(WHAT, reply::text(next))?;
        let words: Vec<Value> = self.shaped(WHAT, reply::array(found))?;
        let words = words.into_iter().map(|word| self.shaped(WHAT, reply::bytes(word)));
        let words = words.collect::<QueueResult<Vec<_>>>()?;
        let own = words.chunks_exact(2).filter_map(|pair| {
            let message = message_in(&pair[1], list)?;
            Some(Taken { tag: pair[0].clone(), value: pair[1].clone(), message })
        });
        Ok(((next != START).then_some(next), own.collect()))
    }
}

/// Where the message is in a value of the hash, if it was sent to this list. It goes back as it was written.
fn message_in(value: &[u8], list: &str) -> Option<std::ops::Range<usize>> {
    let (_, _, routing_key): (IgnoredAny, IgnoredAny, String) = serde_json::from_slice(value).ok()?;
    let from = value.iter().position(|byte| *byte == b'[')? + 1;
    let mut values = serde_json::Deserializer::from_slice(value.get(from..)?).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    (routing_key == list).then(|| from..from + values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_as_they_were_written() {
        let found = |value: &str, list| message_in(value.as_bytes(), list).map(|at| value[at].to_owned());
        let value = r#"[{"headers": {"x": [], "y": 1.50}}, "", "celery"]"#;
        assert_eq!(found(value, "celery").as_deref(), Some(r#"{"headers": {"x": [], "y": 1.50}}"#));
        assert_eq!(found(value, "mail"), None);
        for bad in ["", "[]", "{}", r#"[{}, "", 5]"#, r#"[{}, "celery"]"#] {
            assert_eq!(found(bad, "celery"), None, "{bad}");
        }
    }
}
