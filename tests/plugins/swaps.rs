//! Many versions and many plugins: which data must not be lost, and which resources must not grow. The long
//! forms are in the bench.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::files::{guest, label, loaded, marked, put, said};
use crate::support::process::Uses;
use crate::support::swaps;
use crate::support::{Bench, Host, Places, eventually};

#[test]
fn proof_forty_swaps_in_every_way_under_load_lose_and_kill_nothing() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as u64;
    println!("seed {seed}");
    let verdict = swaps::run(seed, 40);
    println!("{verdict}");
    assert!(verdict.is_good(), "seed {seed}\n{verdict}");
    // Each kind of bad version was met.
    assert!(verdict.rolled_back > 0 && verdict.refused > 0 && verdict.versions > 5, "seed {seed}\n{verdict}");
    assert!(verdict.given_back >= 6 * verdict.rolled_back, "seed {seed}\n{verdict}");
}

/// Enqueues a task in each of these queues, all at once, and waits until all are completed.
fn one_each(bench: &mut Bench, queues: &[String]) -> Vec<String> {
    let mut pipe = redis::pipe();
    for queue in queues {
        pipe.cmd("XADD").arg(queue).arg("*").arg("a").arg(1);
    }
    let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
    for (queue, id) in queues.iter().zip(&ids) {
        bench.until(queue, id, "COMPLETED");
    }
    ids
}

/// The resources of a host that has nothing to do.
fn at_rest(bench: &mut Bench, host: &Host, queue: &str) -> Uses {
    bench.until_drained(queue);
    // Connections of earlier requests close in a moment.
    let mut before = Uses::of(host.pid()).files;
    eventually("files are closed", || {
        let now = Uses::of(host.pid());
        (std::mem::replace(&mut before, now.files) == now.files).then_some(now)
    })
}

#[test]
fn proof_sixty_swaps_leave_the_host_as_it_was() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nconcurrency = 2\nmax_retries = 0\n");
    put(&bench, "p", &guest("echo"));
    let host = bench.host();
    let queue = ["work".to_owned()];
    let mut early = None;
    for mark in 1..=60 {
        match mark % 6 {
            // Three versions are bad: by their self-check, by their tasks, and at first sight.
            2 => {
                let bytes = marked(&guest("checks-itself"), mark);
                put(&bench, "p", &bytes);
                said(&host, "plugin cannot be used", &bytes);
            }
            4 => {
                let bytes = marked(&guest("checks-then-traps"), mark);
                put(&bench, "p", &bytes);
                loaded(&host, &bytes);
                for _ in 0..6 {
                    bench.xadd("work", &[("a", "1")]);
                }
                said(&host, "plugin version rolled back", &bytes);
            }
            5 => {
                let bytes = marked(&guest("echo"), mark);
                put(&bench, "p", &bytes[..bytes.len() / 2]);
                said(&host, "plugin cannot be used", &bytes[..bytes.len() / 2]);
            }
            _ => {
                let bytes = marked(&guest(if mark % 2 == 0 { "echo" } else { "echo-v2" }), mark);
                put(&bench, "p", &bytes);
                loaded(&host, &bytes);
                // This is enough to find the version good and to release the one before.
                for _ in 0..5 {
                    one_each(&mut bench, &queue);
                }
                said(&host, "plugin version confirmed", &bytes);
            }
        }
        if mark == 12 || mark == 60 {
            let now = at_rest(&mut bench, &host, "work");
            println!("after {mark} swaps: {now}");
            let Some(before) = early.replace(now) else { continue };
            // A pipe of the last compiler, or a connection, may be open for a moment more. Each kind of swap
            // happens eight times or more in between, so what one leaves open shows all the same.
            assert!(
                now.files <= before.files + 4,
                "open files after 12 swaps, and after 60: {before}; {now}"
            );
            // The pool of blocking threads grows and shrinks.
            assert!(now.threads <= before.threads + 4, "threads: {before}; {now}");
            assert!(now.mappings <= before.mappings + 40, "mappings: {before}; {now}");
            assert!(now.resident_kib <= before.resident_kib * 5 / 4, "memory: {before}; {now}");
        }
    }
    assert_eq!(bench.places("work"), Places::default());
    host.stop();
}

/// The version of each active plugin in `tqhost plugins`.
fn active(bench: &Bench) -> BTreeMap<String, String> {
    let all = bench.tqhost(&["plugins", "--json"]).ok().json();
    let rows = all["plugins"].as_array().expect("a list").clone();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    rows.iter()
        .filter(|row| row["state"] == "active")
        .map(|row| (text(row, "name"), text(row, "version")))
        .collect()
}

#[test]
fn a_hundred_plugins_in_one_host_each_run_and_start_again_from_the_cache() {
    const COUNT: u32 = 100;
    let names: Vec<String> = (0..COUNT).map(|n| format!("q{n}")).collect();
    let queues: String = names.iter().map(|name| format!("[queues.{name}]\nconcurrency = 1\n")).collect();
    let mut bench = Bench::new(&queues);
    // Each file must be compiled, so it is the smallest guest.
    let empty = guest("empty");
    let mut files: Vec<Vec<u8>> = (0..COUNT).map(|n| marked(&empty, n)).collect();
    names.iter().zip(&files).for_each(|(name, bytes)| put(&bench, name, bytes));
    let all_work = |bench: &mut Bench, files: &[Vec<u8>]| {
        let ids = one_each(bench, &names);
        for ((name, id), bytes) in names.iter().zip(&ids).zip(files) {
            assert_eq!(bench.status(name, id, "plugin"), label(name, bytes), "{name}");
        }
    };

    let host = bench.host();
    host.until_ready();
    host.until_logged("plugin loaded", names.len());
    all_work(&mut bench, &files);
    eventually("all are shown", || (active(&bench).len() == names.len()).then_some(()));
    // The cache keeps a hundred files beside those in use. None of the other plugins' files may be deleted
    // for these.
    for mark in 0..10 {
        files[0] = marked(&empty, COUNT + mark);
        put(&bench, &names[0], &files[0]);
        loaded(&host, &files[0]);
    }
    host.stop();

    let host = bench.host();
    host.until_ready();
    let lines = host.until_logged("plugin loaded", names.len());
    assert!(lines.iter().all(|line| line["from_cache"] == true), "{lines:#?}");
    all_work(&mut bench, &files);
    host.stop();
    // Beside the code there is a small note for each plugin.
    let cache = fs::read_dir(bench.dir.path().join(".tqhost/cache")).expect("the cache");
    let is_code = |path: &std::path::Path| path.extension().is_some_and(|found| found == "cwasm");
    let kept = cache.filter(|entry| is_code(&entry.as_ref().expect("a file").path())).count();
    assert!((names.len()..=2 * names.len() + 1).contains(&kept), "{kept} files of code in the cache");
}
