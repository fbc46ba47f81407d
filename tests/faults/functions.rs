//! The library of functions as which hosts call their scripts: it is loaded, kept and replaced, and hosts
//! work without it.
//!
//! Not here: rights that are missing for scripts themselves (`rights`), scripts that Redis forgot under load
//! (`hosts`).

use crate::support::{Bench, Host, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"echo\"\n";

fn bench() -> Bench {
    let bench = Bench::new(QUEUES);
    bench.install("echo", "echo");
    bench
}

fn run_a_task(bench: &mut Bench) {
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
}

/// The names and the code of the libraries in Redis.
fn libraries(bench: &mut Bench) -> Vec<(String, String)> {
    let list: Vec<Vec<redis::Value>> = bench.redis("FUNCTION", ("LIST", "WITHCODE"));
    let text = |value: &redis::Value| redis::from_redis_value::<String>(value.clone()).unwrap_or_default();
    let of = |library: &[redis::Value], name: &str| {
        let at = library.iter().position(|value| text(value) == name).expect("a part of a library");
        text(&library[at + 1])
    };
    list.iter().map(|library| (of(library, "library_name"), of(library, "library_code"))).collect()
}

/// How often a command was called.
fn calls(bench: &mut Bench, command: &str) -> u64 {
    let stats: String = bench.redis("INFO", "commandstats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn hosts_call_functions_and_load_them_again_when_they_are_gone() {
    let mut bench = bench();
    let _: String = bench
        .redis("FUNCTION", ("LOAD", "#!lua name=tqhost_0\nredis.register_function('old', function() end)"));
    let _: String = bench
        .redis("FUNCTION", ("LOAD", "#!lua name=other\nredis.register_function('mine', function() end)"));
    let host = bench.host();
    run_a_task(&mut bench);
    let mut names: Vec<String> = libraries(&mut bench).into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names.len(), 2, "the library of another version is deleted: {names:?}");
    assert!(names[0] == "other" && names[1].starts_with("tqhost_"), "{names:?}");
    assert_eq!(calls(&mut bench, "evalsha"), 0);
    assert!(calls(&mut bench, "fcall") > 0);
    // Another version's host has started, and has deleted this one's.
    let _: () = bench.redis("FUNCTION", ("DELETE", &names[1]));
    run_a_task(&mut bench);
    eventually("it is there again", || (libraries(&mut bench).len() == 2).then_some(()));
    host.stop();
    assert_eq!(calls(&mut bench, "evalsha"), 0);
}

#[test]
fn calls_that_miss_the_library_at_once_load_it_once() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"echo\"\nidempotency = { field = \"n\" }\nconcurrency = 100\n");
    bench.install("echo", "echo");
    let host = bench.host();
    for n in 0..3000 {
        bench.xadd("work", &[("n", &n.to_string())]);
        if n % 1000 == 500 {
            let _: () = bench.redis("FUNCTION", ("FLUSH", "SYNC"));
        }
    }
    bench.until_drained("work");
    host.stop();
    let loads = calls(&mut bench, "function|load");
    assert!((2..=4).contains(&loads), "the start and three times, at most: {loads}");
}

#[test]
fn a_host_replaces_a_forged_library_at_its_start() {
    let mut bench = bench();
    bench.host().stop();
    let [(name, code)] = &libraries(&mut bench)[..] else { panic!("one library") };
    let settle = code.split("function_name = '").find(|rest| rest.starts_with("settle_"));
    let settle = settle.and_then(|rest| rest.split('\'').next()).expect("a function");
    let forged =
        format!("#!lua name={name}\nredis.register_function('{settle}', function() return {{}} end)");
    let _: String = bench.redis("FUNCTION", ("LOAD", "REPLACE", &forged));
    let host = bench.host();
    run_a_task(&mut bench);
    assert_eq!(libraries(&mut bench), [(name.clone(), code.clone())]);
    host.stop();
}

/// A host works as this user, and sends scripts.
#[track_caller]
fn assert_works_with_scripts(bench: &mut Bench, rules: &[&str]) -> Host {
    let _: () = bench.redis("ACL", [&["SETUSER", "host", "on", ">p", "~*", "+@all"][..], rules].concat());
    bench.configure_url(QUEUES, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    run_a_task(bench);
    host.log("Redis takes no library of functions");
    assert!(calls(bench, "evalsha") > 0);
    host
}

#[test]
fn a_host_without_rights_to_functions_sends_scripts() {
    let mut bench = bench();
    assert_works_with_scripts(&mut bench, &["-function|load"]).stop();
    assert_eq!(calls(&mut bench, "fcall"), 0);
    assert_works_with_scripts(&mut bench, &["-fcall", "-fcall_ro"]).stop();
    // It loses the right while it works.
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+@all"));
    let host = bench.host();
    run_a_task(&mut bench);
    assert!(host.logged("Redis takes no library of functions").is_empty());
    let _: () = bench.redis("ACL", ("SETUSER", "host", "-fcall", "-fcall_ro"));
    run_a_task(&mut bench);
    host.log("Redis takes no library of functions");
    host.stop();
}

#[test]
fn a_host_that_starts_on_a_full_redis_sends_scripts() {
    let mut bench = bench();
    let id = bench.xadd("work", &[("n", "1")]);
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    let host = bench.host();
    bench.until("work", &id, "COMPLETED");
    host.log("Redis takes no library of functions");
    host.stop();
}
