//! Finds the queue that was named, and the tasks of all queues that a name means.

use futures_util::{StreamExt, stream};

use super::error::{OperationError, OperationResult};
use crate::config::{QueueRules, nearest};
use crate::queue::repeat::patiently;
use crate::queue::{Link, Queue};

/// Queues that are asked at once.
const AT_ONCE: usize = 64;

/// The rules of the queue `name`.
pub(crate) fn rules<'c>(queues: &'c [QueueRules], name: &str) -> OperationResult<&'c QueueRules> {
    queues.iter().find(|queue| queue.name == name).ok_or_else(|| {
        let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        OperationError::UnknownQueue(unknown_queue(name, &names))
    })
}

/// The queue `name`, on this connection.
pub(crate) fn find_queue(queues: &[QueueRules], name: &str, link: &Link) -> OperationResult<Queue> {
    Ok(Queue::new(rules(queues, name)?.clone(), link.clone()))
}

/// The tasks that `name` means, an id or an alias: at most one of each queue, with the queue's name. It
/// costs about three commands for each queue, so a task without a status is found only by the id of its
/// entry. Queues that cannot be read are left out.
pub(crate) async fn find_everywhere(queues: &[QueueRules], link: &Link, name: &str) -> Vec<(String, String)> {
    let ask = |rules: QueueRules| async move {
        let queue = Queue::new(rules, link.clone());
        let found = patiently(|| queue.find_noted(name)).await.ok().flatten();
        found.map(|id| (queue.rules.name.clone(), id))
    };
    let all = stream::iter(queues.to_vec()).map(ask).buffered(AT_ONCE);
    all.filter_map(std::future::ready).collect().await
}

fn unknown_queue(name: &str, names: &[&str]) -> String {
    let meant = nearest(name, names.iter().copied()).map(|known| format!("; did you mean {known}?"));
    format!(
        "no queue {name:?} is configured{} Configured: {}",
        meant.as_deref().unwrap_or("."),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_queue_names_the_known_ones() {
        let names = ["resume-analyze", "reports"];
        insta::assert_snapshot!(unknown_queue("resume_analyse", &names), @"
        no queue \"resume_analyse\" is configured; did you mean resume-analyze? Configured: resume-analyze, \
        reports
        ");
        insta::assert_snapshot!(unknown_queue("mail", &names), @r#"
        no queue "mail" is configured. Configured: resume-analyze, reports
        "#);
    }
}
