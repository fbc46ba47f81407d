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

/// Packages that do not work: what the build says, and why and what to use instead, for the page.
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
    let world = fs::read_to_string(path.join("wit/world.wit")).expect("the world");
    fs::write(path.join("wit/world.wit"), world.replace("// import wasi:http/", "import wasi:http/"))
        .expect("write");
    path
}

/// Builds the project, and runs its handler once for each package.
fn each_works(path: &Path, packages: &[(&str, &str)]) {
    let built = ran(path, "make", &["build"]);
    assert_eq!(built.code, 0, "{built:#?}");
    let said = r#"{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}],
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
    for (package, _) in packages {
        fs::write(path.join("task.json"), format!("{{\"package\": {package:?}}}")).expect("write");
        let args = ["try", "p.wasm", "task.json", "--queue", "p", "--config", "tqhost.toml", "--json"];
        let view = ran(path, env!("CARGO_BIN_EXE_tqhost"), &args).json();
        assert_eq!(view["outcome"], "completed", "{package}: {view}");
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
    each_works(&path, &PYTHON);
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
    each_works(&path, &JAVASCRIPT);
}
