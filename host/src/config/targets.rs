//! `enqueue_to` and `on_end` of a queue: the queues to which it sends tasks.
//!
//! In: names of queues. Out: what a queue has to know of each. A name of no queue is a problem at the place
//! where it is read, and ends that are told in a circle are a problem of each queue in it.

use std::collections::BTreeMap;

use super::keys;
use super::names::check_name;
use super::reader::{Item, Table};
use super::rules::{OnEnd, QueueRules, TargetQueue};
use super::units::show_text;
use crate::field::reserved;

/// The names of the queues to which a queue sends tasks.
pub(super) struct Sends {
    enqueue_to: Vec<String>,
    on_end: ToldNames,
}

/// The names of the queues that are told of ends, and of the fields that they are told.
#[derive(Default)]
struct ToldNames {
    /// By outcome: completed, dead, cancelled.
    queues: [Option<String>; 3],
    /// None: all.
    fields: Option<Vec<String>>,
}

impl Sends {
    /// `names` are those of all queues of the file.
    pub(super) fn read(queue: &Table, names: &[&str]) -> Sends {
        let enqueue_to = queue.get("enqueue_to").map(|item| read_names(&item, names)).unwrap_or_default();
        Sends { enqueue_to, on_end: read_on_end(queue, names).unwrap_or_default() }
    }
}

/// Gives each queue the queues to which it sends tasks, by their names.
pub(super) fn find(queues: &mut [(QueueRules, Item)], sends: Vec<Sends>) {
    let known: Vec<TargetQueue> = queues.iter().map(|(queue, _)| target(queue)).collect();
    for ((queue, item), Sends { enqueue_to, on_end }) in queues.iter_mut().zip(sends) {
        queue.enqueue_to = find_targets(&enqueue_to, &known);
        let tells_itself = on_end.queues.iter().flatten().any(|name| *name == queue.name);
        // A default does not hold for the queues that it names: they would be told of ends for ever.
        let on_end = if tells_itself && !item.has("on_end") { ToldNames::default() } else { on_end };
        let [completed, dead, cancelled] = on_end.queues.map(|name| find_target(&name?, &known));
        queue.on_end = OnEnd { completed, dead, cancelled, fields: on_end.fields };
    }
    find_flow_partners(queues);
    mark_circles(queues);
    check_ends(queues);
}

/// Tells each queue the queues whose tasks may be in a flow with its own.
fn find_flow_partners(queues: &mut [(QueueRules, Item)]) {
    let starts: Vec<Vec<TargetQueue>> = queues.iter().map(|(queue, _)| queue.enqueue_to.clone()).collect();
    for (queue, _) in queues {
        for targets in starts.iter().filter(|targets| targets.iter().any(|one| one.name == queue.name)) {
            let new = targets.iter().filter(|one| !queue.flow_partners.contains(one)).cloned();
            let new: Vec<TargetQueue> = new.collect();
            queue.flow_partners.extend(new);
        }
    }
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
            item.at("on_end").problem(
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
        is_relayed: false,
    }
}

/// The queues with these names.
fn find_targets(names: &[String], known: &[TargetQueue]) -> Vec<TargetQueue> {
    let mut found: Vec<TargetQueue> = Vec::new();
    for target in names.iter().filter_map(|name| find_target(name, known)) {
        if !found.contains(&target) {
            found.push(target);
        }
    }
    found
}

/// The queue with this name. None: its table has a problem, which keeps it out.
fn find_target(name: &str, known: &[TargetQueue]) -> Option<TargetQueue> {
    known.iter().find(|target| target.name == name).cloned()
}

/// One queue for all outcomes, or a table. `names` are those of all queues of the file.
fn read_on_end(queue: &Table, names: &[&str]) -> Option<ToldNames> {
    let item = queue.get("on_end")?;
    let read_name = |item: &Item| item.checked(check_name).filter(|name| is_queue(item, name, names));
    if item.value().is_str() {
        let name = read_name(&item);
        return Some(ToldNames { queues: [name.clone(), name.clone(), name], fields: None });
    }
    let table = item.table(&keys::ON_END);
    let others = table.get("queue").and_then(|item| read_name(&item));
    let queues = ["completed", "dead", "cancelled"]
        .map(|outcome| table.get(outcome).map_or(others.clone(), |item| read_name(&item)));
    if table.is_there() && item.named().iter().all(|(key, _)| *key == "fields") {
        item.problem("names no queue: write `queue`, or one of `completed`, `dead` and `cancelled`");
    }
    Some(ToldNames { queues, fields: table.get("fields").map(|item| read_fields(&item)) })
}

/// Names of fields, which the host does not write itself.
fn read_fields(item: &Item) -> Vec<String> {
    let check = |name: &str| match reserved(name) {
        Some(prefix) => Err(format!("is not a field of a producer: names with `{prefix}` are tqhost's own")),
        None => Ok(()),
    };
    item.list().unwrap_or_default().iter().filter_map(|entry| entry.checked(check)).collect()
}

/// A list of names of queues. `names` are those of all queues of the file.
fn read_names(item: &Item, names: &[&str]) -> Vec<String> {
    let entries = item.list().unwrap_or_default();
    let read_name = |entry: &Item| {
        let name = entry.checked(check_name)?;
        is_queue(&entry.named_as(item.key.clone()), &name, names).then_some(name)
    };
    entries.iter().filter_map(read_name).collect()
}

/// Whether there is a queue with this name. If there is none, that is a problem of `item`.
fn is_queue(item: &Item, name: &str, names: &[&str]) -> bool {
    let is_queue = names.contains(&name);
    if !is_queue {
        item.problem(format!(
            "{} is not a queue: add a table [queues.{name}], or take the name out",
            show_text(name)
        ));
    }
    is_queue
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};

    #[test]
    fn a_name_of_no_queue_is_told_once_where_it_stands() {
        let texts = [
            "[queues.b]\n\n[queues.a]\nlease = \"5s\"\non_end = \"gone\"",
            "[queues.a]\n[queues.b]\n[queues.b.on_end]\nqueue = \"gone\"\ndead = \"a\"",
            "[queues.a]\nlease = \"5s\"\nenqueue_to = [\n\"a\",\n\"gone\",\n]",
            "[defaults]\non_end = \"gone\"\n[queues.a]\n[queues.b]",
            "[defaults]\nenqueue_to = [\"gone\"]\n[queues.a]\n[queues.b]",
            // A queue of the file is one, whatever is wrong with its table.
            "[queues]\nb = 5\n[queues.a]\nenqueue_to = [\"b\"]",
        ];
        insta::assert_snapshot!(refusals("{}", &texts));
    }

    #[test]
    fn a_circle_is_told_at_its_keys() {
        // A default is for all queues but those that it names.
        let text =
            "[defaults]\non_end = { completed = \"b\", dead = \"c\" }\n[queues.a]\n[queues.b]\n[queues.c]";
        let queues = parse(text).expect("no circle").queues;
        let counts: Vec<usize> = queues.iter().map(|queue| queue.on_end.targets().count()).collect();
        assert_eq!(counts, [2, 0, 0]);
        let text = "[queues.a]\nlease = \"5s\"\non_end = \"b\"\n[queues.b]\n\non_end = { dead = \"a\" }";
        insta::assert_snapshot!(refusals("{}", &[text]), @"
        [queues.a]
        lease = \"5s\"
        on_end = \"b\"
        [queues.b]

        on_end = { dead = \"a\" }
            line 3: queues.a.on_end: leads back to this queue, so that one end would be told for ever: name \
            a queue that tells no other one
            line 6: queues.b.on_end: leads back to this queue, so that one end would be told for ever: name \
            a queue that tells no other one
        ");
        assert!(parse(&text.replace("on_end = { dead = \"a\" }", "")).is_ok());
    }
}
