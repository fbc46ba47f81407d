//! Checks which file may import which in host/src.
//!
//! In: the files of the repository. Out: each import that goes upwards, and each circle of files.
//!
//! Only the code counts that is in the binary: tests may import what they like.

use std::collections::{BTreeMap, BTreeSet};

use super::Files;

/// The folders and files of host/src, lowest first; each imports only those before it. The words that all
/// share come first, then queues in Redis, handlers in the sandbox, what others see of a host, the plugins,
/// the loops that join all of these, and last the host as a whole and its commands.
const ORDER: [&str; 37] = [
    "tls",
    "https",
    "secrets",
    "chain",
    "clock",
    "file",
    "guarded",
    "watch",
    "field",
    "mask",
    "effects",
    "task",
    "builds",
    "logging",
    "shutdown",
    "supervisor",
    "config",
    "descriptors",
    "telemetry",
    "blobs",
    "oci",
    "embedded",
    "queue",
    "doctor",
    "operations",
    "sandbox",
    "admin",
    "plugins",
    "worker",
    "reload",
    "metrics",
    "jobs",
    "announcer",
    "api",
    "dashboard",
    "app",
    "cli",
];

/// Files, each with those that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// No folder imports one above it, and no file imports one that imports it, directly or not.
pub fn foundations(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    let graph = graph(files);
    let folders: BTreeSet<&str> = graph.keys().map(|path| folder(path)).collect();
    let unknown = folders.iter().filter(|name| !ORDER.contains(*name));
    problems.extend(
        unknown.map(|name| format!("host/src/{name} has no place in the order of tests/tidy/order.rs")),
    );
    let rank = |path: &str| ORDER.iter().position(|name| *name == folder(path));
    for (from, to) in graph.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        if folder(from) != folder(to) && rank(from).is_some() && rank(from) < rank(to) {
            problems.push(format!("host/src/{from} imports host/src/{to}, which stands on it"));
        }
    }
    for circle in circles(&graph) {
        problems.push(format!("these files of host/src import each other: {}", circle.join(", ")));
    }
    problems
}

fn folder(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or(path)
}

/// The sets of files that reach each other.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reach(graph, from))).collect();
    let circle = |from: &String| -> Vec<String> {
        reached[from].iter().filter(|to| reached[**to].contains(from)).map(|to| (*to).clone()).collect()
    };
    let found: BTreeSet<Vec<String>> = graph.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    found.into_iter().collect()
}

fn reach<'g>(graph: &'g Graph, from: &String) -> BTreeSet<&'g String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[from].iter().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            next.extend(&graph[one]);
        }
    }
    reached
}

fn graph(files: &Files) -> Graph {
    let host = |path: &str| {
        let path = path.strip_prefix("host/src/")?.strip_suffix(".rs")?;
        let is_test = |part: &str| part == "tests" || part == "testing" || part.ends_with("_tests");
        let is_whole = path == "main" || path == "lib";
        (!is_whole && !path.split('/').any(is_test)).then(|| path.to_owned())
    };
    let sources: Vec<(String, &String)> =
        files.iter().filter_map(|(path, text)| Some((host(path)?, text))).collect();
    let modules: BTreeMap<Vec<&str>, &str> =
        sources.iter().map(|(path, _)| (module(path), path.as_str())).collect();
    let mut graph = Graph::new();
    for (path, text) in &sources {
        let me = module(path);
        let imported = paths(&code(text)).into_iter().filter_map(|path| resolve(&path, &me, &modules));
        let imported: BTreeSet<String> =
            imported.filter(|to| to != path).map(|to| format!("{to}.rs")).collect();
        graph.entry(format!("{path}.rs")).or_default().extend(imported);
    }
    graph
}

fn module(path: &str) -> Vec<&str> {
    path.strip_suffix("/mod").unwrap_or(path).split('/').collect()
}

/// The code without comments and without what only tests have.
fn code(text: &str) -> String {
    let (mut kept, mut is_test, mut is_block) = (String::new(), false, false);
    for line in text.lines() {
        if is_block {
            is_block = !line.starts_with('}');
        } else if line.starts_with("#[cfg(test)]") {
            is_test = true;
        } else if is_test && !line.starts_with("#[") {
            is_test = false;
            is_block = !line.ends_with(';');
        } else if !is_test {
            kept.push_str(line.split("//").next().unwrap_or_default());
            kept.push('\n');
        }
    }
    kept
}

/// All paths of the code, those of `use` one by one.
fn paths(code: &str) -> Vec<String> {
    let (mut paths, mut rest) = (Vec::new(), code.to_owned());
    for start in ["use ", "pub use ", "pub(crate) use ", "pub(super) use "] {
        let mark = format!("\n{start}");
        rest.insert(0, '\n');
        while let Some(at) = rest.find(&mark) {
            let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
            let tree = rest[at + mark.len()..end].split_whitespace().collect::<Vec<_>>().join(" ");
            expand("", &tree, &mut paths);
            rest.replace_range(at..end, "");
        }
    }
    // A visibility is not an import.
    while let Some(at) = rest.find("pub(in ") {
        let end = rest[at..].find(')').map_or(rest.len(), |end| at + end);
        rest.replace_range(at..end, "");
    }
    let words = rest.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':')));
    paths.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
    paths
}

/// Takes `a::{b, c::{d, e}}` apart.
fn expand(before: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, inner)) = tree.trim().split_once('{') else {
        let name = tree.trim().split(' ').next().unwrap_or_default();
        paths.push(format!("{before}{name}"));
        return;
    };
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[begin..at].trim().is_empty() {
                    expand(&format!("{before}{}", head.trim()), &inner[begin..at], paths);
                }
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// The file that a path leads to, if it is one of the host.
fn resolve<'m>(path: &str, me: &[&str], modules: &BTreeMap<Vec<&str>, &'m str>) -> Option<&'m str> {
    let mut names = path.split("::").map(|name| name.trim_start_matches("r#")).peekable();
    let mut base: Vec<&str> = match names.peek()? {
        &"crate" => Vec::new(),
        &"super" | &"self" => me.to_vec(),
        name => {
            let child: Vec<&str> = me.iter().copied().chain([*name]).collect();
            modules.contains_key(&child).then(|| me.to_vec())?
        }
    };
    while names.next_if(|name| matches!(*name, "crate" | "self")).is_some() {}
    while names.next_if_eq(&"super").is_some() {
        base.pop();
    }
    for name in names {
        base.push(name);
        if !modules.contains_key(&base) {
            base.pop();
            break;
        }
    }
    modules.get(&base).copied()
}
