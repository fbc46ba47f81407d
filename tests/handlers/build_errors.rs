//! The messages for a handler that cannot be built, and builds with packages of public registries.
//!
//! The projects are made by the real `tqhost new` and built by their own `make`, with the tools and packages
//! that `make setup` fetched.
//!
//! Not here: projects without mistakes and packages (`authors`).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::authors::{NAME, make, new_project, tried_with_content};
use crate::support::Ran;

struct Project {
    _folder: TempDir,
    path: PathBuf,
    /// The file with the handler.
    file: &'static str,
    /// Its text as `tqhost new` made it.
    handler: String,
}

impl Project {
    fn new(lang: &str, file: &'static str) -> Project {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = new_project(lang, folder.path());
        let handler = fs::read_to_string(path.join(file)).expect("the handler");
        Project { _folder: folder, path, file, handler }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("write");
    }

    fn built_at(&self) -> SystemTime {
        let component = fs::metadata(self.path.join(format!("{NAME}.wasm"))).expect("the component");
        component.modified().expect("a time")
    }

    /// Puts lines above the handler, and builds.
    fn build_with(&self, top: &str) -> Ran {
        self.write(self.file, &format!("{top}{}", self.handler));
        make(&self.path, "build")
    }

    /// The output of a build with these lines above the handler. The former component must stay.
    fn refused(&self, top: &str) -> String {
        let before = self.built_at();
        let ran = self.build_with(top);
        assert!(ran.code != 0 && self.built_at() == before, "{top}: {ran:#?}");
        // The last line is make's own.
        ran.stderr.lines().filter(|line| !line.starts_with("make")).map(|line| format!("{line}\n")).collect()
    }

    fn result(&self, content: &str) -> Value {
        tried_with_content(&self.path, content).ok().json()["result"].clone()
    }

    /// Changes a file of JSON.
    fn change(&self, file: &str, change: impl Fn(&mut Value)) {
        let text = fs::read_to_string(self.path.join(file)).expect("a file");
        let mut value = serde_json::from_str(&text).expect("JSON");
        change(&mut value);
        self.write(file, &value.to_string());
    }
}

const NO_HOST: &str = "RuntimeError: the top of a file runs when the component is built, and no host is \
    there then: print(), log lines, configuration, requests and effects work in the handler only\n";

#[test]
fn a_build_in_python_shows_the_traceback_of_python_and_nothing_else() {
    let project = Project::new("python", "app.py");
    assert_eq!(project.build_with("").code, 0);
    project.write("parts/inner.py", "import tqhost\n\ndef model():\n    return tqhost.config('model')\n");
    project.write("parts/broken.py", "x = (3\n");
    let said = |places: &str, error: &str| format!("Traceback (most recent call last):\n{places}{error}");
    let table = [
        (
            "count = undefined\n",
            said(
                "  File \"app.py\", line 1, in <module>\n    count = undefined\n            ^^^^^^^^^\n",
                "NameError: name 'undefined' is not defined\n",
            ),
        ),
        (
            "# it is not there\nimport numpy\n",
            said(
                "  File \"app.py\", line 2, in <module>\n    import numpy\n",
                "ModuleNotFoundError: No module named 'numpy'\n",
            ),
        ),
        (
            "import tqhost\nprint('hello')\n",
            said("  File \"app.py\", line 2, in <module>\n    print('hello')\n    ~~~~~^^^^^^^^^\n", NO_HOST),
        ),
        (
            "from parts.inner import model\nmodel()\n",
            said(
                "  File \"app.py\", line 2, in <module>\n    model()\n    ~~~~~^^\n  \
                 File \"parts/inner.py\", line 4, in model\n    return tqhost.config('model')\n           \
                 ~~~~~~~~~~~~~^^^^^^^^^\n",
                NO_HOST,
            ),
        ),
        (
            "import parts.broken\n",
            said(
                "  File \"app.py\", line 1, in <module>\n    import parts.broken\n  \
                 File \"parts/broken.py\", line 1\n    x = (3\n        ^\n",
                "SyntaxError: '(' was never closed\n",
            ),
        ),
        (
            "import sys, tqhost\nsys.exit(3)\n",
            said(
                "  File \"app.py\", line 2, in <module>\n    sys.exit(3)\n    ~~~~~~~~^^^\n",
                "SystemExit: 3\n",
            ),
        ),
    ];
    for (top, expected) in table {
        assert_eq!(project.refused(top), expected, "{top}");
    }
    // Native code of a package is told before the build, with its package and another way.
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let python = Command::new(project.path.join(".venv/bin/python")).args(["-c", packages]).output();
    let packages = PathBuf::from(String::from_utf8(python.expect("Python").stdout).expect("UTF-8").trim());
    let metadata = |name: &str, more: &str, record: &str| {
        let folder = packages.join(format!("{name}-1.0.dist-info"));
        fs::create_dir_all(&folder).expect("a folder");
        let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{more}");
        fs::write(folder.join("METADATA"), text).expect("write");
        fs::write(folder.join("RECORD"), record).expect("write");
    };
    let native = "orjson/orjson.abi3.so";
    metadata("orjson", "", &format!("{native},,\norjson/__init__.py,,\n"));
    metadata("quick_api", "Requires-Dist: orjson>=1\n", "quick_api.py,,\n");
    fs::create_dir_all(packages.join("orjson")).expect("a folder");
    fs::write(packages.join(native), "not for a handler").expect("write");
    fs::write(packages.join("orjson/__init__.py"), "from .orjson import dumps\n").expect("write");
    fs::write(packages.join("quick_api.py"), "import orjson\n").expect("write");
    assert_eq!(
        project.refused("import quick_api\n"),
        "`orjson.orjson` is native code, which a handler cannot run. It belongs to orjson, which quick-api \
         needs.\nInstead: `json`\n"
    );
    project.write("app.py", "import tqhost\n");
    let ran = make(&project.path, "build");
    let why = "AttributeError: app.py has no `Handler`, which wit/world.wit exports\n";
    assert!(ran.code != 0 && ran.stderr.contains(why), "{ran:#?}");
    // A warning is not a mistake.
    assert_eq!(project.build_with("import tqhost, warnings\nwarnings.warn('old')\n").code, 0);
}

#[test]
fn a_build_in_javascript_shows_a_file_and_a_line() {
    let project = Project::new("javascript", "handler.js");
    assert_eq!(project.build_with("").code, 0);
    project.write("src/inner.js", "export function inner() {\n\n  // here\n  return nowhere;\n}\n");
    project.write("src/broken.js", "\nconst x = (;\n");
    let at_the_top = "The top of a file runs when the component is built";
    let table: [(&str, &[&str]); 9] = [
        ("import './src/broken.js';\n", &["Unexpected \";\"", "src/broken.js:2:11:", "const x = (;"]),
        (
            "// a comment\nimport { inner } from './src/inner.js';\n\ninner();\n",
            &["ReferenceError: nowhere is not defined", "src/inner.js:4:", "handler.js:4:0:"],
        ),
        ("import './nowhere.js';\n", &["Could not resolve \"./nowhere.js\"", "handler.js:1:7:"]),
        ("import 'left-pad';\n", &["Could not resolve \"left-pad\"", "npm install left-pad"]),
        ("import 'node:fs';\n", &["\"node:fs\" is a module of Node.js", "handler.js:1:7:"]),
        ("\nfetch('https://example.com');\n", &["fetch needs a host", "handler.js:2:", at_the_top]),
        ("setTimeout(() => {}, 5);\n", &["setTimeout needs a host", "handler.js:1:", at_the_top]),
        ("\n\nconst x = Math.random();\n", &["Math.random() needs a host", "handler.js:3:", at_the_top]),
        ("console.log('hello');\n", &["log() of wasi:logging/", "handler.js:1:8:", at_the_top]),
    ];
    for (top, expected) in table {
        let said = project.refused(top);
        for text in expected {
            assert!(said.contains(text), "{top}: {text:?} is not in\n{said}");
        }
        assert!(!said.contains("node_modules") && said.lines().count() < 20, "{top}: {said}");
    }
    // An exception of a task has the place in the author's file, too.
    let handler = "import { handles, text } from './tqhost.js';\nimport { inner } from './src/inner.js';\n\n\
        const key = process.env.KEY;\n\
        export const handler = handles((task) => \
        text(task, 'content') === 'x' ? inner(key) : fetch('https://example.com'));\n";
    project.write("handler.js", handler);
    let ran = make(&project.path, "build");
    assert!(ran.code == 0 && ran.stderr.contains("`process.env` is empty at the top of a file"), "{ran:#?}");
    let view = tried_with_content(&project.path, "y").json();
    let line = "`fetch` needs the line `import wasi:http/outgoing-handler@0.2.4;` in wit/world.wit";
    assert!(view["message"].to_string().contains(line), "{view}");
    let view = tried_with_content(&project.path, "x").json();
    assert!(view["message"].to_string().contains("at src/inner.js:4 in inner"), "{view}");
}

#[test]
fn a_build_in_typescript_checks_types() {
    let project = Project::new("typescript", "handler.ts");
    assert_eq!(project.build_with("").code, 0);
    let said = project.refused("const n: number = 'text';\nconsole.log(n);\n");
    assert!(said.is_empty(), "tsc tells errors on stdout: {said}");
    let ran = make(&project.path, "check");
    assert!(ran.stdout.contains("handler.ts(1,7): error TS2322"), "{ran:#?}");
    // The types of a task come from wit/.
    let handler = project.handler.replace("text(task, 'content')", "text(task.queues, 'content')");
    project.write("handler.ts", &handler);
    let ran = make(&project.path, "check");
    assert!(ran.stdout.contains("Property 'queues' does not exist on type 'Task'"), "{ran:#?}");
}

#[test]
fn a_handler_in_python_uses_a_package_of_its_own_environment() {
    let project = Project::new("python", "app.py");
    project.write("requirements.txt", "python-slugify==8.0.4\n");
    project.write(
        "app.py",
        "from slugify import slugify\nfrom tqhost import handles, text\n\n\
         Handler = handles(lambda task: slugify(text(task, 'content')))\n",
    );
    assert_eq!(make(&project.path, "lock").code, 0);
    let fetched = include_str!("packages/requirements.txt");
    let lock = fs::read_to_string(project.path.join("requirements.lock")).expect("the lock");
    let pins = |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    assert_eq!(pins(&lock), pins(fetched));
    let ran = make(&project.path, "build");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_eq!(project.result("Grüße aus Köln"), json!("grusse-aus-koln"));
    // A lock that belongs to other requirements is refused, and so is a file with another hash.
    project.write("requirements.txt", "python-slugify\n");
    let ran = make(&project.path, "build");
    assert!(ran.code != 0 && ran.stderr.contains("run `make lock`"), "{ran:#?}");
    project.write("requirements.lock", &lock.replace("sha256:2", "sha256:3"));
    let ran = make(&project.path, "build");
    assert!(ran.code != 0 && ran.stderr.contains("DO NOT MATCH THE HASHES"), "{ran:#?}");
}

/// Adds a package to what `npm ci` installs.
fn add_package(project: &Project, name: &str, version: &str, integrity: &str) {
    project.change("package.json", |manifest| manifest["dependencies"][name] = json!(version));
    project.change("package-lock.json", |lock| {
        lock["packages"][""]["dependencies"][name] = json!(version);
        lock["packages"][format!("node_modules/{name}")] =
            json!({ "version": version, "integrity": integrity });
    });
}

#[test]
fn a_handler_in_javascript_uses_packages_and_hears_what_they_want_in_vain() {
    let project = Project::new("javascript", "handler.js");
    let handler = |package: &str, call: &str| {
        format!(
            "import given from '{package}';\nimport {{ handles, text }} from './tqhost.js';\n\n\
             export const handler = handles((task) => {call});\n"
        )
    };
    let ms =
        "sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA==";
    add_package(&project, "ms", "2.1.3", ms);
    project.write("handler.js", &handler("ms", "({ ms: given(text(task, 'content')) })"));
    let ran = make(&project.path, "build");
    assert!(ran.code == 0 && !ran.stderr.contains("WARNING"), "{ran:#?}");
    assert_eq!(project.result("2 days"), json!({ "ms": 172_800_000 }));
    // The lock file counts, too: the package is installed before the next build.
    let slugify =
        "sha512-h+z7HKHYXj6wJU+AnS/+IH8Uh9fdcX1Lrhg1/VMdf9PwoBQXFcXiAdsy2tSK0P6gKwJLXp02r90ahUCqHk9rrw==";
    add_package(&project, "slugify", "1.6.6", slugify);
    project.write("handler.js", &handler("slugify", "given(text(task, 'content'))"));
    let ran = make(&project.path, "build");
    assert_eq!(ran.code, 0, "{ran:#?}");
    let why = "a handler has no `normalize` of strings, and the package slugify uses it";
    assert!(ran.stderr.contains(why), "{ran:#?}");
    let wanting = |text: &str| {
        project.write("node_modules/wanting/index.js", text);
        project.write("handler.js", &handler("wanting", "given(task)"));
        project.write("more.json", &json!(text).to_string());
        make(&project.path, "build")
    };
    let ran = wanting("import fs from 'fs';\nexport default () => fs.readFileSync('x');\n");
    let why = "\"fs\" is a module of Node.js, which a handler does not have: the package wanting needs it";
    let place = "node_modules/wanting/index.js:1:15:";
    assert!(ran.code != 0 && ran.stderr.contains(why) && ran.stderr.contains(place), "{ran:#?}");
    let ran = wanting(
        "export default (task) => Buffer.from(task.id).length + Intl.length + /\\p{L}/u.source;\n\
         export const isHere = (x) => typeof navigator !== 'undefined';\n\
         //# sourceMappingURL=data:application/json,{\"version\":3,\"sources\":[\"webpack://wanting/a.js\"],\
         \"mappings\":\"AAAA\"}\n",
    );
    assert_eq!(ran.code, 0, "{ran:#?}");
    for what in ["`Intl` is undefined in a handler", "no `\\p{…}`"] {
        assert!(ran.stderr.contains(what), "{what}: {ran:#?}");
    }
    assert_eq!(ran.stderr.matches("and the package wanting uses it").count(), 2, "{ran:#?}");
}

#[test]
fn make_notices_every_file_that_a_handler_may_consist_of() {
    for (lang, file, handler) in [
        (
            "javascript",
            "src/deep/words.json",
            "import words from './src/deep/words.json';\nimport { handles } from './tqhost.js';\n\n\
             export const handler = handles(() => words);\n",
        ),
        (
            "python",
            "src/deep/words.json",
            "import json, pathlib\nfrom tqhost import handles\n\n\
             FILE = pathlib.Path(__file__).with_name('src').joinpath('deep/words.json')\n\
             WORDS = json.loads(FILE.read_text())\n\
             Handler = handles(lambda task: WORDS)\n",
        ),
    ] {
        let project = Project::new(lang, if lang == "python" { "app.py" } else { "handler.js" });
        project.write(file, "[\"one\"]");
        project.write(project.file, handler);
        assert_eq!(make(&project.path, "build").code, 0, "{lang}");
        assert_eq!(project.result("x"), json!(["one"]), "{lang}");
        project.write(file, "[\"two\"]");
        assert_eq!(make(&project.path, "build").code, 0, "{lang}");
        assert_eq!(project.result("x"), json!(["two"]), "{lang}");
        let built = project.built_at();
        project.write("README.md", "It is not a part of the handler.\n");
        assert_eq!(make(&project.path, "build").code, 0, "{lang}");
        assert_eq!(project.built_at(), built, "{lang}");
    }
}
