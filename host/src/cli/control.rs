//! `tqhost pause` and `resume`: an operator stops a queue, and lets it go on. `tqhost rollback` and `lift`:
//! the same for a version of a plugin.
//!
//! In: a queue's or a plugin's name. Out: a sentence, or an object as JSON. Each command may be repeated: the
//! second time changes nothing. Not here: how Redis and the hosts carry it out (`queue`, `worker`,
//! `plugins`).

use serde_json::json;

use super::context::{connect, open};
use super::exit::CommandError;
use super::files::short;
use super::output::Out;
use crate::config::Config;
use crate::operations::{self, OrderView, patiently};

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

pub(super) async fn roll_back(
    config: &Config,
    plugin: &str,
    version: Option<&str>,
    why: &str,
    out: &mut Out,
) -> Result<(), CommandError> {
    let view = operations::withdraw(&connect(config).await?, plugin, version, why).await?;
    let hosts = if view.hosts == 1 { "1 host goes back" } else { &format!("{} hosts go back", view.hosts) };
    ordered(&view, &format!("is withdrawn: {hosts} within seconds"), out);
    Ok(())
}

pub(super) async fn lift(
    config: &Config,
    plugin: &str,
    version: Option<&str>,
    out: &mut Out,
) -> Result<(), CommandError> {
    let view = operations::lift(&connect(config).await?, plugin, version).await?;
    let hosts = if view.hosts == 1 { "1 host is" } else { &format!("{} hosts are", view.hosts) };
    ordered(&view, &format!("may run again: {hosts} told"), out);
    Ok(())
}

fn ordered(view: &OrderView, what: &str, out: &mut Out) {
    if out.json {
        return out.json(view);
    }
    out.line(format!("version {} of {} {what}", short(&view.order.version), view.plugin));
}
