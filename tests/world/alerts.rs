//! The rules and the dashboard in `deploy`, by promtool and by a real Prometheus beside real hosts.
//!
//! In: `deploy/alerts.yaml` as it stands, but with seconds in place of its minutes. Out: which alerts fire.
//! `scripts/prometheus.sh` fetches Prometheus.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::deploy::documents;
use super::support::web::Service;
use super::support::{Bench, Held, Host, Web, eventually, http};

const RULES: &str = include_str!("../../deploy/alerts.yaml");
const CONFIG: &str = include_str!("../../deploy/prometheus.yaml");
const DASHBOARD: &str = include_str!("../../deploy/grafana.json");
/// The times of the rules, and what stands in their place here.
const TIMES: [(&str, &str); 4] = [("15m", "10s"), ("5m", "5s"), ("2m", "4s"), ("1m", "3s")];
/// The age of a task that is told of, in seconds, and what stands in its place here.
const AGE: (&str, &str) = ("tqhost_queue_oldest_seconds) > 300", "tqhost_queue_oldest_seconds) > 10");

/// The token that Prometheus has.
const READ_TOKEN: &str = "may-only-read";

/// Configures queues on hosts that ask for a token.
fn with_tokens(bench: &Bench, queues: &str) {
    let url = bench.redis.url();
    bench.configure(&format!(
        "{queues}\n[redis]\nurl = \"{url}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"may-do-all\"\nread_token = \"{READ_TOKEN}\"\n"
    ));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A program of Prometheus.
pub(super) fn program(name: &str) -> Command {
    let mut script = Command::new(root().join("scripts/prometheus.sh"));
    let output = script.stdin(Stdio::null()).output().expect("run scripts/prometheus.sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Command::new(Path::new(String::from_utf8(output.stdout).expect("UTF-8").trim_end()).join(name))
}

/// A Prometheus that looks at some hosts, twice a second. Killed when it is dropped.
struct Prometheus {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Prometheus {
    fn start(dir: &Path, hosts: &[&Host]) -> Prometheus {
        let rules = TIMES.iter().fold(RULES.to_owned(), |rules, (minutes, seconds)| {
            rules
                .replace(&format!("[{minutes}]"), &format!("[{seconds}]"))
                .replace(&format!("for: {minutes}\n"), &format!("for: {seconds}\n"))
        });
        let (minutes, seconds) = AGE;
        assert!(rules.contains(minutes), "{minutes}");
        let rules = rules.replace(minutes, seconds);
        std::fs::write(dir.join("alerts.yaml"), rules).expect("write the rules");
        let admin = |host: &&Host| host.log("tqhost is running")["admin"].to_string();
        let targets: Vec<String> = hosts.iter().map(admin).collect();
        let changes = [
            ("scrape_interval: 15s", "scrape_interval: 500ms"),
            ("scrape_timeout: 10s", "scrape_timeout: 500ms"),
            ("evaluation_interval: 15s", "evaluation_interval: 200ms"),
            ("/etc/prometheus/tqhost-read-token", "read-token"),
            ("\"host-1:7700\", \"host-2:7700\"", &targets.join(", ")),
        ];
        let config = changes.iter().fold(CONFIG.to_owned(), |config, (from, to)| {
            assert!(config.contains(from), "{from}");
            config.replace(from, to)
        });
        std::fs::write(dir.join("prometheus.yaml"), config).expect("write the configuration");
        std::fs::write(dir.join("read-token"), READ_TOKEN).expect("write the token");
        let log = dir.join("prometheus.log");
        let mut command = program("prometheus");
        command
            .arg("--config.file=prometheus.yaml")
            .arg("--storage.tsdb.path=series")
            .arg("--web.listen-address=127.0.0.1:0")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stderr(File::create(&log).expect("create the log"));
        let child = command.spawn().expect("start prometheus");
        let mut prometheus = Prometheus { child, address: String::new(), log };
        prometheus.address = eventually("Prometheus has a port", || {
            let said = prometheus.said();
            Some(said.split_once("\"Listening on\" address=")?.1.split_once('\n')?.0.to_owned())
        });
        eventually("Prometheus is ready", || {
            prometheus.ask("/-/ready").is_some_and(|said| said.contains("Ready")).then_some(())
        });
        let all = format!("\"{}\"]", hosts.len());
        eventually("Prometheus has seen all hosts", || {
            let up = prometheus.ask("/api/v1/query?query=sum(up)").is_some_and(|said| said.contains(&all));
            (up && prometheus.fires().is_empty()).then_some(())
        });
        prometheus
    }

    /// The text that it has logged.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("read the log")
    }

    /// The body of its answer, if it answers yet. With HTTP/1.0 it comes in one piece.
    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// The names of the alerts that fire.
    fn fires(&self) -> BTreeSet<String> {
        let answer = self.ask("/api/v1/alerts").expect("an answer");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let alerts = answer["data"]["alerts"].as_array().expect("alerts");
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until these alerts fire, and does something before each look.
    #[track_caller]
    fn until_fires(&self, names: &[&str], mut meanwhile: impl FnMut()) {
        eventually(&format!("{names:?} fire"), || {
            meanwhile();
            let firing = self.fires();
            names.iter().all(|name| firing.contains(*name)).then_some(())
        });
    }

    /// Waits until the rules were looked at this many times more, and asserts each time that none fires.
    #[track_caller]
    fn stays_silent(&self, times: u64) {
        let looks = || -> u64 {
            let body = self.ask("/metrics").expect("an answer");
            let line = body.lines().find(|line| line.starts_with("prometheus_rule_group_iterations_total{"));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
        };
        let end = looks() + times;
        eventually("the rules are looked at", || {
            assert_eq!(self.fires(), BTreeSet::new());
            (looks() >= end).then_some(())
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let answers = ["/api/v1/targets", "/api/v1/alerts"].map(|path| self.ask(path));
            println!("Prometheus answered {answers:#?}, and logged:\n{}", self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_rules() {
    for args in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]] {
        let output = program("promtool").args(args).current_dir(root().join("deploy")).output();
        let output = output.expect("run promtool");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{args:?}: {}", text.concat());
    }
}

#[test]
fn each_rule_has_a_history_that_it_tells_of_and_one_that_it_does_not() {
    let tests = documents("alerts-test.yaml");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let cases: Vec<Value> =
        list(&tests[0]["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])).collect();
    let rules = documents("alerts.yaml");
    let rules = list(&rules[0]["groups"][0]["rules"]);
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        let of_rule: Vec<&Value> = cases.iter().filter(|case| case["alertname"] == rule["alert"]).collect();
        let tells = |case: &&Value| case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
        let positive = of_rule.iter().filter(|case| tells(case)).count();
        assert!(positive > 0 && positive < of_rule.len(), "{}: {of_rule:?}", rule["alert"]);
    }
}

#[test]
fn every_series_of_the_rules_and_the_dashboard_exists() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    host.until_ready();
    // A host looks for alarms after it was asked.
    bench.tqhost(&["pause", "work"]).ok();
    let series = eventually("the host has looked", || {
        let series = host.get("/metrics").body;
        series.contains("\ntqhost_alarm{kind=\"paused\"").then_some(series)
    });
    let mut seen = BTreeSet::new();
    for text in [RULES, DASHBOARD] {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        seen.extend(text.split(|c| !is_name(c)).filter(|word| word.starts_with("tqhost_")));
    }
    for name in &seen {
        let is_there = series
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        assert!(is_there, "there is no series {name} in\n{series}");
    }
    assert!(seen.len() > 10, "{seen:?}");
    host.stop();
}

#[test]
fn an_incident_is_told_of_and_a_graceful_stop_is_not() {
    let held = Held::new();
    let queues = held.queues(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\n\
         [queues.bad]\nplugin = \"always-fails\"\nmax_retries = 0\n",
    );
    let mut bench = Bench::new("");
    with_tokens(&bench, &queues);
    bench.install("fetches", "fetches");
    bench.install("always-fails", "always-fails");
    let (mut first, second) = (bench.host(), bench.host());
    first.until_ready();
    second.until_ready();
    let prometheus = Prometheus::start(bench.dir.path(), &[&first, &second]);
    prometheus.stays_silent(10);

    // Hosts stop, and wait for a task that runs. They are still there.
    (0..2).for_each(|_| drop(bench.xadd("work", &held.task())));
    bench.until_running("work", 2);
    first.signal(Signal::SIGTERM);
    first.log("stopping");
    second.signal(Signal::SIGTERM);
    second.log("stopping");
    // For longer than a fetch loop may be silent, and a rule may wait.
    let limit_ms = 12_000;
    eventually("they stop for a while", || {
        prometheus.stays_silent(1);
        let token = [("authorization", &*format!("Bearer {READ_TOKEN}"))];
        let report = http::send(second.admin(), "GET", "/readyz", &token, None).json();
        (report["queues"][0]["since_ms"].as_u64() >= Some(limit_ms)).then_some(())
    });
    held.end();
    assert_eq!(first.ended(), 0);
    drop(prometheus);
    second.stop();

    // Tasks die, and then the host does.
    let host = bench.host();
    host.until_ready();
    let folder = tempfile::tempdir().expect("a folder");
    let prometheus = Prometheus::start(folder.path(), &[&host]);
    prometheus.stays_silent(5);
    prometheus.until_fires(&["DeadLettersGrow", "TasksFail"], || {
        bench.xadd("bad", &[("a", "1")]);
    });
    host.kill();
    prometheus.until_fires(&["HostDown", "NoHost"], || {});
}

#[test]
fn a_backlog_that_nothing_ends_is_told_of_until_it_does() {
    let held = Held::new();
    let mut bench = Bench::new("");
    with_tokens(&bench, &held.queues("[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\n"));
    bench.install("fetches", "fetches");
    let host = bench.host();
    host.until_ready();
    let prometheus = Prometheus::start(bench.dir.path(), &[&host]);
    prometheus.stays_silent(5);
    // One runs and the others wait: as many as no rule tells of, and one more.
    (0..100).for_each(|_| drop(bench.xadd("work", &held.task())));
    prometheus.until_fires(&["OldestTaskWaits", "NothingProcessed"], || {});
    assert!(!prometheus.fires().contains("BacklogGrows"));
    bench.xadd("work", &held.task());
    prometheus.until_fires(&["BacklogGrows"], || {});
    held.end();
    bench.until_drained("work");
    eventually("no rule tells of the backlog any more", || prometheus.fires().is_empty().then_some(()));
    host.stop();
}

#[test]
fn waits_refusals_and_losses_of_hosts_and_queues_raise_alerts() {
    let web = Web::start();
    web.set_service(Service::Answers("503 Service Unavailable", ""));
    let queues = format!(
        "[queues.asks]\nplugin = \"asks-a-service\"\nhold = {{ after = 2, for = \"60s\" }}\n\
         [queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n\
         [queues.echo]\n[plugins.asks-a-service]\nallowed_hosts = [\"{}\"]\n",
        web.origin()
    );
    let mut bench = Bench::new("");
    with_tokens(&bench, &queues);
    for guest in ["asks-a-service", "sleeps", "echo"] {
        bench.install(guest, guest);
    }
    let host = bench.host();
    host.until_ready();
    let prometheus = Prometheus::start(bench.dir.path(), &[&host]);
    prometheus.stays_silent(5);

    let url = format!("{}/service", web.origin());
    (0..2).for_each(|_| drop(bench.xadd("asks", &[("url", &url)])));
    prometheus.until_fires(&["QueueHeld"], || {});
    std::fs::write(bench.plugin_path("echo"), "no handler").expect("break a file");
    prometheus.until_fires(&["PluginRefused"], || {});
    bench.xadd("work", &[("ms", "60000")]);
    bench.until_running("work", 1);
    assert_eq!(bench.redis::<u64>("XTRIM", ("work", "MAXLEN", 0)), 1);
    prometheus.until_fires(&["TasksLost"], || {});
    assert!(!prometheus.fires().contains("HostNotReady"));
    kill(bench.redis.pid(), Signal::SIGSTOP).expect("suspend Redis");
    prometheus.until_fires(&["HostNotReady"], || {});
    kill(bench.redis.pid(), Signal::SIGCONT).expect("wake Redis");
    eventually("the host makes progress again", || {
        (!prometheus.fires().contains("HostNotReady")).then_some(())
    });
    host.kill();
}
