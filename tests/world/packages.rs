//! The packages of docs/languages/packages.md, in handlers that are built with public registries.
//!
//! In: the rows of that page. Out: each package that works there works here, against a server with OpenAI's
//! interface; each one that does not fails to build, with the words of its row. Not here: packages that need
//! no server, and the helpers themselves (`handlers` of the end-to-end tests).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::llm::{Llm, Said};
use super::support::Ran;

const PAGE: &str = include_str!("../../docs/languages/packages.md");
const WORDS: &str = "Hello from a model";

/// A package in Python as its row names it, lines of requirements.txt, and a function that returns [`WORDS`],
/// with the server's address as `URL`.
const PYTHON: [(&str, &str, &str); 7] = [
    (
        "openai",
        "openai",
        "from openai import OpenAI\nfrom pydantic import BaseModel\n\n\
         def ask():\n    client = OpenAI(base_url=URL + '/v1', api_key='k')\n    \
         found = client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'x'}])\n    \
         return found.choices[0].message.content\n",
    ),
    (
        "httpx",
        "httpx",
        "import asyncio\nimport httpx\n\nasync def ask():\n    \
         httpx.post(URL, json={}).raise_for_status()\n    \
         async with httpx.AsyncClient() as client:\n        \
         both = await asyncio.gather(*(client.post(URL, json={}) for _ in range(2)))\n    \
         return both[1].json()['choices'][0]['message']['content']\n",
    ),
    (
        "requests",
        "requests",
        "import requests\n\ndef ask():\n    \
         return requests.post(URL, json={}).json()['choices'][0]['message']['content']\n",
    ),
    ("pydantic", "pydantic>=2", ""),
    ("numpy", "numpy", "import numpy\n"),
    ("orjson", "orjson", "import orjson\n"),
    ("tiktoken", "tiktoken", "import tiktoken\n"),
];

/// A package in JavaScript, and a handler that returns [`WORDS`].
const JAVASCRIPT: [(&str, &str); 3] = [
    (
        "openai",
        "import OpenAI from 'openai';\nasync function ask() {\n  \
         const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'k' });\n  \
         const messages = [{ role: 'user', content: 'x' }];\n  \
         const found = await client.chat.completions.create({ model: 'm', messages });\n  \
         return found.choices[0].message.content;\n}\n",
    ),
    (
        "axios",
        "import axios from 'axios';\n\
         const ask = async () => (await axios.post(URL, {})).data.choices[0].message.content;\n",
    ),
    (
        "zod",
        "import { z } from 'zod';\nconst shape = z.object({ choices: z.array(z.any()) });\n\
         async function ask() {\n  const response = await fetch(URL, { method: 'POST', body: '{}' });\n  \
         return shape.parse(await response.json()).choices[0].message.content;\n}\n",
    ),
];

/// The last cell of a package's row in a part of the page.
fn row(language: &str, package: &str) -> String {
    let part = PAGE.split("\n## ").find(|part| part.starts_with(language)).expect("the part of a language");
    let is_it = |line: &&str| {
        line.starts_with("| `")
            && line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{package}`")))
    };
    let rows: Vec<&str> = part.lines().filter(is_it).collect();
    let line = rows.last().unwrap_or_else(|| panic!("{package} has no row for {language}"));
    line.trim_end_matches('|').rsplit('|').next().expect("a cell").trim().to_owned()
}

/// Runs a command in a folder, with the network.
fn ran(folder: &Path, program: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command.env("TQHOST", env!("CARGO_BIN_EXE_tqhost")).env("RUST_BACKTRACE", "0");
    command.output().expect("run a command").into()
}

/// A project whose handler may make requests.
fn project(folder: &Path, lang: &str, llm: &Llm) {
    ran(folder, env!("CARGO_BIN_EXE_tqhost"), &["new", "p", "--lang", lang]).ok();
    let world = folder.join("p/wit/world.wit");
    let text =
        fs::read_to_string(&world).expect("the world").replace("// import wasi:http/", "import wasi:http/");
    fs::write(world, text).expect("write");
    let config = format!("[queues.p]\n[plugins.p]\nallowed_hosts = [{:?}]\n", llm.origin());
    fs::write(folder.join("p/tqhost.toml"), config).expect("write");
}

fn answers(project: &Path) -> Value {
    let args = ["try", "p.wasm", "--field", "a=1", "--queue", "p", "--config", "tqhost.toml", "--json"];
    ran(project, env!("CARGO_BIN_EXE_tqhost"), &args).json()
}

#[test]
fn packages_of_python_are_as_the_page_says() {
    let llm = Llm::start(vec![Said::content(WORDS)]);
    for (package, requirements, program) in PYTHON {
        let folder = tempfile::tempdir().expect("a folder");
        project(folder.path(), "python", &llm);
        let path = folder.path().join("p");
        let handler = if program.contains("def ask") { "handles(lambda task: ask())" } else { "None" };
        let app = format!(
            "from tqhost import handles\n\nURL = {:?}\n{program}\nHandler = {handler}\n",
            llm.origin()
        );
        fs::write(path.join("app.py"), app).expect("write");
        fs::write(path.join("requirements.txt"), requirements).expect("write");
        let built = ran(&path, "make", &["build"]);
        let said = row("Python", package);
        if said.starts_with("yes") {
            assert_eq!(built.code, 0, "{package}: {built:#?}");
            assert_eq!(answers(&path)["result"], WORDS, "{package}");
        } else {
            let is_told = built.stderr.contains("native code") || built.stderr.contains("no native code");
            assert!(said.starts_with("no: ") && built.code != 0 && is_told, "{package}: {built:#?}");
        }
    }
}

#[test]
fn packages_of_javascript_are_as_the_page_says() {
    let llm = Llm::start(vec![Said::content(WORDS)]);
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path(), "javascript", &llm);
    let path = folder.path().join("p");
    for (package, program) in JAVASCRIPT {
        assert!(row("JavaScript", package).starts_with("yes"), "{package}");
        let handler = format!(
            "import {{ handles }} from './tqhost.js';\nconst URL = {:?};\n{program}\n\
             export const handler = handles(() => ask());\n",
            llm.origin()
        );
        fs::write(path.join("handler.js"), handler).expect("write");
        ran(&path, "npm", &["install", "--silent", package]).ok();
        let built = ran(&path, "make", &["build"]);
        assert_eq!(built.code, 0, "{package}: {built:#?}");
        assert_eq!(answers(&path)["result"], WORDS, "{package}");
    }
}
