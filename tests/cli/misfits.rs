//! Redis does not fit the configuration: a key has another type, the server speaks no TLS. Each command names
//! the queue and the way out.

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
    for command in commands {
        let ran = bench.tqhost(command);
        assert!(ran.code == 1 && ran.stderr.contains("`tqhost adopt wt`"), "{command:?}: {ran:?}");
        for internal in ["TQTYPE", "WRONGTYPE", "run the command again"] {
            assert!(!ran.stderr.contains(internal), "{command:?}: {ran:?}");
        }
    }
    assert!(!file.exists(), "a command that failed leaves no empty file behind");
    let told = bench.tqhost(&["enqueue", "wt", "a=1", "--json"]).stderr;
    assert!(told.contains("wt holds a string, not a stream"), "{told}");
    let found = bench.tqhost(&["adopt", "wt"]).ok().stdout;
    assert!(found.contains("wt holds a string"), "{found}");
}

#[test]
fn a_server_without_tls_is_told_as_one() {
    let bench = Bench::new("[queues.work]\n");
    bench.configure_url("[queues.work]\n", &format!("rediss://127.0.0.1:{}", bench.redis.port));
    let ran = bench.tqhost(&["queues"]);
    assert!(ran.code == 1 && ran.stderr.contains("may not speak TLS"), "{ran:?}");
}
