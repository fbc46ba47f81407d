//! The clients for producers (`clients`), each by the same cases.
//!
//! In: the cases in `clients/conformance`; a driver for each language, which carries out a call for each line
//! of JSON. Out: what each call returns, and what is in Redis, in the eyes of a real host. `tqhost enqueue`
//! has to agree with the cases, too. The clients have no more rights in Redis than `clients/README.md` says.
//!
//! Not here: how a driver calls its client (`conformance` in the folder of each language).

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::support::application::{self, Application, Reply, SECRET};
use super::support::{Bench, Host, Ran, eventually};

const QUEUES: &str = include_str!("../../clients/conformance/tqhost.toml");
const ENQUEUE: &str = include_str!("../../clients/conformance/enqueue.json");
const TASKS: &str = include_str!("../../clients/conformance/tasks.json");
const WEBHOOKS: &str = include_str!("../../clients/conformance/webhooks.json");
const README: &str = include_str!("../../clients/README.md");

const TOKEN: &str = "may-do-all";
/// No host reads this stream.
const STREAM: &str = "c:cases";

/// The fields of an entry, in their order.
type Fields = Vec<(String, Vec<u8>)>;

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients")
}

fn cases(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("a list of cases")
}

/// A value of a case: a text, `{"base64": …}`, or `{"repeat": …, "times": n}`.
fn bytes(value: &Value) -> Vec<u8> {
    match (value.as_str(), value["base64"].as_str(), value["repeat"].as_str()) {
        (Some(text), ..) => text.into(),
        (_, Some(coded), _) => BASE64_STANDARD.decode(coded).expect("base64"),
        (.., Some(text)) => text.repeat(value["times"].as_u64().expect("times") as usize).into(),
        _ => panic!("no value: {value}"),
    }
}

fn text(value: &Value) -> String {
    String::from_utf8(bytes(value)).expect("UTF-8")
}

/// Fields of a case: pairs, or a number of fields.
fn fields(value: &Value) -> Fields {
    if let Some(count) = value["count"].as_u64() {
        return (0..count).map(|n| (format!("f{n}"), b"1".to_vec())).collect();
    }
    let pairs = value.as_array().expect("a list of fields").iter();
    pairs.map(|pair| (text(&pair[0]), bytes(&pair[1]))).collect()
}

/// The call that a driver gets for a case or a step: without what is for the judge.
fn call(case: &Value, more: Value) -> Value {
    let judged = ["name", "entry", "message", "returns", "result", "has", "until", "as", "queue"];
    let mut call: Map<String, Value> = case.as_object().expect("a case").clone();
    call.retain(|name, _| !judged.contains(&name.as_str()));
    for (name, value) in &mut call {
        match name.as_str() {
            "fields" => {
                let coded = fields(value).into_iter().map(|(name, value)| json!([name, base64(&value)]));
                *value = coded.collect();
            }
            "id" | "key" | "traceparent" => *value = text(value).into(),
            _ => {}
        }
    }
    let Value::Object(more) = more else { panic!("no object: {more}") };
    // A step may have a token of its own.
    for (name, value) in more {
        call.entry(name).or_insert(value);
    }
    call.into()
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// A client in its language. It ends when it is dropped.
struct Driver {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Driver {
    fn start(mut command: Command, url: &str) -> Driver {
        command.env("REDIS_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a driver");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Driver { child, input, output }
    }

    fn call(&mut self, call: &Value) -> Value {
        writeln!(self.input, "{call}").and_then(|()| self.input.flush()).expect("write a call");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read an answer");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no answer ({line:?}) to {call:.200}"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rule for the user of a client, as the page has it.
fn rights() -> Vec<String> {
    let rule = README.split_once("ACL SETUSER producer reset ").expect("the rule").1;
    let rule = rule.split("\n```").next().expect("its end").replace("\\\n", " ");
    let words = rule.split_whitespace().map(|word| word.trim_matches('\'').replace("resume:*", "c:*"));
    words.map(|word| word.replace("SECRET", "secret")).collect()
}

/// A host with the queues of the cases, and a driver.
struct Conformance {
    // It ends before its Redis does.
    driver: Driver,
    bench: Bench,
    host: Host,
    application: Application,
}

impl Conformance {
    fn start(command: Command) -> Conformance {
        let application = Application::start(|_| Reply::ok("done"));
        let mut bench = Bench::new("");
        let url = bench.redis.url();
        bench.configure(&format!(
            "{QUEUES}\n[queues.web]\nstream = \"c:web\"\nplugin = \"http-call\"\n{}\n\
             [redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{TOKEN}\"\n",
            application::plugin(&application.origin(), "")
        ));
        ["echo", "rejects", "sleeps", "http-call"].iter().for_each(|guest| bench.install(guest, guest));
        let host = bench.host();
        let () = bench.redis("ACL", [vec!["SETUSER".into(), "producer".into()], rights()].concat());
        let url = url.replace("://", "://producer:secret@");
        Conformance { driver: Driver::start(command, &url), bench, host, application }
    }

    /// Each entry is as the case says, and what is refused writes nothing.
    fn enqueues(&mut self) {
        for case in cases(ENQUEUE) {
            let answer = self.driver.call(&call(&case, json!({ "call": "enqueue", "stream": STREAM })));
            let mut entries: Vec<(String, Fields)> = self.bench.redis("XRANGE", (STREAM, "-", "+"));
            let _: u64 = self.bench.redis("DEL", STREAM);
            if let Some(message) = case.get("message") {
                assert_eq!(answer, json!({ "error": "not-a-task", "message": message }), "{case}");
                assert!(entries.is_empty(), "{case}");
                continue;
            }
            let (entry, found) = entries.pop().expect("an entry");
            assert!(found == fields(&case["entry"]) && entries.is_empty(), "{case:.2000}: {answer}");
            let id = case.get("id").map_or(entry, text);
            assert_eq!(answer, json!({ "id": id }), "{case:.2000}");
        }
    }

    fn webhooks(&mut self) {
        for case in cases(WEBHOOKS) {
            let answer = self.driver.call(&call(&case, json!({ "call": "verify" })));
            assert_matches(&answer, &case["returns"], &case["name"]);
        }
    }

    /// A request that a host has made, and the same with another body.
    fn webhook_of_a_host(&mut self) {
        let enqueue = json!({ "call": "enqueue", "fields": [["a", "grüße"]], "id": "order.7" });
        self.driver.call(&call(&enqueue, json!({ "stream": "c:web" })));
        self.bench.until("c:web", "order.7", "COMPLETED");
        let made = self.application.calls_for("order%2E7").pop().expect("a request");
        let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        let headers: HashMap<&str, &str> = names.map(|name| (name, made.header(name))).into();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the time").as_secs();
        let mut verify = json!({ "call": "verify", "secret": SECRET, "headers": headers, "now": now,
            "tolerance": 300, "body": base64(&made.body) });
        assert_eq!(self.driver.call(&verify), json!({ "id": "order%2E7" }));
        verify["body"] = base64(&[&made.body[..], b" "].concat()).into();
        assert_eq!(self.driver.call(&verify)["error"], "bad-webhook");
    }

    /// Tasks from their beginning to their end, or as far as they get.
    fn tasks(&mut self) {
        let config: toml::Table = QUEUES.parse().expect("TOML");
        for case in cases(TASKS) {
            let mut names = HashMap::new();
            for step in case["steps"].as_array().expect("steps") {
                let step = named(step, &names);
                if let Some(command) = step.get("redis") {
                    let words: Vec<Vec<u8>> =
                        command.as_array().expect("a command").iter().map(bytes).collect();
                    let name = String::from_utf8(words[0].clone()).expect("UTF-8");
                    let _: redis::Value = self.bench.redis(&name, &words[1..]);
                    continue;
                }
                let more = match step["call"].as_str() {
                    Some("cancel") => {
                        let api = format!("http://{}", self.host.admin());
                        json!({ "api": api, "queue": step["queue"], "token": TOKEN })
                    }
                    _ => {
                        let queue = &config["queues"][step["queue"].as_str().expect("a queue")];
                        json!({ "stream": queue["stream"].as_str() })
                    }
                };
                let call = call(&step, more);
                let answer = match step.get("until") {
                    None => self.driver.call(&call),
                    Some(until) => eventually(&format!("{}: {step}", case["name"]), || {
                        Some(self.driver.call(&call)).filter(|answer| matches(answer, until))
                    }),
                };
                let place = json!(format!("{}: {step}", case["name"]));
                assert_matches(&answer, step.get("returns").unwrap_or(&json!({})), &place);
                for name in step["has"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    assert!(!answer[name].is_null(), "{place}: {answer}");
                }
                if let Some(expected) = step.get("result") {
                    let result = bytes(&json!({ "base64": answer["result"] }));
                    let result: Value = serde_json::from_slice(&result).expect("a result in JSON");
                    assert_matches(&result, expected, &place);
                }
                if let Some(name) = step["as"].as_str() {
                    let id = answer["id"].as_str().unwrap_or_else(|| panic!("{place}: {answer}"));
                    names.insert(name.to_owned(), id.to_owned());
                }
            }
        }
    }
}

/// A step with the ids of earlier tasks in place of their names.
fn named(step: &Value, names: &HashMap<String, String>) -> Value {
    match step {
        Value::String(text) => {
            names.iter().fold(text.clone(), |text, (name, id)| text.replace(name, id)).into()
        }
        Value::Array(all) => all.iter().map(|one| named(one, names)).collect(),
        // The name that a step gives is its own.
        Value::Object(all) => all
            .iter()
            .map(|(key, one)| (key.clone(), if key == "as" { one.clone() } else { named(one, names) }))
            .collect(),
        other => other.clone(),
    }
}

/// Whether `found` has all that is expected. It may have more.
fn matches(found: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(all) => all.iter().all(|(name, one)| matches(&found[name], one)),
        one => found == one,
    }
}

#[track_caller]
fn assert_matches(found: &Value, expected: &Value, place: &Value) {
    assert!(matches(found, expected), "{place}\nexpected {expected}\nfound {found}");
}

/// Runs all cases by a driver.
fn conforms(command: Command) {
    let mut conformance = Conformance::start(command);
    conformance.enqueues();
    conformance.webhooks();
    conformance.tasks();
    conformance.webhook_of_a_host();
    let denied: Vec<redis::Value> = conformance.bench.redis("ACL", "LOG");
    assert!(denied.is_empty(), "{denied:?}");
    conformance.host.stop();
}

/// Runs a command in a folder, with the network.
fn run(folder: &Path, program: impl AsRef<Path>, args: &[&str]) -> String {
    let mut command = Command::new(program.as_ref());
    let ran: Ran =
        command.args(args).current_dir(folder).stdin(Stdio::null()).output().expect("run a command").into();
    ran.ok().stdout.trim_end().to_owned()
}

/// Runs a script of this repository, and returns the folder that it prints.
fn script(name: &str, argument: &str) -> PathBuf {
    run(&clients(), clients().join("../scripts").join(name), &[argument]).into()
}

#[test]
fn tqhost_enqueue_agrees_with_the_cases() {
    let mut bench = Bench::new(&format!("[queues.cases]\nstream = \"{STREAM}\"\n"));
    for case in cases(ENQUEUE) {
        let fields = fields(&case["fields"]);
        // The command chooses ids itself, and an argument is no empty list.
        if case.get("id").is_some() || fields.is_empty() {
            continue;
        }
        let mut args = vec!["enqueue".to_owned(), "cases".to_owned()];
        for (n, (name, value)) in fields.iter().enumerate() {
            let file = bench.dir.path().join(format!("value-{n}"));
            let value = if fields.len() > 10 {
                text(&json!({ "base64": base64(value) }))
            } else {
                fs::write(&file, value).expect("write a value");
                format!("@{}", file.display())
            };
            args.push(format!("{name}={value}"));
        }
        for option in ["key", "traceparent"] {
            args.extend(case.get(option).map(|value| format!("--{option}={}", text(value))));
        }
        args.extend(case.get("delay_ms").map(|delay| format!("--delay={delay}ms")));
        let ran = bench.tqhost(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let entries: Vec<(String, Fields)> = bench.redis("XRANGE", (STREAM, "-", "+"));
        let _: u64 = bench.redis("DEL", STREAM);
        if let Some(message) = case["message"].as_str() {
            assert!(ran.code != 0 && ran.stderr.contains(message), "{case}: {ran:?}");
            assert!(entries.is_empty(), "{case}");
        } else {
            assert_eq!(ran.code, 0, "{case:.2000}: {ran:?}");
            // A delayed task lies elsewhere.
            let is_own = |name: &str| name != "tq-id" && name != "tq-enqueued-at";
            let own = |fields: &Fields| fields.iter().filter(|(name, _)| is_own(name)).cloned().collect();
            let found: Vec<Fields> = entries.iter().map(|(_, fields)| own(fields)).collect();
            let is_delayed = case["delay_ms"].as_u64().is_some_and(|delay| delay > 0);
            let expected = if is_delayed { vec![] } else { vec![super::clients::fields(&case["entry"])] };
            assert!(found == expected, "{case:.2000}: {ran:?}");
        }
    }
}

#[test]
fn the_client_in_python_conforms() {
    let python = script("from-pypi.sh", "asyncio").join("python3");
    for way in ["sync", "asyncio"] {
        let mut command = Command::new(&python);
        command.arg(clients().join("python/conformance.py")).arg(way).env("PYTHONDONTWRITEBYTECODE", "1");
        conforms(command);
    }
}

#[test]
fn the_client_in_typescript_conforms() {
    let packages = script("from-npm.sh", "clients/typescript");
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["tqhost-client.ts", "conformance.ts", "tsconfig.json", "package.json"] {
        fs::copy(clients().join("typescript").join(file), folder.path().join(file)).expect("copy a file");
    }
    let modules = folder.path().join("node_modules");
    std::os::unix::fs::symlink(packages.join("node_modules"), &modules).expect("link the packages");
    run(folder.path(), modules.join(".bin/tsc"), &[]);
    for library in ["node-redis", "ioredis"] {
        let mut command = Command::new("node");
        command.arg(folder.path().join("dist/conformance.js")).arg(library);
        conforms(command);
    }
}

#[test]
fn the_client_in_go_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("conformance");
    let with_go = clients().join("../scripts/build-languages.sh");
    let source = clients().join("go/conformance");
    run(&source, &with_go, &["--run", "go", "vet", ".", "example.com/tqhost-client"]);
    run(&source, &with_go, &["--run", "go", "build", "-o", program.to_str().expect("UTF-8"), "."]);
    conforms(Command::new(program));
}

#[test]
fn the_client_in_rust_conforms() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let to = ["--target-dir", target.to_str().expect("UTF-8")];
    let source = clients().join("rust");
    run(&source, env!("CARGO"), &[&["build", "--locked", "--example", "conformance"][..], &to].concat());
    conforms(Command::new(target.join("debug/examples/conformance")));
}

#[test]
fn the_client_in_java_conforms() {
    let classes = tempfile::tempdir().expect("a folder");
    let folder = classes.path().to_str().expect("UTF-8");
    // A page for people is made of its comments, so these are checked, too.
    let checks = ["-Xlint:all", "-Xdoclint:all,-missing", "-Werror", "-d", folder];
    let files = ["tqhost/Tqhost.java", "tqhost/Conformance.java"];
    run(&clients().join("java"), "javac", &[&checks[..], &files].concat());
    let mut command = Command::new("java");
    command.args(["-cp", folder, "tqhost.Conformance"]);
    conforms(command);
}

#[test]
fn the_client_in_csharp_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("conformance.exe");
    let libraries = "-r:System.Core,System.Net.Http,System.Runtime.Serialization,System.Xml,System.Xml.Linq";
    let out = format!("-out:{}", program.display());
    let files = ["Tqhost.cs", "Conformance.cs"];
    run(
        &clients().join("csharp"),
        "mcs",
        &[&["-langversion:7", "-warnaserror", libraries, &out][..], &files].concat(),
    );
    let mut command = Command::new("mono");
    command.arg(program);
    conforms(command);
}
