//! The files of a new handler's project. All of them are part of the binary.
//!
//! In: a language and a name. Out: paths and texts. The templates are in host/templates/, with marks like
//! `{{NAME}}` in them. The Rust SDK is not on crates.io, so a project gets a copy of it. A project builds
//! with public registries alone. Not here: writing the files (`new`).

use super::args::Language;

/// One file of a project.
#[derive(Debug)]
pub(super) struct ProjectFile {
    pub path: String,
    pub text: String,
    pub is_program: bool,
}

/// The path of a file in the project, and its text with marks.
type Template = (&'static str, &'static str);

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../templates/", $path))
    };
}

macro_rules! sdk {
    ($path:literal) => {
        include_str!(concat!("../../../plugins/sdk/", $path))
    };
}

const HANDLER_WIT: &str = include_str!("../../../wit/handler.wit");
const EXTENSIONS_WIT: Template =
    ("wit/deps/extensions/extensions.wit", include_str!("../../../wit/deps/extensions/extensions.wit"));

const COMMON: &[Template] = &[
    ("README.md", template!("README.md")),
    ("task.json", template!("task.json")),
    ("watch.sh", template!("watch.sh")),
];

const RUST: &[Template] = &[
    ("Cargo.toml", template!("rust/Cargo.toml.in")),
    // Cargo removes the packages that the project does not use, and keeps the versions that the SDK was
    // tested with.
    ("Cargo.lock", include_str!("../../../plugins/Cargo.lock")),
    (".cargo/config.toml", include_str!("../../../plugins/.cargo/config.toml")),
    ("Makefile", template!("rust/Makefile")),
    ("build.sh", template!("rust/build.sh")),
    ("src/lib.rs", template!("rust/src/lib.rs")),
    ("tests/component.rs", template!("rust/tests/component.rs")),
    ("wit/handler.wit", HANDLER_WIT),
    EXTENSIONS_WIT,
    ("sdk/Cargo.toml", template!("rust/sdk/Cargo.toml.in")),
    ("sdk/src/lib.rs", sdk!("src/lib.rs")),
    ("sdk/src/batch.rs", sdk!("src/batch.rs")),
    ("sdk/src/bindings.rs", sdk!("src/bindings.rs")),
    ("sdk/src/blobs.rs", sdk!("src/blobs.rs")),
    ("sdk/src/config.rs", sdk!("src/config.rs")),
    ("sdk/src/context.rs", sdk!("src/context.rs")),
    ("sdk/src/delivery.rs", sdk!("src/delivery.rs")),
    ("sdk/src/effects.rs", sdk!("src/effects.rs")),
    ("sdk/src/failure.rs", sdk!("src/failure.rs")),
    ("sdk/src/flow.rs", sdk!("src/flow.rs")),
    ("sdk/src/http.rs", sdk!("src/http.rs")),
    ("sdk/src/http/wasi.rs", sdk!("src/http/wasi.rs")),
    ("sdk/src/lifecycle.rs", sdk!("src/lifecycle.rs")),
    ("sdk/src/log.rs", sdk!("src/log.rs")),
    ("sdk/src/memory.rs", sdk!("src/memory.rs")),
    ("sdk/src/outage.rs", sdk!("src/outage.rs")),
    ("sdk/src/outbox.rs", sdk!("src/outbox.rs")),
    ("sdk/src/output.rs", sdk!("src/output.rs")),
    ("sdk/src/records.rs", sdk!("src/records.rs")),
    ("sdk/src/state.rs", sdk!("src/state.rs")),
    ("sdk/src/task.rs", sdk!("src/task.rs")),
    ("sdk/src/testing.rs", sdk!("src/testing.rs")),
    ("sdk/wit/world.wit", sdk!("wit/world.wit")),
    ("sdk/wit/deps/clocks/clocks.wit", sdk!("wit/deps/clocks/clocks.wit")),
    ("sdk/wit/deps/config/store.wit", sdk!("wit/deps/config/store.wit")),
    ("sdk/wit/deps/http/http.wit", sdk!("wit/deps/http/http.wit")),
    ("sdk/wit/deps/io/io.wit", sdk!("wit/deps/io/io.wit")),
    ("sdk/wit/deps/logging/logging.wit", sdk!("wit/deps/logging/logging.wit")),
    (".gitignore", "/target\n/*.wasm\n"),
];

const WIT: &[Template] = &[
    ("wit/deps/handler/handler.wit", HANDLER_WIT),
    EXTENSIONS_WIT,
    ("wit/deps/clocks/clocks.wit", sdk!("wit/deps/clocks/clocks.wit")),
    ("wit/deps/config/store.wit", sdk!("wit/deps/config/store.wit")),
    ("wit/deps/http/http.wit", sdk!("wit/deps/http/http.wit")),
    ("wit/deps/io/io.wit", sdk!("wit/deps/io/io.wit")),
    ("wit/deps/logging/logging.wit", sdk!("wit/deps/logging/logging.wit")),
];

/// The files that projects in JavaScript and in TypeScript share.
const SCRIPTS: &[Template] = &[
    ("wit/world.wit", template!("world.wit")),
    ("build.js", template!("javascript/build.js")),
    ("build-errors.js", template!("javascript/build-errors.js")),
    ("tqhost.js", template!("javascript/tqhost.js")),
    ("tqhost-blobs.js", template!("javascript/tqhost-blobs.js")),
    ("tqhost-effects.js", template!("javascript/tqhost-effects.js")),
    ("tqhost-http.js", template!("javascript/tqhost-http.js")),
    ("tqhost-memory.js", template!("javascript/tqhost-memory.js")),
    (".gitignore", "/node_modules\n/build\n/types\n/*.wasm\n"),
];

const JAVASCRIPT: &[Template] = &[
    ("package.json", template!("javascript/package.json")),
    ("package-lock.json", template!("javascript/package-lock.json")),
    ("jsconfig.json", template!("javascript/jsconfig.json")),
    ("Makefile", template!("javascript/Makefile")),
    ("handler.js", template!("javascript/handler.js")),
    ("test/handler.test.js", template!("javascript/test/handler.test.js")),
];

const TYPESCRIPT: &[Template] = &[
    ("package.json", template!("typescript/package.json")),
    ("package-lock.json", template!("typescript/package-lock.json")),
    ("tsconfig.json", template!("typescript/tsconfig.json")),
    ("Makefile", template!("typescript/Makefile")),
    ("handler.ts", template!("typescript/handler.ts")),
    ("test/handler.test.js", template!("typescript/test/handler.test.js")),
];

const PYTHON: &[Template] = &[
    ("requirements.txt", template!("python/requirements.txt")),
    ("requirements-build.txt", template!("python/requirements-build.txt")),
    ("Makefile", template!("python/Makefile")),
    ("app.py", template!("python/app.py")),
    ("wit/world.wit", template!("python/wit/world.wit")),
    ("build.py", template!("python/build.py")),
    ("tqhost.py", template!("python/tqhost.py")),
    ("tqhost_build.py", template!("python/tqhost_build.py")),
    ("tqhost_blobs.py", template!("python/tqhost_blobs.py")),
    ("tqhost_effects.py", template!("python/tqhost_effects.py")),
    ("tqhost_http.py", template!("python/tqhost_http.py")),
    ("tqhost_memory.py", template!("python/tqhost_memory.py")),
    ("test/test_handler.py", template!("python/test/test_handler.py")),
    (".gitignore", "/.venv\n/bindings\n/*.wasm\n__pycache__\n"),
];

const GO: &[Template] = &[
    ("go.mod", template!("go/go.mod.in")),
    ("Makefile", template!("go/Makefile")),
    ("handler.go", template!("go/handler.go")),
    ("handler_test.go", template!("go/handler_test.go")),
    ("tqhost/abi_wasip1.go", template!("go/tqhost/abi_wasip1.go")),
    ("tqhost/effects.go", template!("go/tqhost/effects.go")),
    ("tqhost/failure.go", template!("go/tqhost/failure.go")),
    ("tqhost/handle.go", template!("go/tqhost/handle.go")),
    ("tqhost/host_wasip1.go", template!("go/tqhost/host_wasip1.go")),
    ("tqhost/memory.go", template!("go/tqhost/memory.go")),
    ("tqhost/task.go", template!("go/tqhost/task.go")),
    ("tqhost/http/http.go", template!("go/tqhost/http/http.go")),
    ("tqhost/http/transport_wasip1.go", template!("go/tqhost/http/transport_wasip1.go")),
    ("tqhost/http/wasi_wasip1.go", template!("go/tqhost/http/wasi_wasip1.go")),
    (".gitignore", "/*.wasm\n"),
];

/// The language's name, for display.
pub(super) fn language(language: Language) -> &'static str {
    match language {
        Language::Rust => "Rust",
        Language::Javascript => "JavaScript",
        Language::Typescript => "TypeScript",
        Language::Python => "Python",
        Language::Go => "Go",
    }
}

/// The tools that the machine must have to build the project.
pub(super) fn needs(language: Language) -> &'static str {
    match language {
        Language::Rust => {
            "make, and Rust 1.95 or newer from rustup \
             (on Debian 12, its packages for WebAssembly serve too: see build.sh)"
        }
        Language::Javascript | Language::Typescript => "make, and Node.js 20 or newer with npm",
        Language::Python => "make, and Python 3.10 or newer with venv",
        Language::Go => "make, and Go 1.27 or newer",
    }
}

fn described(language: Language) -> String {
    match language {
        Language::Rust => "| `src/lib.rs` | the handler, with a test of its own |\n\
             | `tests/component.rs` | tests of the built component |\n\
             | `sdk/` | the crate that it is written with, a copy; \
             `cargo doc --open -p tqhost-handler` shows it |"
            .to_owned(),
        Language::Javascript => {
            format!(
                "| `handler.js` | the handler |\n{SCRIPT_FILES}\n\
                 | `jsconfig.json` | for editors; after `make types` they know the types of the interface |"
            )
        }
        Language::Typescript => {
            format!(
                "| `handler.ts` | the handler |\n{SCRIPT_FILES}\n\
                 | `tsconfig.json` | what `make` checks types with; it writes those of the interface to \
                 `types/` |"
            )
        }
        Language::Python => "| `app.py` | the handler |\n\
             | `tqhost.py` | fields, failures, results, log lines |\n\
             | `tqhost_blobs.py` | `blobs`, files in an object store |\n\
             | `tqhost_effects.py` | `outbox`, `flow`, `state`, `records` and `fence` |\n\
             | `tqhost_http.py` | `request`, for HTTP requests |\n\
             | `tqhost_memory.py` | a host in memory, for unit tests |\n\
             | `requirements.txt` | the packages that the handler uses; \
             `make lock` pins them all, with hashes, in `requirements.lock` |\n\
             | `build.py`, `tqhost_build.py` | what `make` calls |\n\
             | `requirements-build.txt` | the compiler |\n\
             | `test/` | tests of the function and of the built component |"
            .to_owned(),
        Language::Go => "| `handler.go` | the handler |\n\
             | `handler_test.go` | tests of the function and of the built component |\n\
             | `tqhost/` | fields, failures, results, effects, blobs, and a host in memory for unit tests: \
             `go doc ./tqhost` shows it |\n\
             | `tqhost/http/` | requests of `net/http` |\n\
             | `go.mod` | the packages that the handler uses: `go get` adds one |"
            .to_owned(),
    }
}

const SCRIPT_FILES: &str = "| `tqhost.js` | fields, failures, results, log lines |\n\
    | `tqhost-blobs.js` | `blobs`, files in an object store |\n\
    | `tqhost-effects.js` | `outbox`, `flow`, `state`, `records` and `fence` |\n\
    | `tqhost-http.js` | `fetch`, for HTTP requests |\n\
    | `tqhost-memory.js` | a host in memory, for unit tests |\n\
    | `package.json` | the packages that the handler uses: `npm install` adds one |\n\
    | `build.js`, `build-errors.js` | what `make` calls |\n\
    | `test/` | tests of the function and of the built component |";

/// How to let the project's handler make HTTP requests, for its README.
fn requests(language: Language) -> &'static str {
    match language {
        Language::Rust => {
            "give the SDK its feature in `Cargo.toml`, \
             `tqhost-handler = { path = \"sdk\", features = [\"http\"] }`; \
             then `tqhost_handler::http` makes them"
        }
        Language::Javascript | Language::Typescript => {
            "take the two slashes from the line with `wasi:http` in `wit/world.wit`; \
             then `tqhost-http.js` makes them"
        }
        Language::Python => {
            "take the two slashes from the line with `wasi:http` in `wit/world.wit`; \
             then `tqhost_http.py` makes them"
        }
        Language::Go => "import `tqhost/http` of the project with `_`; then `net/http` makes them",
    }
}

/// How to give the project's handler effects, for its README.
fn effects(language: Language) -> &'static str {
    match language {
        Language::Rust => {
            "use the modules `outbox`, `flow`, `state`, `records` and `delivery` of `tqhost_handler`"
        }
        Language::Javascript | Language::Typescript => {
            "take the two slashes from the lines under `For effects` in `wit/world.wit`; \
             then `tqhost-effects.js` has them"
        }
        Language::Python => {
            "take the two slashes from the lines under `For effects` in `wit/world.wit`; \
             then `tqhost_effects.py` has them"
        }
        Language::Go => "use `Enqueue`, `FanOut`, `FlowResults`, `State`, `Records` and `Fence` of `tqhost`",
    }
}

/// How to give the project's handler blobs, for its README.
fn blobs(language: Language) -> &'static str {
    match language {
        Language::Rust => "use the module `blobs` of `tqhost_handler`",
        Language::Javascript | Language::Typescript => {
            "take the two slashes from the line under `For blobs` in `wit/world.wit`; \
             then `tqhost-blobs.js` has them"
        }
        Language::Python => {
            "take the two slashes from the line under `For blobs` in `wit/world.wit`; \
             then `tqhost_blobs.py` has them"
        }
        Language::Go => "use `Blobs` of `tqhost`",
    }
}

/// All files of a project. `name` must be valid as a plugin's name.
pub(super) fn files(lang: Language, name: &str) -> Vec<ProjectFile> {
    // Names of crates have no dots, and names of npm packages have no capital letters.
    let package = name.to_lowercase().replace('.', "-");
    let module = package.replace('-', "_");
    let key = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let marks = [
        ("{{NAME}}", name),
        ("{{PACKAGE}}", &package),
        ("{{MODULE}}", &module),
        ("{{KEY}}", &key),
        ("{{VERSION}}", env!("CARGO_PKG_VERSION")),
        ("{{LANGUAGE}}", language(lang)),
        ("{{NEEDS}}", needs(lang)),
        ("{{FILES}}", &described(lang)),
        ("{{REQUESTS}}", requests(lang)),
        ("{{EFFECTS}}", effects(lang)),
        ("{{BLOBS}}", blobs(lang)),
    ];
    let own: &[&[Template]] = match lang {
        Language::Rust => &[RUST],
        Language::Javascript => &[JAVASCRIPT, SCRIPTS, WIT],
        Language::Typescript => &[TYPESCRIPT, SCRIPTS, WIT],
        Language::Python => &[PYTHON, WIT],
        // It is compiled without the interface, which is its documentation.
        Language::Go => &[GO, WIT],
    };
    let sources = std::iter::once(&COMMON).chain(own).flat_map(|sources| sources.iter());
    let file = |(path, text): &Template| {
        let mut text = marks.iter().fold((*text).to_owned(), |text, (mark, value)| text.replace(mark, value));
        if path.starts_with("sdk/src/") {
            // The interface is two folders up in the repository, and one folder up in a project.
            text = text.replace("\"../../wit\"", "\"../wit\"").replace("repository's", "project's");
        }
        if path.starts_with("wit/deps/") {
            // JavaScript's compiler has the complete 0.2.3 built in, and refuses a reduced one of that
            // version.
            text = text.replace("@0.2.3", "@0.2.4");
        }
        ProjectFile { path: (*path).to_owned(), text, is_program: path.ends_with(".sh") }
    };
    sources.map(file).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const ALL: [Language; 5] =
        [Language::Rust, Language::Javascript, Language::Typescript, Language::Python, Language::Go];

    fn text(files: &[ProjectFile], path: &str) -> String {
        files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}")).text.clone()
    }

    fn is_capital(word: &str) -> bool {
        word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    }

    #[test]
    fn no_mark_is_left() {
        for lang in ALL {
            for file in files(lang, "Word.count_2") {
                // A literal of Go may have two braces, too, but no word in capitals behind them.
                let is_mark = |rest: &str| rest.split_once("}}").is_some_and(|(word, _)| is_capital(word));
                let is_left = file.text.split("{{").skip(1).any(is_mark);
                assert!(!is_left, "{}: {}", file.path, file.text);
            }
            let readme = text(&files(lang, "Word.count_2"), "README.md");
            assert!(readme.contains("[queues.\"Word.count_2\"]"), "{readme}");
        }
    }

    #[test]
    fn every_project_has_the_interface_of_this_host() {
        for lang in ALL {
            let files = files(lang, "x");
            assert!(files.iter().any(|file| file.path.ends_with("/handler.wit") && file.text == HANDLER_WIT));
            assert_eq!(text(&files, EXTENSIONS_WIT.0), EXTENSIONS_WIT.1);
        }
    }

    #[test]
    fn requests_take_one_line_of_the_world() {
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
    fn effects_take_the_lines_of_the_world_that_the_guests_have() {
        let guests = [
            (Language::Javascript, include_str!("../../../plugins/testing/in-javascript/world.wit")),
            (Language::Python, include_str!("../../../plugins/testing/in-python/world.wit")),
        ];
        for (lang, guest) in guests {
            let world = text(&files(lang, "x"), "wit/world.wit");
            assert_eq!(world.replace("  // import ", "  import ").matches("\n  import tqhost:").count(), 8);
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
