//! The packages of docs/languages/packages.md, in handlers that are built with public registries.
//!
//! In: the tables below, and the handlers in packages/, which use each package. Out: the tables of the page:
//! each package that works there works here, in the version of the day, and each other one fails to build,
//! with its words. Not here: the helpers themselves (`handlers` of the end-to-end tests).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::llm::{Llm, Said};
use super::support::{Ran, Web};

const PAGE: &str = include_str!("../../docs/languages/packages.md");

/// Packages that work: names of the registry, and how they are used.
const PYTHON: [(&str, &str); 13] = [
    ("openai", "chat, a stream, `AsyncOpenAI`, `timeout`"),
    ("anthropic", "a message"),
    ("httpx", "GET, `timeout`, gzip, `AsyncClient`"),
    ("requests", "GET, POST, `timeout`, gzip, `Session`"),
    ("urllib", "POST"),
    ("pydantic", "models, in version 1"),
    ("tenacity", "a request that is tried again"),
    ("jinja2", "a template"),
    ("pypdf", "a file that it wrote"),
    ("beautifulsoup4", "`html.parser`"),
    ("dateutil", "a date"),
    ("yaml", "a document that it wrote"),
    ("markdown", "a line"),
];
const JAVASCRIPT: [(&str, &str); 14] = [
    ("openai", "chat, a stream, `timeout`"),
    ("@anthropic-ai/sdk", "a message"),
    ("axios", "GET, POST, `timeout`, gzip"),
    ("ky", "GET, `timeout`, gzip"),
    ("p-retry", "a request that is tried again"),
    ("zod", "objects"),
    ("ajv", "a schema"),
    ("date-fns", "dates"),
    ("uuid", "versions 5 and 7"),
    ("lodash-es", "`groupBy`"),
    ("cheerio", "a selector"),
    ("papaparse", "CSV"),
    ("yaml", "a document that it wrote"),
    ("jose", "a token with HS256"),
];

const GO: [(&str, &str); 14] = [
    ("github.com/go-resty/resty/v2", "`SetTransport(http.DefaultTransport)`, POST, `timeout`, gzip"),
    ("github.com/hashicorp/go-retryablehttp", "`HTTPClient.Transport = http.DefaultTransport`, three tries"),
    ("github.com/cenkalti/backoff/v4", "a request that is tried again"),
    ("github.com/google/uuid", "versions 4 and 5"),
    ("github.com/golang-jwt/jwt/v4", "a token with HS256"),
    ("github.com/shopspring/decimal", "a sum"),
    ("github.com/tidwall/gjson", "a path"),
    ("github.com/go-playground/validator/v10", "a struct"),
    ("github.com/mitchellh/mapstructure", "a struct"),
    ("github.com/PuerkitoBio/goquery", "a selector"),
    ("github.com/yuin/goldmark", "a line"),
    ("gopkg.in/yaml.v3", "a document that it wrote"),
    ("github.com/pelletier/go-toml/v2", "a document that it wrote"),
    ("github.com/rs/zerolog", "a line"),
];

const RUST: [(&str, &str); 20] = [
    ("async-openai", "`chat-completion-types` without the default features, sent by `tqhost_handler::http`"),
    ("wstd", "POST, also two at once, `set_first_byte_timeout`; a GET may end as `connection reset`"),
    ("waki", "GET, POST"),
    ("backon", "a request that is tried again, with `std-blocking-sleep` only"),
    ("serde_json", "a struct"),
    ("regex", "`\\p{L}`"),
    ("uuid", "versions 4, 5 and 7"),
    ("chrono", "dates, `Utc::now`"),
    ("jiff", "a time zone, with `tzdb-bundle-always`"),
    ("csv", "records that it wrote"),
    ("toml", "a document that it wrote"),
    ("minijinja", "a template"),
    ("scraper", "a selector"),
    ("pulldown-cmark", "a line"),
    ("hmac", "a signature, with `sha2`"),
    ("jsonschema", "a schema, without the default features"),
    ("lopdf", "a file that it wrote, without the default features"),
    ("tiktoken-rs", "`o200k_base`; each fresh instance builds its table"),
    ("rayon", "a sum, on one thread"),
    ("tokio", "`join!`, `sleep`, with `rt` and `time`"),
];

/// Packages that do not work: what the build says, or the attempt, and why and what to use instead, for the
/// page.
const NOT_PYTHON: [(&str, &str, &str); 4] = [
    ("numpy", "native code", "native; `statistics`, `csv`, `sqlite3`, or a handler in Rust or Go"),
    ("orjson", "native code", "native; `json`"),
    ("tiktoken", "native code", "native; the number in the model's answer"),
    ("regex", "native code", "native; `re`"),
];
const NOT_JAVASCRIPT: [(&str, &str, &str); 3] = [
    ("undici", "is a module of Node.js", "it needs Node.js; `fetch`"),
    ("marked", "in regular expression", "it has `\\p{…}` in regular expressions; `markdown` of Python"),
    ("sharp", "is a module of Node.js", "native; a handler in Rust or Go"),
];

const NOT_GO: [(&str, &str, &str); 4] = [
    ("github.com/mattn/go-sqlite3", "requires cgo", "it needs cgo; `sqlite3` of Python"),
    (
        "github.com/go-sql-driver/mysql",
        "a handler has no sockets",
        "it needs sockets; an API before the database",
    ),
    (
        "github.com/gomodule/redigo",
        "a handler has no sockets",
        "it needs sockets; [records](../effects.md#records)",
    ),
    ("github.com/gorilla/websocket", "a handler has no sockets", "it needs sockets; `net/http`"),
];
/// The last one can be built.
const NOT_RUST: [(&str, &str, &str); 3] = [
    ("reqwest", "are supported on wasm", "it needs sockets; `tqhost_handler::http` or `waki`"),
    ("rusqlite", "libsqlite3-sys", "it has C; [records](../effects.md#records)"),
    ("ureq", "Permission denied", "it needs sockets; `tqhost_handler::http` or `waki`"),
];

/// Checks that the page has these rows, and no others of their language.
fn is_on_page(language: &str, works: &[(&str, &str)], fails: &[(&str, &str, &str)]) {
    let works = works.iter().map(|(name, used)| format!("| `{name}` | {used} | yes |"));
    let fails = fails.iter().map(|(name, _, why)| format!("| `{name}` | | no: {why} |"));
    let rows: Vec<String> = works.chain(fails).collect();
    let part = PAGE.split("\n## ").find(|part| part.starts_with(language)).expect("the part of a language");
    let told: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(told, rows, "docs/languages/packages.md:\n{}", rows.join("\n"));
}

/// Runs a command in a folder, with the network.
fn ran(folder: &Path, program: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command.env("TQHOST", env!("CARGO_BIN_EXE_tqhost")).env("RUST_BACKTRACE", "0");
    command.output().expect("run a command").into()
}

/// A project whose handler may make requests.
fn project(folder: &Path, lang: &str) -> PathBuf {
    ran(folder, env!("CARGO_BIN_EXE_tqhost"), &["new", "p", "--lang", lang]).ok();
    let path = folder.join("p");
    let world = path.join("wit/world.wit");
    // Projects in Go and Rust have none.
    if let Ok(text) = fs::read_to_string(&world) {
        fs::write(&world, text.replace("// import wasi:http/", "import wasi:http/")).expect("write");
    }
    path
}

/// Builds the project, and runs its handler once for each package. The last ones do not work.
fn each_works(path: &Path, build: &[&str], packages: &[(&str, &str)], fails: &[(&str, &str, &str)]) {
    let built = ran(path, build[0], &build[1..]);
    assert_eq!(built.code, 0, "{built:#?}");
    let said = r#"{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}],
        "id": "1", "object": "chat.completion", "created": 1, "model": "m",
        "type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hello"}]}"#;
    let event = r#"{"choices": [{"index": 0, "delta": {"content": "Hello"}}]}"#;
    let events = Llm::start(vec![Said::status(200, "", &format!("data: {event}\n\ndata: [DONE]\n\n"))]);
    let model = Llm::start(vec![Said::status(200, "", said)]);
    let web = Web::start();
    let (model, events, web) = (model.origin(), events.origin(), web.origin());
    let config = format!(
        "[queues.p]\n[plugins.p]\nallowed_hosts = [{model:?}, {events:?}, {web:?}]\n\
         config = {{ model = {model:?}, events = {events:?}, web = {web:?} }}\n"
    );
    fs::write(path.join("tqhost.toml"), config).expect("write");
    let tried = |package: &str| {
        fs::write(path.join("task.json"), format!("{{\"package\": {package:?}}}")).expect("write");
        let args = ["try", "p.wasm", "task.json", "--queue", "p", "--config", "tqhost.toml", "--json"];
        ran(path, env!("CARGO_BIN_EXE_tqhost"), &args).json()
    };
    for (package, _) in packages {
        let view = tried(package);
        assert_eq!(view["outcome"], "completed", "{package}: {view}");
    }
    for (package, words, _) in fails {
        let view = tried(package);
        let is_told = view["message"].as_str().is_some_and(|message| message.contains(words));
        assert!(view["outcome"] != "completed" && is_told, "{package}: {view}");
    }
}

#[test]
fn packages_of_python_are_as_the_page_says() {
    is_on_page("Python", &PYTHON, &NOT_PYTHON);
    let folder = tempfile::tempdir().expect("a folder");
    let path = project(folder.path(), "python");
    let handler = fs::read_to_string(path.join("app.py")).expect("the handler");
    let fails = NOT_PYTHON.map(|(package, ..)| package).join("\n");
    fs::write(path.join("requirements.txt"), fails).expect("write");
    for (package, words, _) in NOT_PYTHON {
        fs::write(path.join("app.py"), format!("import {package}\n{handler}")).expect("write");
        let built = ran(&path, "make", &["build"]);
        assert!(built.code != 0 && built.stderr.contains(words), "{package}: {built:#?}");
    }
    let named = |package| match package {
        "dateutil" => "python-dateutil",
        "yaml" => "pyyaml",
        "urllib" => "",
        package => package,
    };
    fs::write(path.join("requirements.txt"), PYTHON.map(|(package, _)| named(package)).join("\n"))
        .expect("write");
    fs::write(path.join("app.py"), include_str!("packages/app.py")).expect("write");
    each_works(&path, &["make", "build"], &PYTHON, &[]);
}

#[test]
fn packages_of_javascript_are_as_the_page_says() {
    is_on_page("JavaScript", &JAVASCRIPT, &NOT_JAVASCRIPT);
    let folder = tempfile::tempdir().expect("a folder");
    let path = project(folder.path(), "javascript");
    let names = JAVASCRIPT.map(|(package, _)| package).into_iter();
    let names: Vec<&str> = names.chain(NOT_JAVASCRIPT.map(|(package, ..)| package)).collect();
    ran(&path, "npm", &[&["install", "--silent"], &names[..]].concat()).ok();
    for (package, words, _) in NOT_JAVASCRIPT {
        let handler = format!("export * as used from '{package}';\nexport const handler = {{}};\n");
        fs::write(path.join("handler.js"), handler).expect("write");
        let built = ran(&path, "make", &["build"]);
        assert!(built.code != 0 && built.stderr.contains(words), "{package}: {built:#?}");
    }
    fs::write(path.join("handler.js"), include_str!("packages/handler.js")).expect("write");
    each_works(&path, &["make", "build"], &JAVASCRIPT, &[]);
}

#[test]
fn packages_of_go_are_as_the_page_says() {
    is_on_page("Go", &GO, &NOT_GO);
    let folder = tempfile::tempdir().expect("a folder");
    let parent = folder.path().join("src/example.com");
    fs::create_dir_all(&parent).expect("a folder");
    let path = project(&parent, "go");
    fs::write(path.join("handler.go"), include_str!("packages/handler.go")).expect("write");
    // scripts/setup.sh installs the packages from Debian, which has their folders, and no module proxy.
    let with_go = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/build-languages.sh");
    let packages = format!("GOPATH={}:/usr/share/gocode", folder.path().display());
    let build = [with_go, "--run", "make", "build", "GO111MODULE=off", &packages];
    each_works(&path, &build, &GO, &NOT_GO);
}

#[test]
fn packages_of_rust_are_as_the_page_says() {
    is_on_page("Rust", &RUST, &NOT_RUST);
    let folder = tempfile::tempdir().expect("a folder");
    let path = project(folder.path(), "rust");
    let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("the manifest");
    let sdk = "tqhost-handler = { path = \"sdk\" }\n";
    let depends_on = |dependencies: &str| {
        let changed = manifest.replace(sdk, dependencies);
        assert_ne!(changed, manifest, "there is such a line");
        fs::write(path.join("Cargo.toml"), changed).expect("write");
    };
    // The next run builds only what has changed.
    let target = format!("CARGO_TARGET_DIR={}/packages", env!("CARGO_TARGET_TMPDIR"));
    let build = ["make", "build", &target];
    let [.., can_be_built] = NOT_RUST;
    for (package, words, _) in &NOT_RUST[..2] {
        let features = if *package == "rusqlite" { r#"["bundled"]"# } else { "[]" };
        depends_on(&format!(
            "{sdk}{package} = {{ version = \"*\", default-features = false, features = {features} }}\n"
        ));
        let built = ran(&path, build[0], &build[1..]);
        assert!(built.code != 0 && built.stderr.contains(words), "{package}: {built:#?}");
    }
    depends_on(include_str!("packages/dependencies.toml"));
    fs::write(path.join("src/lib.rs"), include_str!("packages/lib.rs")).expect("write");
    each_works(&path, &build, &RUST, &[can_be_built]);
}
