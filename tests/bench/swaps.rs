//! Sections `swaps` and `thousand`: replacements of plugins.
//!
//! Out: for 200 versions under load, what became of every task; for 1,000 versions, what the host uses after
//! each hundred. Both fail when something is lost or grows. Not here: the ways to replace a file
//! (`support::swaps`).

use std::fs;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::support::files::{guest, loaded, marked, put, said};
use crate::support::process::Uses;
use crate::support::{Bench, Host, eventually, swaps};
use crate::{amount, quiet_host};

/// Versions under load.
static SWAPS: LazyLock<usize> = LazyLock::new(|| amount(200, 10));
/// Versions after which the host may use no more than before.
static THOUSAND: LazyLock<u32> = LazyLock::new(|| amount(1000, 10));
const PLUGINS: [&str; 4] = ["a", "b", "c", "d"];
/// After this many versions, the pool of instances has reached the memory that it keeps.
const WARM_UP: u32 = 200;

/// Replaces a plugin in every way, about ten times each, with two hosts at work.
pub fn under_load() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as u64;
    let swaps = *SWAPS;
    println!(
        "{swaps} swaps of one plugin in every way, two hosts, 20 attempts at once in each, \
         a task every 2 ms (seed {seed})"
    );
    let begin = Instant::now();
    let verdict = swaps::run(seed, swaps);
    println!("{verdict}\n  in {:.0} s", begin.elapsed().as_secs_f64());
    assert!(verdict.is_good(), "something was lost, died or was charged");
}

/// Replaces four plugins in turn. One version in ten fails its self-check, one in ten is rolled back.
pub fn thousand() {
    let swaps = *THOUSAND;
    println!(
        "{swaps} swaps of four plugins; what the host uses when it has nothing to do, \
         and the folder of compiled code"
    );
    let queues: String = PLUGINS.iter().map(|name| format!("[queues.{name}]\nmax_retries = 0\n")).collect();
    let mut bench = Bench::new(&queues);
    let guests = ["echo", "echo-v2", "as-told"].map(guest);
    let [unfit, bad] = ["checks-itself", "checks-then-traps"].map(guest);
    PLUGINS.iter().for_each(|name| put(&bench, name, &guests[0]));
    let host = quiet_host(&bench);
    println!("  {:>5}: {}", 0, Uses::of(host.pid()));
    let (begin, mut early) = (Instant::now(), None);
    for mark in 1..=swaps {
        let name = PLUGINS[mark as usize % PLUGINS.len()];
        match mark % 10 {
            5 => {
                let bytes = marked(&unfit, mark);
                put(&bench, name, &bytes);
                said(&host, "plugin cannot be used", &bytes);
            }
            8 => {
                let bytes = marked(&bad, mark);
                put(&bench, name, &bytes);
                loaded(&host, &bytes);
                add(&mut bench, name, 20);
                said(&host, "plugin version rolled back", &bytes);
            }
            kind => {
                let bytes = marked(&guests[kind as usize % guests.len()], mark);
                put(&bench, name, &bytes);
                loaded(&host, &bytes);
                add(&mut bench, name, 20);
                said(&host, "plugin version confirmed", &bytes);
            }
        }
        if !mark.is_multiple_of(swaps / 10) {
            continue;
        }
        let now = at_rest(&mut bench, &host);
        let (files, bytes) = cache(&bench);
        println!("  {mark:>5}: {now}; {files} files of {:.1} MiB", bytes as f64 / f64::from(1 << 20));
        if mark == WARM_UP {
            early = Some(now);
        }
        if mark == swaps
            && let Some(early) = &early
        {
            judge(early, &now);
        }
    }
    println!("  {:.2} s for each", begin.elapsed().as_secs_f64() / f64::from(swaps));
    for name in PLUGINS {
        assert_eq!(bench.places(name).dead, 0, "every task was completed");
    }
    host.stop();
}

/// Asserts that the host's use has not grown since the warm-up. The number of blocking threads varies, and
/// the allocator's memory too. A connection may be open for a moment more.
fn judge(early: &Uses, late: &Uses) {
    assert!(late.files <= early.files + 4, "open files grow");
    assert!(late.threads <= early.threads + 4, "threads grow");
    assert!(late.mappings * 10 <= early.mappings * 11, "mappings grow");
    assert!(late.resident_kib * 10 <= early.resident_kib * 11, "memory grows");
    println!("  flat from {WARM_UP} on: files and threads within 4, mappings and memory within a tenth");
}

fn add(bench: &mut Bench, queue: &str, tasks: usize) {
    let mut pipe = redis::pipe();
    for _ in 0..tasks {
        pipe.cmd("XADD")
            .arg(queue)
            .arg("*")
            .arg("data")
            .arg(r#"{"n": "a", "ms": 1, "retries": 0, "end": "ok"}"#)
            .ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
}

fn at_rest(bench: &mut Bench, host: &Host) -> Uses {
    PLUGINS.iter().for_each(|queue| bench.until_drained(queue));
    let mut before = Uses::of(host.pid()).files;
    eventually("files are closed", || {
        let now = Uses::of(host.pid());
        (std::mem::replace(&mut before, now.files) == now.files).then_some(now)
    })
}

/// How many files are in the cache of compiled code, and their bytes.
pub fn cache(bench: &Bench) -> (usize, u64) {
    let files = fs::read_dir(bench.dir.path().join(".tqhost/cache")).expect("the cache");
    files.fold((0, 0), |(count, bytes), file| {
        (count + 1, bytes + file.and_then(|file| file.metadata()).map_or(0, |meta| meta.len()))
    })
}
