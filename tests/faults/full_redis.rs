//! A Redis whose memory is full (`maxmemory`, `noeviction`): what lets tasks out works, from the start of a
//! host on, and what lets tasks in is refused in plain words.
//!
//! In: every script that is declared, and every command of the CLI. A script or a command that is new fails
//! the test until a step here needs it.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::Signal;
use serde_json::json;
use tqhost::testing::queue::script::{self, Script, ScriptKind};

use crate::support::bench::guest_path;
use crate::support::redis_server::denies;
use crate::support::web::Service;
use crate::support::{Bench, Host, Ran, RedisServer, Web, eventually, files};

/// Queues with everything that takes a script of its own. `{origin}` is a service.
const QUEUES: &str = r#"
[defaults]
lease = "2s"
backoff = { delays = ["100ms"] }
[queues.work]
plugin = "effects"
max_retries = 2
enqueue_to = ["part", "join"]
on_end = "told"
events = 100
[queues.told]
plugin = "echo"
[queues.part]
plugin = "effects"
[queues.join]
plugin = "effects"
[queues.rated]
plugin = "effects"
rate_limit = "50/s"
[queues.track]
plugin = "effects"
serial = { field = "key" }
[queues.strict]
plugin = "effects"
max_running = 1
order = "strict"
[queues.listed]
plugin = "echo"
list = "items"
[queues.jobs]
plugin = "echo"
list = { key = "queue:jobs", items = "sidekiq" }
[queues.mails]
plugin = "echo"
list = { key = "letters", items = "celery" }
[queues.named]
plugin = "echo"
id = { field = "n" }
[queues.outside]
plugin = "asks-a-service"
hold = { after = 1, for = "1s" }
[queues.ticks]
plugin = "echo"
schedule = { cron = "* * * * * *" }
[queues.later]
plugin = "echo"
[queues.waits]
[queues.given]
[queues.lame]
plugin = "echo"
[queues.old]
plugin = "echo"
[plugins.effects]
records = ["kb:*"]
[plugins.asks-a-service]
allowed_hosts = ["{origin}"]
"#;

/// The scripts that were called.
#[derive(Clone)]
struct Monitor {
    seen: Arc<Mutex<BTreeSet<(&'static str, &'static str)>>>,
}

impl Monitor {
    fn start(redis: &RedisServer) -> Monitor {
        let names: HashMap<&str, _> = declared().map(|script| (script.sha1(), of(script))).collect();
        let seen: Arc<Mutex<BTreeSet<_>>> = Arc::default();
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).expect("Redis");
        stream.write_all(b"MONITOR\r\n").expect("send");
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).expect("an answer");
        let found = Arc::clone(&seen);
        std::thread::spawn(move || {
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let words: Vec<&[u8]> = line.split(|byte| *byte == b'"').collect();
                // The name of a function ends in the digest of its script.
                let name = words.get(3).and_then(|word| std::str::from_utf8(word).ok());
                let digest = name.and_then(|name| name.rsplit('_').next());
                if let Some(name) = digest.and_then(|digest| names.get(digest)) {
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(*name);
                }
                line.clear();
            }
        });
        Monitor { seen }
    }

    fn seen(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn declared() -> impl Iterator<Item = &'static Script> {
    script::declared().into_iter()
}

/// How the test names a script: its file, and what it may do.
fn of(script: &Script) -> (&'static str, &'static str) {
    let kind = match script.kind {
        ScriptKind::LetsIn => "in",
        ScriptKind::LetsOut => "out",
        ScriptKind::Reads => "reads",
    };
    (script.name, kind)
}

fn fill(bench: &mut Bench) {
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "1"));
}

fn empty(bench: &mut Bench) {
    let _: () = bench.redis("CONFIG", ("SET", "maxmemory", "0"));
}

fn bench(queues: &str) -> Bench {
    let bench = Bench::with_redis(queues, &["--maxmemory-policy", "noeviction"]);
    for guest in ["effects", "echo", "asks-a-service"] {
        bench.install(guest, guest);
    }
    bench
}

/// Adds a task for the guest `effects`, with more fields.
fn told(bench: &mut Bench, queue: &str, calls: &serde_json::Value, more: &[(&str, &str)]) -> String {
    let calls = calls.to_string();
    bench.xadd(queue, &[&[("do", calls.as_str())], more].concat())
}

fn until_paused(host: &Host, is_paused: bool) {
    eventually("the pause is seen, or its end", || {
        (host.get("/readyz").body.contains("\"paused\"") == is_paused).then_some(())
    });
}

/// It is refused, in words that a user knows, and that name the way out.
#[track_caller]
fn refused(ran: &Ran) {
    let words = ["is full", "raise its maxmemory"].iter().all(|words| ran.stderr.contains(words));
    let is_plain = !["script", "OOM", "refused"].iter().any(|word| ran.stderr.contains(word));
    assert!(ran.code == 1 && words && is_plain, "{ran:#?}");
}

/// The tasks that have to end although Redis is full, by their queues.
#[derive(Default)]
struct Tasks(Vec<(&'static str, String)>);

impl Tasks {
    fn add(
        &mut self,
        bench: &mut Bench,
        queue: &'static str,
        calls: &serde_json::Value,
        key: &str,
    ) -> String {
        let id = told(bench, queue, calls, &[("key", key)]);
        self.0.push((queue, id.clone()));
        id
    }

    fn plain(&mut self, bench: &mut Bench, queue: &'static str) {
        self.0.push((queue, bench.xadd(queue, &[("n", "1")])));
    }
}

/// A host dies with tasks of its queues.
fn die(bench: &mut Bench, tasks: &mut Tasks) {
    let long = json!([["sleep", 3000]]);
    for queue in ["work", "rated", "track", "strict"] {
        for _ in 0..2 {
            tasks.add(bench, queue, &long, "k");
        }
    }
    let host = bench.host();
    for (queue, running) in [("work", 2), ("rated", 2), ("track", 1), ("strict", 1)] {
        bench.until_running(queue, running);
    }
    host.kill();
    // The entry of one of them is deleted by somebody else: it cannot run again.
    let lost = tasks.0.remove(0).1;
    let _: u64 = bench.redis("XDEL", ("work", lost));
}

/// Adds tasks of every kind, and what the doctor and `adopt` find.
fn prepare(bench: &mut Bench, web: &Web, tasks: &mut Tasks) {
    let child = json!({ "queue": "part", "fields": { "do": [["sleep", 50]] } });
    let join = json!({ "queue": "join", "fields": { "do": [["results"]] } });
    let flow = json!(["fan-out", [child, child], join]);
    let effects = [
        json!([["set", "a", "1", 0]]),
        json!([["set", "b", "1", 9000], ["add", "n", 1], ["put", "kb:1", { "x": "1" }]]),
        json!([["enqueue", { "queue": "part", "fields": { "do": [] }, "key": "k" }], ["delete", "a"]]),
        json!([flow]),
        json!([flow, ["first", 1, ["retry"]]]),
        json!([["sleep", 1500]]),
    ];
    for calls in &effects {
        tasks.add(bench, "work", calls, "");
    }
    for key in ["a", "a", "b"] {
        tasks.add(bench, "track", &json!([["set", "a", "1", 0]]), key);
        tasks.add(bench, "strict", &json!([]), key);
        tasks.add(bench, "rated", &json!([]), key);
    }
    tasks.plain(bench, "named");
    tasks.plain(bench, "later");
    web.set_service(Service::Answers("503 Service Unavailable", ""));
    let url = format!("{}/service", web.origin());
    tasks.0.push(("outside", bench.xadd("outside", &[("url", &url)])));
    let _: u64 = bench.redis("LPUSH", ("items", "1", "2"));
    // A job of Sidekiq that is due, and a message that a worker of Celery had taken.
    let job = r#"{"class": "Mail", "args": [], "jid": "job-1", "queue": "jobs"}"#;
    let _: u64 = bench.redis("ZADD", ("schedule", 1, job));
    let message = r#"[{"body": "W10=", "headers": {"id": "mail-1", "task": "t"}}, "", "letters"]"#;
    let _: u64 = bench.redis("HSET", ("unacked", "tag", message));
    let _: u64 = bench.redis("ZADD", ("unacked_index", 1, "tag"));
    tasks.0.extend([("jobs", "job-1".to_owned()), ("mails", "mail-1".to_owned())]);
    let _: () = bench.redis("SET", ("tq:{later}:paused", "1"));
    // An entry that nothing will deliver, and a task that is nowhere.
    tasks.plain(bench, "lame");
    let _: () = bench.redis("XGROUP", ("SETID", "lame", "tqhost", "$"));
    let _: u64 = bench.redis("HSET", ("tq:{lame}:task:gone", &[("status", "PENDING"), ("entry", "1-0")]));
    for id in ["x", "y"] {
        bench.xadd("tq:{waits}:dead", &[("n", "dead"), ("tq-reason", "rejected"), ("tq-id", id)]);
    }
    for n in 0..4 {
        bench.xadd("waits", &[("n", &n.to_string())]);
        bench.xadd("given", &[("n", &n.to_string())]);
    }
    // A host that died left one of these.
    let read = ("GROUP", "tqhost", "box-17-0123456789ab", "COUNT", 1, "STREAMS", "given", ">");
    let _: redis::Value = bench.redis("XREADGROUP", read);
    // Another program served this queue: one entry is done, and its dead letters are a list.
    let _: u64 = bench.redis("DEL", ("old", "tq:{old}:history"));
    let _: () = bench.redis("XGROUP", ("CREATE", "old", "tqhost", "0", "MKSTREAM"));
    let done = bench.xadd("old", &[("n", "done")]);
    let read = ("GROUP", "tqhost", "old-1", "COUNT", 1, "STREAMS", "old", ">");
    let _: redis::Value = bench.redis("XREADGROUP", read);
    let _: u64 = bench.redis("XACK", ("old", "tqhost", done));
    tasks.plain(bench, "old");
    let _: u64 = bench.redis("LPUSH", ("tq:{old}:dead", "{\"error\":\"x\"}"));
}

/// Every command of the CLI, as it is called while Redis is full, and whether it lets a task in.
fn commands(delayed: &str, waiting: &str, running: &str, file: &str) -> Vec<(String, bool)> {
    let works = [
        "check",
        "queues waits --history",
        "tasks waits",
        "tasks waits --state delayed",
        "doctor track",
        "doctor track --fix",
        "doctor lame",
        "doctor lame --fix",
        "adopt old",
        "adopt old --yes --stopped --delete-acked",
        "adopt mails --yes --stopped",
        "queues",
        "dead list waits",
        "dead show waits x",
        "dead export waits x",
        "dead requeue waits x --dry-run",
        "dead purge waits --all --dry-run",
        "plugins",
        "pause waits",
        "resume waits",
        "resume later",
        "limit waits --concurrency 1 --for 1h --why slow",
        "limit waits",
        "limit waits --clear",
        "rollback echo --why slow --version VERSION",
        "lift echo",
        "reload effects",
        "drain waits --dry-run",
        "jobs",
        "changes",
    ];
    let version = files::digest(&files::guest("echo"));
    let works = works.map(|line| line.replace("VERSION", &version)).into_iter().chain([
        format!("status waits {waiting}"),
        format!("retry waits {delayed}"),
        format!("cancel waits {waiting}"),
        format!("cancel track {running}"),
        format!("deploy {}", guest_path("echo").display()),
    ]);
    let refused = ["enqueue waits n=1".to_owned(), "enqueue waits n=1 --delay 1s".to_owned()];
    let refused =
        refused.into_iter().chain(["dead requeue waits x".to_owned(), format!("dead import waits {file}")]);
    let refused = refused.chain(["drain waits --yes".to_owned()]);
    let last = ["dead purge waits x", "drain waits --yes --no-undo"].map(|line| (line.to_owned(), false));
    works.map(|line| (line, false)).chain(refused.map(|line| (line, true))).chain(last).collect()
}

/// Commands that need no Redis, and `run`, which is the host of this test.
const WITHOUT_REDIS: [&str; 7] = ["run", "new", "try", "token", "completions", "man", "schema"];

/// The names of all commands, as the help lists them.
fn all_commands(bench: &Bench, of: &[&str]) -> BTreeSet<String> {
    let help = bench.tqhost(&[of, &["--help"]].concat()).ok().stdout;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| [of, &[name]].concat().join(" ")).collect()
}

#[test]
fn redis_57_every_script_and_command_on_a_full_redis() {
    let web = Web::start();
    let queues = QUEUES.replace("{origin}", &web.origin());
    let mut bench = bench(&queues);
    let mut tasks = Tasks::default();
    die(&mut bench, &mut tasks);
    prepare(&mut bench, &web, &mut tasks);
    let delayed = bench.tqhost(&["enqueue", "waits", "n=1", "--delay", "1h"]).ok().stdout.trim().to_owned();
    let file = bench.dir.path().join("dead.jsonl").to_str().expect("a path").to_owned();
    bench.tqhost(&["dead", "purge", "waits", "y", "--out", &file]).ok();
    let waiting = bench.xadd("waits", &[("n", "5")]);
    let cancelled = told(&mut bench, "track", &json!([["sleep", 50_000]]), &[("key", "c")]);
    let added = bench.xadd("added", &[("n", "1")]);

    fill(&mut bench);
    let monitor = Monitor::start(&bench.redis);
    let host = bench.host();
    eventually("a task of each kind of queue runs", || {
        (bench.status("track", &cancelled, "status") == "PROCESSING").then_some(())
    });
    host.log("is full");
    let mut missing = all_commands(&bench, &[]);
    missing.remove("dead");
    missing.extend(all_commands(&bench, &["dead"]));
    missing.retain(|name| !WITHOUT_REDIS.contains(&name.as_str()));
    for (line, lets_in) in commands(&delayed, &waiting, &cancelled, &file) {
        let ran = bench.tqhost(&line.split(' ').collect::<Vec<_>>());
        let is_told = line.starts_with("doctor") && ran.code == 1;
        match lets_in {
            true => refused(&ran),
            false => assert!(is_told || ran.code == 0, "{line}: {ran:#?}"),
        }
        missing.retain(|name| line != *name && !line.starts_with(&format!("{name} ")));
    }
    assert!(missing.is_empty(), "no step here calls {missing:?}");
    web.set_service(Service::Up);
    for (queue, id) in &tasks.0 {
        bench.until(queue, id, "COMPLETED");
    }
    eventually("the list is a part of the queue", || {
        (bench.redis::<u64>("LLEN", "items") == 0 && bench.places("listed").length == 0).then_some(())
    });
    for queue in ["part", "join"] {
        bench.until_drained(queue);
        assert_eq!(bench.places(queue).dead, 0, "{queue}");
    }
    eventually("a host looks for what a lost reply delivered", || {
        let clients: String = bench.redis("CLIENT", "LIST");
        let reads = clients.lines().filter(|line| line.contains("cmd=xreadgroup"));
        let ids = reads.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
        for id in ids.map(str::to_owned).collect::<Vec<_>>() {
            let _: u64 = bench.redis("CLIENT", ("KILL", "ID", id));
        }
        monitor.seen().contains(&("recover", "reads")).then_some(())
    });
    // The queues of a new configuration are prepared, and served.
    let more = format!("{queues}\n[queues.added]\nplugin = \"echo\"\n");
    bench.configure_for(&more.replace("max_retries = 2", "max_retries = 3"), bench.redis.port);
    host.signal(Signal::SIGHUP);
    host.log("the configuration was read again");
    bench.until("added", &added, "COMPLETED");
    host.stop();
    bench.tqhost(&["adopt", "given", "--out"]).ok();
    eventually("the host that was killed counts as ended", || {
        (bench.tqhost(&["adopt", "given", "--out", "--yes"]).code == 0).then_some(())
    });

    let seen = monitor.seen();
    let (let_in, others): (BTreeSet<_>, BTreeSet<_>) =
        declared().map(of).partition(|(_, kind)| *kind == "in");
    // Tasks go by a relay in a cluster only.
    let refused_above = ["cancel", "enqueue", "fire", "import", "keep", "purge", "relay", "requeue"];
    let refused_above = refused_above.map(|name| (name, "in"));
    assert_eq!(let_in, refused_above.into());
    let unseen: Vec<_> = others.difference(&seen).collect();
    assert!(unseen.is_empty(), "no step here calls {unseen:?}");
    // Nothing was lost, and no restart is needed.
    assert_eq!(bench.dead("waits").len(), 0);
    empty(&mut bench);
    bench.tqhost(&["enqueue", "waits", "n=1"]).ok();
    bench.tqhost(&["dead", "import", "waits", &file]).ok();
}

#[test]
fn redis_57_a_host_starts_on_a_full_redis_and_drains_it() {
    let mut bench = bench("[queues.work]\nplugin = \"echo\"\n");
    bench.host().stop();
    let id = bench.xadd("work", &[("n", "1")]);
    fill(&mut bench);
    let host = bench.host();
    bench.until("work", &id, "COMPLETED");
    assert!(bench.tqhost(&["plugins"]).ok().stdout.contains("active"), "it has announced itself");
    host.stop();
}

#[test]
fn redis_57_a_rate_goes_on_on_a_full_redis() {
    let mut bench = bench("[queues.work]\nplugin = \"echo\"\nrate_limit = \"20/s\"\n");
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    fill(&mut bench);
    bench.all_done("work", &ids);
    host.stop();
}

#[test]
fn redis_57_tasks_with_turns_are_taken_over_on_a_full_redis() {
    let track = "plugin = \"effects\"\nlease = \"1s\"\nmax_crashes = 10\n";
    let mut bench = bench(&format!(
        "[queues.track]\n{track}serial = {{ field = \"key\" }}\n\
         [queues.strict]\n{track}max_running = 1\norder = \"strict\"\n"
    ));
    let host = bench.host();
    let mut ids = Vec::new();
    for queue in ["track", "strict"] {
        for _ in 0..2 {
            ids.push((queue, told(&mut bench, queue, &json!([["sleep", 1000]]), &[("key", "k")])));
        }
        bench.until_running(queue, 1);
    }
    let other = bench.host();
    host.kill();
    fill(&mut bench);
    for (queue, id) in ids {
        bench.until(queue, &id, "COMPLETED");
    }
    other.stop();
}

#[test]
fn redis_57_leases_are_renewed_beside_a_deleted_entry_on_a_full_redis() {
    let mut bench = bench("[queues.work]\nplugin = \"effects\"\nlease = \"1s\"\n");
    let host = bench.host();
    let calls = json!([["sleep", 3000]]);
    let ids: Vec<String> = (0..4).map(|_| told(&mut bench, "work", &calls, &[])).collect();
    bench.until_running("work", 4);
    fill(&mut bench);
    let _: u64 = bench.redis("XDEL", ("work", &ids[0]));
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    let failed = host.logged("a call to Redis failed");
    assert!(failed.iter().all(|line| line["loop"] != "heartbeat"), "{failed:?}");
    host.stop();
}

#[test]
fn redis_57_a_queue_is_paused_on_a_full_redis() {
    let mut bench = bench("[queues.work]\nplugin = \"echo\"\n");
    let host = bench.host();
    fill(&mut bench);
    bench.tqhost(&["pause", "work"]).ok();
    until_paused(&host, true);
    bench.tqhost(&["resume", "work"]).ok();
    until_paused(&host, false);
    host.stop();
}

const FLOWS: &str = "[defaults]\nlease = \"2s\"\n\
    [queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
    [queues.part]\nplugin = \"effects\"\n[queues.join]\nplugin = \"effects\"\n";

#[test]
fn a_child_that_cannot_be_enqueued_holds_up_no_delayed_task() {
    let mut bench = bench(FLOWS);
    let _: () = bench.redis("ACL", ("SETUSER", "host", &["on", ">x", "~*", "+@all"]));
    bench.configure_url(FLOWS, &format!("redis://host:x@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    let child = json!({ "queue": "part", "fields": { "do": [] } });
    let join = json!({ "queue": "join", "fields": { "do": [["results"]] } });
    let id = told(&mut bench, "work", &json!([["sleep", 1000], ["fan-out", [child], join]]), &[]);
    bench.until_running("work", 1);
    let _: () = bench.redis("ACL", ("SETUSER", "host", &["resetkeys", "~tq:*", "~work", "~join"]));
    bench.until("work", &id, "COMPLETED");
    let later = bench.tqhost(&["enqueue", "join", "do=[]", "--delay", "1s"]).ok().stdout.trim().to_owned();
    bench.until("join", &later, "COMPLETED");
    let told = host.log("Redis refused a step of a task");
    assert!(told["step"] == "promote" && told["why"].as_str().is_some_and(denies), "{told}");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "~*"));
    bench.until_drained("join");
    assert_eq!(bench.places("join").dead, 0, "the flow went on");
    host.stop();
}

#[test]
fn a_task_that_cannot_begin_holds_up_no_other_one() {
    let mut bench = bench(FLOWS);
    let host = bench.host();
    // The second child is a duplicate of the first one, and its end is one for the flow.
    let child = json!({ "queue": "part", "key": "k", "fields": { "do": [["sleep", 5000]] } });
    let join = json!({ "queue": "join", "fields": { "do": [["results"]] } });
    bench.tqhost(&["pause", "part"]).ok();
    until_paused(&host, true);
    let id = told(&mut bench, "work", &json!([["fan-out", [child, child], join]]), &[]);
    bench.until("work", &id, "COMPLETED");
    eventually("the children wait", || (bench.places("part").length == 2).then_some(()));
    eventually("the flow is released", || (bench.places("join").delayed == 0).then_some(()));
    let _: () = bench.redis("SET", ("tq:{join}:delayed", "of another type"));
    let others = ["a", "b"].map(|id| {
        bench.xadd("part", &[("do", "[]"), ("tq-id", id)]);
        id
    });
    bench.tqhost(&["resume", "part"]).ok();
    for id in others {
        bench.until("part", id, "COMPLETED");
    }
    let told = host.log("Redis refused a step of a task");
    assert!(told["step"] == "begin" && told["why"].as_str().is_some_and(|why| why.contains("TQTYPE")));
    let _: u64 = bench.redis("DEL", "tq:{join}:delayed");
    bench.until_drained("part");
    eventually("the flow has failed", || (bench.places("join").dead == 1).then_some(()));
    host.stop();
}
