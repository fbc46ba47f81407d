//! The rights in Redis that a host, a producer, an enqueuer and a reader need: commands and keys.
//!
//! In: the queues of the configuration. Out: the least rule for each kind of program ([`AclRule`]). Before a
//! host takes a task, it checks that it has the rights of its rule (`group`). Tests compare the commands here
//! with those in the code, and run hosts, producers, enqueuers and readers under exactly these rules.

use std::collections::BTreeSet;

use super::keys::{self, QueueKeys};
use super::script;
use super::servers::Redis;
use crate::config::{List, Plugin, QueueRules};

/// The commands that a host sends, without those of its scripts.
pub const OF_HOSTS: [&str; 15] = [
    "BLMOVE",
    "EVALSHA",
    "EVALSHA_RO",
    "GETDEL",
    "HKEYS",
    "HSTRLEN",
    "MEMORY|USAGE",
    "MGET",
    "PING",
    "SCAN",
    "SCRIPT|LOAD",
    "STRLEN",
    "XREAD",
    "XREVRANGE",
    "ZREVRANGE",
];

/// The command with which a host looks at the state of Redis. A host without it warns of less.
const FOR_WARNINGS: &str = "INFO";

/// The commands with which a host calls its scripts as functions of a library. A host can do without them. No
/// other program may load functions: hosts would run a function of another program with the name of theirs.
const FOR_FUNCTIONS: [&str; 5] = ["FCALL", "FCALL_RO", "FUNCTION|DELETE", "FUNCTION|LIST", "FUNCTION|LOAD"];

/// The commands with which every program finds its way in a cluster.
const IN_CLUSTER: [&str; 3] = ["ASKING", "CLUSTER|INFO", "CLUSTER|SLOTS"];

/// The command that makes the nodes of a cluster tell a host of new tasks. A host can do without it.
const FOR_PUSHES: &str = "CLIENT|TRACKING";

/// The command with which every program makes sure that the server that Sentinels name is the primary.
const OF_WATCHED: &str = "ROLE";

/// The commands of `tqhost doctor` and `tqhost adopt` that a host does not need.
const OF_OPERATORS: [&str; 2] = ["LRANGE", "RENAME"];

/// The commands of `tqhost queues`, `status`, `tasks`, `dead list` and others that change nothing.
const OF_READERS: [&str; 28] = [
    "EVALSHA_RO",
    "EXISTS",
    "GET",
    "HGET",
    "HGETALL",
    "HMGET",
    "HSTRLEN",
    "INFO",
    "LLEN",
    "MGET",
    "PING",
    "SCRIPT|LOAD",
    "TIME",
    "XINFO|CONSUMERS",
    "XINFO|GROUPS",
    "XINFO|STREAM",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "XREVRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZRANGE",
    "ZRANK",
    "ZREVRANGE",
    "ZSCORE",
    "HEXISTS",
    "HKEYS",
];

/// The commands of `tqhost enqueue`.
const OF_ENQUEUERS: [&str; 23] = [
    "EVALSHA",
    "EXISTS",
    "GET",
    "HDEL",
    "HGET",
    "HMGET",
    "HSET",
    "INFO",
    "PERSIST",
    "PEXPIRE",
    "PING",
    "PTTL",
    "SCRIPT|LOAD",
    "SET",
    "TIME",
    "TYPE",
    "XADD",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "ZADD",
    "ZCARD",
    "ZREMRANGEBYRANK",
];

/// The commands that `tqhost enqueue` needs only in a queue with tracks, to pass on the turn of a task that
/// turns out to be lost.
const OF_ENQUEUERS_WITH_TRACKS: [&str; 3] = ["ZLEXCOUNT", "ZRANGEBYLEX", "ZREM"];

/// The rights that a user of Redis needs, as ACL SETUSER takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AclRule {
    /// The kind of program that needs it.
    pub role: &'static str,
    /// Patterns, with `~` or `%R~` before each.
    pub keys: Vec<String>,
    /// Names, with `+` before each; or a command in brackets, with the only keys for which it is allowed.
    pub commands: Vec<String>,
}

/// All commands of the scripts in `scripts/`, as group.lua lists them.
pub(super) fn of_scripts() -> impl Iterator<Item = &'static str> {
    let list = script::GROUP.source.split("local COMMANDS = [[").nth(1);
    list.and_then(|rest| rest.split("]]").next()).unwrap_or_default().split_whitespace()
}

/// The least rule for each kind of program.
pub(crate) fn rules<'c>(
    queues: &[QueueRules],
    plugins: impl Iterator<Item = &'c Plugin>,
    redis: &Redis,
) -> [AclRule; 5] {
    let selects = redis.database() != 0;
    let mut connect = Vec::new();
    connect.extend(IN_CLUSTER.into_iter().filter(|_| redis.is_cluster()));
    connect.extend(redis.is_watched().then_some(OF_WATCHED));
    connect.extend(selects.then_some("SELECT"));
    let freeze = |access: &str| {
        let streams = queues.iter().map(|rules| rules.stream.as_str()).chain([keys::DUTIES]);
        let keys = streams.filter(|_| redis.is_cluster()).map(keys::freeze);
        keys.map(|key| format!("{access}{}", keys::literal(&key))).collect::<Vec<_>>()
    };
    let rule = |role, mut keys: BTreeSet<String>, commands: BTreeSet<&str>| {
        keys.extend(freeze(if role == "reader" { "%R~" } else { "~" }));
        AclRule {
            role,
            keys: without_covered(&keys).into_iter().map(without_spaces).collect(),
            commands: commands
                .into_iter()
                .chain(connect.iter().copied())
                .map(|command| format!("+{}", command.to_lowercase()))
                .collect(),
        }
    };
    let commands: BTreeSet<&str> = of_scripts().chain(OF_HOSTS).chain([FOR_WARNINGS]).collect();
    let pushes = redis.is_cluster().then_some(FOR_PUSHES);
    let of_host = commands.iter().copied().chain(FOR_FUNCTIONS).chain(pushes).collect();
    let of_operator = commands.into_iter().chain(OF_OPERATORS).collect();
    let of_celery = ["~unacked", "~unacked_index"].map(str::to_owned);
    let of_celery = of_celery.into_iter().filter(|_| queues.iter().any(QueueRules::is_of_celery));
    let records = plugins.flat_map(|plugin| plugin.records.patterns());
    let mut keys = host_keys(queues);
    keys.extend(records.map(|pattern| format!("~{}", pattern_of_records(pattern))));
    [
        rule("host", keys.clone(), of_host),
        producer(queues, selects),
        rule("enqueuer", enqueuer_keys(queues), enqueuer_commands(queues)),
        rule("reader", reader_keys(queues), OF_READERS.into()),
        rule("operator", keys.into_iter().chain(of_celery).collect(), of_operator),
    ]
}

/// The rule of a producer: it adds to the streams of queues, and to their lists.
fn producer(queues: &[QueueRules], selects: bool) -> AclRule {
    let pattern = |key: &str| without_spaces(format!("~{}", keys::literal(key)));
    let streams: BTreeSet<String> = queues.iter().map(|rules| pattern(&rules.stream)).collect();
    let lists = queues.iter().filter_map(|rules| rules.list.as_ref()).flat_map(List::keys);
    let lists: BTreeSet<String> = lists.map(|list| format!("({} +lpush)", pattern(&list))).collect();
    let commands = [Some("+xadd"), selects.then_some("+select")].into_iter().flatten().map(str::to_owned);
    AclRule {
        role: "producer",
        keys: streams.into_iter().collect(),
        commands: commands.chain(lists).collect(),
    }
}

/// The keys that all hosts share, and that belong to no queue.
fn of_all_hosts() -> [String; 7] {
    [
        keys::version("*"),
        keys::HOSTS.to_owned(),
        keys::hosts(),
        keys::DUTIES.to_owned(),
        keys::DUTY_HOSTS.to_owned(),
        keys::ORDERS.to_owned(),
        keys::LOOK_REQUESTED.to_owned(),
    ]
}

/// One key of each kind that a host needs for this queue, and those that all hosts share.
pub(super) fn samples(rules: &QueueRules, keys: &QueueKeys) -> Vec<String> {
    let named = [&keys.stream, &keys.dead].map(String::clone).into_iter().chain(of_list(rules));
    let targets = rules.on_end.targets().chain(&rules.enqueue_to).map(|target| target.stream.clone());
    let named = named.chain(targets);
    let all: BTreeSet<String> = named.chain(keys.samples()).chain(of_all_hosts()).collect();
    all.into_iter().collect()
}

fn host_keys(queues: &[QueueRules]) -> BTreeSet<String> {
    let own = of_all_hosts().into_iter().chain([
        keys::CHANGES.to_owned(),
        keys::INCIDENTS.to_owned(),
        keys::SESSIONS.to_owned(),
        keys::ended_sessions("*"),
    ]);
    let mut all: BTreeSet<String> = own.map(|key| format!("~{key}")).collect();
    for rules in queues {
        let keys = keys_of(rules);
        all.extend(named(rules, &keys).map(|key| format!("~{key}")));
        all.extend([format!("~{}", keys.all), format!("~{}", keys.states())]);
    }
    all.into_iter().collect()
}

fn enqueuer_commands(queues: &[QueueRules]) -> BTreeSet<&'static str> {
    let mut all: BTreeSet<&str> = OF_ENQUEUERS.into();
    for rules in queues {
        all.extend(rules.turns.tracks.iter().flat_map(|_| OF_ENQUEUERS_WITH_TRACKS));
        // In a queue that keeps no statuses, the status of a lost task is deleted.
        all.extend(rules.retention.is_zero().then_some("DEL"));
    }
    all
}

fn enqueuer_keys(queues: &[QueueRules]) -> BTreeSet<String> {
    let mut all = BTreeSet::from([format!("~{}", keys::LOOK_REQUESTED)]);
    for rules in queues {
        let keys = keys_of(rules);
        let is_relayed = rules.on_end.is_relayed();
        let ended = rules.on_end.targets().filter(|_| !is_relayed).map(|target| &target.stream);
        let ended = ended.chain(is_relayed.then_some(&keys.out)).map(|key| keys::literal(key));
        let events = (rules.events > 0).then(|| keys::literal(&keys.events));
        let mut whole = vec![&keys.stream, &keys.delayed, &keys.parked];
        if rules.turns.are_limited() {
            whole.extend([&keys.owners, &keys.tracks, &keys.limits]);
        }
        let whole = whole.into_iter().map(|key| keys::literal(key));
        let needed = whole.chain(keys.of_enqueuers()).chain(ended).chain(events);
        all.extend(needed.map(|key| format!("~{key}")));
    }
    all
}

fn reader_keys(queues: &[QueueRules]) -> BTreeSet<String> {
    let own = [keys::HOSTS.to_owned(), keys::hosts(), keys::CHANGES.to_owned()];
    let mut all = BTreeSet::from(own.map(|key| format!("%R~{key}")));
    for rules in queues {
        let keys = keys_of(rules);
        all.extend([&keys.stream, &keys.dead].map(|key| format!("%R~{}", keys::literal(key))));
        all.insert(format!("%R~{}", keys.all));
        let lists = rules.list.iter().flat_map(List::keys);
        all.extend(lists.map(|list| format!("%R~{}", keys::literal(&list))));
    }
    all
}

fn keys_of(rules: &QueueRules) -> QueueKeys {
    QueueKeys::new(&rules.stream, rules.dead_letter.as_deref())
}

/// The keys of a queue whose names an operator chose.
fn named<'q>(rules: &'q QueueRules, keys: &'q QueueKeys) -> impl Iterator<Item = String> + 'q {
    let own = [&keys.stream, &keys.dead].map(|key| keys::literal(key));
    own.into_iter().chain(of_list(rules).map(|key| keys::literal(&key)))
}

/// The keys of other programs from which hosts take tasks of the queue.
fn of_list(rules: &QueueRules) -> impl Iterator<Item = String> {
    let list = rules.list.iter();
    list.flat_map(|list| list.keys().into_iter().chain(list.sidekiq().into_iter().flat_map(|of| of.sets)))
}

/// The pattern of keys for a pattern of records, in which only `*` is special.
fn pattern_of_records(pattern: &str) -> String {
    pattern.split('*').map(keys::literal).collect::<Vec<_>>().join("*")
}

/// Leaves out each pattern whose keys another pattern matches, too.
fn without_covered(patterns: &BTreeSet<String>) -> Vec<String> {
    let prefixes = patterns.iter().filter_map(|pattern| pattern.strip_suffix('*'));
    let prefixes: Vec<&str> = prefixes.filter(|prefix| !prefix.contains(['*', '\\'])).collect();
    let is_covered = |pattern: &&String| {
        let own = pattern.strip_suffix('*');
        prefixes.iter().any(|prefix| pattern.starts_with(prefix) && own != Some(*prefix))
    };
    patterns.iter().filter(|pattern| !is_covered(pattern)).cloned().collect()
}

/// Replaces spaces and control characters by `?`: ACL SETUSER takes no pattern with a space in it, and a
/// terminal does not show control characters.
fn without_spaces(pattern: String) -> String {
    pattern.replace(|c: char| c.is_whitespace() || c.is_control(), "?")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn files(folder: &str, ext: &str) -> Vec<(PathBuf, String)> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
        let paths = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("a file").path());
        let paths = paths.filter(|path| path.extension().is_some_and(|found| found == ext));
        paths.map(|path| (path.clone(), fs::read_to_string(path).expect("a file"))).collect()
    }

    /// The commands that the code in a folder sends, with their subcommands.
    fn sent(folder: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (_, text) in files(folder, "rs") {
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in code.split("cmd(\"").skip(1) {
                let (name, rest) = call.split_once('"').expect("a name");
                let part = rest.strip_prefix(").arg(\"").and_then(|rest| rest.split('"').next());
                found.insert(match part {
                    Some(part)
                        if ["XINFO", "CONFIG", "SCRIPT", "MEMORY", "FUNCTION", "CLUSTER", "CLIENT"]
                            .contains(&name) =>
                    {
                        format!("{name}|{part}")
                    }
                    _ => name.to_owned(),
                });
            }
        }
        found
    }

    #[test]
    fn the_rule_of_a_host_has_every_command_that_the_code_sends() {
        let own = OF_HOSTS.into_iter().chain(FOR_FUNCTIONS).chain(IN_CLUSTER);
        let own: Vec<&str> = own.chain([FOR_WARNINGS, FOR_PUSHES, OF_WATCHED]).collect();
        let allowed: BTreeSet<String> = of_scripts().chain(own.clone()).map(str::to_owned).collect();
        let mut code = sent("queue");
        // This command shows passwords. A host that may not use it warns of less.
        code.remove("CONFIG|GET");
        // Sentinels have users of their own.
        code.remove("SENTINEL");
        let missing: Vec<_> = code.difference(&allowed).collect();
        assert!(missing.is_empty(), "OF_HOSTS lacks {missing:?}");
        let mut useless: BTreeSet<String> = own.into_iter().map(str::to_owned).collect();
        useless.retain(|command| !code.contains(command) && !sent("doctor").contains(command));
        assert!(useless.is_empty(), "nothing sends {useless:?}");
    }

    #[test]
    fn the_rule_of_an_operator_has_every_command_of_the_doctor() {
        let allowed: BTreeSet<String> = of_scripts()
            .chain(OF_HOSTS)
            .chain([FOR_WARNINGS])
            .chain(OF_OPERATORS)
            .map(str::to_owned)
            .collect();
        let names = |text: &str| -> Vec<String> {
            let after = text.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
            after.map(str::to_owned).collect()
        };
        let scripts = files("queue/scripts", "lua");
        let mut code: BTreeSet<String> = scripts.iter().flat_map(|(_, text)| names(text)).collect();
        code.remove("XGROUP");
        code.remove("XINFO");
        code.extend(sent("doctor"));
        let missing: Vec<_> = code.difference(&allowed).collect();
        assert!(missing.is_empty(), "OF_OPERATORS lacks {missing:?}");
    }

    #[test]
    fn keys_beside_a_list_have_their_patterns() {
        let text = "[queues.c]\nlist = { key = \"celery\", items = \"celery\" }\n[queues.s]\n\
                    list = { key = \"queue:s\", items = \"sidekiq\" }\n";
        let config = crate::config::Config::parse(text, Path::new("/srv/tqhost.toml"), &|_| None);
        let queues = config.expect("a configuration").queues;
        let all = host_keys(&queues);
        for key in ["~celery", "~celery\u{6}\u{16}9", "~queue:s", "~schedule", "~retry"] {
            assert!(all.contains(key), "{key}: {all:?}");
        }
        let pushes = producer(&queues, false).commands;
        assert!(pushes.contains(&"(~celery??3 +lpush)".to_owned()), "{pushes:?}");
        assert!(reader_keys(&queues).contains("%R~celery\u{6}\u{16}6"));
    }

    #[test]
    fn patterns_match_their_keys_and_no_others() {
        assert_eq!(pattern_of_records("a[1]:*:b"), "a\\[1\\]:*:b");
        assert_eq!(without_spaces("~a b".into()), "~a?b");
        let patterns = ["~a", "~a:*", "~a:b", "~a:c:*", "~b*c*", "%R~a:b"].map(str::to_owned);
        assert_eq!(without_covered(&patterns.into()), ["%R~a:b", "~a", "~a:*", "~b*c*"]);
    }
}
