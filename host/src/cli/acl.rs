//! `tqhost check --acl`: the least rights in Redis of each kind of program, for the queues of this
//! configuration.
//!
//! In: a valid configuration. Out: one command for redis-cli for each kind, or JSON. Not here: which rights
//! they are (`queue::rights`).

use serde::Serialize;

use super::exit::CommandResult;
use super::output::Out;
use crate::app;
use crate::config::Config;
use crate::queue::rights::{self, AclRule};

/// The first words of each rule. The password comes behind them, since `reset` removes passwords.
const HEAD: [&str; 2] = ["reset", "on"];
/// The most characters of a line.
const COLUMNS: usize = 108;

/// One kind of program as JSON. The names are stable.
#[derive(Debug, Serialize)]
struct AclView {
    role: &'static str,
    /// The arguments of ACL SETUSER after the user's name, but for a password.
    rule: Vec<String>,
}

pub(super) fn run(config: &Config, out: &mut Out) -> CommandResult {
    let rules = rights::rules(&config.queues, config.plugins.values(), &app::open_redis(config)?);
    let views: Vec<AclView> = rules.into_iter().map(view).collect();
    match out.json {
        true => out.json(&views),
        false => views.iter().for_each(|view| out.line(shell(view))),
    }
    Ok(())
}

fn view(AclRule { role, keys, commands }: AclRule) -> AclView {
    AclView { role, rule: HEAD.map(str::to_owned).into_iter().chain(keys).chain(commands).collect() }
}

/// One command for a shell, over several lines.
fn shell(AclView { role, rule }: &AclView) -> String {
    let (head, rest) = rule.split_at(HEAD.len());
    let mut lines = vec![format!("redis-cli ACL SETUSER tqhost-{role} {} '>SECRET'", head.join(" "))];
    for word in rest.iter().map(|word| quoted(word)) {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= COLUMNS - 2) {
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(format!("  {word}")),
        }
    }
    lines.join(" \\\n")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+:|_-./".contains(c);
    if word.chars().all(|c| is_plain(c) && c != '|') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
