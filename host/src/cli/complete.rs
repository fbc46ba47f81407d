//! `tqhost complete`: the names with which a shell completes a word: queues, plugins, ids of tasks.
//!
//! In: the words of a command line, up to the one that is completed. Out: the names that begin with that
//! word. Whatever goes wrong, the answer is no name, since an error would be printed in the middle of the
//! user's line. Not here: commands and options, which the scripts of `shell` know.

use std::path::Path;
use std::time::Duration;

use clap::{Arg, Command};

use super::context::{config_file, open};
use super::examples::command;
use crate::config::{Config, check_name};
use crate::operations::{CANCELLABLE, ListRequest, list};
use crate::queue::TaskFilter;
use crate::queue::listing::ListedState;

/// How long a user waits at most for the ids of tasks, and how many of each state they are.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_IDS: usize = 50;

/// A command line up to the word that is completed.
struct TypedLine<'l> {
    /// The name of the command, and of the one above it.
    command: &'l str,
    above: &'l str,
    /// The arguments that are no options.
    values: Vec<&'l str>,
    config: Option<&'l str>,
    /// The argument that the word is completed for.
    asked: &'l Arg,
}

pub(super) async fn names(words: &[String]) -> Vec<String> {
    let mut all = command();
    all.build();
    let Some((word, before)) = words.split_last().filter(|(word, _)| !word.starts_with('-')) else {
        return Vec::new();
    };
    let Some(line) = read(&all, before) else { return Vec::new() };
    let Some(config) = configuration(line.config.map(Path::new)) else { return Vec::new() };
    let mut names: Vec<String> = match line.asked.get_id().as_str() {
        "queue" | "queues" => config.queues.iter().map(|rules| rules.name.clone()).collect(),
        "plugin" => {
            let of_queues = config.queues.iter().map(|rules| rules.plugin.clone());
            of_queues.chain(config.plugins.keys().cloned()).collect()
        }
        "id" | "ids" => {
            tokio::time::timeout(PATIENCE, Box::pin(ids(&config, &line))).await.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    // A shell takes other characters for more than text, and producers choose the ids of their tasks.
    names.retain(|name| name.starts_with(word.as_str()) && check_name(name).is_ok());
    names.sort();
    names.dedup();
    names
}

/// Finds the argument that comes behind these words. None: no argument may come.
fn read<'l>(all: &'l Command, before: &'l [String]) -> Option<TypedLine<'l>> {
    let (mut command, mut above) = (all, all);
    let (mut values, mut config) = (Vec::new(), None);
    let mut option: Option<&Arg> = None;
    // Bash takes --config=FILE for three words, one of which is the sign.
    for word in before.iter().filter(|word| *word != "=") {
        if let Some(named) = option.take() {
            if named.get_id() == "config" {
                config = Some(word.as_str());
            }
        } else if let Some(name) = word.strip_prefix("--") {
            let (name, value) =
                name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            let named = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            option = named.filter(|arg| value.is_none() && arg.get_action().takes_values());
            if name == "config" {
                config = value;
            }
        } else if let Some(below) = command.find_subcommand(word).filter(|_| values.is_empty()) {
            (command, above) = (below, command);
        } else {
            values.push(word.as_str());
        }
    }
    let of_many = |arg: &&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let place = || command.get_positionals().nth(values.len());
    let last = || command.get_positionals().last().filter(of_many);
    let asked = option.or_else(place).or_else(last)?;
    Some(TypedLine { command: command.get_name(), above: above.get_name(), values, config, asked })
}

fn configuration(named: Option<&Path>) -> Option<Config> {
    let path = config_file(named).ok()?;
    let last_good = || Config::last_good(&path).map(|(config, _)| config);
    Config::load_for_commands(&path).ok().or_else(last_good)
}

/// The ids of tasks on which the command can act.
async fn ids(config: &Config, line: &TypedLine<'_>) -> Vec<String> {
    let states = match (line.above, line.command) {
        ("dead", _) => &[ListedState::Dead][..],
        (_, "retry") => &[ListedState::Delayed],
        _ => &CANCELLABLE,
    };
    let mut ids = Vec::new();
    let Some(name) = line.values.first() else { return ids };
    let Ok(queue) = open(config, name).await else { return ids };
    for state in states {
        let (filter, limit) = (TaskFilter::default(), MOST_IDS);
        let request = ListRequest { state: *state, filter, cursor: None, limit, with_fields: false };
        if let Ok(found) = list(&queue, &request).await {
            ids.extend(found.tasks.into_iter().map(|task| task.summary.id));
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The argument that comes behind these words, and the configuration that they name.
    fn asked(line: &str) -> Option<(String, Option<String>)> {
        let mut all = command();
        all.build();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read(&all, &words).map(|line| (line.asked.get_id().to_string(), line.config.map(str::to_owned)))
    }

    #[test]
    fn a_word_stands_for_an_argument_or_the_value_of_an_option() {
        let table = [
            ("pause", "queues"),
            ("pause a b", "queues"),
            ("doctor --fix", "queues"),
            ("dead requeue", "queue"),
            ("dead requeue a 1-0", "ids"),
            ("tasks --limit 5", "queue"),
            ("try x.wasm --queue", "queue"),
            ("rollback", "plugin"),
            ("rollback p --why", "why"),
            ("dead show a", "id"),
        ];
        for (line, id) in table {
            assert_eq!(asked(line), Some((id.to_owned(), None)), "{line}");
        }
        for line in ["", "dead", "tasks a", "lift p"] {
            assert_eq!(asked(line), None, "{line}");
        }
        for line in ["--config x pause", "pause --config x", "pause --config=x a", "pause --config = x"] {
            assert_eq!(asked(line), Some(("queues".to_owned(), Some("x".to_owned()))), "{line}");
        }
    }
}
