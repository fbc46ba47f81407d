//! The files of a new handler's project. All of them are part of the binary.
//!
//! In: a language and a name. Out: paths and texts. The templates are in host/templates/, with marks like
//! `{{NAME}}` in them. The Rust SDK is not on crates.io, so a project gets a copy of it. A project builds
//! with public registries alone. Not here: writing the files (`new`).

use clap::ValueEnum;
use serde::Deserialize;

/// A handler that `tqhost new` begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Starter {
    // Counts words.
    Words,
    // Asks a model by HTTP.
    Model,
}

/// A language that `tqhost new` has a template for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    Rust,
    Javascript,
    Typescript,
    Python,
    Go,
}

/// One file of a project.
#[derive(Debug)]
pub(super) struct ProjectFile {
    pub path: String,
    pub text: String,
    pub is_program: bool,
}

/// Words about a language, from its `words.toml`, for the README and the command.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LanguageWords {
    pub language: String,
    /// The tools that the machine must have to build the project.
    pub needs: String,
    files: String,
    requests: String,
    effects: String,
    blobs: String,
}

/// A folder of a project and its files: the path of each below that folder, and its text with marks.
type Part = (&'static str, &'static [(&'static str, &'static str)]);

/// Files that go to a folder of the project. `from` is relative to `host/`.
macro_rules! files {
    ($to:literal from $from:literal: $($path:literal)*) => {
        ($to, &[$(($path, include_str!(concat!("../../", $from, $path)))),*])
    };
}

const COMMON: Part = files!("" from "templates/": "README.md" "AGENTS.md" "task.json" "watch.sh");

const RUST: &[Part] = &[
    files!("" from "templates/rust/":
        "Cargo.toml.in" "Makefile" "build.sh" "src/lib.rs" "tests/component.rs" "sdk/Cargo.toml.in"),
    // This lock file is that of all handlers in the repository. Cargo drops from it what the project does not
    // use, and keeps the versions that the SDK was tested with.
    files!("" from "../plugins/": "Cargo.lock" ".cargo/config.toml"),
    ("", &[(".gitignore", "/target\n/*.wasm\n")]),
    files!("wit/" from "../wit/": "handler.wit" "deps/extensions/extensions.wit" "deps/io/io.wit"),
    files!("sdk/" from "../plugins/sdk/":
        "src/lib.rs" "src/batch.rs" "src/bindings.rs" "src/blobs.rs" "src/config.rs" "src/context.rs"
        "src/delivery.rs" "src/effects.rs" "src/failure.rs" "src/flow.rs" "src/http.rs" "src/http/wasi.rs"
        "src/lifecycle.rs" "src/log.rs" "src/memory.rs" "src/outage.rs" "src/outbox.rs" "src/output.rs"
        "src/records.rs" "src/state.rs" "src/task.rs" "src/testing.rs" "wit/world.wit"),
    files!("sdk/wit/deps/" from "../plugins/sdk/wit/deps/":
        "clocks/clocks.wit" "config/store.wit" "http/http.wit" "logging/logging.wit"),
];

const WIT: &[Part] = &[
    files!("wit/deps/handler/" from "../wit/": "handler.wit"),
    files!("wit/deps/" from "../wit/deps/": "extensions/extensions.wit" "io/io.wit"),
    files!("wit/deps/" from "../plugins/sdk/wit/deps/":
        "clocks/clocks.wit" "config/store.wit" "http/http.wit" "logging/logging.wit"),
];

/// The files that projects in JavaScript and in TypeScript share.
const SCRIPTS: &[Part] = &[
    files!("wit/" from "templates/javascript/wit/": "world.wit"),
    files!("" from "templates/javascript/":
        "build.js" "build-errors.js" "build-loops.js" "build-buffer.js" "tqhost.js" "tqhost-blobs.js"
        "tqhost-effects.js" "tqhost-http.js" "tqhost-loop.js" "tqhost-memory.js" "tqhost-web.js"),
    ("", &[(".gitignore", "/node_modules\n/build\n/types\n/*.wasm\n")]),
];

const JAVASCRIPT: &[Part] = &[files!("" from "templates/javascript/":
    "package.json" "package-lock.json" "jsconfig.json" "Makefile" "handler.js" "test/handler.test.js")];

const TYPESCRIPT: &[Part] = &[files!("" from "templates/typescript/":
    "package.json" "package-lock.json" "tsconfig.json" "Makefile" "handler.ts" "test/handler.test.js")];

const PYTHON: &[Part] = &[
    files!("" from "templates/python/":
        "requirements.txt" "requirements-build.txt" "constraints.txt" "Makefile" "app.py" "wit/world.wit"
        "build.py" "build_plan.py" "tqhost.py" "tqhost_build.py" "tqhost_blobs.py" "tqhost_effects.py"
        "tqhost_http.py" "tqhost_loop.py" "tqhost_memory.py" "tqhost_packages.py" "test/test_handler.py"),
    ("", &[(".gitignore", "/.venv\n/bindings\n/*.wasm\n__pycache__\n")]),
];

const GO: &[Part] = &[
    files!("" from "templates/go/":
        "go.mod.in" "Makefile" "handler.go" "handler_test.go" "tqhost/abi_wasip1.go" "tqhost/effects.go"
        "tqhost/failure.go" "tqhost/handle.go" "tqhost/host_wasip1.go" "tqhost/memory.go" "tqhost/task.go"
        "tqhost/http/http.go" "tqhost/http/transport.go" "tqhost/http/transport_wasip1.go"
        "tqhost/http/wasi_wasip1.go"),
    ("", &[(".gitignore", "/*.wasm\n")]),
];

/// The files of a project that asks a model. They replace those of the same path, and others are added.
fn of_model(lang: Language) -> &'static [Part] {
    const CONFIG: Part = files!("" from "templates/model/": "tqhost.toml");
    match lang {
        Language::Rust => {
            &[files!("" from "templates/model/rust/": "src/lib.rs" "tests/component.rs"), CONFIG]
        }
        Language::Javascript => {
            &[files!("" from "templates/model/javascript/": "handler.js" "test/handler.test.js"), CONFIG]
        }
        Language::Typescript => &[
            files!("" from "templates/model/typescript/": "handler.ts"),
            files!("" from "templates/model/javascript/": "test/handler.test.js"),
            CONFIG,
        ],
        Language::Python => {
            &[files!("" from "templates/model/python/": "app.py" "test/test_handler.py"), CONFIG]
        }
        Language::Go => &[files!("" from "templates/model/go/": "handler.go" "handler_test.go"), CONFIG],
    }
}

pub(super) fn words(lang: Language) -> LanguageWords {
    let text = match lang {
        Language::Rust => include_str!("../../templates/rust/words.toml"),
        Language::Javascript => include_str!("../../templates/javascript/words.toml"),
        Language::Typescript => include_str!("../../templates/typescript/words.toml"),
        Language::Python => include_str!("../../templates/python/words.toml"),
        Language::Go => include_str!("../../templates/go/words.toml"),
    };
    // This cannot fail when it runs: a test reads the file of every language.
    toml::from_str(text).unwrap_or_default()
}

/// All files of a project. `name` is valid as a plugin's name.
pub(super) fn files(lang: Language, starter: Starter, name: &str) -> Vec<ProjectFile> {
    let marks = marks(lang, starter, name);
    let file = |folder: &str, path: &str, text: &str| {
        let path = format!("{folder}{}", path.trim_end_matches(".in"));
        let text = marks.iter().fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value));
        let text = adapted(lang, starter, &path, text);
        ProjectFile { is_program: path.ends_with(".sh"), path, text }
    };
    let all = |parts: &mut dyn Iterator<Item = &Part>| -> Vec<ProjectFile> {
        parts.flat_map(|(folder, files)| files.iter().map(|(path, text)| file(folder, path, text))).collect()
    };
    let own: &[&[Part]] = match lang {
        Language::Rust => &[RUST],
        Language::Javascript => &[JAVASCRIPT, SCRIPTS, WIT],
        Language::Typescript => &[TYPESCRIPT, SCRIPTS, WIT],
        Language::Python => &[PYTHON, WIT],
        // Go compiles without the files of the interface, which document it.
        Language::Go => &[GO, WIT],
    };
    let mut files = all(&mut std::iter::once(&COMMON).chain(own.iter().copied().flatten()));
    if starter == Starter::Model {
        let special = all(&mut of_model(lang).iter());
        files.retain(|file| special.iter().all(|other| other.path != file.path));
        files.extend(special);
    }
    files
}

/// The marks of the templates, and what takes their place.
fn marks(lang: Language, starter: Starter, name: &str) -> [(&'static str, String); 14] {
    // Names of crates have no dots, and names of npm packages have no capital letters.
    let package = name.to_lowercase().replace('.', "-");
    // TOML quotes keys with a dot.
    let key = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let (does, try_args) = match starter {
        Starter::Model => (
            "It asks a model\nfor a summary of a text; `tqhost.toml` has the server's address, and \
             grants it.",
            format!(" --config tqhost.toml --queue {name}"),
        ),
        Starter::Words => ("It counts words\nuntil you write something else.", String::new()),
    };
    let tested = if lang == Language::Typescript { "../build/handler.js" } else { "../handler.js" };
    let words = words(lang);
    [
        ("{{NAME}}", name.to_owned()),
        ("{{MODULE}}", package.replace('-', "_")),
        ("{{PACKAGE}}", package),
        ("{{KEY}}", key),
        ("{{VERSION}}", env!("CARGO_PKG_VERSION").to_owned()),
        ("{{LANGUAGE}}", words.language),
        ("{{NEEDS}}", words.needs),
        ("{{FILES}}", words.files),
        ("{{REQUESTS}}", words.requests),
        ("{{EFFECTS}}", words.effects),
        ("{{BLOBS}}", words.blobs),
        ("{{TRY_ARGS}}", try_args),
        ("{{DOES}}", does.to_owned()),
        ("{{TESTED}}", tested.to_owned()),
    ]
}

/// Changes the text of a template's file to what the project of this language and starter needs.
fn adapted(lang: Language, starter: Starter, path: &str, text: String) -> String {
    let asks_model = starter == Starter::Model;
    match path {
        // The interface is two folders up in the repository, and one folder up in a project.
        _ if path.starts_with("sdk/src/") => {
            text.replace("\"../../wit\"", "\"../wit\"").replace("repository's", "project's")
        }
        // JavaScript's compiler has the complete interfaces of WASI 0.2.3 built in, and refuses reduced ones
        // of that version. The other languages share these files.
        _ if lang != Language::Rust && path.starts_with("wit/deps/") => text.replace("@0.2.3", "@0.2.4"),
        "wit/world.wit" if asks_model => text.replace("  // import wasi:http/", "  import wasi:http/"),
        // Instances of these languages run one task at a time.
        "tqhost.toml" if matches!(lang, Language::Rust | Language::Go) => {
            text.split_inclusive('\n').filter(|line| !line.starts_with("instance = ")).collect()
        }
        "Cargo.toml" if asks_model => text.replace(
            "tqhost-handler = { path = \"sdk\" }\n\n[dev-dependencies]\nserde_json = \"1\"\n",
            "serde_json = \"1\"\ntqhost-handler = { path = \"sdk\", features = [\"http\"] }\n",
        ),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const ALL: [Language; 5] =
        [Language::Rust, Language::Javascript, Language::Typescript, Language::Python, Language::Go];

    fn files(lang: Language, name: &str) -> Vec<ProjectFile> {
        super::files(lang, Starter::Words, name)
    }

    fn text(files: &[ProjectFile], path: &str) -> String {
        files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}")).text.clone()
    }

    fn is_capital(word: &str) -> bool {
        word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    }

    #[test]
    fn no_mark_is_left() {
        for lang in ALL {
            let with_model = super::files(lang, Starter::Model, "Word.count_2");
            for file in files(lang, "Word.count_2").into_iter().chain(with_model) {
                // A literal of Go may have two braces, too, but no word in capitals behind them.
                let is_mark = |rest: &str| rest.split_once("}}").is_some_and(|(word, _)| is_capital(word));
                let is_left = file.text.split("{{").skip(1).any(is_mark);
                assert!(!is_left, "{}: {}", file.path, file.text);
            }
            let readme = text(&files(lang, "Word.count_2"), "README.md");
            assert!(readme.contains("[queues.\"Word.count_2\"]"), "{readme}");
            assert!(!words(lang).blobs.is_empty(), "words.toml cannot be read");
        }
    }

    #[test]
    fn a_project_that_asks_a_model_shares_instances_where_its_language_can() {
        for lang in ALL {
            let grants = text(&super::files(lang, Starter::Model, "x"), "tqhost.toml");
            let shares = !matches!(lang, Language::Rust | Language::Go);
            assert_eq!(grants.contains("\ninstance = { concurrent = 20 }"), shares, "{grants}");
        }
    }

    #[test]
    fn every_project_has_the_interface_of_this_host() {
        for lang in ALL {
            let files = files(lang, "x");
            let handler = include_str!("../../../wit/handler.wit");
            assert!(files.iter().any(|file| file.path.ends_with("/handler.wit") && file.text == handler));
            let extensions = include_str!("../../../wit/deps/extensions/extensions.wit");
            let own = text(&files, "wit/deps/extensions/extensions.wit").replace("@0.2.4", "@0.2.3");
            assert_eq!(own, extensions);
        }
    }

    #[test]
    fn requests_need_one_import_that_the_world_has_as_a_comment() {
        let table = [
            (
                Language::Javascript,
                "tqhost-http.js",
                include_str!("../../../plugins/testing/in-javascript/world.wit"),
            ),
            (
                Language::Python,
                "tqhost_http.py",
                include_str!("../../../plugins/testing/in-python/world.wit"),
            ),
        ];
        let line = "import wasi:http/outgoing-handler@0.2.4;";
        for (lang, helper, guest) in table {
            let project = files(lang, "x");
            assert!(
                text(&project, "wit/world.wit").contains(&format!("\n  // {line}\n"))
                    && guest.contains(&format!("\n  {line}\n"))
            );
            assert!(
                text(&project, helper).contains(&format!("`{line}`"))
                    && text(&project, "README.md").contains(helper)
            );
            assert!(text(&project, "wit/deps/http/http.wit").contains("\npackage wasi:http@0.2.4;\n"));
        }
        assert!(text(&files(Language::Rust, "x"), "README.md").contains("features = [\"http\"]"));
    }

    #[test]
    fn the_imports_that_the_world_has_as_comments_are_those_of_the_test_guests() {
        let guests = [
            (Language::Javascript, include_str!("../../../plugins/testing/in-javascript/world.wit")),
            (Language::Python, include_str!("../../../plugins/testing/in-python/world.wit")),
        ];
        for (lang, guest) in guests {
            let world = text(&files(lang, "x"), "wit/world.wit");
            assert_eq!(world.replace("  // import ", "  import ").matches("\n  import tqhost:").count(), 9);
            for line in world.lines().filter_map(|line| line.trim_start().strip_prefix("// ")) {
                let is_code = line.ends_with(';');
                assert!(!is_code || guest.contains(&format!("\n  {line}\n")), "{line}");
            }
        }
    }

    #[test]
    fn the_sdk_is_copied_whole() {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/sdk");
        let project = files(Language::Rust, "x");
        let mut there = BTreeSet::new();
        let mut folders = vec![sdk.join("src"), sdk.join("wit")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("the SDK") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    there.insert(format!("sdk/{}", path.strip_prefix(&sdk).expect("in the SDK").display()));
                }
            }
        }
        let in_sdk = |path: &String| path.starts_with("sdk/src/") || path.starts_with("sdk/wit/");
        let copied: BTreeSet<String> = project.iter().map(|file| file.path.clone()).filter(in_sdk).collect();
        assert_eq!(there, copied);
        for file in ["batch", "bindings", "lifecycle", "http/wasi"] {
            let bindings = text(&project, &format!("sdk/src/{file}.rs"));
            assert!(bindings.contains("path: [\"../wit\", \"wit\"]"), "{bindings}");
        }
        // The project has the same dependencies as the repository.
        let workspace = include_str!("../../../plugins/Cargo.toml");
        let manifest = text(&project, "sdk/Cargo.toml");
        for name in ["wit-bindgen = ", "httpdate = "] {
            let line = workspace.lines().find(|line| line.starts_with(name)).expect("a dependency");
            let version = line.split('"').nth(1).expect("its version");
            let copied = manifest.lines().find(|line| line.starts_with(name)).expect("the same");
            assert!(copied.contains(&format!("\"{version}\"")), "{copied}");
        }
    }

    #[test]
    fn locks_belong_to_their_manifests() {
        for lang in [Language::Javascript, Language::Typescript] {
            let project = files(lang, "x");
            let [manifest, lock] = ["package.json", "package-lock.json"]
                .map(|path| serde_json::from_str::<serde_json::Value>(&text(&project, path)).expect(path));
            assert_eq!(lock["packages"][""]["devDependencies"], manifest["devDependencies"]);
            assert_eq!(lock["name"], manifest["name"]);
        }
    }
}
