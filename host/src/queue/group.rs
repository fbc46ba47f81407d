//! Checks the rights and the keys of one queue before any task is taken from it, and creates its group.
//!
//! In: a queue. Out: whether its group is new; or an error for which [`QueueError::unfit`] knows the way out.
//! Not here: when to check again (`worker::preparer`), the list of the commands (`rights`).

use super::error::{QueueError, QueueResult};
use super::handle::Queue;
use super::script::{self, ScriptCall};
use super::{reply, rights};

/// The most keys that a message names.
const NAMED: usize = 10;

impl Queue {
    /// Checks the rights to the queue's keys and to all commands, and the types of the keys. Creates the
    /// group, at the beginning of the stream, and the stream, where they are missing. Returns whether the
    /// group is new; if not, the entries that it was given before the first host came are noted as history.
    /// It fails, and creates nothing, if the queue cannot be served ([`QueueError::unfit`]).
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
        let is_denied = |reply: &QueueResult<_>| reply.as_ref().is_err_and(QueueError::is_denied_key);
        let denied = samples.iter().zip(&replies).filter(|(_, reply)| is_denied(reply));
        let denied: Vec<&str> = denied.map(|(key, _)| key.as_str()).collect();
        let mut shown = denied[..denied.len().min(NAMED)].join(", ");
        if denied.len() > NAMED {
            shown += &format!(" and {} more", denied.len() - NAMED);
        }
        (!denied.is_empty()).then(|| QueueError::denied_keys(self.link.address(), shown))
    }
}

/// A call that Redis refuses if the user may not read and write these keys.
fn reach(keys: &[impl AsRef<str>]) -> ScriptCall {
    keys.iter().fold(ScriptCall::new(&script::REACH), |call, key| call.key("keys", key.as_ref()))
}
