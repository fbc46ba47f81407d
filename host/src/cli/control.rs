//! Orders of an operator to all hosts. `tqhost pause` and `resume` stop queues, and let them go on. `tqhost
//! rollback` and `lift` stop a version of a plugin, and let it run again. `tqhost reload` lets hosts look at
//! a plugin's file.
//!
//! In: names of queues, or a plugin's name. Out: a sentence for each, or an object as JSON. A command that is
//! repeated changes nothing, except for a reload; with `--dry-run` no command does. Not here: how Redis and
//! the hosts carry it out (`queue`, `worker`, `plugins`).

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;

use super::confirm::confirm;
use super::context::{connect, operator};
use super::each_queue::{NamedQueues, QueueEnd, each_queue};
use super::exit::{CommandError, CommandResult};
use super::output::Out;
use super::progress::CommandProgress;
use super::text::{self, plural};
use crate::config::Config;
use crate::config::units::parse_duration;
use crate::operations::{self, OrderView, PausedView, ReloadView, patiently};
use crate::queue::{Queue, wait};

#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    /// The pause ends by itself after this time. A pause that stands gets the new time and reason
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    time: Option<Duration>,
    #[command(flatten)]
    common: ResumeArgs,
}

#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    queues: NamedQueues,
    /// The reason, which `queues`, the pages and `changes` show
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    why: String,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    /// The plugin's name
    plugin: String,
    /// SHA-256 of the version that runs and is to stop, or its first 8 digits or more. Without it the command
    /// names the version that all hosts run, and asks
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// The reason, which hosts show
    #[arg(long, value_name = "TEXT")]
    why: String,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
pub(super) struct LiftArgs {
    /// The plugin's name
    plugin: String,
    /// SHA-256 of the version, or its first 8 digits or more [default: the one that is in quarantine]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// The plugin's name
    plugin: String,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Args)]
struct LookArgs {
    /// Change nothing: tell what would change
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn pause(config: &Config, args: PauseArgs, out: &mut Out) -> CommandResult {
    set_paused(config, &args.common, true, args.time, out).await
}

pub(super) async fn resume(config: &Config, args: ResumeArgs, out: &mut Out) -> CommandResult {
    set_paused(config, &args, false, None, out).await
}

/// Pauses the queues, for a time if there is one, or resumes them.
async fn set_paused(
    config: &Config,
    ResumeArgs { queues, why, look: LookArgs { dry_run } }: &ResumeArgs,
    paused: bool,
    time: Option<Duration>,
    out: &mut Out,
) -> CommandResult {
    let (dry_run, who) = (*dry_run, operator());
    out.dry_run = dry_run;
    let act = async |queue: &Queue| {
        let view = match (dry_run, paused) {
            (true, _) => {
                let changed = is_stopped(queue, !paused).await? != paused;
                PausedView { queue: queue.rules.name.clone(), paused, changed }
            }
            (false, true) => operations::pause(queue, &who, why, time).await?,
            (false, false) => operations::resume(queue, &who, why).await?,
        };
        let text = sentence(&view, dry_run);
        Ok::<_, CommandError>(QueueEnd { view, text, is_well: true })
    };
    let words = if paused { ("pausing", "not all are paused") } else { ("resuming", "not all go on") };
    each_queue(config, queues, words, act, out).await
}

/// Whether the queue is paused. With `or_held`, also whether it is on hold.
async fn is_stopped(queue: &Queue, or_held: bool) -> CommandResult<bool> {
    let queues = [queue];
    let mut is_stopped = false;
    for stops in patiently(|| wait::stops(&queue.link, &queues)).await? {
        let stops = stops?;
        is_stopped |= stops.pause.is_some() || (or_held && stops.held.hold.is_some());
    }
    Ok(is_stopped)
}

fn sentence(PausedView { queue, paused, changed }: &PausedView, dry_run: bool) -> String {
    match (*paused, *changed, dry_run) {
        (true, true, false) => format!("{queue} is paused in all hosts; what runs goes on"),
        (true, true, true) => format!("{queue} would be paused in all hosts; what runs would go on"),
        (true, false, false) => format!("{queue} was paused already"),
        (true, false, true) => format!("{queue} is paused already"),
        (false, true, false) => format!("{queue} goes on"),
        (false, true, true) => format!("{queue} would go on"),
        (false, false, false) => format!("{queue} was neither paused nor on hold"),
        (false, false, true) => format!("{queue} is neither paused nor on hold"),
    }
}

pub(super) async fn roll_back(config: &Config, args: RollbackArgs, out: &mut Out) -> CommandResult {
    let RollbackArgs { plugin, version, why, look: LookArgs { dry_run } } = args;
    out.dry_run = dry_run;
    let (link, by) = (connect(config).await?, operator());
    let mut view = match version {
        Some(seen) if !dry_run => operations::withdraw(&link, &plugin, &seen, &why, &by).await?,
        version => operations::withdraw_preview(&link, &plugin, version.as_deref(), Some(&why)).await?,
    };
    // A preview has no operator yet, unless another one has withdrawn the version before.
    if !dry_run && view.order.by.is_empty() {
        // The version of the question is withdrawn, even if another operator changes what runs meanwhile.
        let seen = view.order.version.clone();
        let (version, words) = (shown(&view, &seen), withdrawn(&view, true));
        let question = format!("version {version} of {plugin} {words}. Roll it back?");
        confirm(&question, &format!("--version {seen}"), "nothing was rolled back").await?;
        let withdraw = operations::withdraw(&link, &plugin, &seen, &why, &by);
        let cut = || anyhow!("stopped; the rollback may have been ordered: `tqhost plugins` tells");
        view = CommandProgress::begin()?.unless_interrupted(withdraw).await.ok_or_else(cut)??;
    }
    ordered(&view, &withdrawn(&view, dry_run), out);
    Ok(())
}

/// A version in words, with its label if it is known.
fn shown(view: &OrderView, version: &str) -> String {
    text::escape(&view.builds.words(version))
}

/// Says what becomes of the hosts that run the version.
fn withdrawn(view: &OrderView, dry_run: bool) -> String {
    let (back, waiting) = (view.hosts_back.unwrap_or_default(), view.hosts_waiting.unwrap_or_default());
    let mut parts = Vec::new();
    if back > 0 {
        let (hosts, stops) = (plural(back as u64, "host"), shown(view, &view.order.version));
        let starts = view.starts().map(|starts| text::escape(&starts));
        let starts = starts.unwrap_or_else(|| "the version before it".to_owned());
        let when = if dry_run { "" } else { " within seconds" };
        parts.push(format!("{stops} stops, {starts} starts on {hosts}{when}"));
    }
    if waiting > 0 {
        let (hosts, wait) = (plural(waiting as u64, "host"), if dry_run { "would wait" } else { "wait" });
        let (has, its) = if waiting == 1 { ("has", "its") } else { ("have", "their") };
        parts.push(format!("{hosts} {has} nothing to go back to: {its} queues {wait}"));
    }
    if parts.is_empty() {
        parts.push("no host runs it now".to_owned());
    }
    let is = if dry_run { "would be withdrawn" } else { "is withdrawn" };
    format!("{is}: {}", parts.join("; "))
}

pub(super) async fn lift(config: &Config, args: LiftArgs, out: &mut Out) -> CommandResult {
    let LiftArgs { plugin, version, look: LookArgs { dry_run } } = args;
    out.dry_run = dry_run;
    let (link, version) = (connect(config).await?, version.as_deref());
    let view = match dry_run {
        true => operations::lift_preview(&link, &plugin, version).await?,
        false => operations::lift(&link, &plugin, version, &operator()).await?,
    };
    let hosts = plural(view.hosts as u64, "host");
    let what = match (dry_run, view.hosts) {
        (true, _) => format!("could run again: {hosts} would be told"),
        (false, 1) => format!("may run again: {hosts} is told"),
        (false, _) => format!("may run again: {hosts} are told"),
    };
    ordered(&view, &what, out);
    Ok(())
}

fn ordered(view: &OrderView, what: &str, out: &mut Out) {
    let text = format!("version {} of {} {what}", shown(view, &view.order.version), view.plugin);
    out.show(view, |_| text);
}

pub(super) async fn reload(config: &Config, args: ReloadArgs, out: &mut Out) -> CommandResult {
    let ReloadArgs { plugin, look: LookArgs { dry_run } } = args;
    out.dry_run = dry_run;
    let link = connect(config).await?;
    let view = match dry_run {
        true => operations::reload_preview(&link, &plugin).await?,
        false => operations::reload(&link, &plugin, &operator()).await?,
    };
    out.show(&view, |_| reloaded(&view, dry_run));
    Ok(())
}

fn reloaded(ReloadView { plugin, hosts, .. }: &ReloadView, dry_run: bool) -> String {
    let many = plural(*hosts as u64, "host");
    match (dry_run, *hosts) {
        (true, _) => format!("{many} would look at the file of {plugin}"),
        (false, 1) => format!("{many} looks at the file of {plugin} within seconds"),
        (false, _) => format!("{many} look at the file of {plugin} within seconds"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::builds::Builds;
    use crate::queue::orders::VersionOrder;

    #[test]
    fn a_rollback_tells_of_hosts_with_and_without_a_way_back() {
        let (version, why, by) = ("ab".to_owned(), "slow".to_owned(), String::new());
        let mut view = OrderView {
            plugin: "p".to_owned(),
            order: VersionOrder { version, withdrawn: true, why, at: 7, by },
            hosts: 9,
            hosts_back: None,
            hosts_waiting: None,
            back_to: Some(["cd".to_owned()].into()),
            running: BTreeSet::new(),
            builds: Builds::default(),
        };
        let table = [
            (1, 0, false, "is withdrawn: ab stops, cd starts on 1 host within seconds"),
            (0, 1, true, "would be withdrawn: 1 host has nothing to go back to: its queues would wait"),
            (
                2,
                3,
                false,
                "is withdrawn: ab stops, cd starts on 2 hosts within seconds; 3 hosts have nothing to go \
                 back to: their queues wait",
            ),
            (0, 0, true, "would be withdrawn: no host runs it now"),
        ];
        for (back, waiting, dry_run, told) in table {
            (view.hosts_back, view.hosts_waiting) = (Some(back), Some(waiting));
            assert_eq!(withdrawn(&view, dry_run), told);
        }
    }
}
