//! Section `hundred`: the start of a host with a hundred plugins.
//!
//! Out: how long it takes until the host is ready and what it uses then, with an empty cache and with a full
//! one. Not here: starts with fewer plugins (`main`).

use crate::support::Bench;
use crate::support::files::{guest, marked, put};
use crate::support::process::Uses;
use crate::support::within;
use crate::swaps::cache;
use crate::{amount, quiet_host};
use std::time::{Duration, Instant};

/// The guests, and how many plugins are copies of each. Some are in languages that bring their own runtime.
const MIX: [(&str, u32); 5] =
    [("echo", 50), ("resume-analyze", 40), ("fetches", 2), ("report-csv", 5), ("in-python", 3)];

pub fn start() {
    let mix: Vec<(&str, u32)> =
        MIX[..amount(MIX.len(), 2)].iter().map(|(guest, count)| (*guest, amount(*count, 2))).collect();
    let all: u32 = mix.iter().map(|(_, count)| count).sum();
    let mixed: Vec<String> = mix.iter().map(|(guest, count)| format!("{count} × {guest}")).collect();
    println!("{all} plugins, each a version of its own: {}", mixed.join(", "));
    measure("all of Rust", &[("echo", all)]);
    measure("mixed", &mix);
}

fn measure(label: &str, mix: &[(&str, u32)]) {
    let names: Vec<(&str, String)> = mix
        .iter()
        .flat_map(|(guest, count)| (0..*count).map(move |n| (*guest, format!("{guest}-{n}"))))
        .collect();
    let queues: String =
        names.iter().map(|(_, name)| format!("[queues.{name}]\nconcurrency = 4\n")).collect();
    let bench = Bench::new(&queues);
    let mut files = 0;
    for (mark, (from, name)) in (0..).zip(&names) {
        let bytes = marked(&guest(from), mark);
        files += bytes.len();
        put(&bench, name, &bytes);
    }
    println!("  {label}: {:.1} MiB of files", files as f64 / f64::from(1 << 20));
    for from in ["cold: compiled", "from the cache", "from the cache"] {
        let begin = Instant::now();
        let host = quiet_host(&bench);
        within(Duration::from_secs(1200), "it is ready", || {
            (host.get("/readyz").status == 200).then_some(())
        });
        let took = begin.elapsed().as_secs_f64();
        assert_eq!(host.logged("plugin loaded").len(), names.len(), "all are active");
        let again = host.logged("plugin loaded").iter().filter(|line| line["from_cache"] == false).count();
        let (count, bytes) = cache(&bench);
        let code = bytes as f64 / f64::from(1 << 20);
        println!(
            "    {from}: {took:.2} s to ready, {again} compiled; {}; \
             {count} files of {code:.1} MiB in the cache",
            Uses::of(host.pid())
        );
        host.stop();
    }
}
