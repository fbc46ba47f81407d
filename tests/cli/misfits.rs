//! Redis does not fit the configuration: a key has another type, the server speaks no TLS. Each command names
//! the queue and the way out.

use std::collections::BTreeSet;

use crate::support::Bench;

#[test]
fn a_key_of_another_type_is_told_with_its_queue_and_the_way_out() {
    let mut bench = Bench::new("[queues.wt]\n[queues.work]\n");
    let _: String = bench.redis("SET", ("wt", "x"));
    let file = bench.dir.path().join("wt.jsonl");
    let path = file.to_str().expect("a path");
    let commands: [&[&str]; 11] = [
        &["queues"],
        &["queues", "wt"],
        &["tasks", "wt"],
        &["status", "wt", "1-0"],
        &["dead", "list", "wt"],
        &["cancel", "wt", "1-0"],
        &["cancel", "wt", "1-0", "2-0"],
        &["cancel", "wt", "--all", "--yes"],
        &["drain", "wt", "--yes"],
        &["drain", "wt", "--yes", "--out", path],
        &["enqueue", "wt", "a=1"],
    ];
    // Nothing internal is in them, as TQTYPE, and none says that the command is to be run again.
    let told: BTreeSet<String> =
        commands.iter().map(|command| bench.tqhost(command).ends_with(1).stderr).collect();
    insta::assert_snapshot!(Vec::from_iter(told).concat(), @"
    tqhost: 0 of 2 ids gone through, in their order: wt holds a string, not a stream: `tqhost adopt wt` \
        says what can be done
    tqhost: a key of the queue wt has another type: `tqhost adopt wt` says which one and what can be \
        done, and `tqhost doctor wt` if it is the key of a task
    tqhost: wt holds a string, not a stream: `tqhost adopt wt` says what can be done
    ");
    assert!(!file.exists(), "a command that failed leaves no empty file behind");
    insta::assert_snapshot!(
        bench.tqhost(&["enqueue", "wt", "a=1", "--json"]).stderr,
        @r#"{"error":"wt holds a string, not a stream: `tqhost adopt wt` says what can be done"}"#
    );
    let found = bench.tqhost(&["adopt", "wt", "--json"]).ok().json();
    assert_eq!(found["found"][0]["kind"], "wrong-type", "{found}");
}

#[test]
fn a_server_without_tls_is_told_as_one() {
    let bench = Bench::new("[queues.work]\n");
    bench.configure_url("[queues.work]\n", &format!("rediss://127.0.0.1:{}", bench.redis.port));
    let told = bench.tqhost(&["queues"]).ends_with(1).stderr;
    // How the attempt ends depends on the server.
    insta::assert_snapshot!(
        told.split(": connect: ").next().unwrap_or_default(),
        @"tqhost: the server may not speak TLS, which rediss:// in redis.url asks for"
    );
}
