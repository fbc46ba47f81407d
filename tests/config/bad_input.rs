//! Mistakes that people make, each with its message and its exit code.
//!
//! Exit codes: 1 failed, 2 wrong usage, 78 wrong configuration.

use std::collections::BTreeSet;
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

/// The message of the command. It must end with this code, and print nothing on stdout.
#[track_caller]
fn refused(bench: &Bench, ran: &Ran, code: i32) -> String {
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:#?}");
    assert!(!ran.stderr.contains("panicked") && !ran.stderr.contains("Error {"), "{ran:#?}");
    without_places(bench, &ran.stderr)
}

/// The message of a host of this bench, beside its log. It must end by itself with this code.
#[track_caller]
fn does_not_run(bench: &Bench, command: Command, code: i32) -> String {
    let mut host = Host::spawn(command);
    assert_eq!(host.ended(), code, "{}", host.raw());
    let log = host.raw();
    assert!(!log.contains("panicked") && !log.contains(PASSWORD), "{log}");
    let told = log.lines().filter(|line| !line.starts_with('{'));
    without_places(bench, &told.map(|line| format!("{line}\n")).collect::<String>())
}

fn without_places(bench: &Bench, text: &str) -> String {
    let folder = bench.dir.path().to_str().expect("a path");
    text.replace(folder, "DIR").replace(&format!(":{}", bench.redis.port), ":PORT")
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
    let told = refused(&bench, &bench.tqhost(&["check"]), 78);
    insta::assert_snapshot!(told, @"
    tqhost: DIR/tqhost.toml: 1 problem
      there is no such file: write one (docs/configuration.md has an example), or name it with --config \
        or TQHOST_CONFIG
    ");
    assert_eq!(refused(&bench, &bench.tqhost(&["queues"]), 78), told);
    assert_eq!(does_not_run(&bench, command(&bench), 78), told);
    // The output for programs has the message too.
    let error: Value =
        serde_json::from_str(&refused(&bench, &bench.tqhost(&["queues", "--json"]), 78)).expect("JSON");
    assert_eq!(format!("tqhost: {}\n", error["error"].as_str().expect("a text")), told);
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
    insta::assert_snapshot!(refused(&bench, &run("gone.toml", &["queues"]), 78), @"
    tqhost: DIR/gone.toml: 1 problem
      there is no such file: write one (docs/configuration.md has an example), or name it with --config \
        or TQHOST_CONFIG
    ");
    std::fs::remove_file(bench.config()).expect("remove the configuration");
    let told = refused(&bench, &run("", &["queues"]), 78);
    insta::assert_snapshot!(
        told,
        @"tqhost: there is no DIR/tqhost.toml and no /etc/tqhost/tqhost.toml, and neither --config nor \
          TQHOST_CONFIG names a configuration: write one (docs/configuration.md has an example), or name it"
    );
    for args in [&["run"][..], &["try", "x.wasm", "--queue", "here", "--field", "a=1"]] {
        assert_eq!(refused(&bench, &run("", args), 78), told);
    }
}

#[test]
fn a_configuration_that_is_wrong() {
    let bench = Bench::new("[queues.work]\n");
    let told = [
        "[queues.work]\nlease = \n",
        "[queues.work]\nmax_retires = 3\n",
        "[queues.work]\ntimeout = \"5 minutes\"\n",
        "[queues.work]\ntimeout = 5\n",
        "[defaults]\non_end = \"a\"\n[queues.work]\n[queues.other]\n",
        "[queues.a]\nstream = \"s\"\n[queues.b]\nstream = \"s\"\n",
        "[queues.work]\n[admin]\nlisten = \"0.0.0.0:7700\"\n",
        "[queues.work]\n[plugins.work]\nmemory = \"64MB\"\n",
        "# nothing\n",
    ]
    .map(|text| {
        bench.configure(text);
        let told = refused(&bench, &bench.tqhost(&["check"]), 78);
        assert_eq!(refused(&bench, &bench.tqhost(&["queues"]), 78), told);
        told
    });
    insta::assert_snapshot!(told.concat(), @"
    tqhost: DIR/tqhost.toml: 1 problem
      line 2: column 9: not TOML: string values must be quoted, expected literal string
    tqhost: DIR/tqhost.toml: 1 problem
      line 2: queues.work.max_retires: unknown key: did you mean `max_retries`?
    tqhost: DIR/tqhost.toml: 1 problem
      line 2: queues.work.timeout: \"5 minutes\" is not a duration: write whole numbers with the units \
        d, h, m, s or ms, like \"30s\" or \"1m30s\"
    tqhost: DIR/tqhost.toml: 1 problem
      line 2: queues.work.timeout: \"5\" has no unit: write \"5s\"
    tqhost: DIR/tqhost.toml: 1 problem
      line 2: defaults.on_end: \"a\" is not a queue: add a table [queues.a], or take the name out
    tqhost: DIR/tqhost.toml: 1 problem
      line 4: queues.b.stream: \"s\" is the stream of the queue \"a\" too: give every queue its own
    tqhost: DIR/tqhost.toml: 1 problem
      line 3: admin.token: is required, because 0.0.0.0:7700 can be reached from other machines: write \
        token = { env = \"TQHOST_ADMIN_TOKEN\" }
    tqhost: DIR/tqhost.toml: 1 problem
      line 3: plugins.work.memory: \"64MB\" is not a size: write a whole number with the unit B, KiB, \
        MiB or GiB, like \"64MiB\"
    tqhost: DIR/tqhost.toml: 1 problem
      queues: there is no queue: add a table [queues.NAME] for each of your streams
    ");
    assert_eq!(does_not_run(&bench, command(&bench), 78), told[8]);
}

#[test]
fn a_command_beside_a_service_needs_its_environment() {
    let bench = Bench::new("");
    bench.configure("[queues.work]\n[redis]\nurl = { env = \"URL_OF_THE_UNIT\" }\n");
    insta::assert_snapshot!(refused(&bench, &bench.tqhost(&["queues"]), 78), @"
    tqhost: DIR/tqhost.toml: 1 problem
      line 3: redis.url: the environment variable \"URL_OF_THE_UNIT\" is not set, or is not UTF-8: set \
        it, for example with the file of the systemd unit: `set -a; . /etc/tqhost/environment`
    ");
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
    let told = refused(&bench, &bench.tqhost(&["check"]), 78);
    insta::assert_snapshot!(told, @"
    tqhost: DIR/tqhost.toml: 5 problems
      line 4: plugins.reads-config.config.model: the environment variable \"NOT_SET_ANYWHERE\" is not \
        set, or is not UTF-8: set it, for example with the file of the systemd unit: `set -a; . \
        /etc/tqhost/environment`
      line 4: plugins.reads-config.config.key: cannot read DIR/nowhere: No such file or directory (os \
        error 2)
      line 10: admin.token: the environment variable \"NO_TOKEN\" is not set, or is not UTF-8: set it, \
        for example with the file of the systemd unit: `set -a; . /etc/tqhost/environment`
      line 11: admin.read_token: cannot read DIR/no-read-token: No such file or directory (os error 2)
      line 15: telemetry.headers.authorization: the environment variable \"NO_HEADER\" is not set, or \
        is not UTF-8: set it, for example with the file of the systemd unit: `set -a; . \
        /etc/tqhost/environment`
    ");
    assert_eq!(refused(&bench, &bench.tqhost(&["run"]), 78), told);
    // A mistake in the file itself is an error for every command.
    bench.configure_for(&config.replace("{ env =", "{ environment ="), bench.redis.port);
    insta::assert_snapshot!(refused(&bench, &bench.tqhost(&["queues"]), 78), @r#"
    tqhost: DIR/tqhost.toml: 2 problems
      line 4: plugins.reads-config.config.model.environment: unknown key: the keys here are env, file
      line 4: plugins.reads-config.config.model: has no source: write { env = "NAME" } or { file = "path" }
    "#);
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
    // The password is not in it.
    insta::assert_snapshot!(refused(&bench, &bench.tqhost(&["check"]), 78), @"
    tqhost: DIR/tqhost.toml: 10 problems
      line 1: plugin_dir: unknown key: did you mean `plugins_dir`?
      line 2: shutdown_grace: \"30\" has no unit: write \"30s\"
      line 4: redis.url: the url must begin with redis://, rediss:// or redis+unix://, like \
        \"redis://127.0.0.1:6379\"
      line 6: admin.listen: \"here\" is not an IP address with a port: write \"127.0.0.1:7700\"
      line 8: queues.a.lease: \"1ms\" is out of bounds: write \"1s\" to \"1d\"
      line 9: queues.a.concurrency: 0 is out of bounds: write 1 to 10000
      line 10: queues.a.max_retries: -1 is out of bounds: write 0 to 1000
      line 11: queues.a.backoff: is a string, but must be a table like { base = \"1s\", max = \"60s\", \
        jitter = 0.2 }, or { delays = [\"10s\", \"30s\"] }, or \"none\"
      line 12: queues.a.retention: is a boolean, but must be a duration like \"30s\"
      line 13: queues.a.priority: 0 is out of bounds: write 1 to 1000
    ");
}

#[test]
fn plugins_that_cannot_be_used_fail_the_check_and_missing_ones_do_not() {
    let bench = Bench::new("[queues.work]\nplugin = \"p\"\n");
    let view = bench.tqhost(&["check", "--json"]).ok().json();
    assert_eq!((&view["ok"], &view["plugins"][0]["state"]), (&true.into(), &"missing".into()));
    // Without the folder the plugin is missing, too, and the folder is noted.
    let folder = bench.dir.path().join("plugins");
    std::fs::remove_dir(&folder).expect("remove the folder");
    let view = bench.tqhost(&["check", "--json"]).ok().json();
    insta::assert_snapshot!(
        without_places(&bench, &view["notes"].to_string()),
        @"[\"plugins_dir: there is no folder DIR/plugins: make it and put the plugins into it, or name \
          another one\"]"
    );
    std::fs::create_dir(&folder).expect("create the folder");

    std::fs::write(bench.dir.path().join("text"), "hello").expect("write");
    let guest = |name| guest_path(name);
    let files =
        [bench.dir.path().join("text"), guest("wrong-world"), guest("wrong-version"), guest("wants-more")];
    let errors = files.map(|file| {
        std::fs::copy(&file, bench.plugin_path("p")).expect("copy");
        let view = bench.tqhost(&["check", "--json"]).ends_with(1).json();
        let plugin = &view["plugins"][0];
        assert_eq!((&view["ok"], &plugin["state"]), (&false.into(), &"bad".into()), "{view}");
        let error = plugin["error"].as_str().expect("an error").to_owned();
        let shown = bench.tqhost(&["check"]).ends_with(1).stdout;
        assert!(shown.contains(&error), "{error} in {shown}");
        error
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    this is not a WebAssembly file: it is a text file
    it exports no tqhost:handler/handler; it exports tqhost:testing/greeter@0.1.0
    it exports tqhost:handler/handler@0.2.0, but this tqhost runs tqhost:handler/handler@0.1.0
    it imports what handlers cannot have: wasi:keyvalue/store@0.2.0-draft (tqhost does not know it), \
        for tqhost:handler/handler@0.1.0#handle
    ");
    bench.install("echo", "p");
    bench.tqhost(&["check"]).ok();
}

#[test]
fn redis_that_cannot_be_reached() {
    let mut bench = Bench::new("[queues.work]\n");
    bench.redis.stop();
    let told = refused(&bench, &bench.tqhost(&["queues"]), 1);
    insta::assert_snapshot!(
        told,
        @"tqhost: connect: Redis at redis://127.0.0.1:PORT did not answer: Connection refused (os error 111)"
    );
    assert_eq!(refused(&bench, &bench.tqhost(&["enqueue", "work", "a=1"]), 1), told);
    assert_eq!(does_not_run(&bench, command(&bench), 1), told);
    bench.tqhost(&["check"]).ok();
}

#[test]
fn a_password_that_is_wrong_or_missing() {
    let bench = Bench::with_redis("[queues.work]\n", &["--requirepass", "something-else"]);
    let urls = [bench.redis.url(), format!("redis://:{PASSWORD}@127.0.0.1:{}", bench.redis.port)];
    let told = urls.map(|url| {
        bench.configure(&format!(
            "[queues.work]\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
        ));
        let told = refused(&bench, &bench.tqhost(&["queues"]), 1);
        assert_eq!(does_not_run(&bench, command(&bench), 1), told);
        told
    });
    // The password is not in it.
    insta::assert_snapshot!(told.concat(), @"
    tqhost: connect: Redis at redis://127.0.0.1:PORT refused the credentials; check user and password \
        in [redis]: \"NOAUTH\": Authentication required.
    tqhost: connect: Redis at redis://127.0.0.1:PORT refused the credentials; check user and password \
        in [redis]: Password authentication failed - AuthenticationFailed
    ");
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
    said.extend([refused(&bench, &bench.tqhost(&["queues"]), 1), host.raw()]);
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
    let told = does_not_run(&bench, command(&bench), 1);
    insta::assert_snapshot!(
        told.replace(&address.port().to_string(), "PORT"),
        @"tqhost: admin.listen: 127.0.0.1:PORT is in use by another process; choose another address, or \
          port 0"
    );
}

#[test]
fn a_queue_that_is_not_configured() {
    let bench = Bench::new("[queues.resume-analyze]\n[queues.reports]\n");
    let told = [
        &["enqueue", "resume_analyse", "a=1"][..],
        &["status", "resume_analyse", "1-0"],
        &["queues", "resume_analyse"],
        &["dead", "list", "resume_analyse"],
        &["dead", "requeue", "resume_analyse", "--all"],
    ]
    .map(|args| refused(&bench, &bench.tqhost(args), 2));
    insta::assert_snapshot!(
        Vec::from_iter(BTreeSet::from(told)).concat(),
        @"tqhost: no queue \"resume_analyse\" is configured; did you mean resume-analyze? Configured: \
          resume-analyze, reports"
    );
    insta::assert_snapshot!(refused(&bench, &bench.tqhost(&["explode"]), 2), @"
    error: unrecognized subcommand 'explode'

      tip: some similar subcommands exist: 'deploy', 'reload'

    Usage: tqhost [OPTIONS] [COMMAND]

    For more information, try '--help'.
    ");
}

#[test]
fn a_command_line_that_lacks_something_says_what() {
    let bench = Bench::new("[queues.work]\n");
    let told = [
        "cancel work --match x",
        "dead requeue work --match x",
        "dead purge work --reason rejected",
        "dead export work --error x --out f",
        "cancel work --dry-run",
        "dead purge work",
        "cancel work 1-0 --match x",
        "dead export work 1-0 2-0",
        "dead requeue work --all --rate 50",
        "tasks work --limit 0",
        "try x.wasm t.json --attempt 0",
    ]
    .map(|line| {
        let told = refused(&bench, &bench.tqhost(&line.split(' ').collect::<Vec<_>>()), 2);
        format!("{line}\n  {}\n", told.lines().next().unwrap_or_default())
    });
    insta::assert_snapshot!(told.concat(), @r#"
    cancel work --match x
      tqhost: add --all: the filters choose among all of the queue
    dead requeue work --match x
      tqhost: add --all: the filters choose among all of the queue
    dead purge work --reason rejected
      tqhost: add --all: the filters choose among all of the queue
    dead export work --error x --out f
      tqhost: add --all: the filters choose among all of the queue
    cancel work --dry-run
      tqhost: name an id, or --all
    dead purge work
      tqhost: name an id, or --all
    cancel work 1-0 --match x
      tqhost: the filters go with --all, not with an id
    dead export work 1-0 2-0
      tqhost: one dead letter is printed, as `tqhost try` reads it: add --out FILE for several
    dead requeue work --all --rate 50
      error: invalid value '50' for '--rate <RATE>': "50" has no unit: write "50/s"
    tasks work --limit 0
      error: invalid value '0' for '--limit <COUNT>': write a whole number from 1
    try x.wasm t.json --attempt 0
      error: invalid value '0' for '--attempt <NUMBER>': write a whole number from 1
    "#);
}

#[test]
fn fields_that_cannot_be_enqueued() {
    let mut bench = Bench::new("[queues.work]\n");
    let table: [(&[&str], i32); 7] = [
        (&["content"], 2),
        (&["cv=@/no/such/file"], 1),
        (&["a=1", "tq-id=7"], 2),
        (&["end.id=7"], 2),
        (&[], 2),
        (&["a=1", "--delay", "10"], 2),
        (&["a=1", "--timeout", "1s"], 2),
    ];
    let told = table.map(|(args, code)| {
        let told = refused(&bench, &bench.tqhost(&[&["enqueue", "work"], args].concat()), code);
        // The usage follows.
        format!("{}\n", told.split("\n\n").next().unwrap_or_default().trim_end())
    });
    insta::assert_snapshot!(told.concat(), @r#"
    tqhost: "content" is not a field: write name=value or name=@file
    tqhost: field cv: cannot read /no/such/file: No such file or directory (os error 2)
    tqhost: field `tq-id`: names that start with `tq-` are reserved for tqhost
    tqhost: field `end.id`: names that start with `end.` are reserved for tqhost
    error: the following required arguments were not provided:
      <NAME=VALUE>...
    error: invalid value '10' for '--delay <DURATION>': "10" has no unit: write "10s"
    error: the following required arguments were not provided:
      --wait
    "#);
    assert_eq!(bench.redis::<u64>("EXISTS", "work"), 0, "nothing was enqueued");
}

#[test]
fn one_bad_line_keeps_the_whole_file_out() {
    let mut bench = Bench::new("[queues.work]\n");
    let path = bench.dir.path().join("tasks.jsonl");
    let file = path.display().to_string();
    let told = ["{\"a\": }", "[1]", "{}", "{\"tq-key\": 1}"].map(|bad| {
        std::fs::write(&path, format!("{}{bad}\n", "{\"a\": 1}\n".repeat(1000))).expect("write");
        let told = refused(&bench, &bench.tqhost(&["enqueue", "work", "--jsonl", &file]), 1);
        assert_eq!(bench.redis::<u64>("EXISTS", "work"), 0, "{bad}");
        told
    });
    let no_file = bench.tqhost(&["enqueue", "work", "--jsonl", "/no/such/file"]);
    insta::assert_snapshot!(told.concat() + &refused(&bench, &no_file, 1), @"
    tqhost: nothing was enqueued: DIR/tasks.jsonl line 1001: not a JSON object: column 7: expected value
    tqhost: nothing was enqueued: DIR/tasks.jsonl line 1001: not a JSON object: write {\"name\": \
        \"value\"}
    tqhost: nothing was enqueued: DIR/tasks.jsonl line 1001: a task needs at least one field
    tqhost: nothing was enqueued: DIR/tasks.jsonl line 1001: field `tq-key`: names that start with \
        `tq-` are reserved for tqhost
    tqhost: cannot read /no/such/file: No such file or directory (os error 2)
    ");
}

#[test]
fn a_missing_plugin_or_task_is_named_as_missing() {
    let bench = Bench::new("[queues.work]\n");
    let told = [&["status", "work", "1-0"][..], &["dead", "show", "work", "1-0"]]
        .map(|args| refused(&bench, &bench.tqhost(args), 1));
    insta::assert_snapshot!(told.concat(), @"
    tqhost: queue work knows no task \"1-0\": it was never there, it ended more than 1d ago (the \
        queue's retention), or it lies behind the 5,000 entries or 64 MiB that a search reads
    tqhost: queue work has no dead letter \"1-0\"; `tqhost dead list work` shows those it has
    ");
}

#[test]
fn a_second_host_on_the_same_private_redis() {
    let bench = embedded();
    let host = bench.host();
    let told = does_not_run(&bench, command(&bench), 1).replace(&host.pid().to_string(), "PID");
    insta::assert_snapshot!(told, @"tqhost: another tqhost (pid PID) runs with this data_dir (DIR/.tqhost)");
    // The first host still works.
    eventually("it is ready", || (host.get("/readyz").status == 200).then_some(()));
    bench.tqhost(&["queues"]).ok();
    host.stop();
}

#[test]
fn commands_for_a_private_redis_whose_host_is_not_running() {
    let bench = embedded();
    let told =
        [&["queues"][..], &["enqueue", "work", "a=1"], &["status", "work", "1-0"], &["dead", "list", "work"]]
            .map(|args| refused(&bench, &bench.tqhost(args), 1));
    insta::assert_snapshot!(
        Vec::from_iter(BTreeSet::from(told)).concat(),
        @"tqhost: no host is running with the embedded Redis of DIR/.tqhost; start `tqhost run` first, or \
          set redis.url: connect: Redis at redis+unix://DIR/.tqhost/redis/redis.sock did not answer: No \
          such file or directory (os error 2)"
    );
    // These commands work without a host.
    bench.tqhost(&["check"]).ok();
    assert_eq!(bench.tqhost(&["plugins", "--json"]).ok().json()["hosts"], 0);
    // A host that was killed leaves its socket behind. No command waits for ever because of it.
    let mut host = bench.host();
    host.signal(Signal::SIGKILL);
    host.ended();
    let ran =
        eventually("its Redis is gone too", || Some(bench.tqhost(&["queues"])).filter(|ran| ran.code != 0));
    // The message tells of the host at every point where the command can be cut off.
    let told = refused(&bench, &ran, 1);
    assert!(told.contains("DIR/.tqhost") && told.contains("`tqhost run`"), "{told}");
}

#[test]
fn commands_for_a_private_redis_that_ends_while_they_use_it() {
    // The moment decides about the question and the cause.
    let told = |bench: &Bench, args: &[&str]| {
        let told = refused(bench, &bench.tqhost(args), 1);
        let (why, cause) = told.split_once(" redis.url: ").expect("a cause");
        assert!(cause.contains(" did not answer: "), "{told}");
        why.to_owned()
    };
    let mut all = BTreeSet::new();
    let moments: [&[&str]; 3] = [&[], &["PING"], &["PING", "INFO"]];
    for answered in moments {
        for args in [&["queues"][..], &["queues", "--json"], &["queues", "work"], &["plugins"]] {
            let bench = embedded();
            let redis = vanishes(&bench, answered);
            all.insert(told(&bench, args));
            redis.join().expect("it was asked");
        }
    }
    // Nobody listens on this socket. A killed Redis leaves such a socket behind.
    let bench = embedded();
    drop(UnixListener::bind(private_socket(&bench)).expect("listen"));
    all.insert(told(&bench, &["queues"]));
    insta::assert_snapshot!(Vec::from_iter(all).join("\n"), @r#"
    tqhost: no host is running with the embedded Redis of DIR/.tqhost; start `tqhost run` first, or set
    {"error":"no host is running with the embedded Redis of DIR/.tqhost; start `tqhost run` first, or set
    "#);
    // Something listens on this socket, but it is not a working Redis.
    let listener = UnixListener::bind(bench.dir.path().join("other")).expect("listen");
    std::fs::rename(bench.dir.path().join("other"), private_socket(&bench)).expect("rename a socket");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let told = refused(&bench, &bench.tqhost(&["queues"]), 1);
    insta::assert_snapshot!(
        told.split(": connect: ").next().unwrap_or_default(),
        @"tqhost: the embedded Redis of DIR/.tqhost is there and does not answer; the log of `tqhost run` \
          says more"
    );
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
    insta::assert_snapshot!(
        does_not_run(&bench, without(&empty), 1),
        @"tqhost: there is no redis-server and no valkey-server on PATH for a private Redis: install one \
          (Debian, Ubuntu: apt install redis-server; Fedora: dnf install valkey; Homebrew: brew install \
          redis), or set redis.url"
    );
}
