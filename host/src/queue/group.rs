//! Checks the rights and the keys of one queue before any task is taken from it, and creates its group.
//!
//! In: a queue. Out: whether its group is new; or an error for which [`QueueError::unfit`] knows the way out.
//! Not here: when to check again (`worker::preparer`), the list of the commands (`rights`).

use super::error::{QueueError, QueueResult};
use super::handle::Queue;
use super::script::{self, ScriptCall};
use super::{reply, rights};

/// Keys that a message names.
const NAMED: usize = 10;

impl Queue {
    /// Checks the rights to the queue's keys and to all commands, and the types of the keys. Creates the
    /// group, at the beginning of the stream, and the stream, where they are missing. False when the group
    /// existed: the entries that it was given before the first host came are noted as history. Fails, and
    /// creates nothing, where [`QueueError::unfit`] says why.
    pub async fn ensure_group(&self) -> QueueResult<bool> {
        let samples = rights::samples(&self.rules, &self.keys);
        for keys in self.link.together(&samples) {
            match self.link.script(&reach(&keys)).await {
                Err(error) if error.is_denied_key() => {
                    return Err(self.denied(&samples).await.unwrap_or(error));
                }
                reply => drop(reply?),
            }
        }
        let keys = &self.keys;
        let list = self.rules.list.as_ref().map_or(&keys.stream, |list| &list.key);
        let call = self.call(&script::GROUP).key("list", list).arg("commands", &rights::OF_HOSTS[..]);
        let reply = self.link.script(&call).await?;
        self.shaped("create the consumer group", reply::int(&reply).map(|created| created == 1))
    }

    /// Names the keys that the user may not use. None: Redis cannot be asked, or none is refused by now.
    async fn denied(&self, samples: &[String]) -> Option<QueueError> {
        let calls: Vec<ScriptCall> = samples.iter().map(|key| reach(std::slice::from_ref(key))).collect();
        let replies = self.link.scripts("look for rights", &calls).await.ok()?;
        let refused = samples.iter().zip(replies);
        let refused = refused.filter(|(_, reply)| reply.as_ref().is_err_and(QueueError::is_denied_key));
        let mut names: Vec<&str> = refused.map(|(key, _)| key.as_str()).collect();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let shown = names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() };
        (!names.is_empty()).then(|| QueueError::denied_keys(self.link.address(), shown))
    }
}

fn reach(keys: &[impl AsRef<str>]) -> ScriptCall {
    keys.iter()
        .map(AsRef::as_ref)
        .fold(ScriptCall::new(&script::REACH), |call, key: &str| call.key("keys", key))
}
