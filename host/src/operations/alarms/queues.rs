//! Alarms about one queue: its state, its backlog, its consumers, its failures and dead letters.

use std::collections::BTreeSet;

use super::alarm::{Alarm, AlarmSubject, alarm, tasks_wait, time};
use super::hosts::different_versions;
use crate::clock::now_ms;
use crate::config::units::plural;
use crate::operations::history::{FAILING, LATELY, Lately, SILENT, SpanView};
use crate::operations::queues::{NO_HOST, QueueView};
use crate::queue::hosts::{HostInfo, LastMinute, STOPPING, host_of};

/// A task that has waited for longer is an alarm.
const LONG_WAIT_MS: u64 = 5 * 60_000;
/// A backlog where nothing has run for as long as its oldest task waits is an alarm after this time.
const IDLE_BACKLOG_MS: u64 = 60_000;
/// A consumer that is silent for longer, and has tasks, is an alarm: it is longer than most leases.
const SILENT_MS: u64 = 60_000;
/// A queue is judged by at least this number of attempts.
const JUDGED_ATTEMPTS: u64 = 10;
/// A larger part of failures than [`FAILING`] is an alarm, and a larger one than this is urgent. The last
/// minute alone is an alarm only if it is urgent.
const URGENT_PART: f64 = 0.5;

pub(super) fn about_queue(
    view: &QueueView,
    lately: Option<&Lately>,
    hosts: &[HostInfo],
    alarms: &mut Vec<Alarm>,
) {
    let of = || AlarmSubject::Queue(view.queue.clone());
    let is_explained = about_state(view, hosts, alarms);
    if !is_explained {
        about_backlog(view, lately, alarms);
    }
    let now = now_ms();
    let known: BTreeSet<&str> = hosts.iter().map(|host| host.id.as_str()).collect();
    let lost = view.consumers.iter().filter(|one| one.pending > 0 && one.idle_ms > SILENT_MS);
    for consumer in lost.filter(|one| !known.contains(host_of(&one.name))) {
        let (name, silent) = (&consumer.name, time(consumer.idle_ms));
        let what = format!("{name} has {}, and is silent for {silent}.", plural(consumer.pending, "task"));
        let way_out = "A host takes them over when their lease ends; if none does, see the log of a host.";
        let since = now.checked_sub(consumer.idle_ms);
        alarms.push(alarm("silent-consumer", true, of(), what, way_out).since(since));
    }
    about_failures(view, lately, alarms);
    let rules: BTreeSet<&str> = hosts
        .iter()
        .flat_map(|host| &host.queues)
        .filter(|queue| queue.name == view.queue)
        .map(|queue| queue.rules.as_str())
        .collect();
    // Another version of tqhost may write the same rules in another way, and is an alarm of its own.
    if rules.len() > 1 && different_versions(hosts).is_none() {
        let what = "Hosts have different rules for it.";
        let way_out = "Give all hosts the same configuration, unless this is a rollout that goes on.";
        alarms.push(alarm("rules-differ", false, of(), what, way_out));
    }
    if view.dead > 0 {
        let mut what = format!("There {} {}.", if view.dead == 1 { "is" } else { "are" }, view.dead);
        let new = lately.map_or(0, |lately| lately.counted.dead);
        if new > 0 {
            let came = if new == 1 { "new one" } else { "new ones" };
            what += &format!(" {new} {came} came in the last {LATELY} minutes.");
        }
        let way_out = "Find their causes; then requeue or purge them.";
        let about = AlarmSubject::Dead(view.queue.clone());
        let since = lately.and_then(|lately| lately.dead_since_ms);
        alarms.push(alarm("dead-letters", false, about, what, way_out).since(since));
    }
}

/// Tells what the state of the queue says, and whether it explains that tasks wait.
fn about_state(view: &QueueView, hosts: &[HostInfo], alarms: &mut Vec<Alarm>) -> bool {
    let waiting = view.queued + view.held_tasks;
    let mut add = |kind, is_urgent, what: String, way_out: &str| {
        alarms.push(alarm(kind, is_urgent, AlarmSubject::Queue(view.queue.clone()), what, way_out));
    };
    if view.state == NO_HOST && !hosts.is_empty() {
        let what = format!("No running host has this queue; {}.", tasks_wait(waiting));
        add("queue-without-host", waiting > 0, what, "Start a host with a configuration that has it.");
    } else if view.state == "stalled" {
        let way_out = "See the log of the host and /readyz; restart the host if it does not recover.";
        let reason = view.hosts.iter().find_map(|on| on.queue.reason.as_deref());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        add("stalled", true, format!("A host does not get on with it (stalled){reason}."), way_out);
    } else if view.paused {
        let what = format!("It is paused; {}.", tasks_wait(waiting));
        let since = view.pause.as_ref().map(|pause| pause.since_ms);
        let (about, way_out) = (AlarmSubject::Queue(view.queue.clone()), "Resume it when its tasks may run.");
        alarms.push(alarm("paused", false, about, what, way_out).since(since));
    } else if let Some(held) = &view.held {
        let what = format!("It is on hold {}.", held.told(now_ms()));
        let way_out = "Repair that; the queue tries one task at a time. Resume ends the hold at once.";
        let about = AlarmSubject::Queue(view.queue.clone());
        alarms.push(alarm("held", true, about, what, way_out).since(Some(held.since_ms)));
    } else if view.state == "waiting-for-plugin" {
        let what =
            format!("It waits for a working version of its plugin {}; {}.", view.plugin, tasks_wait(waiting));
        let way_out = "See the plugins: put a working file in place, or reload it.";
        add("waits-for-plugin", waiting > 0, what, way_out);
    } else {
        // If every host of the queue stops in order, that is no alarm. Once none is left, it is one.
        return view.state == STOPPING;
    }
    true
}

fn about_backlog(view: &QueueView, lately: Option<&Lately>, alarms: &mut Vec<Alarm>) {
    let (waiting, oldest) = (view.queued + view.held_tasks, view.oldest_ms.unwrap_or(0));
    let has_finished_nothing = lately.is_some_and(|lately| lately.finished == 0);
    let mut add = |kind, what: String, way_out: &str, after_ms| {
        let since = now_ms().checked_sub(oldest).map(|enqueued| enqueued + after_ms);
        let about = AlarmSubject::Queue(view.queue.clone());
        alarms.push(alarm(kind, true, about, what, way_out).since(since));
    };
    if waiting > 0 && view.running == 0 && view.rate == 0.0 && oldest > IDLE_BACKLOG_MS {
        let what =
            format!("{} and none runs; the oldest has waited for {}.", tasks_wait(waiting), time(oldest));
        let way_out = "See the state of its hosts below the queue, and the log of a host.";
        add("none-runs", what, way_out, IDLE_BACKLOG_MS);
    } else if oldest > LONG_WAIT_MS && has_finished_nothing && view.rate == 0.0 {
        let runs = if view.running == 1 { "runs" } else { "run" };
        let what = format!(
            "Nothing has finished for {SILENT} minutes: {}, the oldest for {}, and {} {runs}.",
            tasks_wait(waiting),
            time(oldest),
            view.running
        );
        let way_out = "See what its running tasks do, and what they wait for; cancel those that hang.";
        add("nothing-finishes", what, way_out, LONG_WAIT_MS);
    } else if oldest > LONG_WAIT_MS {
        let what = format!("Its oldest task has waited for {}.", time(oldest));
        let way_out = "See what its running tasks do; start another host, or raise concurrency.";
        add("long-wait", what, way_out, LONG_WAIT_MS);
    }
}

/// Judges the attempts of the last minutes, and those of the last minute, as hosts announce them: ten
/// minutes would hide for minutes what has just begun.
fn about_failures(view: &QueueView, lately: Option<&Lately>, alarms: &mut Vec<Alarm>) {
    let failing = |completed: u64, failed: u64, most: f64, span: &str| {
        let all = completed + failed;
        let part = failed as f64 / all as f64;
        let percent = part * 100.0;
        let what = format!("{failed} of {all} attempts ({percent:.0} %) failed in the last {span}.");
        (all >= JUDGED_ATTEMPTS && part > most).then_some((part, what))
    };
    let sum = |count: fn(&LastMinute) -> u64| -> u64 {
        view.hosts.iter().map(|on| count(&on.queue.last_minute)).sum()
    };
    let in_a_minute =
        failing(sum(|minute| minute.completed), sum(|minute| minute.failed), URGENT_PART, "minute");
    let in_ten_minutes = || {
        let SpanView { completed, failed, .. } = lately?.counted;
        failing(completed, failed, FAILING, &format!("{LATELY} minutes"))
    };
    let Some((part, what)) = in_a_minute.or_else(in_ten_minutes) else { return };
    let way_out = "See the errors of its tasks, and the outcomes by version on the page of the queue.";
    let about = AlarmSubject::Queue(view.queue.clone());
    let since = lately.and_then(|lately| lately.failing_since_ms);
    alarms.push(alarm("attempts-fail", part > URGENT_PART, about, what, way_out).since(since));
}
