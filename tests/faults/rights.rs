//! Rights that the user of Redis lacks: a host names them, and takes no task before it has them.
//!
//! Not here: rights that are taken away from a host that works (`redis`).

use crate::support::{Bench, Places, eventually};

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
    bench.until_drained("work");
    assert_eq!(bench.redis::<u64>("LLEN", "items"), 0);
    host.until_ready();
    host.stop();
}

#[test]
fn the_rule_of_the_page_on_operations_is_enough() {
    let page = include_str!("../../docs/operations.md");
    let rule = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER tqhost on >SECRET "));
    let mut rule: Vec<&str> = rule.expect("the rule").split(' ').collect();
    rule.extend(["~items", "~other"]);
    let mut bench = bench(&rule);
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    let _: u64 = bench.redis("LPUSH", ("items", "2"));
    bench.until("work", &id, "COMPLETED");
    bench.until_drained("work");
    bench.tqhost(&["enqueue", "other", "n=1", "--delay", "1s", "--wait"]).ok();
    assert!(host.logged("no task is taken").is_empty());
    host.stop();
}
