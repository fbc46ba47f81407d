//! The grants and the rules of `tqhost try`. Not here: what the command does (`tests/handlers/authors.rs`).

use clap::Parser;

use super::super::args::{Cli, Command};
use super::*;

fn args(line: &str) -> TryArgs {
    match Cli::parse_from(line.split(' ')).command {
        Some(Command::Try(args)) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_configuration_the_defaults_hold() {
    let (plugin, rules, grants, _) = granted(None, &args("tqhost try a/b.wasm t.json")).expect("defaults");
    assert_eq!(
        (plugin.as_str(), rules.timeout, rules.max_retries, grants.memory),
        ("b", Duration::from_secs(60), 3, 128 << 20)
    );
}

#[test]
fn grants_and_rules_come_from_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tqhost.toml");
    let text = "[queues.a]\ntimeout = \"5s\"\nplugin = \"p\"\n[queues.b]\ntimeout = \"7s\"\n\
                [plugins.p]\nmemory = \"64MiB\"\n";
    fs::write(&path, text).expect("write");
    let told = |line: &str| {
        granted(Some(&path), &args(line))
            .map(|(name, rules, grants, _)| (name, rules.timeout.as_secs(), grants.memory))
    };
    for line in ["tqhost try p.wasm t", "tqhost try x.wasm t --plugin p", "tqhost try x.wasm t --queue a"] {
        assert_eq!(told(line).expect(line), ("p".to_owned(), 5, 64 << 20), "{line}");
    }
    assert_eq!(told("tqhost try p.wasm t --queue b").expect("b"), ("b".to_owned(), 7, 128 << 20));
    for line in ["tqhost try x.wasm t", "tqhost try x.wasm t --queue c", "tqhost try x.wasm t --plugin c"] {
        assert!(matches!(told(line), Err(CommandError::Usage(_))), "{line}");
    }
}
