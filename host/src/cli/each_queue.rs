//! Commands that act on several queues, one after the other.
//!
//! In: names of queues, and what is done with one of them. Out: the result for each queue, or why there is
//! none; an error if Ctrl-C cut the command off. Not here: several tasks of one queue (`each_task`).

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::context::{connect, rules};
use super::exit::{CommandError, CommandResult};
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::{Config, QueueRules};
use crate::queue::Queue;

/// The queues that a command is for.
#[derive(Debug, Args)]
pub(super) struct NamedQueues {
    /// The queues' names in the configuration
    #[arg(value_name = "QUEUE", conflicts_with = "all")]
    queues: Vec<String>,
    /// All queues of the configuration
    #[arg(long)]
    all: bool,
}

impl NamedQueues {
    /// Whether the output is that of several queues.
    pub(super) fn are_several(&self) -> bool {
        self.all || self.queues.len() > 1
    }

    fn rules<'c>(&self, config: &'c Config) -> CommandResult<Vec<&'c QueueRules>> {
        match (self.all, self.queues.is_empty()) {
            (true, _) => Ok(config.queues.iter().collect()),
            (false, true) => Err(CommandError::Usage("name a queue, or --all".into())),
            (false, false) => self.queues.iter().map(|name| rules(config, name)).collect(),
        }
    }
}

/// The result of a command for one queue.
#[derive(Debug)]
pub(super) struct QueueEnd<V> {
    /// The output as JSON, and for people.
    pub view: V,
    pub text: String,
    /// Whether the exit code can be 0.
    pub is_well: bool,
}

/// A queue for which the command failed. The names are stable.
#[derive(Debug, Serialize)]
struct FailedQueue<'c> {
    queue: &'c str,
    why: String,
}

/// Calls `act` for one queue after the other. If several queues are named and a call fails, the next queue
/// follows, and the exit code is 1. `doing` tells people what the command does with a queue, and `cut` what
/// Ctrl-C left undone.
pub(super) async fn each_queue<V: Serialize>(
    config: &Config,
    chosen: &NamedQueues,
    (doing, cut): (&str, &str),
    act: impl AsyncFn(&Queue) -> CommandResult<QueueEnd<V>>,
    out: &mut Out,
) -> CommandResult {
    let all = chosen.rules(config)?;
    let link = connect(config).await?;
    let mut progress = CommandProgress::begin()?;
    let (mut views, mut failed) = (Vec::new(), Vec::new());
    let mut are_well = true;
    for rules in &all {
        let queue = Queue::new((*rules).clone(), link.clone());
        match progress.long_step(doing, Box::pin(act(&queue))).await {
            Some(Ok(QueueEnd { view, text, is_well })) => {
                are_well &= is_well;
                views.push(view);
                if !out.json {
                    out.line(text);
                }
            }
            Some(Err(failure)) => {
                let failure = failure.naming(&rules.name);
                if !chosen.are_several() {
                    return Err(failure);
                }
                failed.push(FailedQueue { queue: &rules.name, why: failure.message().unwrap_or_default() });
            }
            None => break,
        }
        if progress.is_interrupted() {
            break;
        }
    }
    drop(progress);
    match views.first() {
        Some(view) if out.json && !chosen.are_several() => out.json(view),
        _ if out.json => out.json(&json!({ "queues": views, "failed": failed })),
        _ => {
            for FailedQueue { queue, why } in &failed {
                note(&text::escape_block(&format!("tqhost: {queue}: {why}")));
            }
        }
    }
    let seen = views.len() + failed.len();
    if seen < all.len() {
        let of = text::plural(all.len() as u64, "queue");
        return Err(interrupted(&format!("{cut}; {seen} of {of} gone through, in their order")));
    }
    if are_well && failed.is_empty() { Ok(()) } else { Err(CommandError::Reported) }
}
