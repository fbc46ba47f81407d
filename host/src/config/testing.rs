//! Helpers for the tests of this folder: they read a text as a configuration file, with an environment of
//! their own.

use std::path::Path;

use super::Config;
use super::problem::ConfigErrors;
use super::reader::Secrets;

/// Checks `text` as `/etc/tqhost/tqhost.toml`.
pub(super) fn parse(text: &str) -> Result<Config, ConfigErrors> {
    parse_in(text, Path::new("/etc/tqhost"))
}

pub(super) fn parse_in(text: &str, folder: &Path) -> Result<Config, ConfigErrors> {
    Config::parse(text, &folder.join("tqhost.toml"), &env)
}

/// Checks `text` as a command does that runs no handlers.
pub(super) fn parse_as_command(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse_with(text, Path::new("/etc/tqhost/tqhost.toml"), &env, Secrets::ForCommands)
}

/// Returns the whole message for a text that must not be valid.
pub(super) fn problem(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// Returns a table for a snapshot: each text, and below it the problems of the file that has it in place of
/// `{}`.
pub(super) fn refusals(file: &str, texts: &[&str]) -> String {
    refusals_in(Path::new("/etc/tqhost"), file, texts)
}

/// Returns the same table as [`refusals`], for a file in `folder`.
pub(super) fn refusals_in(folder: &Path, file: &str, texts: &[&str]) -> String {
    table(texts, |text| {
        let told = problem_in(&file.replace("{}", text), folder)
            .replace(&folder.display().to_string(), "/etc/tqhost");
        let (first, problems) = told.split_once('\n').expect("the name of the file");
        assert!(first.starts_with("/etc/tqhost/tqhost.toml: "), "{first}");
        problems.to_owned()
    })
}

/// Returns a table for a snapshot: each text, and below it what is told of it. The password of the tests may
/// be in a text, and in nothing that is told.
pub(crate) fn table(texts: &[&str], told: impl Fn(&str) -> String) -> String {
    let row = |text: &&str| {
        let told = told(text);
        assert!(!told.contains("hunter2"), "{text}: {told}");
        let told: Vec<&str> = told.lines().map(str::trim_start).collect();
        format!("{}\n    {}", if text.is_empty() { "(nothing)" } else { text }, told.join("\n    "))
    };
    texts.iter().map(row).collect::<Vec<_>>().join("\n")
}

pub(super) fn problem_in(text: &str, folder: &Path) -> String {
    parse_in(text, folder).expect_err(text).to_string()
}

fn env(name: &str) -> Option<String> {
    let variables = [("GOOD", "from-env"), ("EMPTY", ""), ("REDIS", "redis://:hunter2@host")];
    variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
}
