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

/// Checks that each text, in place of `{}` in the file, is told with what is beside it, and with `also`.
pub(super) fn all_wrong(file: &str, also: &str, table: &[(&str, &str)]) {
    for (text, why) in table {
        let told = problem(&file.replace("{}", text));
        assert!(told.contains(why) && told.contains(also), "{text}: {told}");
    }
}

pub(super) fn problem_in(text: &str, folder: &Path) -> String {
    parse_in(text, folder).expect_err(text).to_string()
}

fn env(name: &str) -> Option<String> {
    let variables = [("GOOD", "from-env"), ("EMPTY", ""), ("REDIS", "redis://:hunter2@host")];
    variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
}
