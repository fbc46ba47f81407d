//! The examples below the help of each command.
//!
//! In: the definition of the command line. Out: the same, with one to three real command lines for each
//! command. Not here: the rest of the help texts (`args`).

use clap::{Command, CommandFactory};

use super::args::Cli;

/// The most examples of one command.
const MOST: usize = 3;

/// All examples. The help of a command shows the first ones that begin with the name of the command.
const EXAMPLES: &[&str] = &[
    "tqhost run --log-format json",
    "tqhost enqueue resume-analyze resumeId=118 content=@cv.txt",
    "tqhost queues",
    "tqhost check",
    "tqhost check --acl",
    "tqhost enqueue resume-analyze --jsonl tasks.jsonl --wait --timeout 5m",
    "tqhost enqueue resume-analyze resumeId=118 --delay 10m --key resume-118",
    "tqhost status resume-analyze 1795242534558-0",
    "tqhost status resume-analyze 1795242534558-0 --watch",
    "tqhost tasks resume-analyze",
    "tqhost tasks resume-analyze --state delayed --fields",
    "tqhost tasks resume-analyze --match jane --older-than 1h",
    "tqhost cancel resume-analyze 1795242534558-0",
    "tqhost cancel resume-analyze --all --match jane --dry-run",
    "tqhost retry resume-analyze 1795242534558-0",
    "tqhost drain resume-analyze --dry-run",
    "tqhost drain resume-analyze --out waiting.jsonl",
    "tqhost pause resume-analyze",
    "tqhost pause resume-analyze reports",
    "tqhost pause --all --for 30m --why 'the database moves'",
    "tqhost resume resume-analyze reports",
    "tqhost resume --all",
    "tqhost limit resume-analyze --rate 5/s --for 1h --why 'the model answers 429'",
    "tqhost limit resume-analyze",
    "tqhost limit resume-analyze --clear",
    "tqhost queues resume-analyze --history --range 24h",
    "tqhost queues --match paused --watch",
    "tqhost doctor --all",
    "tqhost doctor resume-analyze --fix",
    "tqhost adopt resume-analyze",
    "tqhost adopt resume-analyze --from 0 --yes",
    "tqhost adopt resume-analyze --out",
    "tqhost dead list resume-analyze --by cause",
    "tqhost dead show resume-analyze 1795242534558-0",
    "tqhost dead requeue resume-analyze --all --error 'timeout: …' --rate 50/s",
    "tqhost dead requeue resume-analyze 1795242534558-0",
    "tqhost dead purge resume-analyze --all --older-than 30d --out dead.jsonl",
    "tqhost dead import resume-analyze dead.jsonl",
    "tqhost dead export resume-analyze 1795242534558-0",
    "tqhost dead export resume-analyze --all --reason rejected --out dead.jsonl",
    "tqhost changes",
    "tqhost changes --queue resume-analyze",
    "tqhost jobs",
    "tqhost jobs 7c1e93d04ab2",
    "tqhost jobs pause 7c1e93d04ab2",
    "tqhost jobs resume 7c1e93d04ab2",
    "tqhost jobs stop 7c1e93d04ab2",
    "tqhost jobs undo 7c1e93d04ab2",
    "tqhost jobs file 7c1e93d04ab2 --out dead.jsonl",
    "tqhost plugins",
    "tqhost plugins resume-analyze",
    "tqhost plugins push resume-analyze.wasm oci://ghcr.io/team/resume-analyze:1.4",
    "tqhost deploy build/resume-analyze.wasm --label v1.4",
    "tqhost deploy handler.wasm --plugin resume-analyze --label v1.4 --wait 5m",
    "tqhost rollback resume-analyze --why 'it writes wrong totals' --dry-run",
    "tqhost lift resume-analyze",
    "tqhost reload resume-analyze",
    "tqhost new word-count --lang python",
    "tqhost try word-count.wasm task.json",
    "tqhost try word-count.wasm --field content=text --watch",
    "tqhost try plugins/resume-analyze.wasm --dead resume-analyze 1795242534558-0",
    "tqhost token",
    "tqhost completions bash",
    "tqhost man dead purge",
    "tqhost schema",
];

/// The whole definition of the command line.
pub(super) fn command() -> Command {
    with_examples(Cli::command(), "tqhost")
}

/// Adds examples to a command and to its subcommands. `name` is its whole name, like `tqhost dead list`.
fn with_examples(mut command: Command, name: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for word in below {
        let whole = format!("{name} {word}");
        command = command.mut_subcommand(word, |below| with_examples(below, &whole));
    }
    // `tqhost dead` is no example of `tqhost de`.
    let is_of =
        |line: &&&str| line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let lines: Vec<&str> = EXAMPLES.iter().filter(is_of).take(MOST).copied().collect();
    if lines.is_empty() {
        return command;
    }
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_help(format!("{before}Examples:\n  {}", lines.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The words of a line, as a shell finds them.
    fn words(line: &str) -> Vec<&str> {
        let quoted = line.split('\'').enumerate();
        let words = quoted.map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        });
        words.collect::<Vec<Vec<&str>>>().concat()
    }

    /// The examples that a command and those below it show, each command with its name.
    fn shown(command: &Command, name: &str, found: &mut Vec<(String, String)>) {
        if !command.is_hide_set() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = text.split_once("Examples:\n").map(|(_, lines)| lines.to_owned());
            found.push((name.to_owned(), examples.unwrap_or_default()));
        }
        for below in command.get_subcommands() {
            shown(below, &format!("{name} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_a_command() {
        let mut found = Vec::new();
        shown(&command(), "tqhost", &mut found);
        let bare: Vec<&str> =
            found.iter().filter(|(_, lines)| lines.is_empty()).map(|(name, _)| name.as_str()).collect();
        assert_eq!(bare, Vec::<&str>::new());
        for line in EXAMPLES {
            let is_shown = found.iter().any(|(_, lines)| lines.lines().any(|shown| shown.trim() == *line));
            assert!(is_shown, "{line}: its command has {MOST} others");
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        for line in EXAMPLES {
            let read = Cli::try_parse_from(words(line));
            assert!(read.is_ok(), "{line}: {read:?}");
            assert!(line.chars().count() <= 78, "{line} does not fit into 80 columns");
        }
    }
}
