//! The history of a queue: what all hosts counted in each minute is kept, whatever becomes of the hosts.
//!
//! A host writes at the end of a minute, and when it stops. The tests stop hosts, or shift the clock of all
//! programs to a moment after the end of a minute. Not here: pages and charts (`dashboard`).

use serde_json::{Value, json};
use tqhost::testing::queue::script;

use crate::support::http::send;
use crate::support::proxy::Proxy;
use crate::support::{Bench, Clock, Host, RedisServer, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"as-told\"\nmax_retries = 3\nbackoff = \"none\"\n\
                      concurrency = 2\n[queues.idle]\nplugin = \"as-told\"\n";

/// Adds tasks that end in this way after so many retries.
fn add(bench: &mut Bench, tasks: usize, end: &str, retries: u32) {
    for n in 0..tasks {
        let data = json!({ "n": n.to_string(), "ms": 0, "retries": retries, "end": end });
        bench.xadd("work", &[("data", &data.to_string())]);
    }
}

fn history(host: &Host, queue: &str) -> Value {
    let answer = send(host.admin(), "GET", &format!("/v1/queues/{queue}/history?minutes=180"), &[], None);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// How many tasks were completed, by the minutes of the history.
fn completed(host: &Host) -> u64 {
    history(host, "work")["total"]["completed"].as_u64().expect("a count")
}

/// A Redis, and the clock of all programs.
fn bench_with_clock() -> (Bench, Clock) {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = Clock::new(dir.path());
    let redis = RedisServer::start_with_env(dir.path(), &[], clock.env());
    let bench = Bench::on(QUEUES, dir, redis);
    bench.install("as-told", "as-told");
    (bench, clock)
}

/// Redis's clock in seconds.
fn seconds(bench: &mut Bench) -> i64 {
    bench.redis::<(i64, i64)>("TIME", &[""; 0]).0
}

/// Shifts the clock to a moment after the end of the present minute, again and again until something holds: a
/// host that has just started may not have asked for the time yet. Gives the last minute that is over.
#[track_caller]
fn end_minutes_until<T>(
    bench: &mut Bench,
    (clock, shift): (&Clock, &mut i64),
    what: &str,
    mut holds: impl FnMut() -> Option<T>,
) -> (i64, T) {
    let mut minute = None;
    eventually(what, || {
        let now = seconds(bench);
        if minute.is_none_or(|minute| now > (minute + 1) * 60 + 5) {
            *shift += 60 - now % 60 + 1;
            clock.shift(*shift);
            eventually("Redis's clock is shifted", || (seconds(bench) / 60 > now / 60).then_some(()));
            minute = Some(now / 60);
        }
        Some((minute?, holds()?))
    })
}

#[test]
fn figures_add_up_to_what_ran_and_survive_a_restart_of_all_hosts() {
    let mut bench = Bench::new(QUEUES);
    bench.install("as-told", "as-told");
    let hosts = [bench.host(), bench.host()];
    add(&mut bench, 20, "ok", 0);
    add(&mut bench, 3, "ok", 2);
    add(&mut bench, 5, "reject", 0);
    bench.until_drained("work");
    Host::stop_all(hosts);

    let host = bench.host();
    let view = history(&host, "work");
    let total = &view["total"];
    assert_eq!(total["outcomes"], json!({ "completed": 23, "rejected": 5, "retried": 6 }));
    assert_eq!((&total["completed"], &total["failed"], &total["dead"]), (&json!(23), &json!(11), &json!(5)));
    assert_eq!(total["error_rate"], json!(0.3235));
    assert_eq!((&total["running"]["count"], &total["waiting"]["count"]), (&json!(34), &json!(34)));
    for times in [&total["running"], &total["waiting"]] {
        let [p50, p95, p99] = ["p50_ms", "p95_ms", "p99_ms"].map(|name| times[name].as_f64().expect("ms"));
        assert!(0.0 < p50 && p50 <= p95 && p95 <= p99 && p99 < 600_000.0, "{times}");
    }
    // The sums are those of the minutes, which follow each other without gaps.
    let minutes = view["minutes"].as_array().expect("minutes");
    assert_eq!(minutes.len(), 180);
    let sum: u64 = minutes.iter().map(|minute| minute["completed"].as_u64().expect("a count")).sum();
    assert_eq!(sum, 23);
    let times: Vec<u64> = minutes.iter().map(|minute| minute["from_ms"].as_u64().expect("a time")).collect();
    assert!(times.iter().all(|time| time.is_multiple_of(60_000)), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[1] == pair[0] + 60_000), "{times:?}");
    let [version] = &view["versions"].as_array().expect("versions")[..] else {
        panic!("one version: {view}")
    };
    let count = |name: &str| version[name].as_u64().expect("a count");
    assert!(version["version"].as_str().is_some_and(|name| name.starts_with("as-told@")), "{version}");
    assert_eq!(
        (count("attempts"), count("completed"), count("retried"), count("rejected"), count("trapped")),
        (34, 23, 6, 5, 0)
    );
    let idle = history(&host, "idle");
    assert_eq!((&idle["total"]["completed"], &idle["versions"]), (&json!(0), &json!([])));
    // Nothing stays for ever, and each hash has few fields. There are three of them, or twice as many.
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:minutes:*");
    assert!((3..=6).contains(&keys.len()), "{keys:?}");
    for key in keys {
        let (fields, expires): (u64, i64) = (bench.redis("HLEN", &key), bench.redis("PTTL", &key));
        assert!(fields < 20 && expires > 3_600_000, "{key}: {fields} fields, {expires} ms");
    }
    host.stop();
}

#[test]
fn a_minute_is_written_when_it_is_over_and_a_host_that_is_killed_loses_no_more_than_one() {
    let (mut bench, clock) = bench_with_clock();
    let mut shift = 0;
    let killed = bench.host_with_env(clock.env());
    killed.log("tqhost is running");
    add(&mut bench, 12, "ok", 0);
    add(&mut bench, 2, "reject", 0);
    bench.until_drained("work");
    killed.until_ended_as("work", "rejected", 2);
    killed.until_metric("tqhost_queue_tasks{queue=\"work\",state=\"dead\"}", 2);
    let (first, ()) = end_minutes_until(&mut bench, (&clock, &mut shift), "it is written", || {
        (completed(&killed) == 12).then_some(())
    });
    // The host with the duties also tells how full the queue was.
    eventually("the depth is written", || {
        let view = history(&killed, "work");
        let last = view["minutes"].as_array().and_then(|all| all.last()).expect("a minute");
        (last["depth"]["dead"] == 2).then_some(())
    });
    add(&mut bench, 5, "ok", 0);
    bench.until_drained("work");
    killed.kill();

    let other = bench.host_with_env(clock.env());
    other.log("tqhost is running");
    add(&mut bench, 7, "ok", 0);
    bench.until_drained("work");
    other.until_ended_as("work", "completed", 7);
    // The five tasks of the minute in which the host was killed are lost, or were written at its end.
    let (_, counted) = end_minutes_until(&mut bench, (&clock, &mut shift), "the other has written", || {
        let counted = completed(&other);
        (counted > 17).then_some(counted)
    });
    assert!([19, 24].contains(&counted), "{counted}");
    let view = history(&other, "work");
    let minutes = view["minutes"].as_array().expect("minutes");
    let until_first = minutes.iter().filter(|minute| minute["from_ms"].as_i64() < Some((first + 1) * 60_000));
    let sum: u64 = until_first.filter_map(|minute| minute["completed"].as_u64()).sum();
    assert_eq!(sum, 12, "what ended in the first minute stays there: {minutes:?}");
    other.stop();
}

#[test]
fn dead_letters_that_are_gone_when_a_host_starts_are_gone_in_the_history() {
    let (mut bench, clock) = bench_with_clock();
    let mut shift = 0;
    let dead = |host: &Host| {
        let view = history(host, "work");
        view["minutes"].as_array().and_then(|all| all.last()?["depth"]["dead"].as_u64())
    };
    let first = bench.host_with_env(clock.env());
    first.log("tqhost is running");
    add(&mut bench, 3, "reject", 0);
    bench.until_drained("work");
    first.until_metric("tqhost_queue_tasks{queue=\"work\",state=\"dead\"}", 3);
    end_minutes_until(&mut bench, (&clock, &mut shift), "the depth is written", || {
        (dead(&first) == Some(3)).then_some(())
    });
    first.stop();
    bench.tqhost(&["dead", "purge", "work", "--all", "--yes"]).ok();
    let other = bench.host_with_env(clock.env());
    other.log("tqhost is running");
    end_minutes_until(&mut bench, (&clock, &mut shift), "the depth is written again", || {
        (dead(&other) == Some(0)).then_some(())
    });
    let idle: Vec<String> = bench.redis("KEYS", "tq:{idle}:minutes:*");
    assert!(idle.is_empty(), "a queue that was always empty has no history: {idle:?}");
    other.stop();
}

#[test]
fn a_call_whose_reply_was_lost_counts_once() {
    let (mut bench, clock) = bench_with_clock();
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, proxy.port);
    let host = bench.host_with_env(clock.env());
    host.log("tqhost is running");
    // The call is sent again when its reply is lost, so it is carried out twice before it is answered.
    proxy.lose_replies(script::TALLY.sha1(), 2);
    add(&mut bench, 9, "ok", 0);
    bench.until_drained("work");
    host.until_ended_as("work", "completed", 9);
    let mut shift = 0;
    end_minutes_until(&mut bench, (&clock, &mut shift), "both replies are lost", || {
        (proxy.hits() == 2).then_some(())
    });
    assert_eq!(completed(&host), 9);
    add(&mut bench, 1, "ok", 0);
    bench.until_drained("work");
    host.stop();
    let host = bench.host_with_env(clock.env());
    host.log("tqhost is running");
    assert_eq!(completed(&host), 10);
    host.stop();
}

/// The history in a range, over HTTP, which is also what the command prints.
#[track_caller]
fn in_range(bench: &Bench, host: &Host, range: &str) -> Value {
    let answer = host.get(&format!("/v1/queues/work/history?range={range}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let view = answer.json();
    let told = bench.tqhost(&["queues", "work", "--history", "--range", range, "--json"]).ok().json();
    assert_eq!(told["step_ms"], view["step_ms"], "{told}");
    view
}

#[test]
fn a_day_and_a_week_outlive_the_minutes_also_those_that_an_older_host_wrote() {
    let (mut bench, clock) = bench_with_clock();
    let mut shift = 0;
    // A host without longer steps has counted some tasks two hours ago.
    let old = seconds(&mut bench) / 60 - 120;
    let key = format!("tq:{{work}}:minutes:{}", old / 60);
    let values = [
        "{\"completed\":100,\"w5\":100,\"r7\":100}",
        "{\"as-told@0123456789ab\":{\"completed\":100,\"us\":5000}}",
    ];
    for (part, value) in ["figures", "versions"].iter().zip(values) {
        bench.redis::<u64>("HSET", (&key, format!("{part}:{}", old % 60), value));
    }
    bench.redis::<u64>("EXPIRE", (&key, 4 * 3600));
    let host = bench.host_with_env(clock.env());
    host.log("tqhost is running");
    add(&mut bench, 12, "ok", 0);
    add(&mut bench, 2, "reject", 0);
    bench.until_drained("work");
    host.until_ended_as("work", "rejected", 2);
    host.until_metric("tqhost_queue_tasks{queue=\"work\",state=\"dead\"}", 2);
    end_minutes_until(&mut bench, (&clock, &mut shift), "it is folded", || {
        (completed(&host) == 112).then_some(())
    });
    eventually("the hours are folded", || {
        let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:minutes:1[0h]*");
        (keys.len() >= 2).then_some(())
    });
    for (range, step_ms, steps) in [("1h", 60_000, 60), ("24h", 600_000, 144), ("7d", 3_600_000, 168)] {
        let view = in_range(&bench, &host, range);
        let minutes = view["minutes"].as_array().expect("steps");
        assert!([steps, steps + 1].contains(&minutes.len()) && view["step_ms"] == step_ms, "{range}: {view}");
        let times: Vec<u64> = minutes.iter().filter_map(|step| step["from_ms"].as_u64()).collect();
        assert!(times.iter().all(|time| time.is_multiple_of(step_ms)), "{range}: {times:?}");
        assert!(times.windows(2).all(|pair| pair[1] == pair[0] + step_ms), "{range}: {times:?}");
        let expected = if range == "1h" { 12 } else { 112 };
        let sum: u64 = minutes.iter().filter_map(|step| step["completed"].as_u64()).sum();
        assert_eq!((sum, &view["total"]["completed"]), (expected, &json!(expected)), "{range}: {view}");
    }
    // A host that stops folds the minutes since the last time.
    add(&mut bench, 5, "ok", 0);
    bench.until_drained("work");
    host.until_ended_as("work", "completed", 17);
    host.stop();

    // Hours later the minutes are gone, then the day, then the week.
    let ages = [(5, [0, 117, 117]), (27, [0, 0, 117]), (8 * 24, [0, 0, 0])];
    for (hours, expected) in ages {
        shift += hours * 3600;
        clock.shift(shift);
        let host = bench.host_with_env(clock.env());
        host.log("tqhost is running");
        let counted =
            ["1h", "24h", "7d"].map(|range| in_range(&bench, &host, range)["total"]["completed"].clone());
        assert_eq!(counted.to_vec(), expected.map(|count| json!(count)).to_vec(), "{hours} hours later");
        if hours == 27 {
            let week = in_range(&bench, &host, "7d");
            assert_eq!(week["total"]["dead"], 2, "{week}");
            let versions: Vec<&Value> = week["versions"].as_array().expect("versions").iter().collect();
            assert_eq!(versions.len(), 2, "{week}");
            let depth =
                week["minutes"].as_array().expect("steps").iter().find(|step| step["depth"]["dead"] == 2);
            assert!(depth.is_some(), "{week}");
        }
        host.stop();
    }
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:minutes:*");
    assert!(keys.len() <= 5, "{keys:?}");
}

#[test]
fn a_range_that_is_none_is_refused() {
    let bench = Bench::new(QUEUES);
    let host = bench.host();
    let told = ["range=2h", "range=24h&minutes=5"].map(|query| {
        let answer = host.get(&format!("/v1/queues/work/history?{query}"));
        assert_eq!(answer.status, 422, "{query}: {answer:?}");
        answer.json()["detail"].to_string()
    });
    insta::assert_snapshot!(told.join("\n"), @r#"
    "range: \"2h\" is none of 1h, 24h, 7d"
    "minutes and range exclude each other"
    "#);
    assert_eq!(bench.tqhost(&["queues", "work", "--range", "24h"]).code, 2);
    host.stop();
}
