//! `tqhost queues`: how many tasks are in each place, how old they are, which hosts work on them.
//!
//! In: each queue's census from Redis, and what the running hosts publish about themselves. Out: a table, or
//! one queue with its consumers and hosts. If one queue cannot be counted (its key has another type), the
//! others are shown all the same. Not here: counting (`queue::census`).

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use super::context::{connect, rules};
use super::exit::CommandError;
use super::output::{Align, Cell, Out, Paint, TextTable, Tone, sheet};
use super::schedule::ScheduleView;
use super::text;
use crate::config::{self, Config};
use crate::queue::census::Consumer;
use crate::queue::hold::QueueHold;
use crate::queue::hosts::{HostInfo, HostQueue};
use crate::queue::{Census, Queue, hosts};

/// The states of a queue on a host, the worst first.
const STATES: [&str; 9] = [
    "stalled",
    "starting",
    "waiting-for-plugin",
    "paused",
    "held",
    "waiting-for-room",
    "waiting-for-permit",
    "waiting-for-turn",
    "reading",
];
/// The state of a queue that no host has.
const NO_HOST: &str = "no-host";

/// A queue as JSON. The names are stable.
#[derive(Debug, Serialize)]
struct QueueView<'a> {
    queue: &'a str,
    stream: &'a str,
    group: &'a str,
    plugin: &'a str,
    /// The worst of its states on the hosts.
    state: String,
    /// Whether `tqhost pause` paused it, in all hosts.
    paused: bool,
    /// Why it waits, while something outside is down.
    held: Option<&'a QueueHold>,
    queued: u64,
    running: u64,
    delayed: u64,
    /// Waiting for the turn of their key.
    held_tasks: u64,
    dead: u64,
    oldest_ms: Option<u64>,
    /// Tasks completed per second over the last minute, by all hosts together.
    rate: f64,
    schedule: Option<ScheduleView>,
    hosts: Vec<HostView<'a>>,
    consumers: &'a [Consumer],
}

#[derive(Debug, Serialize)]
struct HostView<'a> {
    host: &'a str,
    #[serde(flatten)]
    queue: &'a HostQueue,
    /// Why the host still runs an earlier configuration.
    config_error: Option<&'a str>,
}

impl<'a> QueueView<'a> {
    fn new(
        rules: &'a config::QueueRules,
        census: &'a Census,
        hosts: &'a [HostInfo],
        now_ms: u64,
    ) -> QueueView<'a> {
        let on = |host: &'a HostInfo| {
            let queue = host.queues.iter().find(|queue| queue.name == rules.name)?;
            Some(HostView { host: &host.id, queue, config_error: host.config_error.as_deref() })
        };
        let hosts: Vec<HostView> = hosts.iter().filter_map(on).collect();
        // A state that this version does not know comes last.
        let badness = |view: &&HostView| {
            STATES.iter().position(|state| *state == view.queue.state).unwrap_or(STATES.len())
        };
        QueueView {
            queue: &rules.name,
            stream: &rules.stream,
            group: &rules.group,
            plugin: &rules.plugin,
            state: hosts
                .iter()
                .min_by_key(badness)
                .map_or(NO_HOST.to_owned(), |view| view.queue.state.clone()),
            paused: census.paused,
            held: census.held.as_ref(),
            queued: census.queued,
            running: census.running,
            delayed: census.delayed,
            held_tasks: census.held_tasks,
            dead: census.dead,
            oldest_ms: census.oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            // `sum` of nothing would be -0.0.
            rate: hosts.iter().fold(0.0, |sum, view| sum + view.queue.rate),
            schedule: rules.schedule.as_ref().map(|schedule| ScheduleView::new(schedule, now_ms)),
            hosts,
            consumers: &census.consumers,
        }
    }

    fn oldest(&self) -> String {
        self.oldest_ms.map_or_else(|| text::NONE.to_owned(), |ms| text::age(Duration::from_millis(ms)))
    }

    /// The state in words.
    fn state(&self) -> Cell {
        if self.paused {
            return Cell::tone("paused", Tone::Warning);
        }
        if let Some(hold) = self.held {
            return Cell::tone(held(hold), Tone::Warning);
        }
        let (text, tone) = state(&self.state, self.plugin);
        let in_it = self.hosts.iter().filter(|view| view.queue.state == self.state).count();
        if in_it == self.hosts.len() {
            Cell::tone(text, tone)
        } else {
            Cell::tone(format!("{text} ({in_it} of {} hosts)", self.hosts.len()), tone)
        }
    }
}

/// Says what a queue that is held waits for.
fn held(hold: &QueueHold) -> String {
    let since = text::age(Duration::from_millis(text::now_ms().saturating_sub(hold.since_ms)));
    format!("held for {since}: {}", text::escape(&hold.cause))
}

fn state(state: &str, plugin: &str) -> (String, Tone) {
    match state {
        "reading" => ("ready".into(), Tone::Good),
        "waiting-for-permit" | "waiting-for-turn" => ("busy".into(), Tone::Active),
        "waiting-for-plugin" => (format!("waits for plugin {plugin}"), Tone::Warning),
        "stalled" => ("stalled".into(), Tone::Bad),
        NO_HOST => ("no host".into(), Tone::Warning),
        other => (text::escape(other), Tone::Plain),
    }
}

pub(super) async fn run(config: &Config, name: Option<&str>, out: &mut Out) -> Result<(), CommandError> {
    let chosen: Vec<config::QueueRules> = match name {
        Some(name) => vec![rules(config, name)?.clone()],
        None => config.queues.clone(),
    };
    let link = connect(config).await?;
    let hosts = hosts::list(&link).await?;
    let count = async |rules: config::QueueRules| {
        let census = Queue::new(rules.clone(), link.clone()).census().await;
        (rules, census)
    };
    let (mut counted, mut failed) = (Vec::new(), None);
    for (rules, census) in join_all(chosen.into_iter().map(count)).await {
        match census {
            Ok(census) => counted.push((rules, census)),
            Err(error) => {
                failed = failed
                    .or_else(|| Some(anyhow::Error::new(error).context(format!("queue {}", rules.name))));
            }
        }
    }
    if let Some(error) = failed.take_if(|_| counted.is_empty()) {
        return Err(error.into());
    }
    let now_ms = text::now_ms();
    let views: Vec<QueueView> =
        counted.iter().map(|(rules, census)| QueueView::new(rules, census, &hosts, now_ms)).collect();
    match (name, out.json, views.first()) {
        (Some(_), true, Some(view)) => out.json(view),
        (Some(_), false, Some(view)) => out.line(detail(view, out.paint)),
        (Some(_), _, None) => {}
        (None, true, _) => out.json(&views),
        (None, false, None) => out.line("No queue is configured."),
        (None, false, Some(_)) => out.line(table(&views, out.paint)),
    }
    if !out.json {
        refused(&hosts).into_iter().for_each(|line| out.line(line));
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// One note for each host that could not use the configuration file as it is now.
fn refused(hosts: &[HostInfo]) -> Vec<String> {
    let told = |host: &HostInfo| {
        let why = host.config_error.as_deref()?.lines().map(text::escape).collect::<Vec<_>>().join("\n  ");
        Some(format!(
            "\n{} runs by an earlier configuration, because it cannot use the file as it is now:\n  {why}",
            text::escape(&host.id)
        ))
    };
    hosts.iter().filter_map(told).collect()
}

fn table(views: &[QueueView], paint: Paint) -> String {
    let right = |title| (title, Align::Right);
    let mut table = TextTable::new(&[
        ("QUEUE", Align::Left),
        right("QUEUED"),
        right("RUNNING"),
        right("DELAYED"),
        right("HELD"),
        right("DEAD"),
        right("OLDEST"),
        right("RATE/S"),
        right("HOSTS"),
        ("STATE", Align::Left),
    ]);
    for view in views {
        let dead = Cell::tone(view.dead.to_string(), if view.dead > 0 { Tone::Bad } else { Tone::Plain });
        table.row([
            view.queue.into(),
            view.queued.into(),
            view.running.into(),
            view.delayed.into(),
            view.held_tasks.into(),
            dead,
            view.oldest().into(),
            format!("{:.1}", view.rate).into(),
            view.hosts.len().into(),
            view.state(),
        ]);
    }
    table.render(paint)
}

fn detail(view: &QueueView, paint: Paint) -> String {
    let (words, tone) = match view.held {
        Some(hold) if !view.paused => (held(hold), Tone::Warning),
        _ => state(if view.paused { "paused" } else { &view.state }, view.plugin),
    };
    let mut lines = vec![
        ("queue", view.queue.to_owned()),
        ("stream", view.stream.to_owned()),
        ("group", view.group.to_owned()),
        ("plugin", view.plugin.to_owned()),
        ("state", paint.tone(tone, &words)),
        ("queued", view.queued.to_string()),
        ("running", view.running.to_string()),
        ("delayed", view.delayed.to_string()),
        ("held", view.held_tasks.to_string()),
        ("dead", view.dead.to_string()),
        ("oldest", view.oldest()),
        ("rate", format!("{:.1}/s", view.rate)),
    ];
    lines.extend(view.schedule.as_ref().map(|schedule| ("schedule", schedule.words.clone())));
    let mut parts = vec![sheet(paint, &lines)];
    if !view.hosts.is_empty() {
        let right = |title| (title, Align::Right);
        let mut table = TextTable::new(&[
            ("HOST", Align::Left),
            right("RUNNING"),
            right("COMPLETED"),
            right("RETRIED"),
            right("DEAD"),
            right("RATE/S"),
            ("STATE", Align::Left),
        ]);
        for HostView { host, queue, .. } in &view.hosts {
            let (words, tone) = state(&queue.state, view.plugin);
            let rate = format!("{:.1}", queue.rate);
            let figures = [queue.running, queue.completed, queue.retried, queue.dead].map(Cell::from);
            table.row(
                [text::escape(host).into()]
                    .into_iter()
                    .chain(figures)
                    .chain([rate.into(), Cell::tone(words, tone)]),
            );
        }
        parts.push(table.render(paint));
    }
    if !view.consumers.is_empty() {
        let mut table =
            TextTable::new(&[("CONSUMER", Align::Left), ("PENDING", Align::Right), ("IDLE", Align::Right)]);
        for consumer in view.consumers {
            table.row([
                text::escape(&consumer.name).into(),
                consumer.pending.into(),
                text::age(Duration::from_millis(consumer.idle_ms)).into(),
            ]);
        }
        parts.push(table.render(paint));
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::rules;
    use super::*;

    const PLAIN: Paint = Paint { colour: false };

    fn host(id: &str, state: &str) -> HostInfo {
        let queue = HostQueue {
            name: "resume-analyze".into(),
            state: state.into(),
            running: 2,
            completed: 90,
            retried: 3,
            dead: 1,
            rate: 1.25,
        };
        HostInfo {
            id: id.into(),
            version: "0.1.0".into(),
            pid: 7,
            started_at: 0,
            queues: vec![queue],
            plugins: vec![],
            config_error: None,
        }
    }

    fn census() -> Census {
        let consumers = vec![Consumer { name: "box-1".into(), pending: 4, idle_ms: 65_000 }];
        Census {
            queued: 12,
            running: 4,
            delayed: 1,
            held_tasks: 2,
            dead: 3,
            paused: false,
            held: None,
            oldest: Some(Duration::from_secs(192)),
            consumers,
        }
    }

    #[test]
    fn the_worst_state_is_told() {
        let (rules, census) = (rules(), census());
        let hosts = [host("box-1", "reading"), host("box-2", "waiting-for-plugin")];
        let view = QueueView::new(&rules, &census, &hosts, 0);
        let empty = Census::default();
        let idle = QueueView::new(&rules, &empty, &[], 0);
        insta::assert_snapshot!(table(&[view, idle], PLAIN));
    }

    #[test]
    fn one_queue_has_hosts_and_consumers() {
        let (rules, census, hosts) = (rules(), census(), [host("box-1", "reading")]);
        let view = QueueView::new(&rules, &census, &hosts, 0);
        insta::assert_snapshot!(detail(&view, PLAIN));
        insta::assert_json_snapshot!(view);
    }

    #[test]
    fn a_schedule_tells_its_next_time() {
        let config = "[queues.nightly.schedule]\ncron = \"0 3 * * *\"\ntimezone = \"Europe/Berlin\"\n";
        let config = Config::parse(config, std::path::Path::new("/srv/tqhost.toml"), &|_| None)
            .expect("a configuration");
        let census = Census::default();
        let view = QueueView::new(&config.queues[0], &census, &[], 1_700_000_000_000);
        let detail = detail(&view, PLAIN);
        assert!(
            detail.ends_with("schedule  0 3 * * * (Europe/Berlin), next 2023-11-15 03:00:00 (in 3h 46m)"),
            "{detail}"
        );
    }
}
