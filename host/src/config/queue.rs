//! `[queues.NAME]` and `[defaults]`: the queues and their rules.
//!
//! In: the tables of the file. Out: one [`QueueRules`] per table, in the order of the file. The reader takes
//! a key that a queue does not set from `[defaults]`, or else from its row in `keys`; keys that only a queue
//! can have are read with `Table::own`.
//!
//! Not here: the keys that are tables of their own (one file for each).

use super::names::{check_key_or_default, check_name, check_stream};
use super::reader::{Context, Item, Table};
use super::rules::{Batch, OnEnd, QueueRules};
use super::targets::Sends;
use super::units::parse_rate;
use super::{backoff, hold, idempotency, keys, list, schedule, streams, targets, turns, value};

const NO_QUEUE: &str = "there is no queue: add a table [queues.NAME] for each of your streams";

/// All queues, in the order of the file.
pub(super) fn read(cx: &Context, root: &Table) -> Vec<QueueRules> {
    let named = root.named("queues");
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let defaults = root.table("defaults");
    // A default is checked even where every queue has a value of its own.
    read_rules("", &defaults);
    Sends::read(&defaults, &names);
    match root.get("queues") {
        None => cx.problem("queues", NO_QUEUE),
        Some(item) if item.value().as_table().is_some_and(|table| table.is_empty()) => item.problem(NO_QUEUE),
        Some(_) => {}
    }
    let (mut queues, mut sends) = (Vec::new(), Vec::new());
    for (name, item) in named {
        let table = item.table(&keys::QUEUE).with_base(&defaults);
        if let Err(why) = check_name(name) {
            item.problem(format!("the queue's name {why}"));
        }
        let queue = read_rules(name, &table);
        check_batch(&queue, &item);
        queues.push((queue, item));
        sends.push(Sends::read(&table, &names));
    }
    streams::check_streams(&queues);
    targets::find(&mut queues, sends);
    queues.into_iter().map(|(queue, _)| queue).collect()
}

/// The rules of a queue, without the queues that it sends tasks to.
fn read_rules(name: &str, table: &Table) -> QueueRules {
    let batch = table.table("batch");
    let dead_letter = table.own("dead_letter");
    let stream = table.own("stream").and_then(|item| item.checked(check_stream));
    let group = |text: &str| check_key_or_default(text).map(|()| text.to_owned());
    let rate = |item: Item| parse_rate(item.string()?).map_err(|why| item.problem(why)).ok();
    QueueRules {
        name: name.to_owned(),
        stream: stream.unwrap_or_else(|| name.to_owned()),
        group: table.text_or_default("group", group),
        plugin: table.checked("plugin", check_name).unwrap_or_else(|| name.to_owned()),
        concurrency: table.value_or_default("concurrency"),
        batch: Batch { max_tasks: batch.value("max_tasks"), max_wait: batch.value_or_default("max_wait") },
        priority: table.value_or_default("priority"),
        lease: table.value_or_default("lease"),
        timeout: table.value_or_default("timeout"),
        max_retries: table.value_or_default("max_retries"),
        backoff: backoff::read(table),
        max_deferrals: table.value_or_default("max_deferrals"),
        max_crashes: table.value_or_default("max_crashes"),
        max_backlog: table.value_or_default("max_backlog"),
        rate_limit: table.get("rate_limit").and_then(rate),
        hold: hold::read(table),
        turns: turns::read(table),
        idempotency: idempotency::read(&table.table("idempotency")),
        id: value::read_id(table),
        expire_after: table.value("expire_after"),
        retention: table.value_or_default("retention"),
        list: list::read(table),
        schedule: schedule::read(table),
        dead_letter: dead_letter.and_then(|item| item.checked(check_key_or_default)),
        enqueue_to: Vec::new(),
        flow_partners: Vec::new(),
        on_end: OnEnd::default(),
        events: table.value_or_default("events"),
        failed_attempts: table.value_or_default("failed_attempts"),
        show: value::read_shown(table),
        keep_fields: table.value_or_default("keep_fields"),
    }
}

/// Warns of a batch that can never be as large as the configuration says.
fn check_batch(queue: &QueueRules, item: &Item) {
    let (largest, concurrency) = (queue.batch.max_tasks.unwrap_or_default(), queue.concurrency);
    if largest > concurrency {
        let why = format!(
            "{largest} is more than the queue's concurrency, {concurrency}: no batch is larger than that"
        );
        item.at("batch").at("max_tasks").warn(&why);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::rules::{Backoff, Idempotency, RunLimits};
    use super::super::testing::{parse, refusals};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_queue_that_says_nothing_has_the_documented_rules() {
        let queue = parse("[queues.resume-analyze]").expect("valid").queues.remove(0);
        let expected = QueueRules {
            name: "resume-analyze".into(),
            stream: "resume-analyze".into(),
            group: "tqhost".into(),
            plugin: "resume-analyze".into(),
            concurrency: 10,
            batch: Batch { max_tasks: None, max_wait: Duration::from_millis(10) },
            priority: 1,
            lease: 30 * SECOND,
            timeout: 60 * SECOND,
            max_retries: 3,
            backoff: Backoff::Exponential { base: SECOND, max: 60 * SECOND, jitter: 0.2 },
            max_deferrals: 6,
            max_crashes: 2,
            max_backlog: 100_000,
            rate_limit: None,
            hold: None,
            turns: RunLimits::default(),
            idempotency: Idempotency::default(),
            id: None,
            expire_after: None,
            retention: DAY,
            list: None,
            schedule: None,
            dead_letter: None,
            enqueue_to: vec![],
            flow_partners: vec![],
            on_end: OnEnd::default(),
            events: 0,
            failed_attempts: 10,
            show: vec![],
            keep_fields: false,
        };
        assert_eq!(queue, expected);
    }

    #[test]
    fn a_queue_comes_before_the_defaults() {
        let text = r#"
            [defaults]
            group = "g"
            plugin = "shared"
            concurrency = 3
            lease = "5s"
            retention = "0s"
            backoff = "none"
            [queues.z]
            [queues.a]
            stream = "resume:{analyze}:stream"
            plugin = "own"
            concurrency = 0x10
            timeout = "1m30s"
            max_retries = 0
            max_deferrals = 1
            max_crashes = 1
            backoff = { base = "2s" }
            dead_letter = "resume:dead"
        "#;
        let queues = parse(text).expect("valid").queues;
        assert_eq!(
            queues.iter().map(|q| q.name.as_str()).collect::<Vec<_>>(),
            ["z", "a"],
            "in the order of the file"
        );
        let [z, a] = &queues[..] else { panic!("two queues") };
        assert_eq!(
            (z.group.as_str(), z.plugin.as_str(), z.concurrency, z.lease, z.retention),
            ("g", "shared", 3, 5 * SECOND, Duration::ZERO)
        );
        assert_eq!((&z.backoff, z.timeout), (&Backoff::None, 60 * SECOND));
        assert_eq!(
            (a.stream.as_str(), a.group.as_str(), a.plugin.as_str()),
            ("resume:{analyze}:stream", "g", "own")
        );
        assert_eq!((a.concurrency, a.lease, a.timeout, a.max_retries), (16, 5 * SECOND, 90 * SECOND, 0));
        assert_eq!((a.max_deferrals, a.max_crashes, a.dead_letter.as_deref()), (1, 1, Some("resume:dead")));
        assert_eq!(a.backoff, Backoff::Exponential { base: 2 * SECOND, max: 60 * SECOND, jitter: 0.2 });
    }

    #[test]
    fn a_batch_is_no_larger_than_the_concurrency() {
        let text = "[defaults]\nbatch = { max_wait = \"0s\" }\n\
                    [queues.a]\nconcurrency = 4\n[queues.b]\nbatch = { max_tasks = 20 }\n\
                    [queues.c]\nconcurrency = 40\nbatch = { max_tasks = 20 }";
        let config = parse(text).expect("valid");
        assert_eq!(config.queues.iter().map(QueueRules::largest_batch).collect::<Vec<_>>(), [4, 10, 20]);
        assert!(config.queues.iter().all(|queue| queue.batch.max_wait.is_zero()));
        insta::assert_snapshot!(config.warnings.join("\n"), @"
        line 6: queues.b.batch.max_tasks: 20 is more than the queue's concurrency, 10: no batch is larger \
        than that
        ");
    }

    #[test]
    fn bad_queue_keys() {
        let texts = [
            "concurrency = 0",
            "concurrency = -1",
            "concurrency = 99999999999999999999",
            "concurrency = \"10\"",
            "lease = \"5\"",
            "lease = 5",
            "lease = 1.5",
            "lease = \"999ms\"",
            "lease = true",
            "timeout = -5",
            "plugin = \"../x\"",
            "batch = 5",
            "group = \"\"",
            "dead_letter = \"\"",
            "delays = [\"1s\"]",
            "stream = \"s{\"",
            "enqueue_to = \"b\"",
            "on_end = \"a\"",
            "on_end = {}",
            "on_end = { queue = \"b\", fields = [\"end.id\"] }",
            "on_end = { queue = \"b\", fields = \"x\" }",
            "keep_fields = \"yes\"",
            "schedule = \"x\"",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n{}\n[queues.b]", &texts));
    }

    #[test]
    fn bad_tables_of_queues() {
        let texts = [
            "",
            "queues = 5",
            "[queues]",
            "[queues]\na = 5",
            "[queues.\".a\"]",
            "[queues.\"a:b\"]",
            "[queues.a]\n[defaults]\nstream = \"x\"",
            "[queues.a]\n[defaults]\nlist = \"x\"",
            "[queues.a]\n[defaults.schedule]",
            "[queues.a]\n[defaults]\nrate_limit = \"x\"",
        ];
        insta::assert_snapshot!(refusals("{}", &texts));
    }
}
