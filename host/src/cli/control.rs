//! `tqhost pause` and `resume`: an operator stops a queue, and lets it go on.
//!
//! In: a queue's name. Out: a sentence, or an object as JSON. Each command may be repeated: the second time
//! changes nothing. Not here: how Redis and the hosts carry it out (`queue`, `worker`).

use serde_json::json;

use super::context::open;
use super::exit::CommandError;
use super::output::Out;
use crate::config::Config;
use crate::operations::patiently;

pub(super) async fn pause(config: &Config, queue: &str, out: &mut Out) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let changed = patiently(|| queue.pause()).await?;
    paused(&queue.rules.name, true, changed, out);
    Ok(())
}

pub(super) async fn resume(config: &Config, queue: &str, out: &mut Out) -> Result<(), CommandError> {
    let queue = open(config, queue).await?;
    let changed = patiently(|| queue.resume()).await?;
    paused(&queue.rules.name, false, changed, out);
    Ok(())
}

fn paused(queue: &str, paused: bool, changed: bool, out: &mut Out) {
    if out.json {
        return out.json(&json!({ "queue": queue, "paused": paused, "changed": changed }));
    }
    out.line(match (paused, changed) {
        (true, true) => format!("{queue} is paused in all hosts; what runs goes on"),
        (true, false) => format!("{queue} was paused already"),
        (false, true) => format!("{queue} goes on"),
        (false, false) => format!("{queue} was neither paused nor held"),
    });
}
