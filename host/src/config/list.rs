//! `list`: the Redis list that feeds a queue.
//!
//! In: the table of a queue, whose `list` is the list's key, or `{ key, items }`. Out: a [`List`], which
//! knows the keys beside its own that Celery or Sidekiq has for the same queue.

use super::names::check_key;
use super::reader::Table;
use super::rules::{Items, List, QueueRules};

const FORMS: &str =
    "a string like \"report:queue\", or a table like { key = \"report:queue\", items = \"json\" }";

pub(super) fn read(queue: &Table) -> Option<List> {
    let item = queue.own("list")?;
    if item.value().is_str() {
        return Some(List { key: item.checked(check_key)?, items: Items::Bytes });
    }
    let table = queue.table_as("list", FORMS);
    let items = table.word_or_default("items");
    let key = table.required("key", "write list = { key = \"report:queue\", items = \"json\" }")?;
    let check = |text: &str| match items {
        Items::Sidekiq => check_key(text).and_then(|()| check_sidekiq(text)),
        _ => check_key(text),
    };
    Some(List { key: key.checked(check)?, items })
}

/// The text before a queue's name in the key of a list of Sidekiq. A namespace may stand before it.
const SIDEKIQ: &str = "queue:";
/// Celery's list for a priority has this, and the number, behind the name of its queue. The list without it
/// has the tasks of priority 0, the most urgent ones.
const PRIORITY: &str = "\u{6}\u{16}";
/// The steps of Celery's priorities beside 0, the most urgent first.
const STEPS: [u8; 3] = [3, 6, 9];

impl Items {
    /// Whether another task queue makes the items, and has keys of its own beside the list.
    pub fn is_of_others(self) -> bool {
        matches!(self, Items::Celery | Items::Sidekiq)
    }
}

impl QueueRules {
    /// Whether Celery adds the tasks.
    pub fn is_of_celery(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.items == Items::Celery)
    }

    /// Whether the items of its list name the ids of tasks.
    pub fn has_ids_in_lists(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.items.is_of_others())
    }

    /// Whether tasks of the queue can expire.
    pub fn may_expire(&self) -> bool {
        self.expire_after.is_some() || self.is_of_celery()
    }
}

impl List {
    /// The keys of all lists that feed the queue, the most urgent first.
    pub fn keys(&self) -> Vec<String> {
        let steps: &[u8] = if self.items == Items::Celery { &STEPS } else { &[] };
        let steps = steps.iter().map(|step| format!("{}{PRIORITY}{step}", self.key));
        [self.key.clone()].into_iter().chain(steps).collect()
    }

    /// All keys that Celery or Sidekiq has for the queue, the one of the configuration first.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = String> {
        self.keys().into_iter().chain(self.sidekiq().into_iter().flat_map(|sidekiq| sidekiq.sets))
    }

    /// The queue's name in Sidekiq, and the keys of its sorted sets. None: the list is not one of Sidekiq.
    pub fn sidekiq(&self) -> Option<Sidekiq<'_>> {
        let (namespace, queue) = split(&self.key).filter(|_| self.items == Items::Sidekiq)?;
        Some(Sidekiq { queue, sets: ["schedule", "retry"].map(|set| format!("{namespace}{set}")) })
    }
}

/// The queue of Sidekiq that a list belongs to.
#[derive(Debug, PartialEq, Eq)]
pub struct Sidekiq<'l> {
    pub queue: &'l str,
    /// The sorted sets with jobs that are due later: scheduled jobs, and jobs that are tried again.
    pub sets: [String; 2],
}

/// The namespace and the queue in the key of a list of Sidekiq.
fn split(key: &str) -> Option<(&str, &str)> {
    let at = if key.starts_with(SIDEKIQ) { 0 } else { key.find(&format!(":{SIDEKIQ}"))? + 1 };
    let queue = &key[at + SIDEKIQ.len()..];
    (!queue.is_empty()).then_some((&key[..at], queue))
}

fn check_sidekiq(key: &str) -> Result<(), String> {
    split(key).map(drop).ok_or_else(|| {
        "is no list of Sidekiq: write \"queue:\" and the name of its queue, perhaps with a namespace before \
         it, as in \"queue:default\" or \"shop:queue:default\""
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};
    use super::*;

    #[test]
    fn good_lists() {
        let table = [
            ("\"report:queue\"", Items::Bytes),
            ("{ key = \"report:queue\" }", Items::Bytes),
            ("{ key = \"report:queue\", items = \"bytes\" }", Items::Bytes),
            ("{ key = \"report:queue\", items = \"json\" }", Items::Json),
            ("{ key = \"report:queue\", items = \"celery\" }", Items::Celery),
            ("{ items = \"sidekiq\", key = \"report:queue:a\" }", Items::Sidekiq),
        ];
        for (value, items) in table {
            let queue = parse(&format!("[queues.a]\nlist = {value}")).expect(value).queues.remove(0);
            let key = if items == Items::Sidekiq { "report:queue:a" } else { "report:queue" };
            assert_eq!(queue.list, Some(List { key: key.into(), items }), "{value}");
        }
    }

    #[test]
    fn keys_beside_a_list() {
        let list = |key: &str, items| List { key: key.into(), items };
        assert_eq!(list("l", Items::Json).keys(), ["l"]);
        let keys = ["c", "c\x06\x163", "c\x06\x166", "c\x06\x169"];
        assert_eq!(list("c", Items::Celery).keys(), keys);
        let table = [
            ("queue:default", "default", ["schedule", "retry"]),
            ("queue:a:queue:b", "a:queue:b", ["schedule", "retry"]),
            ("shop:queue:low", "low", ["shop:schedule", "shop:retry"]),
        ];
        for (key, queue, sets) in table {
            let sets = sets.map(str::to_owned);
            assert_eq!(list(key, Items::Sidekiq).sidekiq(), Some(Sidekiq { queue, sets }), "{key}");
            assert_eq!(list(key, Items::Json).sidekiq(), None);
        }
    }

    #[test]
    fn bad_lists() {
        let texts = [
            "5",
            "\"\"",
            "{ items = \"json\" }",
            "{ key = \"\" }",
            "{ key = 5 }",
            "{ key = \"l\", items = \"JSON\" }",
            "{ key = \"default\", items = \"sidekiq\" }",
            "{ key = \"queue:\", items = \"sidekiq\" }",
            "{ key = \"l\", items = true }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\nlist = {}\n[queues.b]", &texts));
    }
}
