//! Fields that completed tasks keep (`keep_fields`): which, for how long, how large, and who is shown what.
//!
//! Not here: the form for a copy (`dashboard`).

use serde_json::{Value, json};

use crate::support::{Bench, Host};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n";

/// A queue whose completed tasks keep their fields, one whose tasks do not, and one that keeps no statuses.
fn bench() -> (Bench, Host) {
    let bench = Bench::new("");
    let redis = bench.redis.url();
    bench.configure(&format!(
        "[defaults]\nplugin = \"echo\"\nkeep_fields = true\nfailed_attempts = 1\n[queues.work]\n\
         [queues.plain]\nkeep_fields = false\n[queues.nothing]\nretention = \"0s\"\n\
         [queues.bad]\nplugin = \"rejects\"\n[redis]\nurl = \"{redis}\"\n{ADMIN}"
    ));
    bench.install("echo", "echo");
    bench.install("rejects", "rejects");
    let host = bench.host();
    (bench, host)
}

fn task(host: &Host, queue: &str, id: &str) -> Value {
    host.get(&format!("/v1/queues/{queue}/tasks/{id}")).json()
}

#[test]
fn a_completed_task_keeps_its_fields_where_its_queue_says_so() {
    let (mut bench, host) = bench();
    let fields = [("text", "ü\n7"), ("email", "ada@example.com")];
    let [kept, plain, nothing, dead] =
        ["work", "plain", "nothing", "bad"].map(|queue| bench.xadd(queue, &fields));
    // Bytes that are no text, and a name that occurs twice.
    let odd: String = bench.redis("XADD", ("work", "*", "a", b"\xff\x00", "a", "2"));
    bench.until("work", &kept, "COMPLETED");
    bench.until("work", &odd, "COMPLETED");
    bench.until("plain", &plain, "COMPLETED");
    bench.until("bad", &dead, "FAILED");
    bench.until_drained("nothing");

    let view = task(&host, "work", &kept);
    let shown = json!([{ "name": "text", "value": "ü\n7" }, { "name": "email", "value": "[masked]" }]);
    assert_eq!((&view["fields"], &view["fields_bytes"]), (&shown, &Value::Null), "{view}");
    let bytes = json!([{ "name": "a", "value": { "base64": "/wA=" } }, { "name": "a", "value": "2" }]);
    assert_eq!(task(&host, "work", &odd)["fields"], bytes);
    assert_eq!(task(&host, "plain", &plain)["fields"], Value::Null);
    assert_eq!(task(&host, "bad", &dead)["fields"], Value::Null, "those of a dead letter are in it");
    assert_eq!(bench.redis::<u64>("EXISTS", format!("tq:{{nothing}}:task:{nothing}")), 0);
    assert_eq!(bench.redis::<u64>("HEXISTS", (format!("tq:{{plain}}:task:{plain}"), "fields")), 0);
    // They go with the status.
    let lives: i64 = bench.redis("PTTL", format!("tq:{{work}}:task:{kept}"));
    assert!((1..=86_400_000).contains(&lives), "{lives}");

    let ran = bench.tqhost(&["status", "work", &kept, "--json"]).ok().json();
    assert_eq!(ran["fields"], shown);
    let sheet = bench.tqhost(&["status", "work", &kept]).ok().stdout;
    // They stand below the rest.
    insta::assert_snapshot!(sheet.split_once("\n\n").map_or("", |(_, fields)| fields), @"
    its fields
    text=ü
    7
    email=[masked]
    ");
    let sheet = bench.tqhost(&["status", "plain", &plain]).ok().stdout;
    assert!(!sheet.contains("email="), "{sheet}");
    host.stop();
}

#[test]
fn fields_that_are_too_large_are_not_kept_and_the_task_says_so() {
    let (mut bench, host) = bench();
    let most = "x".repeat((16 << 10) - 1);
    let fits = bench.xadd("work", &[("a", &most)]);
    let large = bench.xadd("work", &[("ab", &most)]);
    for id in [&fits, &large] {
        bench.until("work", id, "COMPLETED");
    }
    assert_eq!(task(&host, "work", &fits)["fields"][0]["value"], json!(most));
    let view = task(&host, "work", &large);
    assert_eq!((&view["fields"], &view["fields_bytes"]), (&Value::Null, &json!((16 << 10) + 1)), "{view}");
    assert_eq!(bench.redis::<u64>("HEXISTS", (format!("tq:{{work}}:task:{large}"), "fields")), 0);
    let sheet = bench.tqhost(&["status", "work", &large]).ok().stdout;
    insta::assert_snapshot!(
        sheet.lines().last().unwrap_or_default(),
        @"its fields are not kept: they have 16385 bytes, more than 16384"
    );
    host.stop();
}

#[test]
fn a_task_that_is_told_to_another_queue_or_comes_back_keeps_its_fields_too() {
    let mut bench = Bench::new(
        "[defaults]\nkeep_fields = true\nbackoff = \"none\"\n[queues.work]\nplugin = \"as-told\"\n\
         on_end = \"ends\"\n[queues.ends]\nplugin = \"missing\"\n",
    );
    bench.install("as-told", "as-told");
    let host = bench.host();
    let data = json!({ "n": "1", "ms": 0, "retries": 2, "end": "ok" }).to_string();
    let id = bench.xadd("work", &[("data", &data)]);
    bench.until("work", &id, "COMPLETED");
    let view = task(&host, "work", &id);
    assert_eq!((&view["attempt"], &view["fields"][0]["value"]), (&json!(3), &json!(data)), "{view}");
    let told: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("ends", "-", "+"));
    assert!(told[0].1.contains(&data), "{told:?}");
    host.stop();
}
