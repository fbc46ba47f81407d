//! Ten everyday programs in each language of `tqhost new`, each as an author writes it there: a package,
//! dates, uuids, log lines, a request, JSON, a large file, exceptions with causes, waiting for two things at
//! once, and random numbers. What is random differs in 1,000 tasks, in fresh instances and in kept ones.
//!
//! The programs are in `everyday/`. They are built by `make` in a project of `tqhost new`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::authors::{NAME, built, cache_of, host_with_caches};
use super::languages::COMPILES;
use crate::support::bench::CACHES;
use crate::support::files::put_at;
use crate::support::{Bench, Ran, Web, within};

fn change(project: &Path, file: &str, change: impl Fn(&str) -> String) {
    let path = project.join(file);
    let text = fs::read_to_string(&path).expect(file);
    let changed = change(&text);
    assert_ne!(text, changed, "{file}");
    fs::write(path, changed).expect("write");
}

/// All that the world of a project lists as a comment at first.
fn import_all(world: &str) -> String {
    world.replace("// import ", "import ")
}

fn in_rust(project: &Path) {
    fs::write(project.join("src/lib.rs"), include_str!("everyday/lib.rs")).expect("write");
    change(project, "Cargo.toml", |text| {
        text.replace(
            "tqhost-handler = { path = \"sdk\" }",
            "tqhost-handler = { path = \"sdk\", features = [\"http\"] }\nhttpdate = \"1\"\n\
             regex-lite = \"0.1\"\nserde_json = \"1\"\n\
             wit-bindgen = { version = \"0.63\", default-features = false, \
             features = [\"macros\", \"realloc\"] }",
        )
    });
}

fn in_javascript(project: &Path) {
    fs::write(project.join("handler.js"), include_str!("everyday/handler.js")).expect("write");
    change(project, "wit/world.wit", import_all);
    let integrity =
        "sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==";
    let json = |text: &str, change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::from_str(text).expect("JSON");
        change(&mut value);
        format!("{value:#}\n")
    };
    change(project, "package.json", |text| {
        json(text, &|manifest| manifest["dependencies"]["ms"] = json!("2.1.3"))
    });
    change(project, "package-lock.json", |text| {
        json(text, &|lock| {
            lock["packages"][""]["dependencies"]["ms"] = json!("2.1.3");
            lock["packages"]["node_modules/ms"] = json!({ "version": "2.1.3", "integrity": integrity });
        })
    });
}

fn in_python(project: &Path) {
    fs::write(project.join("app.py"), include_str!("everyday/app.py")).expect("write");
    change(project, "wit/world.wit", import_all);
    fs::write(project.join("requirements.txt"), "python-slugify==8.0.4\n").expect("write");
}

/// Public modules of Go cannot be had without the network, so this one is in a folder of the project.
fn in_go(project: &Path) {
    let module = NAME.to_lowercase().replace(['.', '-'], "_");
    let handler = include_str!("everyday/handler.go").replace("{{MODULE}}", &module);
    fs::write(project.join("handler.go"), handler).expect("write");
    change(project, "go.mod", |text| {
        format!("{text}\nrequire example.com/slug v0.0.0\n\nreplace example.com/slug => ./slug\n")
    });
    fs::create_dir(project.join("slug")).expect("a folder");
    fs::write(project.join("slug/go.mod"), "module example.com/slug\n\ngo 1.27\n").expect("write");
    let text = "package slug\n\nimport (\n\t\"regexp\"\n\t\"strings\"\n)\n\n\
        var other = regexp.MustCompile(\"[^a-z0-9]+\")\n\n\
        // Makes a slug of a text.\n\
        func Of(text string) string { return other.ReplaceAllString(strings.ToLower(text), \"-\") }\n";
    fs::write(project.join("slug/slug.go"), text).expect("write");
}

struct Programs {
    component: PathBuf,
    folder: tempfile::TempDir,
    web: Web,
}

impl Programs {
    fn new(lang: &str, write: impl Fn(&Path)) -> Programs {
        let component = built(lang, "everyday", write, "build");
        let (web, folder) = (Web::start(), tempfile::tempdir().expect("a folder"));
        let origin = web.origin();
        let config = format!(
            "[queues.q]\nplugin = \"everyday\"\n[plugins.everyday]\nallowed_hosts = [{origin:?}]\n\
             config = {{ service = \"{origin}/size\" }}\n"
        );
        fs::write(folder.path().join("tqhost.toml"), config).expect("write");
        Programs { component, folder, web }
    }

    /// The output of `tqhost try` for a program.
    fn ran(&self, program: &str) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        let order = r#"order={"items":[{"price":1.5,"n":2},{"price":2.25,"n":4}],"name":"Ünï \"1\""}"#;
        command.args(["try", self.component.to_str().expect("UTF-8"), "--queue", "q", "--json", "--field"]);
        command.args([&format!("program={program}"), "--field", order, "--config", "tqhost.toml"]);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env(CACHES, cache_of("everyday"));
        Ran::from(command.output().expect("run tqhost")).json()
    }

    #[track_caller]
    fn result(&self, program: &str) -> Value {
        let view = self.ran(program);
        assert_eq!(view["outcome"], "completed", "{program}: {view}");
        view["result"].clone()
    }

    /// Runs all programs. The package gives this value, and an exception is told with these texts.
    fn all_work(&self, package: Value, exception: &[&str]) {
        assert_eq!(self.result("packages")["used"], package);

        let found = self.result("dates");
        assert_eq!((&found["date"], &found["day"]), (&json!("2026-03-01T21:30:00Z"), &json!("Sunday")));
        // After 2020: it is the wall clock.
        assert!(found["seconds"].as_u64() > Some(1_577_836_800), "{found}");

        let uuids = [(); 2].map(|()| self.result("uuids")["uuid"].as_str().expect("a text").to_owned());
        let is_uuid = |text: &String| text.len() == 36 && text.as_bytes()[14] == b'4';
        assert!(uuids.iter().all(is_uuid) && uuids[0] != uuids[1], "{uuids:?}");

        let view = self.ran("logging");
        for (level, text) in [("info", "an everyday line"), ("warn", "an everyday warning")] {
            let is_told = |line: &Value| line["level"] == level && line["text"].to_string().contains(text);
            let log = view["log"].as_array().expect("lines");
            assert!(log.iter().any(is_told), "{text}: {view}");
        }

        let found = self.result("http");
        // The server says how large the body was; Python puts spaces into JSON.
        let size: usize = found["body"].as_str().and_then(|size| size.parse().ok()).expect("a number");
        assert!(found["status"] == 200 && (23..=25).contains(&size), "{found}");
        assert_eq!(self.web.requests(), 1);

        let found = self.result("json");
        assert_eq!((found["total"].as_f64(), &found["name"]), (Some(12.0), &json!("Ünï \"1\"")));

        let found = self.result("files");
        assert_eq!(found, json!({ "rows": 100_000, "sum": 4_999_950_000_u64 }));

        let view = self.ran("exceptions");
        let told = view["message"].as_str().unwrap_or_default();
        assert!(view["outcome"] == "failed" && view["kind"] == "trap", "{view}");
        for text in
            ["the order failed", "the order has no price", "there is no book 7"].iter().chain(exception)
        {
            assert!(told.contains(text), "{text}: {view}");
        }

        assert_eq!(self.result("async"), json!({ "sum": 3 }));
    }

    /// Draws random numbers in 1,000 tasks, in fresh instances and in kept ones.
    fn draws_differ(&self) {
        for instance in ["\"per-task\"", "{ warm = 4, max_tasks = 1000 }"] {
            let queues = format!("[queues.q]\n[plugins.q]\ninstance = {instance}\n");
            let mut bench = Bench::new(&queues);
            put_at(&bench.plugin_path("q"), &fs::read(&self.component).expect("the component"));
            let host = host_with_caches(&bench, "everyday");
            let mut pipe = redis::pipe();
            for _ in 0..1000 {
                pipe.cmd("XADD").arg(&["q", "*", "program", "random"]);
            }
            let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
            within(COMPILES, "all have run", || {
                (host.ended_as("q", "completed") == ids.len() as u64).then_some(())
            });
            let mut seen = [HashSet::new(), HashSet::new()];
            for id in &ids {
                let result: Value = serde_json::from_str(&bench.status("q", id, "result")).expect("JSON");
                for (seen, drawn) in seen.iter_mut().zip(result["drawn"].as_array().expect("numbers")) {
                    assert!(drawn.is_number() && seen.insert(drawn.to_string()), "{instance}: {drawn}");
                }
            }
            host.stop();
        }
    }
}

#[test]
fn everyday_programs_in_rust() {
    let programs = Programs::new("rust", in_rust);
    programs.all_work("creme-brulee".into(), &["panicked at src/lib.rs:"]);
    programs.draws_differ();
}

#[test]
fn everyday_programs_in_javascript() {
    let programs = Programs::new("javascript", in_javascript);
    programs.all_work(172_800_000.into(), &["TypeError: the order has no price", "handler.js:"]);
    let no_intl = |name: &str| {
        format!("TypeError: `{name}` knows no languages and time zones here, as the engine has no `Intl`")
    };
    let expected = json!({
        "request": "5", "zipped": "zipped", "form": true, "race": "the timer", "signal": "Error: no patience",
        "timeout": "TimeoutError: the time is over", "buffer": "aMOkbGxv", "environment": [true, true],
        "language": no_intl("toLocaleString"), "number": no_intl("toLocaleString"),
    });
    assert_eq!(programs.result("habits"), expected);
    assert_eq!(programs.result("form"), json!([true, true]));
    programs.draws_differ();
}

#[test]
fn everyday_programs_in_python() {
    let programs = Programs::new("python", in_python);
    programs.all_work("creme-brulee".into(), &["LookupError: the order has no price", "app.py:"]);
    let late = "URLError: <urlopen error {host} did not answer in time>";
    let no_sockets = "OSError: a handler has no sockets: the host makes its requests, by httpx, requests, \
         urllib.request or tqhost_http";
    let expected = json!({
        "urllib": "5", "zipped": "zipped", "both": ["5", "5"],
        "late": late.replace("{host}", &programs.web.origin()[7..]),
        "status": "HTTPError: HTTP Error 418: ", "codec": "éハ",
        "socket": no_sockets, "lookup": no_sockets,
        "tls": "OSError: TLS is the host's part: it makes the connection of every request, and checks the \
                certificate",
        "import": "colorsys",
        "late import": "ModuleNotFoundError: `turtle` is imported while a task runs, and was not imported \
                        when the component was built: import it at the top of app.py",
        "thread": "in no thread",
    });
    assert_eq!(programs.result("habits"), expected);
    programs.draws_differ();
}

#[test]
fn everyday_programs_in_go() {
    let programs = Programs::new("go", in_go);
    programs.all_work("creme-brulee".into(), &[]);
    programs.draws_differ();
}
