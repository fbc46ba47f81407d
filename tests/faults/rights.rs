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
    assert!(why.contains("read and write these keys") && why.contains("items, tq:{work}:adopted"), "{line}");
    assert!(why.contains("and 8 more") && why.contains("check --acl") && !why.contains("delayed"), "{line}");
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
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+@all", "-evalsha"));
    let host = bench.host();
    let line = host.log("no task is taken");
    assert!(line["why"].to_string().contains("may not call scripts"), "{line}");
    host.stop();
}
