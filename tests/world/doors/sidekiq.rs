//! `examples/7-sidekiq`: jobs that Sidekiq's client adds run in the application, in their order, and those
//! that are due later run although no process of Sidekiq is left.

use std::process::Command;

use serde_json::{Value, json};

use super::super::support::{Host, eventually};
use super::{System, folder};

const EXAMPLE: &str = include_str!("../../../examples/7-sidekiq/tqhost.toml");
const LIST: &str = "queue:default";

fn ruby(program: &str) -> Command {
    let mut command = Command::new("ruby");
    // Sidekiq 6.4 warns of redis-rb 5 at each job.
    command.arg("-W0").arg("-I").arg(folder("examples/7-sidekiq")).arg(folder(program));
    command
}

fn start(changes: &[(&str, &str)]) -> System {
    System::start(EXAMPLE, ["tests/world/doors/producer.rb", "examples/7-sidekiq/door.rb"].map(ruby), changes)
}

fn add(system: &mut System, call: &Value) -> String {
    system.producer.call(call)["id"].as_str().expect("an id").to_owned()
}

/// The orders whose receipts were printed, in this order.
fn printed(system: &mut System) -> Vec<u64> {
    system.bench.redis("LRANGE", ("shop:receipts", 0, -1))
}

/// A job of the queue `queue`, as a retry of Sidekiq has it.
fn retry(order: u64, queue: &str) -> String {
    let error =
        json!({ "retry_count": 0, "error_message": "busy", "failed_at": 1.5, "error_class": "RuntimeError" });
    let mut job = json!({ "class": "Receipt", "args": [order], "retry": 3, "queue": queue,
        "jid": format!("retry-{order}"), "created_at": 1.5, "enqueued_at": 1.5 });
    let fields = error.as_object().expect("an object").clone();
    job.as_object_mut().expect("an object").extend(fields);
    job.to_string()
}

#[test]
fn jobs_of_sidekiq_run_in_the_application_in_their_order() {
    let mut system = start(&[("max_retries = 100", "max_retries = 100\nconcurrency = 1")]);
    let ids: Vec<String> = (0..20).map(|n| add(&mut system, &json!({ "args": [n] }))).collect();
    let host = system.host();
    eventually("all are printed", || (printed(&mut system).len() == 20).then_some(()));
    assert_eq!(printed(&mut system), (0..20).collect::<Vec<_>>());
    system.bench.until("sidekiq:default", &ids[19], "COMPLETED");
    // Its first attempt fails. The next one comes after the time that the class says.
    let again = add(&mut system, &json!({ "args": [20, 1] }));
    system.bench.until("sidekiq:default", &again, "COMPLETED");
    assert_eq!(system.status("default", &again)["attempt"], 2);
    let dead = add(&mut system, &json!({ "args": [21, 9] }));
    system.bench.until("sidekiq:default", &dead, "FAILED");
    assert_eq!(system.status("default", &dead)["attempt"], 4, "retry: 3");
    let given_up: Vec<String> = system.bench.redis("LRANGE", ("shop:given-up", 0, -1));
    assert_eq!(given_up, ["21: the printer is busy"]);
    host.stop();
}

#[test]
fn jobs_that_are_due_later_run_once_with_two_hosts_and_no_process_of_sidekiq() {
    let mut system = start(&[]);
    for order in [100, 101] {
        add(&mut system, &json!({ "args": [order], "in": 2 }));
    }
    add(&mut system, &json!({ "args": [102], "in": 3600 }));
    // A process of Sidekiq left retries of this queue and of another one, and one that nobody can read.
    let other: Vec<String> = (0..150).map(|order| retry(order, "other")).collect();
    for (score, job) in other.iter().enumerate() {
        let _: u64 = system.bench.redis("ZADD", ("retry", score, job));
    }
    let _: u64 = system.bench.redis("ZADD", ("retry", 200, "{"));
    let _: u64 = system.bench.redis("ZADD", ("retry", 300, retry(7, "default")));
    let hosts = [system.host(), system.host()];
    eventually("they are printed", || (printed(&mut system).len() == 3).then_some(()));
    let mut orders = printed(&mut system);
    orders.sort_unstable();
    assert_eq!(orders, [7, 100, 101]);
    assert_eq!(system.bench.redis::<u64>("ZCARD", "schedule"), 1);
    assert_eq!(system.bench.redis::<u64>("ZCARD", "retry"), 151, "those of others stay");
    assert_eq!(system.bench.redis::<u64>("HGET", ("shop:tried", 7)), 1);
    Host::stop_all(hosts);
    assert_eq!(printed(&mut system).len(), 3);
}

#[test]
fn jobs_that_cannot_be_read_are_dead_letters() {
    let mut system = start(&[]);
    for bad in ["{", "[]", "{\"class\": \"Receipt\", \"args\": []}"] {
        let _: u64 = system.bench.redis("LPUSH", (LIST, bad));
    }
    let good = add(&mut system, &json!({ "args": [1] }));
    let host = system.host();
    system.bench.until("sidekiq:default", &good, "COMPLETED");
    eventually("they are dead", || (system.bench.places("sidekiq:default").dead == 3).then_some(()));
    host.stop();
}
