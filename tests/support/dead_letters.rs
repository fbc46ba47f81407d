//! Dead letters of the queue `work`.

use std::ops::Range;

use super::{Bench, Host};

/// A host that rejects every task, and three dead letters, in their order: two have the alias 7, one has 8.
pub fn dead_with_aliases() -> (Bench, Host, [String; 3]) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"rejects\"\nid = { field = \"resumeId\" }\n");
    bench.install("rejects", "rejects");
    let host = bench.host();
    let dead = ["7", "7", "8"].map(|resume| {
        let id = bench.xadd("work", &[("resumeId", resume)]);
        bench.until("work", &id, "FAILED");
        id
    });
    (bench, host, dead)
}

/// Adds dead letters as hosts write them, of four causes: one for each number, a minute apart.
pub fn add_dead(bench: &mut Bench, numbers: Range<usize>) {
    let mut pipe = redis::pipe();
    for n in numbers {
        let (reason, error) = match n % 4 {
            0 => ("rejected", format!("no such page {n}")),
            1 => ("retries-exhausted", format!("timeout: {n} ms")),
            2 => ("rejected", "too large".to_owned()),
            _ => ("crashed", format!("trap {n}")),
        };
        let version = if n % 2 == 0 { "echo@aaaa" } else { "echo@bbbb" };
        let fields = [
            ("n", n.to_string()),
            ("tq-id", format!("id-{n}")),
            ("tq-queue", "work".into()),
            ("tq-reason", reason.into()),
            ("tq-error", error),
            ("tq-attempts", "1".into()),
            ("tq-enqueued-at", "1700000000000".into()),
            ("tq-failed-at", (1_700_000_000_000 + n * 60_000).to_string()),
            ("tq-consumer", "box-1".into()),
            ("tq-plugin", version.into()),
        ];
        pipe.cmd("XADD").arg("tq:{work}:dead").arg("*").arg(&fields).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add dead letters");
}
