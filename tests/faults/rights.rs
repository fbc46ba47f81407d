//! Rights that the user of Redis lacks: a host names them, and takes no task before it has them.
//!
//! Not here: rights that are taken away from a host that works (`redis`).

use crate::support::bench::tqhost;
use crate::support::redis_server::denies;
use crate::support::{Bench, Host, Places, eventually};

const QUEUES: &str =
    "[queues.work]\nplugin = \"echo\"\nlist = \"items\"\n[queues.other]\nplugin = \"echo\"\n";

/// A bench whose hosts use a user with this rule.
fn bench(rule: &[&str]) -> Bench {
    let mut bench = Bench::new(QUEUES);
    bench.install("echo", "echo");
    let _: () = bench.redis("ACL", [&["SETUSER", "host", "on", ">p"][..], rule].concat());
    bench.configure_url(QUEUES, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    bench
}

#[test]
fn rights_that_a_commit_needs_are_named_before_a_task_is_taken() {
    // HINCRBY counts a child of a flow, after the child was acknowledged.
    let mut bench = bench(&["~*", "&*", "+@all", "-hincrby", "-xgroup|setid", "-xdel"]);
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    let _: u64 = bench.redis("LPUSH", ("items", "2"));
    let line = host.log("no task is taken");
    let why = line["why"].as_str().unwrap_or_default();
    assert!(why.contains("XDEL, XGROUP|SETID, HINCRBY."), "{line}");
    host.until_unready("HINCRBY");
    assert_eq!(bench.places("work"), Places { length: 1, ..Places::default() });
    assert_eq!(bench.redis::<u64>("LLEN", "items"), 1);
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+hincrby", "+xdel"));
    eventually("only one is missing", || {
        let lines = host.logged("no task is taken");
        lines.iter().any(|line| line["why"].to_string().contains("needs: XGROUP|SETID.")).then_some(())
    });
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+xgroup|setid"));
    bench.until("work", &id, "COMPLETED");
    eventually("the list is empty", || (bench.redis::<u64>("LLEN", "items") == 0).then_some(()));
    bench.until_drained("work");
    host.until_ready();
    host.stop();
}

#[test]
fn keys_that_a_host_needs_are_named_before_a_task_is_taken() {
    let mut bench =
        bench(&["+@all", "~work", "~other", "~tq:{other}:*", "~tq:hosts*", "~tq:host:*", "~tq:{work}:d*"]);
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    let line = host.log("no task is taken");
    let why = line["why"].as_str().unwrap_or_default();
    insta::assert_snapshot!(why, @"
    the user of [redis] may not read and write these keys, which tqhost needs: items, tq:{work}:adopted, \
    tq:{work}:alias:*, tq:{work}:attempts:*, tq:{work}:events, tq:{work}:flow:*, tq:{work}:history, \
    tq:{work}:hold, tq:{work}:kept:*, tq:{work}:key:* and 11 more. Allow them with ACL SETUSER; `tqhost \
    check --acl` prints the whole rule
    ");
    assert_eq!(bench.places("work"), Places { length: 1, ..Places::default() });
    let _: () = bench.redis("ACL", ("SETUSER", "host", "~items", "~tq:{work}:*"));
    bench.until("work", &id, "COMPLETED");
    host.stop();
}

#[test]
fn commands_that_a_host_sends_itself_are_named_as_well() {
    let bench = bench(&["~*", "+@all", "-getdel", "-memory|usage", "-blmove", "-xread", "-scan"]);
    let host = bench.host();
    let line = host.log("no task is taken");
    let why = line["why"].as_str().unwrap_or_default();
    assert!(why.contains("needs: BLMOVE, GETDEL, MEMORY|USAGE, SCAN, XREAD."), "{line}");
    host.stop();
    let mut bench = bench;
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+@all", "-evalsha", "-fcall"));
    let host = bench.host();
    let line = host.log("no task is taken");
    let (what, denied) = line["why"].as_str().and_then(|why| why.split_once(": ")).expect("a reason");
    assert!(denies(denied), "{line}");
    insta::assert_snapshot!(what, @"the user of [redis] may not call scripts, which tqhost needs");
    host.stop();
}

#[test]
fn a_child_ends_where_its_host_may_not_touch_its_flow_and_the_doctor_counts_it() {
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
         [queues.part]\nplugin = \"missing\"\n[queues.join]\nplugin = \"effects\"\n";
    let mut bench = Bench::new(queues);
    bench.install("effects", "effects");
    let first = bench.host();
    // The second host has only the queue of the children, and the rights to it.
    let url = format!("redis://host:p@127.0.0.1:{}", bench.redis.port);
    let own = format!(
        "[queues.part]\nplugin = \"effects\"\nretention = \"0s\"\nlease = \"1s\"\n\
         [redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let file = bench.dir.path().join("part.toml");
    std::fs::write(&file, own).expect("write");
    let printed = tqhost(&file, &["check", "--acl", "--json"]).ok().json();
    let rules = printed.as_array().expect("a list").iter().find(|view| view["role"] == "host");
    let rule = rules.and_then(|view| view["rule"].as_array()).expect("the rule of a host");
    let words = rule.iter().map(|word| word.as_str().expect("a word"));
    let _: () =
        bench.redis("ACL", ["SETUSER", "host"].into_iter().chain(words).chain([">p"]).collect::<Vec<_>>());
    let second = Host::start(&file, "info,tqhost=debug");

    let calls = "[[\"fan-out\", [{ \"queue\": \"part\", \"fields\": { \"do\": [[\"fence\"]] } }], \
         { \"queue\": \"join\", \"fields\": { \"do\": [[\"results\"]] } }]]";
    let id = bench.xadd("work", &[("do", calls)]);
    bench.until("work", &id, "COMPLETED");
    let line = second.log("its flow or the next task of its key was not told");
    assert_eq!((&line["level"], &line["queue"]), (&"ERROR".into(), &"part".into()));
    bench.until_drained("part");
    bench.xadd("part", &[("do", "[[\"set\",\"k\",\"1\",0]]")]);
    eventually("the next task has run", || {
        bench.redis::<Option<String>>("GET", "tq:{part}:state:effects:k").filter(|value| value == "1")
    });
    let child = line["task"].as_str().expect("the child's id").to_owned();
    assert_eq!(bench.status("part", &child, "status"), "COMPLETED", "the doctor needs it");
    assert_ne!(bench.status("part", &child, "unfinished"), "");
    let shown = bench.tqhost(&["status", "part", &child]).ok().stdout;
    assert!(shown.contains("unfinished"), "{shown}");

    let found = bench.tqhost(&["doctor", "join", "--fix", "--json"]).ok().json();
    assert_eq!(found["findings"][0]["kind"], "uncounted-child", "{found:#}");
    let joined: Vec<String> = bench.redis("KEYS", "tq:{join}:task:*");
    let joined = joined[0]["tq:{join}:task:".len()..].to_owned();
    bench.until("join", &joined, "COMPLETED");
    assert_eq!(bench.status("join", &joined, "result"), "[[[\"part\",\"[1]\"]]]");
    assert_eq!(bench.status("part", &child, "unfinished"), "");
    Host::stop_all([first, second]);
}

#[test]
fn a_child_ends_where_its_host_may_not_touch_the_stream_of_the_task_that_joins() {
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
         [queues.part]\nplugin = \"effects\"\nlease = \"1s\"\n[queues.join]\nplugin = \"missing\"\n";
    let mut bench = Bench::new(queues);
    bench.install("effects", "effects");
    let rule = ["on", ">p", "~tq:*", "~work", "~part", "&*", "+@all"];
    let _: () = bench.redis("ACL", ["SETUSER", "host"].into_iter().chain(rule).collect::<Vec<_>>());
    let calls = "[[\"fan-out\", [{ \"queue\": \"part\", \"fields\": { \"do\": [[\"sleep\", 3000]] } }], \
         { \"queue\": \"join\", \"fields\": { \"do\": [] } }]]";
    let first = bench.host();
    let id = bench.xadd("work", &[("do", calls)]);
    bench.until("work", &id, "COMPLETED");
    bench.until_pending("part", 1);
    first.kill();
    bench.configure_url(queues, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    let second = bench.host_that_may_fail();
    let line = second.log("its flow or the next task of its key was not told");
    assert_eq!((&line["level"], &line["queue"]), (&"ERROR".into(), &"part".into()));
    bench.until_drained("part");
    second.stop();
}

#[test]
fn a_task_ends_for_those_who_are_told_although_the_turns_of_its_queue_were_overwritten() {
    let queues = "[queues.work]\nplugin = \"effects\"\nserial = { field = \"of\" }\non_end = \"told\"\n\
         lease = \"1s\"\n[queues.told]\nplugin = \"missing\"\n";
    let mut bench = Bench::new(queues);
    bench.install("effects", "effects");
    let host = bench.host();
    let id = bench.xadd("work", &[("do", "[[\"sleep\",1500]]"), ("of", "a")]);
    bench.until_running("work", 1);
    let _: u64 = bench.redis("DEL", "tq:{work}:owners");
    let _: () = bench.redis("SET", ("tq:{work}:owners", "somebody else's"));
    bench.until("work", &id, "COMPLETED");
    let line = host.log("its flow or the next task of its key was not told");
    assert_eq!(line["task"], id.as_str());
    assert!(bench.status("work", &id, "unfinished").contains("WRONGTYPE"));
    bench.until_drained("work");
    assert_eq!(bench.places("told").length, 1);
    host.until_ended_as("work", "completed", 1);
    host.stop();
}
