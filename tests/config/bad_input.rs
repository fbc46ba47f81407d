//! Mistakes that people make, each with its message and its exit code.
//!
//! Exit codes: 1 failed, 2 wrong usage, 78 wrong configuration.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::bench::guest_path;
use crate::support::{Bench, Host, Ran, eventually};

const PASSWORD: &str = "hunter2-of-redis";

/// The command must end with this code, print nothing on stdout, and print all of these texts on stderr.
#[track_caller]
fn refused(ran: &Ran, code: i32, texts: &[&str]) {
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:#?}");
    for text in texts {
        assert!(ran.stderr.contains(text), "no {text:?} in {ran:#?}");
    }
    assert!(!ran.stderr.contains("panicked") && !ran.stderr.contains("Error {"), "{ran:#?}");
}

/// The host must end by itself with this code and all of these texts. Returns what it wrote.
#[track_caller]
fn does_not_run(command: Command, code: i32, texts: &[&str]) -> String {
    let mut host = Host::spawn(command);
    assert_eq!(host.ended(), code, "{}", host.raw());
    let log = host.raw();
    for text in texts {
        assert!(log.contains(text), "{text:?} in\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
    log
}

/// A command that starts a host with this configuration. The host is killed together with the bench.
fn command(bench: &Bench) -> Command {
    Host::command(&bench.config())
}

/// A bench with one queue and a private Redis, in a folder of its own.
fn embedded() -> Bench {
    let bench = Bench::new("[queues.work]\n");
    bench.configure("[queues.work]\nplugin = \"echo\"\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    bench
}

/// The socket of the private Redis. Its folder is created.
fn private_socket(bench: &Bench) -> PathBuf {
    let folder = bench.dir.path().join(".tqhost/redis");
    std::fs::create_dir_all(&folder).expect("create a folder");
    folder.join("redis.sock")
}

/// Plays a private Redis that answers these commands and closes the connection on any other, as if its host
/// had been killed at that moment.
fn vanishes(bench: &Bench, answered: &'static [&str]) -> JoinHandle<()> {
    let socket = private_socket(bench);
    let listener = UnixListener::bind(&socket).expect("listen");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.expect("a client"));
            while let Some(command) = command_of(&mut client) {
                let answer = match command.as_str() {
                    // The client sends its name and version.
                    "CLIENT" => "+OK\r\n",
                    "PING" if answered.contains(&"PING") => "+PONG\r\n",
                    "INFO" if answered.contains(&"INFO") => "$19\r\nredis_version:7.2.0\r\n",
                    _ => return std::fs::remove_file(&socket).expect("remove the socket"),
                };
                client.get_mut().write_all(answer.as_bytes()).expect("answer");
            }
        }
    })
}

/// The name of the next command that a Redis client sends; None when it has closed the connection.
fn command_of(client: &mut BufReader<UnixStream>) -> Option<String> {
    fn number(client: &mut BufReader<UnixStream>, mark: char) -> Option<usize> {
        let mut line = String::new();
        client.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    }
    let words = number(client, '*')?;
    let mut command = Vec::new();
    for _ in 0..words {
        let mut word = vec![0; number(client, '$')? + 2];
        client.read_exact(&mut word).ok()?;
        command.push(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned());
    }
    command.into_iter().next()
}

#[test]
fn no_configuration_file() {
    let bench = Bench::new("[queues.work]\n");
    std::fs::remove_file(bench.config()).expect("remove the configuration");
    let texts = ["tqhost.toml", "there is no such file", "--config"];
    refused(&bench.tqhost(&["check"]), 78, &texts);
    refused(&bench.tqhost(&["queues"]), 78, &texts);
    does_not_run(command(&bench), 78, &texts);
    // The output for programs has the message too.
    let ran = bench.tqhost(&["queues", "--json"]);
    let error: Value = serde_json::from_str(&ran.stderr).expect("JSON");
    assert!(
        ran.code == 78 && error["error"].as_str().is_some_and(|error| error.contains("no such file")),
        "{ran:#?}"
    );
}

#[test]
fn the_configuration_is_named_by_an_option_or_a_variable_or_is_in_the_folder() {
    let bench = Bench::new("[queues.here]\n");
    let (folder, text) =
        (bench.dir.path(), std::fs::read_to_string(bench.config()).expect("a configuration"));
    for name in ["variable", "option"] {
        std::fs::write(folder.join(format!("{name}.toml")), text.replace("here", name)).expect("write");
    }
    let run = |variable: &str, args: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        command.args(args).current_dir(folder).env("TQHOST_CONFIG", variable).stdin(Stdio::null());
        command.output().expect("run tqhost").into()
    };
    let queue = |variable: &str, args: &[&str]| -> String {
        let queues = run(variable, &[&["queues", "--json"], args].concat()).ok().json();
        queues[0]["queue"].as_str().expect("a queue").to_owned()
    };
    assert_eq!(queue("", &[]), "here");
    assert_eq!(queue("variable.toml", &[]), "variable");
    assert_eq!(queue("variable.toml", &["--config", "option.toml"]), "option");
    // A file that is named is not looked for elsewhere.
    refused(&run("gone.toml", &["queues"]), 78, &["gone.toml", "there is no such file", "TQHOST_CONFIG"]);
    std::fs::remove_file(bench.config()).expect("remove the configuration");
    let here = bench.config();
    let places = [&*here.to_string_lossy(), "/etc/tqhost/tqhost.toml", "--config", "TQHOST_CONFIG"];
    refused(&run("", &["queues"]), 78, &places);
    refused(&run("", &["run"]), 78, &places);
    refused(&run("", &["try", "x.wasm", "--queue", "here", "--field", "a=1"]), 78, &places);
}

#[test]
fn a_configuration_that_is_wrong() {
    let bench = Bench::new("[queues.work]\n");
    let table: [(&str, &[&str]); 9] = [
        ("[queues.work]\nlease = \n", &["line 2: column", "not TOML"]),
        (
            "[queues.work]\nmax_retires = 3\n",
            &["line 2: queues.work.max_retires: unknown key: did you mean `max_retries`?"],
        ),
        (
            "[queues.work]\ntimeout = \"5 minutes\"\n",
            &["line 2: queues.work.timeout: \"5 minutes\" is not a duration", "\"30s\""],
        ),
        ("[queues.work]\ntimeout = 5\n", &["has no unit: write \"5s\""]),
        (
            "[defaults]\non_end = \"a\"\n[queues.work]\n[queues.other]\n",
            &[": 1 problem", "line 2: defaults.on_end: \"a\" is not a queue"],
        ),
        (
            "[queues.a]\nstream = \"s\"\n[queues.b]\nstream = \"s\"\n",
            &["line 4: queues.b.stream: \"s\" is the stream of the queue \"a\" too"],
        ),
        (
            "[queues.work]\n[admin]\nlisten = \"0.0.0.0:7700\"\n",
            &["admin.token: is required", "0.0.0.0:7700 can be reached from other machines"],
        ),
        ("[queues.work]\n[plugins.work]\nmemory = \"64MB\"\n", &["\"64MB\" is not a size", "\"64MiB\""]),
        ("# nothing\n", &["queues: there is no queue: add a table [queues.NAME]"]),
    ];
    for (text, texts) in table {
        bench.configure(text);
        refused(&bench.tqhost(&["check"]), 78, texts);
        refused(&bench.tqhost(&["queues"]), 78, texts);
    }
    does_not_run(command(&bench), 78, table[8].1);
}

#[test]
fn a_command_beside_a_service_needs_its_environment() {
    let bench = Bench::new("");
    bench.configure("[queues.work]\n[redis]\nurl = { env = \"URL_OF_THE_UNIT\" }\n");
    let texts = ["\"URL_OF_THE_UNIT\" is not set", "the file of the systemd unit", "set -a; . /etc/tqhost/"];
    refused(&bench.tqhost(&["queues"]), 78, &texts);
    let file = bench.dir.path().join("environment");
    std::fs::write(&file, format!("URL_OF_THE_UNIT={}\n", bench.redis.url())).expect("write");
    // The command of the page.
    let page = include_str!("../../docs/operations.md");
    let line =
        page.lines().find_map(|line| line.strip_prefix("sudo ").filter(|line| line.contains("set -a")));
    let line = line.expect("a command").replace("/etc/tqhost/environment", file.to_str().expect("a path"));
    let line = line.replace("tqhost queues", &format!("{} queues", env!("CARGO_BIN_EXE_tqhost")));
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).env("TQHOST_CONFIG", bench.config()).stdin(Stdio::null());
    let ran = Ran::from(shell.output().expect("run a shell")).ok();
    assert!(ran.stdout.contains("work"), "{ran:?}");
}

#[test]
fn commands_need_no_secrets_of_plugins_and_of_the_admin_server() {
    let config = "[queues.work]\nplugin = \"reads-config\"\n[plugins.reads-config]\n\
                  config = { model = { env = \"NOT_SET_ANYWHERE\" }, key = { file = \"nowhere\" } }\n";
    let bench = Bench::new(config);
    // The table `[admin]` is the last one.
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    let tokens = "token = { env = \"NO_TOKEN\" }\nread_token = { file = \"no-read-token\" }\n";
    // Without a sample no span is sent, so no collector is asked.
    let telemetry = "[telemetry]\notlp = \"http://127.0.0.1:4318\"\nsample = 0\n\
                     headers = { authorization = { env = \"NO_HEADER\" } }\n";
    bench.configure(&(text + tokens + telemetry));
    for args in [
        &["enqueue", "work", "a=1"][..],
        &["queues"],
        &["plugins"],
        &["pause", "work"],
        &["resume", "work"],
        &["dead", "list", "work"],
    ] {
        bench.tqhost(args).ok();
    }
    for args in [&["check"][..], &["run"]] {
        let texts = [
            "\"NOT_SET_ANYWHERE\" is not set",
            "cannot read",
            "nowhere",
            "\"NO_TOKEN\" is not set",
            "no-read-token",
            "\"NO_HEADER\" is not set",
        ];
        refused(&bench.tqhost(args), 78, &texts);
    }
    // A mistake in the file itself is an error for every command.
    bench.configure_for(&config.replace("{ env =", "{ environment ="), bench.redis.port);
    refused(&bench.tqhost(&["queues"]), 78, &["plugins.reads-config.config.model.environment: unknown key"]);
}

#[test]
fn commands_need_no_token_of_the_configuration_of_the_image() {
    let bench = Bench::new("[queues.work]\n");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/tqhost.toml");
    let text = std::fs::read_to_string(file).expect("the configuration");
    let reference = "{ env = \"REDIS_URL\" }";
    assert!(text.contains(reference) && text.contains("read_token = { env = "), "{text}");
    bench.configure(&text.replace(reference, &format!("\"{}\"", bench.redis.url())));
    bench.tqhost(&["enqueue", "resume-analyze", "cv=1"]).ok();
    bench.tqhost(&["queues"]).ok();
}

#[test]
fn ten_problems_are_told_at_once() {
    let bench = Bench::new("[queues.work]\n");
    bench.configure(&format!(
        "plugin_dir = \"p\"\nshutdown_grace = \"30\"\n[redis]\nurl = \"http://:{PASSWORD}@host\"\n\
         [admin]\nlisten = \"here\"\n\
         [queues.a]\nlease = \"1ms\"\nconcurrency = 0\nmax_retries = -1\nbackoff = \"often\"\n\
         retention = true\npriority = 0\n"
    ));
    let ran = bench.tqhost(&["check"]);
    refused(&ran, 78, &["10 problems"]);
    for (line, key) in [
        (1, "plugin_dir"),
        (2, "shutdown_grace"),
        (4, "redis.url"),
        (6, "admin.listen"),
        (8, "queues.a.lease"),
        (9, "queues.a.concurrency"),
        (10, "queues.a.max_retries"),
        (11, "queues.a.backoff"),
        (12, "queues.a.retention"),
        (13, "queues.a.priority"),
    ] {
        assert!(ran.stderr.contains(&format!("line {line}: {key}: ")), "no {key} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains(PASSWORD), "{}", ran.stderr);
}

#[test]
fn plugins_that_cannot_be_used_fail_the_check_and_missing_ones_do_not() {
    let bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    let missing = bench.tqhost(&["check"]).ok();
    assert!(missing.stdout.contains("missing: its queue waits"), "{missing:#?}");
    let view = bench.tqhost(&["check", "--json"]).ok().json();
    assert_eq!((&view["ok"], &view["plugins"][0]["state"]), (&true.into(), &"missing".into()));
    // Without the folder the plugin is missing, too, and the folder is noted.
    let folder = bench.dir.path().join("plugins");
    std::fs::remove_dir(&folder).expect("remove the folder");
    let missing = bench.tqhost(&["check"]).ok();
    let note = format!("plugins_dir: there is no folder {}", folder.display());
    assert!(missing.stdout.contains(&note), "{missing:#?}");
    std::fs::create_dir(&folder).expect("create the folder");

    std::fs::write(bench.dir.path().join("text"), "hello").expect("write");
    let guest = |name| guest_path(name);
    let table = [
        (bench.dir.path().join("text"), "this is not a WebAssembly file: it is a text file"),
        (guest("wrong-world"), "it exports no tqhost:handler/handler"),
        (
            guest("wrong-version"),
            "it exports tqhost:handler/handler@0.2.0, but this tqhost runs tqhost:handler/handler@0.1.0",
        ),
        (guest("wants-more"), "it imports what handlers cannot have: wasi:keyvalue"),
    ];
    for (file, why) in table {
        std::fs::copy(&file, bench.plugin_path("p")).expect("copy");
        let ran = bench.tqhost(&["check"]);
        assert!(ran.code == 1 && ran.stdout.contains(why), "{why}: {ran:#?}");
        let ran = bench.tqhost(&["check", "--json"]);
        let view = ran.json();
        assert_eq!(
            (ran.code, &view["ok"], &view["plugins"][0]["state"]),
            (1, &false.into(), &"bad".into()),
            "{why}"
        );
        assert!(
            view["plugins"][0]["error"].as_str().is_some_and(|error| error.contains(why)),
            "{why}: {view}"
        );
    }
    bench.install("echo", "p");
    bench.tqhost(&["check"]).ok();
}

#[test]
fn redis_that_cannot_be_reached() {
    let mut bench = Bench::new("[queues.work]\n");
    bench.redis.stop();
    let address = format!("Redis at {} did not answer", bench.redis.url());
    refused(&bench.tqhost(&["queues"]), 1, &[&address]);
    refused(&bench.tqhost(&["enqueue", "work", "a=1"]), 1, &[&address]);
    does_not_run(command(&bench), 1, &[&address]);
    bench.tqhost(&["check"]).ok();
}

#[test]
fn a_password_that_is_wrong_or_missing() {
    let bench = Bench::with_redis("[queues.work]\n", &["--requirepass", "something-else"]);
    for url in [bench.redis.url(), format!("redis://:{PASSWORD}@127.0.0.1:{}", bench.redis.port)] {
        bench.configure(&format!(
            "[queues.work]\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
        ));
        let texts = ["refused the credentials; check user and password in [redis]"];
        let ran = bench.tqhost(&["queues"]);
        refused(&ran, 1, &texts);
        let log = does_not_run(command(&bench), 1, &texts);
        assert!(!ran.stderr.contains(PASSWORD) && !log.contains(PASSWORD), "{ran:#?}\n{log}");
    }
}

#[test]
fn the_password_of_redis_is_never_printed() {
    let mut bench = Bench::with_redis("[queues.work]\nplugin = \"echo\"\n", &["--requirepass", PASSWORD]);
    bench.install("echo", "echo");
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", bench.redis.port);
    bench.configure(&format!(
        "[queues.work]\nplugin = \"echo\"\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    ));
    redis::cmd("AUTH").arg(PASSWORD).query::<()>(&mut bench.db).expect("AUTH");
    let host = bench.host();
    let mut said: Vec<String> = Vec::new();
    for args in [
        &["check"][..],
        &["check", "--json"],
        &["enqueue", "work", "a=1", "--wait"],
        &["queues"],
        &["queues", "work", "--json"],
        &["plugins", "--json"],
        &["dead", "list", "work"],
    ] {
        let ran = bench.tqhost(args).ok();
        said.extend([ran.stdout, ran.stderr]);
    }
    for key in bench.redis::<Vec<String>>("KEYS", "tq:host:*") {
        said.push(bench.redis("GET", key));
    }
    // During an outage the host logs errors about its Redis.
    bench.redis.stop();
    eventually("the outage shows", || (host.get("/readyz").status == 503).then_some(()));
    said.extend([host.get("/readyz").body, host.get("/metrics").body]);
    host.log("a call to Redis failed; trying again");
    let ran = bench.tqhost(&["queues"]);
    refused(&ran, 1, &["did not answer"]);
    said.extend([ran.stderr, host.raw()]);
    assert!(said.len() > 18, "the announcement was looked at too");
    for text in said {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn an_admin_address_that_is_in_use() {
    let bench = Bench::new("[queues.work]\n");
    let taken = TcpListener::bind("127.0.0.1:0").expect("take a port");
    let address = taken.local_addr().expect("an address");
    bench.configure(&format!(
        "[queues.work]\n[redis]\nurl = \"{}\"\n[admin]\nlisten = \"{address}\"\n",
        bench.redis.url()
    ));
    does_not_run(
        command(&bench),
        1,
        &[&format!("admin.listen: {address} is in use by another process; choose another address")],
    );
}

#[test]
fn a_queue_that_is_not_configured() {
    let bench = Bench::new("[queues.resume-analyze]\n[queues.reports]\n");
    for args in [
        &["enqueue", "resume_analyse", "a=1"][..],
        &["status", "resume_analyse", "1-0"],
        &["queues", "resume_analyse"],
        &["dead", "list", "resume_analyse"],
        &["dead", "requeue", "resume_analyse", "--all"],
    ] {
        refused(
            &bench.tqhost(args),
            2,
            &["no queue \"resume_analyse\" is configured; did you mean resume-analyze?", "reports"],
        );
    }
    refused(&bench.tqhost(&["explode"]), 2, &["explode", "Usage"]);
}

#[test]
fn a_command_line_that_lacks_something_says_what() {
    let bench = Bench::new("[queues.work]\n");
    let all = "add --all: the filters choose among all of the queue";
    let table: [(&str, &str); 11] = [
        ("cancel work --match x", all),
        ("dead requeue work --match x", all),
        ("dead purge work --reason rejected", all),
        ("dead export work --error x --out f", all),
        ("cancel work --dry-run", "name an id, or --all"),
        ("dead purge work", "name an id, or --all"),
        ("cancel work 1-0 --match x", "the filters go with --all, not with an id"),
        ("dead export work 1-0 2-0", "one dead letter is printed, as `tqhost try` reads it: add --out FILE"),
        ("dead requeue work --all --rate 50", "\"50\" has no unit: write \"50/s\""),
        ("tasks work --limit 0", "write a whole number from 1"),
        ("try x.wasm t.json --attempt 0", "write a whole number from 1"),
    ];
    for (line, why) in table {
        refused(&bench.tqhost(&line.split(' ').collect::<Vec<_>>()), 2, &[why]);
    }
}

#[test]
fn fields_that_cannot_be_enqueued() {
    let mut bench = Bench::new("[queues.work]\n");
    let table: [(&[&str], i32, &str); 7] = [
        (&["content"], 2, "\"content\" is not a field: write name=value or name=@file"),
        (&["cv=@/no/such/file"], 1, "field cv: cannot read /no/such/file: No such file"),
        (&["a=1", "tq-id=7"], 2, "field `tq-id`: names that start with `tq-` are reserved for tqhost"),
        (&["end.id=7"], 2, "field `end.id`: names that start with `end.` are reserved for tqhost"),
        (&[], 2, "required"),
        (&["a=1", "--delay", "10"], 2, "has no unit: write \"10s\""),
        (&["a=1", "--timeout", "1s"], 2, "--wait"),
    ];
    for (args, code, text) in table {
        refused(&bench.tqhost(&[&["enqueue", "work"], args].concat()), code, &[text]);
    }
    assert_eq!(bench.redis::<u64>("EXISTS", "work"), 0, "nothing was enqueued");
}

#[test]
fn one_bad_line_keeps_the_whole_file_out() {
    let mut bench = Bench::new("[queues.work]\n");
    let path = bench.dir.path().join("tasks.jsonl");
    let file = path.display().to_string();
    for (bad, why) in [
        ("{\"a\": }", "line 1001: not a JSON object: column"),
        ("[1]", "line 1001: not a JSON object"),
        ("{}", "line 1001: a task needs at least one field"),
        ("{\"tq-key\": 1}", "line 1001: field `tq-key`"),
    ] {
        std::fs::write(&path, format!("{}{bad}\n", "{\"a\": 1}\n".repeat(1000))).expect("write");
        refused(&bench.tqhost(&["enqueue", "work", "--jsonl", &file]), 1, &["nothing was enqueued", why]);
        assert_eq!(bench.redis::<u64>("EXISTS", "work"), 0, "{bad}");
    }
    refused(
        &bench.tqhost(&["enqueue", "work", "--jsonl", "/no/such/file"]),
        1,
        &["/no/such/file", "No such file"],
    );
}

#[test]
fn a_missing_plugin_or_task_is_named_as_missing() {
    let bench = Bench::new("[queues.work]\n");
    refused(
        &bench.tqhost(&["status", "work", "1-0"]),
        1,
        &["queue work knows no task \"1-0\"", "more than 1d ago"],
    );
    refused(
        &bench.tqhost(&["dead", "show", "work", "1-0"]),
        1,
        &["queue work has no dead letter \"1-0\"", "tqhost dead list work"],
    );
}

#[test]
fn a_second_host_on_the_same_private_redis() {
    let bench = embedded();
    let host = bench.host();
    does_not_run(
        command(&bench),
        1,
        &[&format!("another tqhost (pid {}) runs with this data_dir", host.pid())],
    );
    // The first host still works.
    eventually("it is ready", || (host.get("/readyz").status == 200).then_some(()));
    bench.tqhost(&["queues"]).ok();
    host.stop();
}

#[test]
fn commands_for_a_private_redis_whose_host_is_not_running() {
    let bench = embedded();
    for args in
        [&["queues"][..], &["enqueue", "work", "a=1"], &["status", "work", "1-0"], &["dead", "list", "work"]]
    {
        refused(
            &bench.tqhost(args),
            1,
            &["no host is running with the embedded Redis of", ".tqhost", "start `tqhost run` first"],
        );
    }
    // These commands work without a host.
    bench.tqhost(&["check"]).ok();
    assert!(bench.tqhost(&["plugins"]).ok().stdout.contains("No host is running"));
    // A host that was killed leaves its socket behind. No command waits for ever because of it.
    let mut host = bench.host();
    host.signal(Signal::SIGKILL);
    host.ended();
    let ran =
        eventually("its Redis is gone too", || Some(bench.tqhost(&["queues"])).filter(|ran| ran.code != 0));
    // The message is the same at every point where the command can be cut off.
    refused(&ran, 1, &["embedded Redis of", "`tqhost run`"]);
}

#[test]
fn commands_for_a_private_redis_that_ends_while_they_use_it() {
    let texts = [
        "no host is running with the embedded Redis of",
        ".tqhost",
        "start `tqhost run` first",
        "did not answer",
    ];
    let moments: [&[&str]; 3] = [&[], &["PING"], &["PING", "INFO"]];
    for answered in moments {
        for args in [&["queues"][..], &["queues", "--json"], &["queues", "work"], &["plugins"]] {
            let bench = embedded();
            let redis = vanishes(&bench, answered);
            refused(&bench.tqhost(args), 1, &texts);
            redis.join().expect("it was asked");
        }
    }
    // Nobody listens on this socket. A killed Redis leaves such a socket behind.
    let bench = embedded();
    drop(UnixListener::bind(private_socket(&bench)).expect("listen"));
    refused(&bench.tqhost(&["queues"]), 1, &texts);
    // Something listens on this socket, but it is not a working Redis.
    let listener = UnixListener::bind(bench.dir.path().join("other")).expect("listen");
    std::fs::rename(bench.dir.path().join("other"), private_socket(&bench)).expect("rename a socket");
    let closes = [
        "the embedded Redis of",
        ".tqhost",
        "is there and does not answer; the log of `tqhost run` says more",
    ];
    std::thread::spawn(move || listener.incoming().for_each(drop));
    refused(&bench.tqhost(&["queues"]), 1, &closes);
}

#[test]
fn no_redis_server_on_path() {
    let bench = embedded();
    let empty = bench.dir.path().join("empty");
    std::fs::create_dir(&empty).expect("create a folder");
    let without = |path: &Path| {
        let mut command = command(&bench);
        command.env("PATH", path);
        command
    };
    does_not_run(
        without(&empty),
        1,
        &[
            "there is no redis-server and no valkey-server on PATH",
            "apt install redis-server",
            "or set redis.url",
        ],
    );
}
