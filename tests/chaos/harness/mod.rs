//! The chaos test: real hosts run tasks while hosts, Redis, the network and the plugins fail at random. Then
//! every task must have one end.
//!
//! In: a seed and a time ([`Wish`]). Out: a [`Verdict`] with a table, and a folder with the logs when it is
//! bad.
//!
//!     seed ─▶ plan ─▶ faults ─┐
//!     load, orders ─▶ Redis ◀─ proxies ◀─ hosts     then ─▶ history (Redis's record of every write) ─▶ judge
//!
//! Not here: who runs it (`make chaos` in `tests/chaos/main.rs`; a short form is a test in
//! `tests/proofs/chaos.rs`).

mod aof;
pub mod effects;
mod failover;
pub mod faults;
mod history;
pub mod judge;
pub mod load;
mod node;
pub mod orders;
pub mod plan;
mod repeated;
pub mod rows;
mod values;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::failover::Pair;
use self::faults::{Done, Loss};
use self::judge::{Case, Verdict, judge};
use self::load::Sent;
use self::node::Node;
use self::plan::{Keeps, Lane};
use crate::support::proxy::Proxy;
use crate::support::{Bench, Places};

const HOSTS: usize = 3;
const QUEUES: [&str; 8] = [
    "plain",
    "listed",
    "keyed",
    "later",
    TOGETHER,
    rows::RULES[0].queue,
    rows::RULES[1].queue,
    rows::RULES[2].queue,
];
/// The queue whose handler takes batches.
const TOGETHER: &str = "together";
/// The handler of the other queues, the handler of [`TOGETHER`], and the one of the queues with effects.
const PLUGINS: [&str; 3] = ["as-told", "as-told-together", effects::PLUGIN];
const LIST: &str = "chaos:list";
pub const LEASE: Duration = Duration::from_secs(2);
const MAX_RETRIES: u64 = 3;
const MAX_DEFERRALS: u64 = 2;
const CONCURRENCY: u64 = 20;
const BATCH: u64 = 5;
/// How long the hosts may take to run the rest after the last fault. It is generous, for debug builds on slow
/// machines.
const DRAIN: Duration = Duration::from_secs(240);
/// So many pauses are between two tasks with effects, each of which makes about ten others.
const PAUSES_WITH_EFFECTS: u32 = 8;

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub seed: u64,
    /// How long faults happen; draining and judging take further time.
    pub duration: Duration,
    /// The pause between two tasks of a producer.
    pub pause: Duration,
    /// The acknowledged writes that Redis keeps after a fault.
    pub keeps: Keeps,
    /// Whether the folder of a good run is kept too.
    pub keep: bool,
}

/// Runs the test. If the folder is kept, the table names it.
pub fn run(wish: Wish) -> Verdict {
    let mut stage = Stage::set(bench(wish.keeps), wish.keeps);
    let (sent, done) = stage.break_things(wish);
    let mut verdict = stage.judge(&sent, &done);
    let (from, to) = (done.iter().map(|done| done.from_ms).min(), done.iter().map(|done| done.to_ms).max());
    let seconds = to.unwrap_or_default().saturating_sub(from.unwrap_or_default()) / 1000;
    let queues = QUEUES.len() + effects::QUEUES.len();
    let title = format!("chaos: seed {}, {seconds} s of faults, {HOSTS} hosts, {queues} queues", wish.seed);
    verdict.table = format!("{title}\n{}", verdict.table);
    stage.end(&mut verdict, wish.keep);
    verdict
}

/// A bench whose Redis never rewrites its append-only file.
pub fn bench(keeps: Keeps) -> Bench {
    let bench = Bench::with_redis(&queues(), &arguments(keeps));
    PLUGINS.iter().for_each(|plugin| bench.install(plugin, plugin));
    bench
}

fn arguments(keeps: Keeps) -> [&'static str; 6] {
    let fsync = if keeps == Keeps::All { "always" } else { "everysec" };
    ["--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"]
}

fn queues() -> String {
    let lease = LEASE.as_secs();
    let mut text = format!(
        "shutdown_grace = \"2s\"\n[defaults]\nplugin = \"as-told\"\nlease = \"{lease}s\"\n\
         concurrency = {CONCURRENCY}\nmax_crashes = 1000\n\
         max_retries = {MAX_RETRIES}\nmax_deferrals = {MAX_DEFERRALS}\nbackoff = {{ delays = [\"200ms\"] }}\n"
    );
    for queue in QUEUES {
        let own = match queue {
            "listed" => format!("list = \"{LIST}\"\n"),
            // Smaller batches than the concurrency, so that one long task does not delay all others.
            TOGETHER => format!(
                "plugin = \"{}\"\nbatch = {{ max_tasks = {BATCH}, max_wait = \"50ms\" }}\n",
                PLUGINS[1]
            ),
            _ => rows::rules(queue).map_or_else(String::new, |rules| rules.options.to_owned()),
        };
        let _ = write!(text, "[queues.{queue}]\n{own}");
    }
    text + &effects::queues()
}

/// Redis, the hosts, and the proxies between them.
struct Stage {
    bench: Bench,
    nodes: Vec<Node>,
    proxies: Vec<Proxy>,
    pair: Option<Pair>,
    logs: PathBuf,
    wrong: Vec<String>,
    effects: effects::Seen,
    drained: Duration,
}

impl Stage {
    fn set(mut bench: Bench, keeps: Keeps) -> Stage {
        // The folder also stays after a panic.
        bench.dir.disable_cleanup(true);
        println!("its folder: {}", bench.dir.path().display());
        let logs = bench.dir.path().join("logs");
        std::fs::create_dir(&logs).expect("create a folder for the logs");
        let pair = (keeps == Keeps::WhatItsReplicaHas).then(|| {
            let pair = Pair::of(&bench.redis, &bench.dir.path().join("replica"), &arguments(keeps));
            bench.configure_for(&queues(), pair.front.port);
            pair
        });
        let proxies: Vec<Proxy> = (0..HOSTS).map(|_| Proxy::start(bench.redis.port)).collect();
        let start = |(number, proxy): (usize, &Proxy)| {
            let config = bench.dir.path().join(format!("host-{number}.toml"));
            let text = format!(
                "{}[redis]\nurl = \"redis://127.0.0.1:{}\"\nwait = \"0s\"\n\
                 [admin]\nlisten = \"127.0.0.1:0\"\n",
                queues(),
                proxy.port
            );
            std::fs::write(&config, text).expect("write a configuration");
            Node::start(number, config, &logs)
        };
        let mut nodes: Vec<Node> = proxies.iter().enumerate().map(start).collect();
        nodes.iter_mut().for_each(Node::until_ready);
        Stage {
            bench,
            nodes,
            proxies,
            pair,
            logs,
            wrong: Vec::new(),
            effects: effects::Seen::default(),
            drained: Duration::ZERO,
        }
    }

    /// Carries out the plan under load. Then it waits until the hosts are ready and no task is left.
    fn break_things(&mut self, wish: Wish) -> (Sent, Vec<Done>) {
        let url = match &self.pair {
            Some(pair) => format!("redis://127.0.0.1:{}", pair.front.port),
            None => format!("redis+unix://{}", self.bench.redis.dir().join("s").display()),
        };
        let (config, folder) = (self.bench.config(), self.bench.dir.path().to_owned());
        let plugins = PLUGINS.map(|plugin| self.bench.plugin_path(plugin));
        let Stage { bench, nodes, proxies, pair, .. } = self;
        let (mut nodes, mut redis) = (nodes.iter_mut(), Some(&mut bench.redis));
        let (stop, until) = (AtomicBool::new(false), Instant::now() + wish.duration);
        let (url, stop) = (url.as_str(), &stop);
        let pause = wish.pause * PAUSES_WITH_EFFECTS;
        let (sent, done, seen) = std::thread::scope(|scope| {
            let with_effects = scope.spawn(|| effects::produce(url, &config, pause, wish.seed, stop));
            let mut producers: Vec<_> = QUEUES
                .iter()
                .map(|queue| scope.spawn(move || load::produce(url, queue, wish.pause, wish.seed, stop)))
                .collect();
            producers.push(scope.spawn(|| load::enqueue(&config, &folder, stop)));
            producers.push(scope.spawn(|| orders::give(url, &config, wish.seed, stop)));
            let mut lanes = Vec::new();
            for lane in Lane::all() {
                let steps = lane.plan(wish.seed, wish.duration, wish.keeps);
                lanes.push(match lane {
                    Lane::Host(_) => {
                        let node = nodes.next().expect("a host for each lane");
                        scope.spawn(move || faults::run_on_host(lane, &steps, until, node))
                    }
                    Lane::Network(host) => {
                        let proxy = &proxies[host];
                        scope.spawn(move || {
                            faults::run(lane, &steps, until, |step| faults::to_network(proxy, step))
                        })
                    }
                    Lane::Redis => {
                        let redis = redis.take().expect("one lane for Redis");
                        let (pair, proxies) = (pair.as_ref(), proxies.as_slice());
                        scope.spawn(move || {
                            faults::run(lane, &steps, until, |step| {
                                faults::to_redis(redis, pair, proxies, url, step)
                            })
                        })
                    }
                    Lane::Plugins => {
                        let plugins = &plugins;
                        scope.spawn(move || {
                            faults::run(lane, &steps, until, |step| faults::to_plugins(plugins, step))
                        })
                    }
                });
            }
            let done: Vec<Done> =
                lanes.into_iter().flat_map(|lane| lane.join().expect("a lane of faults")).collect();
            stop.store(true, Ordering::Release);
            let mut sent = Sent::default();
            producers.into_iter().for_each(|producer| sent.merge(producer.join().expect("a producer")));
            (sent, done, with_effects.join().expect("a producer"))
        });
        self.effects = seen;
        let healed = Instant::now();
        if let Some(pair) = self.pair.take() {
            self.bench.redis = pair.replica;
        }
        self.bench.db = self.bench.redis.connection();
        for node in &mut self.nodes {
            node.look_after();
            node.until_ready();
        }
        self.until_drained();
        self.drained = healed.elapsed();
        self.ask_the_doctor();
        (sent, done)
    }

    /// Waits until nothing is queued, running, delayed or in the list, for at most [`DRAIN`]. The judge finds
    /// what is left then.
    fn until_drained(&mut self) {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            let items: u64 = self.bench.redis("LLEN", LIST);
            let left = QUEUES
                .iter()
                .chain(&effects::QUEUES)
                .any(|queue| self.bench.places_but_dead(queue) != Places::default());
            if items == 0 && !left {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.wrong.push(format!("not drained after {DRAIN:?}"));
    }

    /// Runs `tqhost doctor` on every queue, and notes its findings.
    fn ask_the_doctor(&mut self) {
        for queue in QUEUES.iter().chain(&effects::QUEUES) {
            let ran = self.bench.tqhost(&["doctor", queue, "--json"]);
            let report = ran.json();
            if ran.code != 0 || report["ok"] != true {
                self.wrong.push(format!("{queue}: the doctor says {}: {report}", ran.code));
            }
        }
    }

    /// Stops the hosts, which have no more tasks, and judges.
    fn judge(&mut self, sent: &Sent, done: &[Done]) -> Verdict {
        for node in &mut self.nodes {
            node.look_after();
            node.stop();
            self.wrong.append(&mut node.wrong);
        }
        let pids: HashMap<u32, usize> =
            self.nodes.iter().flat_map(|node| node.pids.iter().map(move |pid| (*pid, node.number))).collect();
        let losses: Vec<Loss> = done.iter().filter_map(|done| done.loss).collect();
        let file = self.bench.redis.append_only_file();
        let (mut wrong, of_effects) = effects::judge(&mut self.bench.db, &file, &self.effects, &losses);
        self.wrong.append(&mut wrong);
        let mut verdict = judge(Case {
            append_only_file: &file,
            db: &mut self.bench.db,
            logs: &self.logs,
            sent,
            faults: done,
            pids: &pids,
            wrong: std::mem::take(&mut self.wrong),
        });
        verdict.table.push_str(&of_effects);
        let refused: u64 = self.nodes.iter().map(|node| node.refused).sum();
        let drained = self.drained.as_secs_f64();
        let _ = writeln!(
            verdict.table,
            "  all done {drained:.1} s after the last fault; \
             {refused} starts of hosts found no Redis and were repeated"
        );
        verdict
    }

    fn end(mut self, verdict: &mut Verdict, keep: bool) {
        if verdict.is_good() && !keep {
            self.bench.dir.disable_cleanup(false);
            return;
        }
        let Stage { bench, nodes, .. } = self;
        drop(nodes);
        let Bench { dir, redis, .. } = bench;
        drop(redis);
        let folder = dir.keep();
        write_evidence(verdict, &folder);
    }
}

/// Writes what is known of the guilty tasks into the folder, and names the file in the table.
fn write_evidence(verdict: &mut Verdict, folder: &Path) {
    let path = folder.join("evidence.txt");
    let lists = [
        ("lost", &verdict.lost),
        ("stuck", &verdict.stuck),
        ("committed twice", &verdict.twice),
        ("wrong", &verdict.wrong),
    ];
    let mut text = verdict.table.clone();
    for (what, names) in lists {
        for name in names {
            let _ = writeln!(text, "{what}: {name}");
        }
    }
    text.push_str(&verdict.evidence);
    std::fs::write(&path, &text).expect("write the evidence");
    let word = if verdict.is_good() { "all is well" } else { "BAD" };
    let _ = writeln!(verdict.table, "  {word}: the evidence is in {}", path.display());
    let worst =
        verdict.lost.iter().chain(&verdict.stuck).chain(&verdict.twice).chain(&verdict.wrong).take(10);
    for line in worst {
        let _ = writeln!(verdict.table, "    {line}");
    }
}
