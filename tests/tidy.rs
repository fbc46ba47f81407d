//! The rules of ARCHITECTURE.md and CONTRIBUTING.md, as far as a program can check them.
//!
//! Each rule takes the files of the repository, as path and text, and returns the problems.
//! `every_rule_can_fail` shows each rule something that is wrong.
//!
//! Not here: that every key of the configuration is documented (a test in `config`).

mod order;
mod words;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use order::foundations;
use words::{comments, fences, sentences};

/// The most lines that a file of the host may have.
const MAX_LINES: usize = 600;

/// The most lines that a function of the host may have: those of a screen.
const MAX_FUNCTION_LINES: usize = 70;

/// Names of the standard library that a type of the host must not hide.
const STD_NAMES: [&str; 16] = [
    "Box", "Clone", "Default", "Drop", "Eq", "Fn", "From", "Into", "Iterator", "Option", "Ord", "Result",
    "Send", "String", "Sync", "Vec",
];

/// The most characters that a line may have.
const MAX_COLUMNS: usize = 110;

#[test]
fn every_file_opens_with_a_header() {
    check(headers);
}

#[test]
fn keys_of_redis_are_built_in_one_file() {
    check(key_prefixes);
}

#[test]
fn only_the_queue_and_the_doctor_speak_redis_and_only_the_sandbox_and_the_plugins_know_wasmtime() {
    check(imports);
}

#[test]
fn nothing_imports_what_stands_on_it() {
    check(foundations);
}

#[test]
fn no_file_of_the_host_is_too_long() {
    check(lengths);
}

#[test]
fn no_function_of_the_host_is_too_long() {
    check(function_lengths);
}

#[test]
fn no_line_is_too_wide() {
    check(widths);
}

#[test]
fn no_type_of_the_host_hides_one_of_the_standard_library() {
    check(type_names);
}

#[test]
fn the_fuzzer_is_locked_to_what_the_host_depends_on() {
    check(fuzz_lock);
}

#[test]
fn no_test_looks_for_a_sentence() {
    check(sentences);
}

#[test]
fn no_test_is_ignored() {
    check(ignored_tests);
}

#[test]
fn every_path_that_the_architecture_names_exists() {
    check(architecture_paths);
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    check(links);
}

#[test]
fn every_page_has_its_place_in_the_site() {
    check(places);
}

#[test]
fn blocks_of_code_in_the_documents_stand_alone() {
    check(fences);
}

#[test]
fn comments_begin_with_sentences() {
    check(comments);
}

#[test]
fn every_link_of_a_page_is_below_the_base_path() {
    check(page_links);
}

#[test]
fn every_guest_is_described_and_used() {
    check(guests);
}

#[test]
fn every_misbehaviour_has_a_guest_and_a_test() {
    check(misbehaviours);
}

#[test]
fn the_licences_of_all_dependencies_are_allowed() {
    let allowed = allowed_licences(&read(&root().join("deny.toml")));
    assert!(allowed.contains("MIT"), "deny.toml has a list of licences: {allowed:?}");
    let mut problems = Vec::new();
    for manifest in ["Cargo.toml", "plugins/Cargo.toml"] {
        let mut tree = Command::new(env!("CARGO"));
        tree.args([
            "tree",
            "--workspace",
            "--locked",
            "--offline",
            "--prefix",
            "none",
            "--no-dedupe",
            "--format",
            "{p}|{l}",
        ]);
        let output = tree.arg("--manifest-path").arg(root().join(manifest)).output().expect("run cargo tree");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(lines.lines().count() > 10, "{manifest} has dependencies: {lines}");
        problems.extend(licences(&lines, &allowed));
    }
    report(problems);
}

#[test]
fn every_rule_can_fail() {
    let wide = "x".repeat(MAX_COLUMNS + 1);
    let long = "        x();\n".repeat(MAX_FUNCTION_LINES - 1);
    let wrong: [(Rule, &str, &str); 52] = [
        (page_links, "host/src/dashboard/x.rs", "a href=\"/x\" {}\n"),
        (page_links, "host/src/dashboard/x.rs", "Redirect::to(\"/x\")\n"),
        (headers, "host/src/x.rs", "use std::fs;\n"),
        (headers, "host/src/queue/scripts/x.lua", "local a = 1\n"),
        (key_prefixes, "host/src/queue/x.rs", "let key = format!(\"tq:{{{stream}}}:dead\");\n"),
        (key_prefixes, "host/src/queue/scripts/x.lua", "redis.call('DEL', 'tq:x')\n"),
        (imports, "host/src/worker/x.rs", "use redis::Value;\n"),
        (imports, "host/src/queue.rs", "fn f(value: redis::Value) {}\n"),
        (imports, "host/src/worker/x.rs", "    use wasmtime_wasi::p2;\n"),
        (imports, "host/src/queue/x.rs", "let engine = wasmtime::Engine::default();\n"),
        (foundations, "host/src/queue/x.rs", "use crate::doctor::FaultKind;\n"),
        (foundations, "host/src/config/x.rs", "fn f() -> crate::queue::Queue {}\n"),
        (foundations, "host/src/queue/error.rs", "use super::{claim::Lease, keys};\n"),
        (foundations, "host/src/queue/error.rs", "use super::Queue;\n"),
        (foundations, "host/src/x.rs", "//! It has no place in the order.\n"),
        (lengths, "host/src/x.rs", &"\n".repeat(MAX_LINES + 1)),
        (function_lengths, "host/src/x.rs", &format!("fn x() {{\n{long}}}\n")),
        (
            function_lengths,
            "host/src/x.rs",
            &format!("    pub(crate) const unsafe fn x() {{\n{long}    }}\n"),
        ),
        (function_lengths, "host/src/x.rs", &format!("pub async fn x(\n) {{\n{}}}\n", &long[13..])),
        (widths, "host/src/x.rs", &format!("//! x\n// {wide}\n")),
        (widths, "host/src/x.rs", &format!("//! x\n    snapshot!(x, @r#\"\n\n    \"#);\n// {wide}\n")),
        (widths, "docs/x.md", &format!("{wide}\n")),
        (widths, "docs/x.md", &"é".repeat(MAX_COLUMNS + 1)),
        (widths, "docs/x.md", &format!("See https://example.com/ {wide}\n")),
        (widths, "scripts/x.sh", &format!("    | {wide}\n")),
        (type_names, "host/src/x.rs", "pub enum Result {\n"),
        (fuzz_lock, "host/Cargo.toml", "[dependencies]\nanother.workspace = true\n"),
        (ignored_tests, "tests/x.rs", "    #[ignore]\n"),
        (ignored_tests, "host/src/x.rs", "#[ignore = \"slow\"]\n"),
        (architecture_paths, "ARCHITECTURE.md", "see `worker/nowhere.rs`\n"),
        (architecture_paths, "ARCHITECTURE.md", "see `queue/scripts/{begin,nowhere}.lua`\n"),
        (links, "docs/x.md", "see [that](nowhere.md)\n"),
        (links, "docs/x.md", "# Here\nsee [that](#there)\n"),
        (links, "docs/x.md", "see [that](../tests/tidy.rs \"there_is_no_such_test\")\n"),
        (places, "docs/x.md", "# A page\n"),
        (places, "docs/SUMMARY.md", "- [Rights](acl.md)\n"),
        (places, "docs/languages/x.md", "# A page\n"),
        (fences, "docs/x.md", "# A figure ``` a ─▶ b ```\n"),
        (fences, "docs/x.md", "```\na ─▶ b\n"),
        (comments, "host/src/x.rs", "//! x\n/// What is read.\n"),
        (comments, "host/src/x.rs", "//! x\n    fn who_runs() {}\n"),
        (comments, "host/src/queue/scripts/x.lua", "-- Of each task.\n"),
        (sentences, "tests/x.rs", "assert!(text.contains(\"it is not there any more\"));\n"),
        (
            sentences,
            "host/src/x.rs",
            "#[cfg(test)]\nassert!(text.starts_with(\"Nobody is, so far, here\"))\n",
        ),
        (guests, "plugins/testing/undescribed.rs", ""),
        (guests, "plugins/testing/README.md", "| `nowhere` | does | becomes |\n"),
        (guests, "plugins/testing/unused.rs", ""),
        (guests, "plugins/testing/undescribed.wat", ""),
        (misbehaviours, "plugins/testing/README.md", "| sulking | `loops` | `isolation::traps` |\n"),
        (misbehaviours, "plugins/testing/README.md", "| endless loop | `nowhere` | `isolation::traps` |\n"),
        (misbehaviours, "plugins/testing/README.md", "| endless loop | `echo` | `isolation::traps` |\n"),
        (misbehaviours, "plugins/testing/README.md", "| endless loop | `loops` | `isolation::nowhere` |\n"),
    ];
    // The other tests see that nothing is wrong without these lines.
    let mut files = repository().clone();
    let right = files.len();
    for (rule, path, text) in wrong {
        files.push((path.to_owned(), text.to_owned()));
        // The guest has a row, so only its use is missing.
        if path.ends_with("unused.rs") {
            files
                .push(("plugins/testing/README.md".to_owned(), "| `unused` | does | becomes |\n".to_owned()));
        }
        assert_eq!(rule(&files).len(), 1, "a rule must find what is wrong in {path}: {text:.60}");
        files.truncate(right);
    }
    // Removes each row of the table in turn.
    let readme =
        files.iter().position(|(path, _)| path == "plugins/testing/README.md").expect("the list of guests");
    let whole = files[readme].1.clone();
    for name in MISBEHAVIOURS {
        let others = whole.lines().filter(|line| !line.starts_with(&format!("| {name} |")));
        files[readme].1 = others.map(|line| format!("{line}\n")).collect();
        assert_eq!(misbehaviours(&files).len(), 1, "{name}");
    }
    let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0".to_owned()]);
    let found =
        licences("a v1|MIT\nb v1|GPL-3.0\nc v1|\nd v1|MIT AND GPL-3.0\ne v1|GPL-3.0 OR MIT\n", &allowed);
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn lines_that_may_be_wide() {
    let wide = "x".repeat(MAX_COLUMNS + 1);
    let table = [
        ("Cargo.lock", wide.clone()),
        ("host/templates/javascript/package-lock.json", wide.clone()),
        ("tests/snapshots/x.snap", wide.clone()),
        ("docs/x.svg", wide.clone()),
        ("plugins/x/samples/x.txt", wide.clone()),
        ("tests/fuzz/corpus/load/x", wide.clone()),
        ("docs/x.md", format!("| {wide} |")),
        ("host/src/x.rs", format!("//! | {wide} |")),
        ("docs/x.md", format!("  <https://{wide}>")),
        ("scripts/x.sh", format!("# https://{wide}")),
        ("docs/x.md", "é".repeat(MAX_COLUMNS)),
        ("host/src/x.rs", format!("    snapshot!(x, @\"{wide}\");")),
        ("host/src/x.rs", format!("    snapshot!(x, @r\"\n    \"{wide}\n    {wide}\n    \");")),
    ];
    for (path, text) in table {
        assert_eq!(widths(&vec![(path.to_owned(), text)]), Vec::<String>::new(), "{path}");
    }
}

#[test]
fn functions_that_are_not_too_long() {
    let body = "    x();\n".repeat(MAX_FUNCTION_LINES - 2);
    let table = [
        format!("fn x() {{\n{body}}}\n"),
        format!("fn x()\nwhere\n    T: X,\n{{\n{}}}\n", &body[27..]),
        format!("fn x();\nconst X: T = T {{\n{body}}};\nconst Y: T = T {{\n{body}}};\n"),
        format!("fn x(\n    x: T,\n) -> T;\n{body}{body}"),
        format!("fn x() {{}}\n{body}{body}"),
    ];
    for text in table {
        let files = vec![("host/src/x.rs".to_owned(), text.clone())];
        assert_eq!(function_lengths(&files), Vec::<String>::new(), "{text:.60}");
    }
}

#[test]
fn licence_expressions() {
    let allowed =
        BTreeSet::from(["MIT", "Apache-2.0", "Zlib", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned));
    let table = [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0 OR MIT AND Zlib", true),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("(GPL-3.0 OR MIT) AND GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT WITH LLVM-exception", false),
        ("", false),
        ("MIT AND", false),
        ("(MIT", false),
    ];
    for (expression, expected) in table {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression:?}");
    }
}

type Files = Vec<(String, String)>;
type Rule = fn(&Files) -> Vec<String>;

/// Every `.rs` and `.lua` file opens with a header.
fn headers(files: &Files) -> Vec<String> {
    let opening = |path: &str| if path.ends_with(".rs") { "//! " } else { "-- " };
    let bare = files.iter().filter(|(path, text)| is_code(path) && !text.starts_with(opening(path)));
    bare.map(|(path, _)| format!("{path} does not open with a `{}` header", opening(path).trim_end()))
        .collect()
}

/// Only `queue/keys.rs` builds keys; `config/names.rs` refuses names that look like keys.
fn key_prefixes(files: &Files) -> Vec<String> {
    let may = ["host/src/queue/keys.rs", "host/src/config/names.rs"];
    let code = files
        .iter()
        .filter(|(path, _)| path.starts_with("host/src/") && is_code(path) && !may.contains(&path.as_str()));
    let bad = code.flat_map(|(path, text)| {
        lines(path, text).filter(|(_, line)| line.contains("\"tq:") || line.contains("'tq:"))
    });
    bad.map(|(place, _)| format!("{place} builds a key; keys are built in host/src/queue/keys.rs")).collect()
}

/// Only `queue/` and `doctor/` import redis; only `sandbox/` and `plugins/` import wasmtime.
fn imports(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    let rules: [(&[&str], &[&str]); 2] = [
        (&["redis"], &["host/src/queue/", "host/src/doctor/"]),
        (
            &[
                "wasmtime",
                "wasmtime_wasi",
                "wasmtime_wasi_http",
                "wasmtime_wasi_io",
                "wasmparser",
                "wit_component",
            ],
            &["host/src/sandbox/", "host/src/plugins/"],
        ),
    ];
    for (path, text) in
        files.iter().filter(|(path, _)| path.starts_with("host/src/") && path.ends_with(".rs"))
    {
        for (crates, may) in rules {
            if may.iter().any(|folder| path.starts_with(folder)) {
                continue;
            }
            for (place, line) in lines(path, text) {
                problems.extend(
                    crates
                        .iter()
                        .filter(|name| names_crate(line, name))
                        .map(|name| format!("{place} uses the crate {name}")),
                );
            }
        }
    }
    problems
}

/// Whether a path in this line begins with `name`, as in `name::` or `use name`.
fn names_crate(line: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '"');
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_word);
        let after = &line[at + name.len()..];
        !before
            && (after.starts_with("::")
                || line[..at].trim_end().ends_with("use") && after.starts_with([';', ' ']))
    })
}

fn lengths(files: &Files) -> Vec<String> {
    let host = files.iter().filter(|(path, _)| path.starts_with("host/src/") && is_code(path));
    let long = host.map(|(path, text)| (path, text.lines().count())).filter(|(_, count)| *count > MAX_LINES);
    long.map(|(path, count)| format!("{path} has {count} lines, more than {MAX_LINES}")).collect()
}

/// A function fits a screen, so that it is read without scrolling. It ends at the first line with its
/// indentation that ends a block or a declaration, as rustfmt writes them.
fn function_lengths(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in
        files.iter().filter(|(path, _)| path.starts_with("host/src/") && path.ends_with(".rs"))
    {
        let all: Vec<(String, &str)> = lines(path, text).collect();
        for (at, (place, line)) in all.iter().enumerate().filter(|(_, (_, line))| is_function(line)) {
            let is_end = |other: &str| indentation(other) == indentation(line) && other.ends_with(['}', ';']);
            let count = all[at..].iter().take_while(|(_, other)| !is_end(other)).count() + 1;
            if count > MAX_FUNCTION_LINES {
                let name = line.trim_start();
                problems.push(format!("{place} has {count} lines, more than {MAX_FUNCTION_LINES}: {name}"));
            }
        }
    }
    problems
}

/// Whether a function begins in this line.
fn is_function(line: &str) -> bool {
    let mut words = item(line).split(' ').skip_while(|word| ["async", "const", "unsafe"].contains(word));
    words.next() == Some("fn")
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// No line has more than 110 characters, so that it fits on a screen beside another file.
///
/// These may be wider:
/// - lock files, because a program writes them;
/// - snapshots, also inline ones, because they are outputs of a program and must have the same bytes;
/// - `.svg` files, because a program draws them, and a path in them cannot be broken;
/// - `.json` files, because a string in JSON cannot be broken;
/// - sample inputs of handlers, because they are what people write, who do not wrap their lines;
/// - the files that the fuzzer keeps, because it makes them, and git ignores them;
/// - rows of Markdown tables, also in doc comments, because a row is one line;
/// - lines that have nothing but one URL, because a URL cannot be broken.
fn widths(files: &Files) -> Vec<String> {
    let may_be_wide = |path: &str| {
        let ends = [".lock", ".snap", ".svg", ".json"];
        let folders = ["artifacts", "corpus", "coverage", "seeds"].map(|name| format!("tests/fuzz/{name}/"));
        ends.iter().any(|end| path.ends_with(end))
            || path.starts_with("plugins/") && path.contains("/samples/")
            || folders.iter().any(|folder| path.starts_with(folder))
    };
    let mut problems = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !may_be_wide(path)) {
        let mut open = None;
        for (place, line) in lines(path, text) {
            let begun = snapshot_in(line);
            let is_snapshot = open.or(begun).is_some();
            open = match open.or(begun.filter(|(begin, _)| line.ends_with(begin))) {
                Some((_, end)) if line.trim_matches([' ', ')', ',', ';']) == end => None,
                open => open,
            };
            let columns = line.chars().count();
            if columns > MAX_COLUMNS && !is_snapshot && !is_row(path, line) && !is_url(line) {
                problems.push(format!("{place} has {columns} columns, more than {MAX_COLUMNS}"));
            }
        }
    }
    problems
}

/// How the inline snapshot that begins in a line begins and ends.
fn snapshot_in(line: &str) -> Option<(&'static str, &'static str)> {
    let begins = |begin: &str| line.trim_start().starts_with(begin) || line.contains(&format!(", {begin}"));
    [("@r#\"", "\"#"), ("@r\"", "\""), ("@\"", "\"")].into_iter().find(|(begin, _)| begins(begin))
}

/// Whether a line is a row of a Markdown table, in a document or in a doc comment.
fn is_row(path: &str, line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
    let text = if path.ends_with(".md") { Some(line) } else { comment };
    text.is_some_and(|text| text.trim_start().starts_with('|'))
}

/// Whether a line has one URL and nothing else but the signs around it, such as those of a comment.
fn is_url(line: &str) -> bool {
    let text = line.trim_start_matches(|c: char| !c.is_alphanumeric()).trim_end();
    text.contains("://") && !text.contains(char::is_whitespace)
}

/// No struct, enum or trait of the host has a name of the standard library. Test modules are left out.
fn type_names(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_host_code(path)) {
        // Test modules come last in their files.
        let code = text.find("\n#[cfg(test)]\nmod tests {").map_or(text.as_str(), |end| &text[..end]);
        for (place, line) in lines(path, code) {
            if let Some(name) = type_name(line).filter(|name| STD_NAMES.contains(name)) {
                problems.push(format!("{place} defines {name}, which hides that of the standard library"));
            }
        }
    }
    problems
}

/// Whether a file is part of the host, and has more than tests in it.
fn is_host_code(path: &str) -> bool {
    path.starts_with("host/src/")
        && path.ends_with(".rs")
        && !path.ends_with("tests.rs")
        && !path.ends_with("/testing.rs")
        && !path.contains("/tests/")
}

/// The name of the struct, enum or trait that a line begins to define.
fn type_name(line: &str) -> Option<&str> {
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|word| item(line).strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// A line without its indentation and its visibility.
fn item(line: &str) -> &str {
    let line = line.trim_start();
    line.strip_prefix("pub").map_or(line, |rest| {
        let rest = rest.trim_start();
        rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(rest, |(_, item)| item)
    })
}

/// The fuzzer is a workspace of its own, and nothing else builds it. Without this rule its lock file would go
/// out of date until somebody runs the fuzzer.
fn fuzz_lock(files: &Files) -> Vec<String> {
    let name = |line: &str| {
        line.trim_matches([' ', '"', ',']).split([' ', '.']).next().unwrap_or_default().to_owned()
    };
    let between = |path: &str, from: &str, to: &str| -> BTreeSet<String> {
        let texts = files.iter().filter(|(found, _)| found == path).map(|(_, text)| text);
        let sections = texts.filter_map(|text| {
            text.split_once(from).map(|(_, after)| after.split_once(to).map_or(after, |(within, _)| within))
        });
        sections.flat_map(str::lines).map(name).filter(|name| !name.is_empty()).collect()
    };
    let wanted = between("host/Cargo.toml", "[dependencies]\n", "\n\n");
    let locked =
        between("tests/fuzz/Cargo.lock", "name = \"tqhost\"\nversion = \"0.1.0\"\ndependencies = [\n", "]");
    let (missing, left) = (wanted.difference(&locked), locked.difference(&wanted));
    missing
        .chain(left)
        .map(|name| format!("tests/fuzz/Cargo.lock: {name}: run `cargo metadata` in tests/fuzz"))
        .collect()
}

/// A test with `ignore` is never run.
fn ignored_tests(files: &Files) -> Vec<String> {
    let attribute = concat!("#[ig", "nore");
    let code = files.iter().filter(|(path, _)| path.ends_with(".rs") && path != "tests/tidy.rs");
    let bad = code.flat_map(|(path, text)| lines(path, text).filter(|(_, line)| line.contains(attribute)));
    bad.map(|(place, _)| format!("{place} ignores a test")).collect()
}

/// Each path in ARCHITECTURE.md exists, in the repository or within `host/src`.
fn architecture_paths(files: &Files) -> Vec<String> {
    let known = |path: &str| {
        files.iter().any(|(file, _)| file == path || path.ends_with('/') && file.starts_with(path))
    };
    let mut problems = Vec::new();
    for (place, line) in all_lines(files, "ARCHITECTURE.md") {
        // Every second part of the line is between backticks.
        for path in line.split('`').skip(1).step_by(2).filter(|word| is_path(word)).flat_map(braces) {
            if !known(&path) && !known(&format!("host/src/{path}")) {
                problems.push(format!("{place} names {path}, which does not exist"));
            }
        }
    }
    problems
}

fn is_path(word: &str) -> bool {
    let ends = [".rs", ".lua", ".md", ".toml", ".sh", ".wit", "/"];
    ends.iter().any(|end| word.ends_with(end)) && !word.contains([' ', '<', '(', '*', ':'])
}

/// Expands `a/{b,c}.lua` to `a/b.lua` and `a/c.lua`.
fn braces(word: &str) -> Vec<String> {
    let parts = word
        .split_once('{')
        .and_then(|(head, rest)| rest.split_once('}').map(|(inner, tail)| (head, inner, tail)));
    parts.map_or_else(
        || vec![word.to_owned()],
        |(head, inner, tail)| inner.split(',').map(|one| format!("{head}{one}{tail}")).collect(),
    )
}

/// Each link leads to a file that exists, and to a heading in it. The title of a link to tests names one.
fn links(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (place, line) in prose(path, text) {
            for (target, title) in targets(line).filter(|(target, _)| !target.contains("://")) {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() { path.clone() } else { joined(path, file) };
                let found = files.iter().filter(|(known, _)| {
                    *known == file || known.starts_with(&format!("{}/", file.trim_end_matches('/')))
                });
                let texts: Vec<&String> = found.map(|(_, text)| text).collect();
                if texts.is_empty() {
                    problems.push(format!("{place} links to {target}, which does not exist"));
                } else if !heading.is_empty() && !texts.iter().any(|text| headings(text).contains(heading)) {
                    problems.push(format!("{place} links to {target}, but there is no such heading"));
                } else if file.ends_with(".rs")
                    && !title.is_empty()
                    && !texts.iter().any(|text| text.contains(&format!("\nfn {title}()")))
                {
                    problems.push(format!("{place} links to {target}, but there is no test {title}"));
                }
            }
        }
    }
    problems
}

/// The links of a line, each with its title or an empty one.
fn targets(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.map(|link| {
        let (target, title) = link.split_once(' ').unwrap_or((link, ""));
        (target, title.trim_matches('"'))
    })
}

/// Each page below `docs/` is once in the list of the site's pages.
fn places(files: &Files) -> Vec<String> {
    const LIST: &str = "docs/SUMMARY.md";
    let listed: Vec<String> = all_lines(files, LIST)
        .flat_map(|(_, line)| targets(line).map(|(target, _)| joined(LIST, target)).collect::<Vec<String>>())
        .collect();
    let pages = files.iter().map(|(path, _)| path.as_str());
    let pages = pages.filter(|path| path.starts_with("docs/") && path.ends_with(".md") && *path != LIST);
    let counted = pages.map(|page| (page, listed.iter().filter(|path| *path == page).count()));
    let bad = counted.filter(|(_, count)| *count != 1);
    bad.map(|(page, count)| format!("{LIST} has {page} {count} times, not once")).collect()
}

/// Pages make their links with `base_path::at`: a path that stands alone leads out of the base path.
fn page_links(files: &Files) -> Vec<String> {
    let pages = files.iter().filter(|(path, _)| path.starts_with("host/src/dashboard/"));
    let pages = pages.filter(|(path, _)| path.ends_with(".rs") && !path.ends_with("/mod.rs"));
    let lines =
        pages.flat_map(|(path, text)| lines(path, text.split("#[cfg(test)]").next().unwrap_or_default()));
    let starts = ["href=\"/", "src=\"/", "action=\"/", "={ \"/", "to(\"/"];
    let bad = lines.filter(|(_, line)| starts.iter().any(|start| line.contains(start)));
    bad.map(|(place, _)| format!("{place} has a link that base_path::at has not made")).collect()
}

fn joined(from: &str, to: &str) -> String {
    let mut path = PathBuf::from(from);
    path.pop();
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

/// The anchors of a document's headings, as forges make them.
fn headings(text: &str) -> BTreeSet<String> {
    let anchor = |title: &str| {
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    prose("", text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| anchor(line.trim_start_matches('#')))
        .collect()
}

/// The lines of a document that are not in a block of code.
fn prose<'f>(path: &str, text: &'f str) -> impl Iterator<Item = (String, &'f str)> {
    let mut is_code = false;
    lines(path, text).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Every guest has a row in its table, every row has a guest, and some test uses the guest.
fn guests(files: &Files) -> Vec<String> {
    let sources = [".rs", ".wat", "/handler.js", "/app.py", "/handler.go"];
    let guest = |path: &str| {
        let path = path.strip_prefix("plugins/testing/")?;
        sources.iter().find_map(|source| path.strip_suffix(source)).map(str::to_owned)
    };
    let guests: BTreeSet<String> = files
        .iter()
        .filter_map(|(path, _)| guest(path))
        .filter(|name| name != "lib" && !name.contains('/'))
        .collect();
    let row = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
    let rows: BTreeSet<String> =
        all_lines(files, "plugins/testing/README.md").filter_map(|(_, line)| row(line)).collect();
    let is_test = |path: &str| {
        path.starts_with("tests/") && path != "tests/tidy.rs"
            || path.ends_with("tests.rs")
            || path == "demo/run.sh"
    };
    let tests: Vec<&String> = files.iter().filter(|(path, _)| is_test(path)).map(|(_, text)| text).collect();
    let is_used = |name: &str| {
        [format!("\"{name}\""), format!("testing/{name}.wasm")]
            .iter()
            .any(|word| tests.iter().any(|text| text.contains(word)))
    };
    let mut problems: Vec<String> = guests
        .difference(&rows)
        .map(|name| format!("the guest {name} has no row in plugins/testing/README.md"))
        .collect();
    problems.extend(
        rows.difference(&guests)
            .map(|name| format!("plugins/testing/README.md describes {name}, which does not exist")),
    );
    for name in guests.intersection(&rows) {
        if !is_used(name) {
            problems.push(format!("no test uses the guest {name}"));
        }
    }
    problems
}

/// The ways in which a handler may misbehave. A new one is added here first.
const MISBEHAVIOURS: [&str; 32] = [
    "endless loop",
    "loop in host calls",
    "wait in a host call",
    "memory in steps",
    "memory at once",
    "many small memories",
    "many small tables",
    "handles of the host",
    "stack overflow",
    "trap",
    "trap at instantiation",
    "loop at instantiation",
    "self-check passes, every task traps",
    "self-check fails",
    "flooding logs",
    "flooding stdout",
    "flooding progress",
    "flooding results",
    "flooding errors",
    "huge arguments",
    "endless HTTP body",
    "slow HTTP",
    "many requests at once",
    "redirect to a private address",
    "DNS name of a private address",
    "reading a config key that is not granted",
    "looking for what another task left",
    "importing what is not offered",
    "files and sockets",
    "another interface",
    "huge component",
    "malformed component",
];

/// Every misbehaviour has a row in the README of the guests. The guests of the row exist and run in the test
/// of all of them. The tests of the row exist, and each of them uses one of the guests.
fn misbehaviours(files: &Files) -> Vec<String> {
    let text = |path: &str| files.iter().find(|(file, _)| file == path).map_or("", |(_, text)| text.as_str());
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<String>>();
    let (mut problems, mut found) = (Vec::new(), BTreeSet::new());
    let isolation = text("tests/handlers/isolation.rs");
    let all = isolation
        .split("const MISBEHAVING")
        .nth(1)
        .and_then(|rest| rest.split("\n];").next())
        .unwrap_or_default();
    for (place, line) in all_lines(files, "plugins/testing/README.md") {
        // The last of three columns names tests.
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[name, guests, tests] = cells.as_slice() else { continue };
        if !tests.starts_with('`') || !tests.contains("::") {
            continue;
        }
        if !MISBEHAVIOURS.contains(&name) {
            problems.push(format!("{place}: `{name}` is not in the list of misbehaviours in tests/tidy.rs"));
            continue;
        }
        found.insert(name.to_owned());
        let guests = quoted(guests);
        for guest in &guests {
            let path = format!("plugins/testing/{guest}");
            if !files.iter().any(|(file, _)| *file == format!("{path}.rs") || *file == format!("{path}.wat"))
            {
                problems.push(format!("{place}: there is no guest {guest}"));
            } else if !all.contains(&format!("(\"{guest}\", ")) {
                problems.push(format!(
                    "{place}: {guest} is not in the list MISBEHAVING of tests/handlers/isolation.rs"
                ));
            }
        }
        // One message for each row is enough.
        if problems.iter().any(|problem| problem.starts_with(&format!("{place}: "))) {
            continue;
        }
        for test in quoted(tests) {
            let (module, function) = test.rsplit_once("::").unwrap_or((&test, ""));
            let file = if module == "hostile" {
                "host/src/sandbox/tests/hostile.rs".to_owned()
            } else {
                // A test is named by its file; the folder of the file may be left out.
                let end = format!("/{}.rs", module.rsplit("::").next().unwrap_or(module));
                let is_it = |path: &str, text: &str| {
                    path.starts_with("tests/") && path.ends_with(&end) && text.contains("#[test]")
                };
                let found = files.iter().find(|(path, text)| is_it(path, text));
                found.map(|(path, _)| path.clone()).unwrap_or_default()
            };
            let code = text(&file);
            let uses = guests.is_empty()
                || module == "hostile"
                || guests.iter().any(|guest| code.contains(&format!("\"{guest}\"")));
            if !code.contains(&format!("fn {function}()")) {
                problems.push(format!("{place}: there is no test {test}"));
            } else if !uses {
                problems.push(format!("{place}: {file} uses none of {guests:?}"));
            }
        }
    }
    let missing = MISBEHAVIOURS.iter().filter(|name| !found.contains(**name));
    problems.extend(
        missing.map(|name| format!("plugins/testing/README.md has no row for the misbehaviour `{name}`")),
    );
    problems
}

/// The list in deny.toml, which cargo-deny reads too.
fn allowed_licences(deny: &str) -> BTreeSet<String> {
    let table: toml::Table = deny.parse().expect("deny.toml is TOML");
    let list = table["licenses"]["allow"].as_array().expect("a list of licences");
    list.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// `lines` has one package a line, as `name version|licence`. The packages of the repository have its own
/// licence.
fn licences(lines: &str, allowed: &BTreeSet<String>) -> Vec<String> {
    let packages: BTreeSet<(&str, &str)> = lines.lines().filter_map(|line| line.split_once('|')).collect();
    let bad = packages.into_iter().filter(|(_, licence)| !is_allowed(licence, allowed));
    bad.map(|(package, licence)| {
        format!("{package} has the licence `{licence}`, which deny.toml does not allow")
    })
    .collect()
}

/// Evaluates an SPDX expression. A licence that is not in this form is not allowed. The old `/` means OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed).unwrap_or(false) && words.next().is_none()
}

type Words<'w> = std::iter::Peekable<std::str::SplitWhitespace<'w>>;

fn any(words: &mut Words, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut found = all(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        found |= all(words, allowed)?;
    }
    Some(found)
}

fn all(words: &mut Words, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut found = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        found &= one(words, allowed)?;
    }
    Some(found)
}

fn one(words: &mut Words, allowed: &BTreeSet<String>) -> Option<bool> {
    let name = words.next()?;
    if name == "(" {
        let found = any(words, allowed)?;
        return words.next_if_eq(&")").map(|_| found);
    }
    let exception = words.next_if_eq(&"WITH").map(|_| words.next());
    match exception {
        Some(exception) => Some(allowed.contains(&format!("{name} WITH {}", exception?))),
        None => Some(allowed.contains(name)),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of a file. A picture has none, but documents show it.
fn text_of(path: &Path) -> Option<String> {
    let is_picture = path.extension().is_some_and(|extension| extension == "png");
    if is_picture { Some(String::new()) } else { std::fs::read_to_string(path).ok() }
}

/// The text files of the repository that somebody wrote, and the pictures. They are read once.
fn repository() -> &'static Files {
    static FILES: LazyLock<Files> = LazyLock::new(read_repository);
    &FILES
}

fn read_repository() -> Files {
    let mut files = Files::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
            if path.is_dir()
                && name != "target"
                && (!name.starts_with('.') || matches!(name.as_str(), ".cargo" | ".ci"))
            {
                folders.push(path);
            } else if path.is_file()
                && let Some(text) = text_of(&path)
            {
                files.push((path.strip_prefix(root()).expect("within").to_string_lossy().into_owned(), text));
            }
        }
    }
    assert!(files.len() > 100, "the repository is found: {}", files.len());
    files
}

fn is_code(path: &str) -> bool {
    path.ends_with(".rs") || path.ends_with(".lua")
}

/// Lines with their places.
fn lines<'f>(path: &str, text: &'f str) -> impl Iterator<Item = (String, &'f str)> {
    let path = path.to_owned();
    text.lines().enumerate().map(move |(n, line)| (format!("{path}:{}", n + 1), line))
}

fn all_lines<'f>(files: &'f Files, path: &'f str) -> impl Iterator<Item = (String, &'f str)> {
    files.iter().filter(move |(file, _)| file == path).flat_map(|(path, text)| lines(path, text))
}

#[track_caller]
fn check(rule: Rule) {
    report(rule(repository()));
}

#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}
