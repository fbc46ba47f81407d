//! `[queues.NAME]` and `[defaults]`: the queues and their rules.
//!
//! In: the tables of the file. Out: one [`QueueRules`] per table, in the order of the file. A key that a
//! queue does not set comes from `[defaults]`, or else from [`usual`].
//!
//! Not here: the keys of a backoff (`backoff`), of `idempotency` and `id` (`idempotency`, `value`), of a list
//! (`list`), of a schedule (`schedule`).

use std::ops::RangeInclusive;
use std::time::Duration;

use super::model::{Batch, Idempotency, OnEnd, QueueRules, RunLimits};
use super::names::{check_key_or_default, check_name, check_stream};
use super::reader::{Item, Keys, Table};
use super::schedule;
use super::targets::Sends;
use super::units::parse_rate;
use super::{backoff, hold, idempotency, list, streams, targets, turns, value};

pub(super) const KEYS: Keys = Keys {
    known: &[
        "stream",
        "group",
        "plugin",
        "concurrency",
        "batch",
        "priority",
        "lease",
        "timeout",
        "max_retries",
        "backoff",
        "max_deferrals",
        "max_crashes",
        "max_backlog",
        "rate_limit",
        "hold",
        "max_running",
        "order",
        "serial",
        "idempotency",
        "id",
        "expire_after",
        "retention",
        "enqueue_to",
        "on_end",
        "events",
        "failed_attempts",
        "show",
        "keep_fields",
        "dead_letter",
        "list",
        "schedule",
    ],
    elsewhere: &[(
        "delays",
        "belongs into backoff: write backoff = { delays = [\"10s\", \"30s\", \"60s\"] }",
    )],
};

pub(super) const DEFAULTS_KEYS: Keys = Keys {
    known: KEYS.known,
    elsewhere: &[
        ("order", "makes no sense as a default: write it in each [queues.NAME] that needs it"),
        ("serial", "makes no sense as a default: write it in each [queues.NAME] that needs it"),
        ("delays", "belongs into backoff: write backoff = { delays = [\"10s\", \"30s\", \"60s\"] }"),
        ("stream", "makes no sense as a default, every queue has its own: write it in [queues.NAME]"),
        ("list", "makes no sense as a default, every queue has its own: write it in [queues.NAME]"),
        ("schedule", "makes no sense as a default, every queue has its own: write it in [queues.NAME]"),
        ("dead_letter", "makes no sense as a default, every queue has its own: write it in [queues.NAME]"),
    ],
};

pub(super) const BATCH_KEYS: Keys = Keys { known: &["max_tasks", "max_wait"], elsewhere: &[] };

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const CONCURRENCY: RangeInclusive<u32> = 1..=10_000;
const BATCH: RangeInclusive<u32> = 1..=1000;
const MAX_WAIT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);
const PRIORITY: RangeInclusive<u32> = 1..=1000;
const LEASE: RangeInclusive<Duration> = SECOND..=DAY;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(7 * 86_400);
const MAX_RETRIES: RangeInclusive<u32> = 0..=1000;
const MAX_DEFERRALS: RangeInclusive<u32> = 0..=100_000;
const MAX_CRASHES: RangeInclusive<u32> = 1..=1000;
const MAX_BACKLOG: RangeInclusive<u32> = 1..=1_000_000_000;
const EVENTS: RangeInclusive<u32> = 0..=1_000_000;
/// Settle.lua deletes at most as many at once.
const FAILED_ATTEMPTS: RangeInclusive<u32> = 0..=100;
const EXPIRE_AFTER: RangeInclusive<Duration> = SECOND..=Duration::from_secs(365 * 86_400);
const RETENTION: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(365 * 86_400);

/// The rules of a queue that says nothing, and the queues that it sends tasks to. Without a name of its own,
/// its plugin has that of the queue.
fn usual() -> (QueueRules, Sends) {
    let rules = QueueRules {
        name: String::new(),
        stream: String::new(),
        group: "tqhost".into(),
        plugin: String::new(),
        concurrency: 10,
        batch: Batch { max_tasks: None, max_wait: Duration::from_millis(10) },
        priority: 1,
        lease: 30 * SECOND,
        timeout: 60 * SECOND,
        max_retries: 3,
        backoff: backoff::DEFAULT,
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
        enqueue_to: Vec::new(),
        flow_partners: Vec::new(),
        on_end: OnEnd::default(),
        events: 0,
        failed_attempts: 10,
        show: Vec::new(),
        keep_fields: false,
    };
    (rules, Sends::default())
}

/// All queues, in the order of the file.
pub(super) fn read(root: &Table) -> Vec<QueueRules> {
    let queues = root.get("queues");
    let named = queues.as_ref().map(Item::named).unwrap_or_default();
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let defaults = root.get("defaults").and_then(|item| item.table(&DEFAULTS_KEYS));
    let defaults = defaults.map_or_else(usual, |table| read_rules(&table, &usual(), &names));
    let Some(queues) = queues else {
        root.context()
            .problem("queues", "there is no queue: add a table [queues.NAME] for each of your streams");
        return Vec::new();
    };
    if named.is_empty() && queues.value().is_table() {
        queues.problem("there is no queue: add a table [queues.NAME] for each of your streams");
    }
    let (mut read, mut sends) = (Vec::new(), Vec::new());
    for (name, item) in named {
        if let Some((queue, targets)) = read_queue(name, &item, &defaults, &names) {
            read.push((queue, item));
            sends.push(targets);
        }
    }
    streams::check_streams(&read);
    targets::find(&mut read, sends);
    read.into_iter().map(|(queue, _)| queue).collect()
}

/// The rules of a queue, and the queues that it sends tasks to. `names` are those of all queues of the file.
fn read_queue(
    name: &str,
    item: &Item,
    defaults: &(QueueRules, Sends),
    names: &[&str],
) -> Option<(QueueRules, Sends)> {
    if let Err(why) = check_name(name) {
        item.problem(format!("the queue's name {why}"));
    }
    let table = item.table(&KEYS)?;
    let (rules, sends) = read_rules(&table, defaults, names);
    if let Some(most) = rules.batch.max_tasks.filter(|most| *most > rules.concurrency) {
        let why = format!(
            "{most} is more than the queue's concurrency, {}: no batch is larger than that",
            rules.concurrency
        );
        item.at("batch").at("max_tasks").warn(&why);
    }
    let queue = QueueRules {
        name: name.to_owned(),
        stream: table.checked("stream", check_stream).unwrap_or_else(|| name.to_owned()),
        plugin: if rules.plugin.is_empty() { name.to_owned() } else { rules.plugin },
        turns: turns::read(&table, rules.turns.max_running),
        list: table.get("list").and_then(|item| list::read(&item)),
        schedule: table.get("schedule").and_then(|item| schedule::read(&item)),
        dead_letter: table.checked("dead_letter", check_key_or_default),
        ..rules
    };
    Some((queue, sends))
}

/// The rules that a queue shares with `[defaults]`. A key that is not set comes from `base`.
fn read_rules(
    table: &Table,
    (base, base_sends): &(QueueRules, Sends),
    names: &[&str],
) -> (QueueRules, Sends) {
    let max_running = table.integer("max_running", turns::MAX_RUNNING).or(base.turns.max_running);
    let rules = QueueRules {
        group: table.checked("group", check_key_or_default).unwrap_or_else(|| base.group.clone()),
        plugin: table.checked("plugin", check_name).unwrap_or_else(|| base.plugin.clone()),
        concurrency: table.integer("concurrency", CONCURRENCY).unwrap_or(base.concurrency),
        batch: table.get("batch").map_or(base.batch, |item| read_batch(&item, base.batch)),
        priority: table.integer("priority", PRIORITY).unwrap_or(base.priority),
        lease: table.duration("lease", LEASE).unwrap_or(base.lease),
        timeout: table.duration("timeout", TIMEOUT).unwrap_or(base.timeout),
        max_retries: table.integer("max_retries", MAX_RETRIES).unwrap_or(base.max_retries),
        backoff: table
            .get("backoff")
            .and_then(|item| backoff::read(&item, &base.backoff))
            .unwrap_or_else(|| base.backoff.clone()),
        max_deferrals: table.integer("max_deferrals", MAX_DEFERRALS).unwrap_or(base.max_deferrals),
        max_crashes: table.integer("max_crashes", MAX_CRASHES).unwrap_or(base.max_crashes),
        max_backlog: table.integer("max_backlog", MAX_BACKLOG).unwrap_or(base.max_backlog),
        rate_limit: table
            .get("rate_limit")
            .map_or(base.rate_limit, |item| parse_rate(item.string()?).map_err(|why| item.problem(why)).ok()),
        hold: table.get("hold").map_or(base.hold, |item| hold::read(&item, base.hold)),
        turns: RunLimits { max_running, tracks: None },
        idempotency: table
            .get("idempotency")
            .map_or_else(|| base.idempotency.clone(), |item| idempotency::read(&item, &base.idempotency)),
        id: table.get("id").and_then(|item| value::read(&item)).or_else(|| base.id.clone()),
        expire_after: table.duration("expire_after", EXPIRE_AFTER).or(base.expire_after),
        retention: table.duration("retention", RETENTION).unwrap_or(base.retention),
        events: table.integer("events", EVENTS).unwrap_or(base.events),
        failed_attempts: table.integer("failed_attempts", FAILED_ATTEMPTS).unwrap_or(base.failed_attempts),
        show: table.get("show").map_or_else(|| base.show.clone(), |item| value::read_shown(&item)),
        keep_fields: table.get("keep_fields").and_then(|item| item.boolean()).unwrap_or(base.keep_fields),
        ..base.clone()
    };
    let enqueue_to = table.get("enqueue_to").map(|item| targets::read_names(&item, names));
    let on_end = table.get("on_end").map(|item| targets::read_on_end(&item, names));
    let sends = Sends {
        enqueue_to: enqueue_to.unwrap_or_else(|| base_sends.enqueue_to.clone()),
        on_end: on_end.unwrap_or_else(|| base_sends.on_end.as_default()),
    };
    (rules, sends)
}

/// Reports its problems, and keeps the values that are right.
fn read_batch(item: &Item, base: Batch) -> Batch {
    let Some(table) = item.table(&BATCH_KEYS) else { return base };
    Batch {
        max_tasks: table.integer("max_tasks", BATCH).or(base.max_tasks),
        max_wait: table.duration("max_wait", MAX_WAIT).unwrap_or(base.max_wait),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Backoff;
    use super::super::testing::{all_wrong, parse};
    use super::*;

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
        assert_eq!(
            config.warnings,
            ["line 6: queues.b.batch.max_tasks: 20 is more than the queue's concurrency, 10: \
                 no batch is larger than that"]
        );
    }

    #[test]
    fn bad_queue_keys() {
        let table = [
            ("concurrency = 0", "queues.a.concurrency: 0 is out of bounds: write 1 to 10000"),
            ("concurrency = 10001", "out of bounds"),
            ("concurrency = -1", "-1 is out of bounds"),
            ("concurrency = 99999999999999999999", "out of bounds"),
            ("concurrency = \"10\"", "is a string, but must be a whole number"),
            ("lease = \"5\"", "queues.a.lease: \"5\" has no unit: write \"5s\""),
            ("lease = 5", "\"5\" has no unit: write \"5s\""),
            ("lease = 1.5", "has a fraction"),
            ("lease = \"999ms\"", "\"999ms\" is out of bounds: write \"1s\" to \"1d\""),
            ("lease = \"25h\"", "out of bounds"),
            ("lease = true", "must be a duration like \"30s\""),
            ("timeout = \"0s\"", "out of bounds"),
            ("timeout = \"8d\"", "out of bounds"),
            ("timeout = -5", "is negative"),
            ("max_retries = 1001", "write 0 to 1000"),
            ("max_crashes = 0", "write 1 to 1000"),
            ("max_deferrals = 100001", "write 0 to 100000"),
            (
                "expire_after = \"0s\"",
                "queues.a.expire_after: \"0s\" is out of bounds: write \"1s\" to \"365d\"",
            ),
            ("retention = \"366d\"", "write \"0s\" to \"365d\""),
            ("plugin = \"../x\"", "queues.a.plugin: "),
            ("batch = 5", "queues.a.batch: is an integer, but must be a table"),
            ("batch = { max_tasks = 0 }", "queues.a.batch.max_tasks: 0 is out of bounds: write 1 to 1000"),
            (
                "batch = { max_wait = \"61s\" }",
                "queues.a.batch.max_wait: \"1m1s\" is out of bounds: write \"0s\" to \"1m\"",
            ),
            ("batch = { size = 5 }", "queues.a.batch.size: "),
            ("group = \"\"", "queues.a.group: \"\" is empty: take the key out for the default"),
            ("dead_letter = \"\"", "queues.a.dead_letter: \"\" is empty: take the key out for the default"),
            ("delays = [\"1s\"]", "write backoff = { delays"),
            ("stream = \"s{\"", "braces"),
            ("stream = \"b\"", "line 3: queues.b.stream: \"b\" is the stream of the queue \"a\" too"),
            ("dead_letter = \"b\"", "queues.a.dead_letter: \"b\" is the stream of the queue \"b\""),
            ("dead_letter = \"a\"", "queues.a.dead_letter: \"a\" is the stream of the queue \"a\""),
            ("list = \"b\"", "queues.a.list: \"b\" is a key of the queue \"b\" already"),
            ("max_retires = 3", "did you mean `max_retries`"),
            ("priority = 0", "queues.a.priority: 0 is out of bounds: write 1 to 1000"),
            ("enqueue_to = [\"c\"]", "queues.a.enqueue_to: \"c\" is not a queue: add a table [queues.c]"),
            ("enqueue_to = \"b\"", "is a string, but must be a list"),
            ("on_end = \"a\"", "queues.a.on_end: leads back to this queue"),
            ("on_end = { failed = \"b\" }", "unknown key"),
            ("on_end = {}", "queues.a.on_end: names no queue: write `queue`, or one of"),
            ("on_end = { queue = \"b\", fields = [\"end.id\"] }", "\"end.id\" is not a field of a producer"),
            ("on_end = { queue = \"b\", fields = \"x\" }", "is a string, but must be a list"),
            ("keep_fields = \"yes\"", "queues.a.keep_fields: is a string, but must be true or false"),
            ("events = -1", "-1 is out of bounds: write 0 to 1000000"),
            ("schedule = \"x\"", "queues.a.schedule: must be a table"),
        ];
        all_wrong("[queues.a]\n{}\n[queues.b]", "1 problem\n", &table);
    }

    #[test]
    fn bad_tables_of_queues() {
        let table = [
            ("", "queues: there is no queue"),
            ("queues = 5", "line 1: queues: is an integer, but must be a table"),
            ("[queues]", "line 1: queues: there is no queue"),
            ("[queues]\na = 5", "line 2: queues.a: is an integer, but must be a table"),
            ("[queues.\".a\"]", "queues.\".a\": the queue's name must not begin with a dot"),
            ("[queues.\"a:b\"]", "the queue's name may have only"),
            (
                "[queues.a]\n[defaults]\nstream = \"x\"",
                "line 3: defaults.stream: makes no sense as a default",
            ),
            ("[queues.a]\n[defaults]\nlist = \"x\"", "defaults.list: makes no sense as a default"),
            ("[queues.a]\n[defaults.schedule]", "defaults.schedule: makes no sense as a default"),
            ("[queues.a]\n[defaults]\nrate_limit = \"x\"", "defaults.rate_limit: \"x\" is not a rate"),
        ];
        all_wrong("{}", "1 problem\n", &table);
    }
}
