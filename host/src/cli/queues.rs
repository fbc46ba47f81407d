//! `tqhost queues`: how many tasks are in each place, how old they are, which hosts work on them.
//!
//! In: each queue's census from Redis, and what the running hosts publish about themselves. Out: a table, or
//! one queue with its consumers and hosts. If one queue cannot be counted (its key has another type), the
//! others are shown all the same. Not here: counting (`queue::census`).

use anyhow::anyhow;
use clap::Args;

use super::context::{connect, rules};
use super::exit::CommandResult;
use super::output::{Out, Paint, Tone, sheet};
use super::table::{Cell, TextTable};
use super::watch::WatchScreen;
use super::{history, schedule, text};
use crate::chain::chain;
use crate::clock;
use crate::config::{self, Config};
use crate::operations::alarms::different_versions;
use crate::operations::{NO_HOST, QueueOnHost, QueueView, queue_views, state_words};
use crate::queue::Link;
use crate::queue::census::Consumer;
use crate::queue::hold::QueueHold;
use crate::queue::hosts::{self, HostInfo};

fn oldest(view: &QueueView) -> Option<String> {
    view.oldest_ms.map(text::age_ms)
}

/// The state of a queue in words: paused, on hold, or what its hosts do.
fn state_cell(view: &QueueView) -> Cell {
    if view.paused {
        return Cell::tone("paused", Tone::Warning);
    }
    if let Some(hold) = &view.held {
        return Cell::tone(hold_words(hold), Tone::Warning);
    }
    let (text, tone) = state(&view.state, &view.plugin);
    let (same, all) = (view.hosts.iter().filter(|on| on.queue.state == view.state).count(), view.hosts.len());
    let text = if same == all { text } else { format!("{text} ({same} of {all} hosts)") };
    match view.limits {
        Some(_) => Cell::tone(format!("{text}, limited"), Tone::Warning),
        None => Cell::tone(text, tone),
    }
}

fn hold_words(hold: &QueueHold) -> String {
    format!("on hold {}", text::escape(&hold.told(clock::now_ms())))
}

fn state(state: &str, plugin: &str) -> (String, Tone) {
    let tone = match state {
        "reading" => Tone::Good,
        "waiting-for-permit" | "waiting-for-turn" => Tone::Active,
        "waiting-for-plugin" => return (format!("waits for plugin {plugin}"), Tone::Warning),
        "stalled" => Tone::Bad,
        hosts::STOPPING | NO_HOST => Tone::Warning,
        _ => Tone::Plain,
    };
    (text::escape(state_words(state)), tone)
}

#[derive(Debug, Args)]
pub(super) struct QueuesArgs {
    /// Show this queue only, with its consumers and hosts
    pub queue: Option<String>,
    /// Show only queues with this text in their name, stream, plugin or state
    #[arg(long = "match", value_name = "TEXT", conflicts_with = "queue")]
    pub text: Option<String>,
    /// Show what became of the queue's tasks in each minute of the last hour, in all hosts together
    #[arg(long, requires = "queue", conflicts_with_all = ["text", "watch"])]
    pub history: bool,
    /// The time of the history, in steps of a minute, ten minutes or an hour
    #[arg(long, requires = "history", default_value = "1h", value_parser = history::ranges())]
    pub range: String,
    /// Show them again every two seconds, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
}

pub(super) async fn run(config: &Config, args: QueuesArgs, out: &mut Out) -> CommandResult {
    let QueuesArgs { queue, text, history, range, watch } = args;
    if let Some(name) = queue.as_deref().filter(|_| history) {
        return history::run(config, name, range.parse().unwrap_or_default(), out).await;
    }
    let chosen: Vec<config::QueueRules> = match &queue {
        Some(name) => vec![rules(config, name)?.clone()],
        None => config.queues.clone(),
    };
    let link = connect(config).await?;
    let chosen = ChosenQueues { rules: chosen, is_one: queue.is_some(), text };
    if !watch {
        let seen = chosen.look(&link).await?;
        match out.json {
            true => seen.json(out),
            false => out.line(seen.text(out.paint)),
        }
        return seen.failed.map_or(Ok(()), |error| Err(error.into()));
    }
    let mut screen = WatchScreen::begin()?;
    loop {
        // A Redis that restarts does not end the watch.
        match (chosen.look(&link).await, out.json) {
            (Ok(seen), true) => seen.json(out),
            (Ok(seen), false) => {
                let mut text = seen.text(out.paint);
                if let Some(error) = &seen.failed {
                    text += &format!("\n\n{}", text::escape_block(&chain(error.as_ref())));
                }
                screen.show(&text, out);
            }
            (Err(error), true) => {
                error.report(true);
            }
            (Err(error), false) => screen.show(&error.words(), out),
        }
        if !screen.waited(out).await {
            return Ok(());
        }
    }
}

/// The queues that are shown.
struct ChosenQueues {
    rules: Vec<config::QueueRules>,
    /// Whether the command line names one queue, of which more is shown.
    is_one: bool,
    /// Text that a queue must have in its name, stream, plugin or state.
    text: Option<String>,
}

/// The queues at one moment.
struct SeenQueues {
    views: Vec<QueueView>,
    /// The schedule in words, of the one queue that was named.
    schedule: Option<String>,
    is_one: bool,
    /// Whether the configuration has queues, and none was chosen.
    none_match: bool,
    /// Lines about hosts.
    notes: Vec<String>,
    /// Why one of them could not be counted.
    failed: Option<anyhow::Error>,
}

impl ChosenQueues {
    async fn look(&self, link: &Link) -> CommandResult<SeenQueues> {
        let hosts = hosts::list_known(link).await?;
        let now_ms = clock::now_ms();
        let (mut views, mut failed) = (Vec::new(), None);
        for (name, view) in queue_views(&self.rules, link, &hosts, now_ms).await {
            match view {
                Ok(view) => views.push(view),
                Err(error) => {
                    let told = match error.misfit(&name) {
                        Some(why) => anyhow!(why),
                        None => anyhow::Error::new(error).context(format!("queue {name}")),
                    };
                    failed = failed.or(Some(told));
                }
            }
        }
        if let Some(error) = failed.take_if(|_| views.is_empty()) {
            return Err(error.into());
        }
        views.retain(|view| self.text.as_deref().is_none_or(|text| has(view, text)));
        let schedule = self.rules.first().filter(|_| self.is_one).and_then(|rules| rules.schedule.as_ref());
        Ok(SeenQueues {
            none_match: views.is_empty() && !self.rules.is_empty(),
            views,
            schedule: schedule.map(|schedule| schedule::words(schedule, now_ms)),
            is_one: self.is_one,
            notes: refused(&hosts)
                .into_iter()
                .chain(different_versions(&hosts).map(|note| format!("\n{}", text::escape(&note))))
                .collect(),
            failed,
        })
    }
}

/// Whether the text is in what names the queue or its state.
fn has(view: &QueueView, text: &str) -> bool {
    let QueueView { queue, stream, plugin, state, .. } = view;
    let paused = if view.paused { "paused" } else { "" };
    [queue, stream, plugin, state, &state_cell(view).text, paused].iter().any(|part| part.contains(text))
}

impl SeenQueues {
    fn json(&self, out: &mut Out) {
        match self.views.first().filter(|_| self.is_one) {
            Some(view) => out.json(view),
            None => out.json(&self.views),
        }
    }

    fn text(&self, paint: Paint) -> String {
        let mut text = match self.views.first() {
            Some(view) if self.is_one => detail(view, self.schedule.clone(), paint),
            Some(_) => table(&self.views, paint),
            None if self.none_match => "No queue matches.".to_owned(),
            None => "No queue is configured.".to_owned(),
        };
        for line in &self.notes {
            text += &format!("\n{line}");
        }
        text
    }
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
    let have_nodes = views.iter().any(|view| view.node.is_some());
    let spare = &["HOSTS", "HELD", "RATE/S", "DELAYED", "OLDEST", "NODE", "RUNNING", "QUEUED", "DEAD"];
    let mut table = TextTable::with_spare(spare)
        .names(["QUEUE"])
        .figures(["QUEUED", "RUNNING", "DELAYED", "HELD", "DEAD", "OLDEST", "RATE/S", "HOSTS"])
        .texts(["STATE"])
        .texts(have_nodes.then_some("NODE"));
    for view in views {
        let dead = Cell::tone(view.dead.to_string(), if view.dead > 0 { Tone::Bad } else { Tone::Plain });
        let node = have_nodes.then(|| view.node.clone().unwrap_or_default().into());
        let cells = [
            view.queue.as_str().into(),
            view.queued.into(),
            view.running.into(),
            view.delayed.into(),
            view.held_tasks.into(),
            dead,
            Cell::known(oldest(view)),
            format!("{:.1}", view.rate).into(),
            view.hosts.len().into(),
            state_cell(view),
        ];
        table.row(cells.into_iter().chain(node));
    }
    table.render(paint)
}

fn detail(view: &QueueView, schedule: Option<String>, paint: Paint) -> String {
    let (words, tone) = match (&view.pause, &view.held) {
        (Some(pause), _) => (format!("paused {}", text::escape(&pause.told(clock::now_ms()))), Tone::Warning),
        (None, Some(hold)) => (hold_words(hold), Tone::Warning),
        (None, None) => state(&view.state, &view.plugin),
    };
    let mut lines = vec![
        ("queue", view.queue.clone()),
        ("stream", view.stream.clone()),
        ("group", view.group.clone()),
        ("plugin", view.plugin.clone()),
        ("state", paint.tone(tone, &words)),
        ("queued", view.queued.to_string()),
        ("running", view.running.to_string()),
        ("delayed", view.delayed.to_string()),
        ("held", view.held_tasks.to_string()),
        ("dead", view.dead.to_string()),
        ("oldest", oldest(view).unwrap_or_else(|| text::NONE.to_owned())),
        ("rate", format!("{:.1}/s", view.rate)),
    ];
    let limits = view.limits.as_ref().map(|limits| text::escape(&limits.told(clock::now_ms())));
    lines.extend(limits.map(|limits| ("limits", limits)));
    lines.extend(view.outgoing.map(|tasks| ("outgoing", tasks.to_string())));
    lines.extend(view.node.clone().map(|node| ("node", node)));
    lines.extend(schedule.map(|schedule| ("schedule", schedule)));
    let mut parts = vec![sheet(paint, &lines)];
    if !view.hosts.is_empty() {
        parts.push(hosts_table(view, paint));
    }
    if !view.consumers.is_empty() {
        parts.push(consumers_table(&view.consumers, paint));
    }
    parts.join("\n\n")
}

fn hosts_table(view: &QueueView, paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["RATE/S", "RETRIED", "VERSION", "COMPLETED", "DEAD", "RUNNING"])
        .names(["HOST", "VERSION"])
        .figures(["RUNNING", "COMPLETED", "RETRIED", "DEAD", "RATE/S"])
        .texts(["STATE"]);
    let mark = if view.versions_differ { Tone::Warning } else { Tone::Plain };
    for QueueOnHost { host, version, queue, .. } in &view.hosts {
        let (words, tone) = state(&queue.state, &view.plugin);
        table.row([
            host.into(),
            Cell::tone(version, mark),
            queue.running.into(),
            queue.completed.into(),
            queue.retried.into(),
            queue.dead.into(),
            format!("{:.1}", queue.rate).into(),
            Cell::tone(words, tone),
        ]);
    }
    table.render(paint)
}

fn consumers_table(consumers: &[Consumer], paint: Paint) -> String {
    let mut table =
        TextTable::with_spare(&["IDLE", "PENDING"]).names(["CONSUMER"]).figures(["PENDING", "IDLE"]);
    for Consumer { name, pending, idle_ms } in consumers {
        table.row([name.into(), pending.into(), text::age_ms(*idle_ms).into()]);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::status::tests::rules;
    use super::*;
    use crate::queue::Census;
    use crate::queue::hosts::HostQueue;

    const PLAIN: Paint = Paint { colour: false, width: None };

    fn host(id: &str, state: &str) -> HostInfo {
        let queue = HostQueue {
            name: "resume-analyze".into(),
            stream: "resume-analyze".into(),
            rules: "ab".into(),
            state: state.into(),
            running: 2,
            completed: 90,
            retried: 3,
            dead: 1,
            rate: 1.25,
            ..HostQueue::default()
        };
        let (id, version, queues) = (id.into(), "0.1.0".into(), vec![queue]);
        HostInfo { id, version, pid: 7, queues, ..HostInfo::default() }
    }

    fn census() -> Census {
        let consumers = vec![Consumer { name: "box-1".into(), pending: 4, idle_ms: 65_000 }];
        Census {
            queued: 12,
            running: 4,
            delayed: 1,
            held_tasks: 2,
            dead: 3,
            oldest: Some(Duration::from_secs(192)),
            consumers,
            ..Census::default()
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
        let view = QueueView::new(&rules, &census, &hosts[..1], 0);
        insta::assert_snapshot!(table(&[view], Paint { colour: false, width: Some(80) }), @r"
        QUEUE           QUEUED  RUNNING  DELAYED  HELD  DEAD  OLDEST  RATE/S  STATE
        resume-analyze      12        4        1     2     3  3m 12s     1.2  ready
        Not shown: HOSTS. A wider terminal or --json has them.
        ");
    }

    #[test]
    fn one_queue_has_hosts_and_consumers() {
        let (rules, census, hosts) = (rules(), census(), [host("box-1", "reading")]);
        let view = QueueView::new(&rules, &census, &hosts, 0);
        insta::assert_snapshot!(detail(&view, None, PLAIN));
        insta::assert_json_snapshot!(view);
    }
}
