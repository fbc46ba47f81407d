//! Says why a task waits: what keeps its queue from running it, or what the task itself waits for.
//!
//! In: where the task is, its queue as it is counted, and the rules of the queue. Out: sentences, the
//! strongest reason first. Not here: finding the task (`queue::listing`), counting the queue (`queues`).

use super::queues::{NO_HOST, QueueView};
use crate::config::QueueRules;
use crate::config::units::{plural, show_duration};
use crate::queue::listing::{FoundTask, ListedState};

/// Why this task waits. Nothing for a task that runs or has ended.
pub(crate) fn reasons(
    queue: &QueueView,
    rules: &QueueRules,
    (state, task): (ListedState, &FoundTask),
    now_ms: u64,
) -> Vec<String> {
    let own = match state {
        ListedState::Running | ListedState::Dead | ListedState::Ended => return Vec::new(),
        _ if task.waits_for_flow() => {
            return vec!["It waits until all children of its flow have completed.".to_owned()];
        }
        ListedState::Held => Some(turn(rules)),
        ListedState::Delayed if task.at_ms.is_some_and(|due| due > now_ms) => {
            Some("It is delayed: it goes back to its queue when it is due.".to_owned())
        }
        ListedState::Delayed => Some("It is due: it goes back to its queue within seconds.".to_owned()),
        ListedState::Queued => None,
    };
    let mut reasons: Vec<String> = own.into_iter().chain(blocked(queue, now_ms)).collect();
    if reasons.is_empty() {
        reasons.push(busy(queue, rules, now_ms));
    }
    reasons
}

fn turn(rules: &QueueRules) -> String {
    let field = rules.turns.tracks.as_ref().and_then(|tracks| tracks.field.as_deref());
    match field {
        Some(field) => {
            format!("It waits for its turn: earlier tasks with the same value of {field} have not ended.")
        }
        None => "It waits for its turn: earlier tasks of its queue have not ended.".to_owned(),
    }
}

/// The reason why no task of the queue runs.
fn blocked(queue: &QueueView, now_ms: u64) -> Option<String> {
    if let Some(pause) = &queue.pause {
        let told = pause.told(now_ms);
        return Some(format!("The queue is paused in all hosts {told}").trim_end().to_owned() + ".");
    }
    if let Some(hold) = &queue.held {
        return Some(format!("The queue is on hold {}.", hold.told(now_ms).trim_end_matches('.')));
    }
    let plugin = &queue.plugin;
    match queue.state.as_str() {
        NO_HOST => Some("No running host has this queue.".to_owned()),
        "waiting-for-plugin" => Some(format!(
            "No host has a working version of plugin {plugin}: the page of the plugins says why."
        )),
        "waiting-for-room" => Some("A queue that its handler enqueues to is full.".to_owned()),
        "stalled" => {
            let why = queue.hosts.iter().find_map(|on| on.queue.reason.as_deref()).unwrap_or("no progress");
            Some(format!("A host reads nothing from the queue: {why}."))
        }
        _ => None,
    }
}

/// The limits of the queue, and the tasks before this one.
fn busy(queue: &QueueView, rules: &QueueRules, now_ms: u64) -> String {
    let QueueView { queued, running, .. } = queue;
    let are = if *queued == 1 { "is" } else { "are" };
    let mut why = format!(
        "Hosts take the oldest task first: {} {are} queued, and {running} run.",
        plural(*queued, "task")
    );
    if let Some(most) = rules.turns.max_running.filter(|most| *running >= u64::from(*most)) {
        why += &format!(" No more than {most} run at once (max_running).");
    }
    if let Some(rate) = rules.rate_limit {
        why += &format!(" No more than {} start in {} (rate_limit).", rate.count, show_duration(rate.per));
    }
    if let Some(limits) = &queue.limits {
        why += &format!(" An operator has limited it to {}.", limits.told(now_ms).trim_end_matches('.'));
    }
    why
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::config::rules::{Rate, RunLimits, Tracks};
    use crate::queue::hold::QueueHold;
    use crate::queue::limits::QueueLimits;
    use crate::queue::pause::QueuePause;
    use crate::queue::{Census, Status, TaskSummary};

    fn task(position: &str, at_ms: u64) -> FoundTask {
        FoundTask {
            position: position.into(),
            entry: None,
            summary: TaskSummary::new("7", Status::Pending),
            reason: None,
            at_ms: Some(at_ms),
            since_ms: None,
            idle_ms: None,
            has_status: false,
            fields: Vec::new(),
            reserved: Vec::new(),
        }
    }

    #[test]
    fn each_reason_has_its_words() {
        let path = std::path::Path::new("/srv/tqhost.toml");
        let config = Config::parse("[queues.mail]\n", path, &|_| None);
        let mut rules = config.expect("a configuration").queues.remove(0);
        rules.turns =
            RunLimits { max_running: Some(2), tracks: Some(Tracks { field: Some("user".into()), limit: 1 }) };
        rules.rate_limit = Some(Rate { count: 5, per: Duration::from_secs(1) });
        let census = Census { queued: 3, running: 2, ..Census::default() };
        let view = |state: &str, census: &Census| {
            let mut view = QueueView::new(&rules, census, &[], 0);
            view.state = state.to_owned();
            view
        };
        let why =
            |state, view: &QueueView, task: &FoundTask| reasons(view, &rules, (state, task), 1_000).join(" ");
        let queued = task("1-0", 5);
        let mut told: Vec<String> =
            ["reading", "no-host", "waiting-for-plugin", "waiting-for-room", "stalled"]
                .map(|state| format!("{state}: {}", why(ListedState::Queued, &view(state, &census), &queued)))
                .into();
        let pause = QueuePause { by: "ada".into(), why: "the model is down".into(), ..QueuePause::default() };
        let paused = view("paused", &Census { pause: Some(pause), ..census.clone() });
        told.push(format!("paused: {}", why(ListedState::Queued, &paused, &queued)));
        let hold = QueueHold { since_ms: 0, until_ms: 6_000, cause: "503.".into() };
        let held = view("held", &Census { held: Some(hold), ..census.clone() });
        told.push(format!("held: {}", why(ListedState::Delayed, &held, &task("9 1-0", 2_000))));
        let limits = QueueLimits { concurrency: Some(1), by: "ada".into(), ..QueueLimits::default() };
        let limited = view("reading", &Census { limits: Some(limits), ..census.clone() });
        told.push(format!("limited: {}", why(ListedState::Queued, &limited, &queued)));
        let ready = view("reading", &census);
        told.push(format!("due: {}", why(ListedState::Delayed, &ready, &task("9 1-0", 500))));
        told.push(format!("in line: {}", why(ListedState::Held, &ready, &queued)));
        told.push(format!("of a flow: {}", why(ListedState::Delayed, &ready, &task("9 flow/7", 0))));
        insta::assert_snapshot!(told.join("\n"));
        assert_eq!(why(ListedState::Running, &paused, &queued), "");
    }
}
