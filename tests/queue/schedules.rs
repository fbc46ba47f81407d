//! Schedules: each time has one task, however many hosts run and whatever happens to them.
//!
//! The tests that count tasks leave the queue's plugin out, so the tasks stay in the stream, one entry each.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tqhost::testing::queue::schedule::Fired;

use crate::support::{Bench, Clock, Host, eventually};

const SECONDLY: &str = "[queues.ticks]\nplugin = \"echo\"\n[queues.ticks.schedule]\ncron = \"* * * * * *\"\n\
    fields = { kind = \"tick\" }\n";
/// On most days the last time of this schedule is long ago.
const YEARLY: &str = "[queues.yearly]\nplugin = \"echo\"\n[queues.yearly.schedule]\ncron = \"0 0 1 1 *\"\n";
const YEARLY_NAME: &str = "0 0 1 1 * UTC";
const YEARLY_KEY: &str = "tq:{yearly}:schedule";

/// The tasks in a stream in their order, each as a map of its fields.
fn entries(bench: &mut Bench, stream: &str) -> Vec<HashMap<String, String>> {
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", (stream, "-", "+"));
    entries
        .into_iter()
        .map(|(_, fields)| fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        .collect()
}

/// Waits until a stream has this many entries.
#[track_caller]
fn until_length(bench: &mut Bench, stream: &str, length: u64) {
    eventually(&format!("{stream} has {length} tasks"), || {
        (bench.redis::<u64>("XLEN", stream) >= length).then_some(())
    });
}

/// The ids of a stream whose plugin is missing. No time may have two tasks, and none may come before an
/// earlier one.
fn once_each(bench: &mut Bench, stream: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut last = 0;
    for task in entries(bench, stream) {
        let time: u64 = task["scheduled_at"].parse().expect("a time");
        assert!(time > last && time.is_multiple_of(1000), "{time} comes after {last}");
        assert_eq!(task["tq-id"], format!("schedule-{time}"));
        ids.push(task["tq-id"].clone());
        last = time;
    }
    ids
}

/// Redis's clock in milliseconds.
fn redis_ms(bench: &mut Bench) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
    seconds * 1000 + micros / 1000
}

/// Marks the yearly schedule as dealt with up to three years ago, as if the hosts had stopped then. Returns
/// its last time.
fn stopped_long_ago(bench: &mut Bench) -> u64 {
    let view = bench.tqhost(&["queues", "yearly", "--json"]).ok().json();
    let next = view["schedule"]["next_ms"].as_u64().expect("the next time");
    let years = |count: u64| count * 365 * 86_400_000;
    let _: u64 = bench.redis("HSET", (YEARLY_KEY, YEARLY_NAME, next - years(4)));
    // The last time was one year before the next one: 365 or 366 days.
    [next - years(1), next - years(1) - 86_400_000]
        .into_iter()
        .find(|ms| is_new_year(*ms))
        .expect("a first of January")
}

fn is_new_year(ms: u64) -> bool {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(ms).expect("a time"))
        .expect("a time")
        .to_zoned(jiff::tz::TimeZone::UTC);
    time.day_of_year() == 1
}

#[test]
fn each_time_has_one_task_with_three_hosts() {
    let mut bench = Bench::new(SECONDLY);
    let hosts = [bench.host(), bench.host(), bench.host()];
    until_length(&mut bench, "ticks", 5);
    let ids = once_each(&mut bench, "ticks");
    assert_eq!(bench.tqhost(&["status", "ticks", &ids[0], "--json"]).ok().json()["status"], "PENDING");
    bench.install("echo", "echo");
    for id in &ids {
        bench.until("ticks", id, "COMPLETED");
        let result: serde_json::Value =
            serde_json::from_str(&bench.status("ticks", id, "result")).expect("JSON");
        assert_eq!(
            result["names"],
            serde_json::json!(["kind", "scheduled_at"]),
            "this is what the handler sees"
        );
        assert_eq!(result["fields"]["scheduled_at"], id.trim_start_matches("schedule-"));
    }
    Host::stop_all(hosts);
}

#[test]
fn each_time_has_one_task_while_hosts_are_killed() {
    let mut bench = Bench::new(SECONDLY);
    let mut host = bench.host();
    for round in 1..=4 {
        let other = bench.host();
        until_length(&mut bench, "ticks", 2 * round);
        std::mem::replace(&mut host, other).kill();
    }
    until_length(&mut bench, "ticks", 10);
    assert!(once_each(&mut bench, "ticks").len() >= 10);
    host.stop();
}

#[test]
fn the_script_enqueues_a_time_once() {
    let mut bench = Bench::new(&YEARLY.replace("plugin = \"echo\"", "plugin = \"echo\"\nmax_backlog = 2"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config = tqhost::testing::config::Config::load(&bench.config()).expect("a configuration");
    let redis = {
        let _inside = runtime.enter();
        tqhost::testing::queue::Redis::open(&bench.redis.url()).expect("a URL")
    };
    let queue = tqhost::testing::queue::Queue::new(config.queues[0].clone(), redis.link());
    let schedule = config.queues[0].schedule.clone().expect("a schedule");
    let try_to_fire = |time, late| runtime.block_on(queue.fire(&schedule, time, late));
    let fire = |time| try_to_fire(time, None).expect("an answer");
    let noted = |bench: &mut Bench| bench.redis::<Option<u64>>("HGET", (YEARLY_KEY, YEARLY_NAME));

    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
    let refused = format!("{:?}", try_to_fire(5000, None).expect_err("no memory"));
    assert!(refused.contains("OOM"), "{refused}");
    assert_eq!(noted(&mut bench), None, "the time is still to come");
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "0"));

    assert_eq!((fire(5000), noted(&mut bench)), (Fired::Enqueued, Some(5000)));
    assert_eq!([fire(5000), fire(4000)], [Fired::Known, Fired::Known]);
    let _: u64 = bench.redis("DEL", "tq:{yearly}:task:schedule-5000");
    assert_eq!(fire(5000), Fired::Known, "its status has expired, but the time was noted");
    assert_eq!(fire(6000), Fired::Enqueued);
    let _: u64 = bench.redis("DEL", YEARLY_KEY);
    assert_eq!(
        (fire(6000), noted(&mut bench)),
        (Fired::Known, Some(6000)),
        "the note is gone, but the task is known"
    );

    assert_eq!((fire(7000), noted(&mut bench)), (Fired::Full, Some(6000)), "it waits");
    let late = |time| try_to_fire(time, Some(Duration::from_secs(60))).expect("an answer");
    assert_eq!((late(7000), noted(&mut bench)), (Fired::TooLate, Some(7000)), "it waited too long");
    let now = redis_ms(&mut bench);
    assert_eq!(late(now), Fired::Full);
    let _: u64 = bench.redis("XTRIM", ("yearly", "MAXLEN", 1));
    assert_eq!([late(now), late(now)], [Fired::Enqueued, Fired::Known]);
    let times: Vec<String> = entries(&mut bench, "yearly")
        .into_iter()
        .map(|mut task| task.remove("scheduled_at").expect("a time"))
        .collect();
    assert_eq!(times, ["6000".to_owned(), now.to_string()]);
}

#[test]
fn a_new_schedule_begins_now_and_a_changed_one_too() {
    let mut bench = Bench::new(YEARLY);
    let before = redis_ms(&mut bench);
    let host = bench.host();
    let begun: u64 = eventually("it begins", || bench.redis("HGET", (YEARLY_KEY, YEARLY_NAME)));
    assert!(begun >= before && begun <= redis_ms(&mut bench));
    host.stop();
    bench.configure_for(&YEARLY.replace("0 0 1 1 *", "0 0 1 1,2 *"), bench.redis.port);
    let host = bench.host();
    let known = |bench: &mut Bench| bench.redis::<Vec<String>>("HKEYS", YEARLY_KEY);
    eventually("only the new one is known", || (known(&mut bench) == ["0 0 1 1,2 * UTC"]).then_some(()));
    host.stop();
    assert_eq!(bench.redis::<u64>("XLEN", "yearly"), 0, "nothing is made up for");
}

#[test]
fn times_that_were_missed_have_one_task() {
    let mut bench = Bench::new(YEARLY);
    let last = stopped_long_ago(&mut bench);
    let hosts = [bench.host(), bench.host()];
    until_length(&mut bench, "yearly", 1);
    let task = entries(&mut bench, "yearly").remove(0);
    assert_eq!(task["scheduled_at"], last.to_string());
    eventually("one of them says so", || {
        let said: usize =
            hosts.iter().map(|host| host.logged("there is one task for the last of them").len()).sum();
        (said == 1).then_some(())
    });
    assert_eq!(bench.redis::<u64>("HGET", (YEARLY_KEY, YEARLY_NAME)), last);
    bench.install("echo", "echo");
    bench.until("yearly", &task["tq-id"], "COMPLETED");
    Host::stop_all(hosts);
    bench.configure_for(&format!("{YEARLY}{SECONDLY}"), bench.redis.port);
    let started = bench.status("yearly", &task["tq-id"], "started_at");
    let host = bench.host();
    eventually("schedules are looked at", || {
        (bench.redis::<u64>("HLEN", "tq:{ticks}:schedule") == 1).then_some(())
    });
    let added = |bench: &mut Bench| -> u64 {
        let about: HashMap<String, redis::Value> = bench.redis("XINFO", ("STREAM", "yearly"));
        redis::from_redis_value(about["entries-added"].clone()).expect("a number")
    };
    let begun: u64 = bench.redis("HGET", ("tq:{ticks}:schedule", "* * * * * * UTC"));
    eventually("again and again", || {
        (bench.redis::<u64>("HGET", ("tq:{ticks}:schedule", "* * * * * * UTC")) > begun + 1500).then_some(())
    });
    host.stop();
    assert_eq!(added(&mut bench), 1, "a host that starts later does not do it again");
    assert_eq!(bench.status("yearly", &task["tq-id"], "started_at"), started);
}

#[test]
fn times_that_were_missed_may_be_left_out() {
    let mut bench = Bench::new(&format!("{YEARLY}missed = \"skip\"\n"));
    let last = stopped_long_ago(&mut bench);
    let host = bench.host();
    assert_eq!(host.log("was missed, and is left out")["scheduled_at"], last);
    assert_eq!(bench.redis::<u64>("HGET", (YEARLY_KEY, YEARLY_NAME)), last);
    host.stop();
    assert_eq!(bench.redis::<u64>("XLEN", "yearly"), 0);
}

#[test]
fn a_full_queue_makes_the_schedule_wait() {
    let mut bench = Bench::new(&YEARLY.replace("plugin = \"echo\"", "plugin = \"echo\"\nmax_backlog = 1"));
    let last = stopped_long_ago(&mut bench);
    let first = bench.xadd("yearly", &[("n", "1")]);
    let host = bench.host();
    host.log("the queue is full");
    assert_eq!(bench.redis::<u64>("XLEN", "yearly"), 1);
    assert!(bench.redis::<u64>("HGET", (YEARLY_KEY, YEARLY_NAME)) < last, "it is still to come");
    bench.install("echo", "echo");
    bench.until("yearly", &first, "COMPLETED");
    bench.until("yearly", &format!("schedule-{last}"), "COMPLETED");
    host.stop();
}

#[test]
fn a_paused_queue_collects_its_tasks() {
    let mut bench = Bench::new(SECONDLY);
    bench.install("echo", "echo");
    bench.tqhost(&["pause", "ticks"]).ok();
    let host = bench.host();
    until_length(&mut bench, "ticks", 2);
    let ids = once_each(&mut bench, "ticks");
    bench.tqhost(&["resume", "ticks"]).ok();
    for id in &ids {
        bench.until("ticks", id, "COMPLETED");
    }
    host.stop();
}

#[test]
fn a_scheduled_task_may_be_left_out_while_the_one_before_runs() {
    let schedule = SECONDLY.replace(
        "plugin = \"echo\"",
        "plugin = \"sleeps\"\nidempotency = { field = \"kind\", window = \"1s\" }",
    );
    let mut bench = Bench::new(&schedule.replace("kind = \"tick\"", "kind = \"tick\", ms = \"4000\""));
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let (id, first) = eventually("one is not run", || {
        let keys: Vec<String> = bench.redis("KEYS", "tq:{ticks}:task:schedule-*");
        keys.into_iter().find_map(|key| {
            Some((key.clone(), bench.redis::<Option<String>>("HGET", (&key, "duplicate_of"))?))
        })
    });
    assert_eq!(bench.redis::<String>("HGET", (&id, "status")), "CANCELLED");
    bench.until("ticks", &first, "COMPLETED");
    host.stop();
}

#[test]
fn only_redis_knows_what_time_it_is() {
    let mut bench = Bench::new(SECONDLY);
    let clock = Clock::new(bench.dir.path());
    clock.shift(3600);
    let host = bench.host_with_env(clock.env());
    until_length(&mut bench, "ticks", 2);
    clock.shift(-3600);
    let so_far = bench.redis::<u64>("XLEN", "ticks");
    until_length(&mut bench, "ticks", so_far + 2);
    once_each(&mut bench, "ticks");
    for task in entries(&mut bench, "ticks") {
        let [time, enqueued] =
            ["scheduled_at", "tq-enqueued-at"].map(|name| task[name].parse::<u64>().expect("a time"));
        assert!((time..time + 60_000).contains(&enqueued), "{task:?}");
    }
    host.stop();
}

#[test]
fn a_redis_clock_that_went_back_does_not_end_the_schedule() {
    let mut bench = Bench::new(SECONDLY);
    let ahead = redis_ms(&mut bench) + 86_400_000;
    let _: u64 = bench.redis("HSET", ("tq:{ticks}:schedule", "* * * * * * UTC", ahead));
    let host = bench.host();
    host.log("the schedule begins anew");
    until_length(&mut bench, "ticks", 2);
    once_each(&mut bench, "ticks");
    host.stop();
}

#[test]
fn a_schedule_that_a_host_of_another_configuration_forgot_goes_on() {
    let mut bench = Bench::new(SECONDLY);
    let host = bench.host();
    until_length(&mut bench, "ticks", 2);
    let _: u64 = bench.redis("DEL", "tq:{ticks}:schedule");
    let so_far = bench.redis::<u64>("XLEN", "ticks");
    until_length(&mut bench, "ticks", so_far + 2);
    once_each(&mut bench, "ticks");
    host.stop();
}

#[test]
fn damage_to_the_keys_is_told_and_survived() {
    let mut bench = Bench::new(SECONDLY);
    bench.install("echo", "echo");
    let _: () = bench.redis("SET", ("tq:{ticks}:schedule", "not a hash"));
    let host = bench.host();
    let line = host.log("a call to Redis failed; trying again");
    assert!(
        line["loop"] == "schedule" && line["error"].as_str().is_some_and(|error| error.contains("WRONGTYPE")),
        "{line}"
    );
    let id = bench.xadd("ticks", &[("n", "1")]);
    bench.until("ticks", &id, "COMPLETED");
    let _: u64 = bench.redis("DEL", "tq:{ticks}:schedule");
    let completed = |bench: &mut Bench| {
        let ids: Vec<String> = bench.redis("KEYS", "tq:{ticks}:task:schedule-*");
        ids.into_iter()
            .filter(|key| {
                bench.redis::<Option<String>>("HGET", (key, "status")).as_deref() == Some("COMPLETED")
            })
            .collect::<HashSet<_>>()
    };
    eventually("the schedule goes on", || (!completed(&mut bench).is_empty()).then_some(()));
    let _: u64 = bench.redis("DEL", "ticks");
    let so_far = completed(&mut bench).len();
    eventually("without its group and stream, too", || {
        (completed(&mut bench).len() > so_far + 1).then_some(())
    });
    host.stop();
}

#[test]
fn the_commands_tell_when_it_comes_next() {
    let bench = Bench::new(
        "[queues.nightly]\nplugin = \"echo\"\n[queues.nightly.schedule]\ncron = \"0 3 * * *\"\n\
         timezone = \"Europe/Berlin\"\n",
    );
    bench.install("echo", "echo");
    let told = [&["check"][..], &["queues", "nightly"]].map(|command| {
        let shown = bench.tqhost(command).ok().stdout;
        let line = shown.lines().find(|line| line.contains("Europe/Berlin"));
        // How long it takes until then is left out.
        let (line, _) = line.and_then(|line| line.trim_start().split_once(" (in ")).expect("a schedule");
        // The date changes from day to day.
        line.split(' ')
            .map(|word| if word.starts_with("20") { "DATE" } else { word })
            .collect::<Vec<_>>()
            .join(" ")
    });
    insta::assert_snapshot!(told.join("\n"), @"
    schedule 0 3 * * * (Europe/Berlin), next DATE 03:00:00
    schedule  0 3 * * * (Europe/Berlin), next DATE 03:00:00
    ");
    let json = bench.tqhost(&["queues", "nightly", "--json"]).ok().json();
    assert_eq!(json["schedule"]["cron"], serde_json::json!(["0 3 * * *"]));
    assert_eq!(json["schedule"]["timezone"], "Europe/Berlin");
}
