//! `enqueue_to` and `on_end` of a queue: the queues to which it sends tasks.
//!
//! In: names of queues. Out: what a queue has to know of each. A name of no queue is a problem, and so are
//! ends that are told in a circle.

use std::collections::BTreeMap;

use super::model::{OnEnd, QueueRules, TargetQueue};
use super::names::check_name;
use super::reader::{Item, Keys};
use super::units::show_text;
use crate::field::reserved;

pub(super) const ON_END_KEYS: Keys =
    Keys { known: &["queue", "completed", "dead", "cancelled", "fields"], later: &[], elsewhere: &[] };

/// The names of the queues to which a queue sends tasks.
#[derive(Clone, Default)]
pub(super) struct Sends {
    pub enqueue_to: Vec<String>,
    pub on_end: ToldNames,
}

/// The names of the queues that are told of ends, and of the fields that they are told.
#[derive(Clone, Default)]
pub(super) struct ToldNames {
    /// By outcome: completed, dead, cancelled.
    queues: [Option<String>; 3],
    /// None: all.
    fields: Option<Vec<String>>,
}

/// Gives each queue the queues to which it sends tasks, by their names.
pub(super) fn find(queues: &mut [(QueueRules, Item)], sends: Vec<Sends>) {
    let known: Vec<TargetQueue> = queues.iter().map(|(queue, _)| target(queue)).collect();
    for ((queue, item), Sends { enqueue_to, on_end }) in queues.iter_mut().zip(sends) {
        queue.enqueue_to = find_targets(item, &enqueue_to, &known);
        let [completed, dead, cancelled] =
            on_end.queues.map(|name| find_target(item, "on_end", &name?, &known));
        queue.on_end = OnEnd { completed, dead, cancelled, fields: on_end.fields };
    }
    mark_circles(queues);
    check_ends(queues);
}

/// Marks the targets whose tasks may lead back to the queue that enqueues to them.
fn mark_circles(queues: &mut [(QueueRules, Item)]) {
    let graph = Graph::of(queues, |queue| queue.enqueue_to.iter());
    for (queue, _) in queues {
        for target in &mut queue.enqueue_to {
            target.leads_back = graph.reached(&target.name).contains(&queue.name);
        }
    }
}

/// The names of the queues to which each queue sends tasks.
struct Graph(BTreeMap<String, Vec<String>>);

impl Graph {
    fn of<'q, T: Iterator<Item = &'q TargetQueue>>(
        queues: &'q [(QueueRules, Item)],
        targets: impl Fn(&'q QueueRules) -> T,
    ) -> Graph {
        let names = |queue| targets(queue).map(|target| target.name.clone()).collect();
        Graph(queues.iter().map(|(queue, _)| (queue.name.clone(), names(queue))).collect())
    }

    /// All queues that are reached from one, directly or not.
    fn reached(&self, from: &str) -> Vec<String> {
        let mut reached: Vec<String> = self.0.get(from).cloned().unwrap_or_default();
        let mut at = 0;
        while let Some(name) = reached.get(at) {
            let more = self.0.get(name).into_iter().flatten();
            let more: Vec<String> = more.filter(|name| !reached.contains(name)).cloned().collect();
            reached.extend(more);
            at += 1;
        }
        reached
    }
}

/// Ends that are told in a circle would never come to an end.
fn check_ends(queues: &[(QueueRules, Item)]) {
    let graph = Graph::of(queues, |queue| queue.on_end.targets());
    for (queue, item) in queues {
        if graph.reached(&queue.name).contains(&queue.name) {
            item.named_as(format!("{}.on_end", item.key)).problem(
                "leads back to this queue, so that one end would be told for ever: \
                 name a queue that tells no other one",
            );
        }
    }
}

fn target(queue: &QueueRules) -> TargetQueue {
    TargetQueue {
        name: queue.name.clone(),
        stream: queue.stream.clone(),
        group: queue.group.clone(),
        dead_letter: queue.dead_letter.clone(),
        max_backlog: queue.max_backlog,
        key: queue.idempotency.key.clone(),
        id: queue.id.clone(),
        retention: queue.retention,
        is_strict: queue.turns.are_strict(),
        leads_back: false,
    }
}

/// The queues with these names.
fn find_targets(item: &Item, names: &[String], known: &[TargetQueue]) -> Vec<TargetQueue> {
    let mut found: Vec<TargetQueue> = Vec::new();
    for target in names.iter().filter_map(|name| find_target(item, "enqueue_to", name, known)) {
        if !found.contains(&target) {
            found.push(target);
        }
    }
    found
}

/// The queue with this name. If there is none, that is a problem of `key`.
fn find_target(item: &Item, key: &str, name: &str, known: &[TargetQueue]) -> Option<TargetQueue> {
    let found = known.iter().find(|target| target.name == name);
    if found.is_none() {
        item.named_as(format!("{}.{key}", item.key)).problem(format!(
            "{} is not a queue: add a table [queues.{name}], or take the name out",
            show_text(name)
        ));
    }
    found.cloned()
}

/// One queue for all outcomes, or a table.
pub(super) fn read_on_end(item: &Item) -> ToldNames {
    let for_all = |name: Option<String>| [name.clone(), name.clone(), name];
    if item.value().is_str() {
        return ToldNames { queues: for_all(item.checked(check_name)), fields: None };
    }
    let Some(table) = item.table(&ON_END_KEYS) else { return ToldNames::default() };
    let name = |key| table.get(key).map(|item| item.checked(check_name));
    let others = name("queue").flatten();
    let queues = ["completed", "dead", "cancelled"].map(|key| name(key).unwrap_or_else(|| others.clone()));
    if item.named().iter().all(|(key, _)| *key == "fields") {
        item.problem("names no queue: write `queue`, or one of `completed`, `dead` and `cancelled`");
    }
    ToldNames { queues, fields: table.get("fields").map(|item| read_fields(&item)) }
}

/// Names of fields, which the host does not write itself.
fn read_fields(item: &Item) -> Vec<String> {
    let check = |name: &str| match reserved(name) {
        Some(prefix) => Err(format!("is not a field of a producer: names with `{prefix}` are tqhost's own")),
        None => Ok(()),
    };
    item.list().unwrap_or_default().iter().filter_map(|entry| entry.checked(check)).collect()
}

/// A list of names of queues.
pub(super) fn read_names(item: &Item) -> Vec<String> {
    let entries = item.list().unwrap_or_default();
    entries.iter().filter_map(|entry| entry.checked(check_name)).collect()
}
