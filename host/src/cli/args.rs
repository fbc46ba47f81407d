//! The definition of the command line.
//!
//! In: the arguments of the process. Out: [`Cli`], or a help text or error that clap prints. The doc comments
//! below are the help texts. Not here: the commands themselves (one file each).

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, Styles, styling::AnsiColor};
use clap::{Args, Parser, Subcommand};
use strum::VariantNames as _;

use super::changes::ChangesArgs;
use super::control::{LiftArgs, PauseArgs, ReloadArgs, ResumeArgs, RollbackArgs};
use super::deploy::DeployArgs;
use super::doctor::DoctorArgs;
use super::filters::{DeadFilterArgs, TaskFilterArgs};
use super::jobs::JobsArgs;
use super::limit::LimitArgs;
use super::plugins::PluginsArgs;
use super::queues::QueuesArgs;
use super::readers::{at_least_one, checked_rate, parse_context};
use crate::config::units::parse_duration;
use crate::doctor::adopt::Beginning;
use crate::doctor::dead_format::parse_pair;
use crate::logging::LogFormat;
use crate::operations::GroupBy;
use crate::queue::listing::ListedState;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage (also a queue that is not configured), \
                          78 missing or wrong configuration.";

/// With the commit, in packages of `make dist`.
const VERSION: &str = match option_env!("TQHOST_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Task queues on Redis Streams, with the business work in sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "tqhost", version = VERSION, styles = STYLES, after_help = EXIT_CODES)]
#[command(disable_help_subcommand = true)]
pub(super) struct Cli {
    /// The configuration file [default: that of TQHOST_CONFIG, else ./tqhost.toml, else
    /// /etc/tqhost/tqhost.toml]
    #[arg(long, value_name = "FILE", global = true, display_order = 100)]
    pub config: Option<PathBuf>,
    /// Print JSON instead of text, errors too
    #[arg(long, global = true, display_order = 101)]
    pub json: bool,
    #[command(flatten)]
    pub run: RunArgs,
    /// Without a command, the host runs
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the host: take tasks from all configured queues until it is told to stop
    Run(RunArgs),
    /// Check the configuration and every plugin, without Redis
    Check {
        /// Print the least rights in Redis of a host, a producer, an enqueuer, a reader and an operator, as
        /// commands for redis-cli, and check nothing else
        #[arg(long)]
        acl: bool,
    },
    /// Add tasks to a queue
    Enqueue(EnqueueArgs),
    /// Show what became of a task
    Status(StatusArgs),
    /// List the tasks of a queue by state
    Tasks(TasksArgs),
    /// Cancel tasks: queued, delayed or running (their handlers are stopped within seconds)
    Cancel(CancelArgs),
    /// Let delayed tasks run now: retries that wait for their backoff, and tasks that were enqueued for later
    Retry(RetryArgs),
    /// Cancel all tasks that wait in a queue: queued, delayed or held; what runs goes on
    Drain(DrainArgs),
    /// Let all hosts stop claiming tasks of queues; what runs goes on
    Pause(PauseArgs),
    /// Let all hosts claim tasks of queues again that are paused or on hold
    Resume(ResumeArgs),
    /// Limit a queue in all hosts while they run, clear the limits, or show them
    Limit(LimitArgs),
    /// Show how much is in the queues, how old it is and who works on it
    Queues(QueuesArgs),
    /// Check that every task of a queue is in exactly one place, and that nothing is stuck or orphaned;
    /// hosts may be running
    Doctor(DoctorArgs),
    /// Look at the stream, group, list and dead letters that another consumer left, and take them over; or
    /// give them back
    Adopt(AdoptArgs),
    /// List, show, requeue and purge the tasks that will not be tried again
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Show, pause and stop the work on all tasks that match (cancel, drain, dead requeue, dead purge). Hosts
    /// go on with it when the command that began it ends
    Jobs(JobsArgs),
    /// Show who changed something, when and why: pauses, jobs, rollbacks and the like, the newest first
    Changes(ChangesArgs),
    /// Show the plugins of the running hosts: versions, states, figures; or push one to a registry
    Plugins(PluginsArgs),
    /// Put a version of a plugin in place, and wait until every host has taken or refused it
    Deploy(DeployArgs),
    /// Withdraw a version of a plugin: all hosts go back to the good version before it
    Rollback(RollbackArgs),
    /// Let a version of a plugin run again that was withdrawn, or that hosts have rolled back
    Lift(LiftArgs),
    /// Let all hosts look at the file of a plugin now, and try again what failed
    Reload(ReloadArgs),
    /// Make a folder with a handler's project: it builds, and has a test
    New(NewArgs),
    /// Run a handler on one task, in the sandbox that a host runs it in, without Redis
    Try(TryArgs),
    /// Print a new token for [admin], and its hash for the configuration
    Token,
    /// Print a script with which a shell completes commands, options, and the names of queues, plugins and
    /// tasks
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a JSON schema of the configuration, with which an editor completes and explains its keys
    Schema,
    /// Print the page of the manual about tqhost or one of its commands
    Man(ManArgs),
    /// Print the names that complete the last of these words. The scripts of `completions` start this command
    #[command(hide = true)]
    Complete {
        /// The words of a command line behind `tqhost`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Compile the plugin on stdin to stdout. Hosts start this command for each file
    #[command(hide = true)]
    Compile {
        /// Address space of each memory, in bytes
        #[arg(long)]
        reservation: u64,
        /// The host's process, which waits for the result
        #[arg(long, value_name = "PID")]
        host: u32,
        /// Tasks are running: leave them half of the cores and what else they need
        #[arg(long)]
        behind: bool,
    },
}

#[derive(Debug, Args, Default)]
pub(super) struct RunArgs {
    /// How the host's log on stderr is written [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

#[derive(Debug, Args)]
pub(super) struct EnqueueArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// The fields of one task: name=value, or name=@FILE for the content of a file (name=@@text is the text
    /// @text)
    #[arg(value_name = "NAME=VALUE", conflicts_with = "jsonl", required_unless_present = "jsonl")]
    pub fields: Vec<OsString>,
    /// Many tasks: a file with a JSON object on each line, whose values become the fields (- is stdin).
    /// Nothing is enqueued unless every line is good
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Enqueue nothing: check the task, or all lines, and tell how many tasks that is, without Redis
    #[arg(long, conflicts_with_all = ["key", "wait"])]
    pub dry_run: bool,
    /// The task's idempotency key: while a task with the same key lives, and for the queue's window after it,
    /// no second one is enqueued, and the first one's id is printed
    #[arg(long, value_name = "KEY", conflicts_with = "jsonl")]
    pub key: Option<String>,
    /// Let the tasks start only after this time, like 10s or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// The W3C trace context that the tasks belong to, for those that have no field traceparent
    #[arg(long, value_name = "CONTEXT", value_parser = parse_context)]
    pub traceparent: Option<String>,
    /// Wait until the tasks have ended and print what became of them; exit with 1 when one failed
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this, like 5m; then exit with 1 (the tasks go on)
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// Do what the command would do, instead of only telling it
    #[arg(long)]
    pub yes: bool,
    /// Where the group begins, if it does not exist yet: 0 (every entry runs), $ (only those to come), the id
    /// of the first entry that runs, or a time like 2026-11-24T08:00:00Z
    #[arg(long, value_name = "0|$|ID|TIME", value_parser = Beginning::parse)]
    pub from: Option<Beginning>,
    /// The old consumers are stopped, although one of them was heard from a moment ago; with --out: the hosts
    /// have ended, although their leases last
    #[arg(long)]
    pub stopped: bool,
    /// The old consumers worked beside hosts of tqhost: what was acknowledged since a host first came, and
    /// not deleted, is done too
    #[arg(long)]
    pub done: bool,
    /// Delete the entries that were acknowledged and not deleted
    #[arg(long)]
    pub delete_acked: bool,
    /// The use of a foreign dead letter's field: tq-id, tq-error, tq-failed-at, tq-attempts or tq-consumer; a
    /// field of the task; or * for an object whose members are the task's fields [default: what is known by
    /// its name]
    #[arg(long = "dead-field", value_name = "NEW=OLD", value_parser = parse_pair)]
    pub dead_fields: Vec<(String, String)>,
    /// Tell what going back takes; with --yes, give the tasks back and remove the keys of tqhost
    #[arg(long, conflicts_with_all = ["from", "done", "delete_acked", "dead_fields"])]
    pub out: bool,
    /// With --out: also give back tasks that a producer delayed and that are not due; they run at once
    #[arg(long, requires = "out")]
    pub early: bool,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The command, like `dead purge` [default: all of tqhost]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub command: Vec<String>,
    /// Write the pages of all commands to this folder
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The handler's name, and the folder's: letters, digits, dots, dashes and underscores
    pub name: String,
    /// The language to write it in
    #[arg(long, value_name = "LANGUAGE", default_value = "rust")]
    pub lang: Language,
    /// The handler to begin with: words counts words, model asks a server with OpenAI's interface
    #[arg(long, value_name = "TEMPLATE", default_value = "words")]
    pub template: Starter,
}

/// A handler that `tqhost new` begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Starter {
    Words,
    Model,
}

/// A language that `tqhost new` has a template for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Language {
    Rust,
    Javascript,
    Typescript,
    Python,
    Go,
}

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// The handler's file
    #[arg(value_name = "HANDLER.wasm")]
    pub handler: PathBuf,
    /// A file with one JSON object whose values become the task's fields, as on a line of enqueue --jsonl (-
    /// is stdin); or with a list of them, for a handler that takes batches; or one that dead export wrote
    #[arg(value_name = "TASK.json", required_unless_present_any = ["fields", "dead"])]
    pub task: Option<PathBuf>,
    /// Take the task from this dead letter, with the grants and limits of its queue. The dead letter stays
    #[arg(long, num_args = 2, value_names = ["QUEUE", "ID"], conflicts_with_all = ["task", "queue"])]
    pub dead: Option<Vec<String>>,
    /// One more field of each task, or one instead of the file's: name=value, or name=@FILE for the content
    /// of a file
    #[arg(long = "field", value_name = "NAME=VALUE")]
    pub fields: Vec<OsString>,
    /// Grant what [plugins.NAME] of the configuration grants [default: the plugin of --queue; with --config,
    /// the file's name]
    #[arg(long, value_name = "NAME")]
    pub plugin: Option<String>,
    /// Take timeout and attempts from this queue of the configuration
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Which attempt at the task this is [default: the dead letter's, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one::<u32>)]
    pub attempt: Option<u32>,
    /// The task's id; those of a list are ID-1, ID-2 and so on [default: the dead letter's, or try]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Stop the handler after this time, like 10s [default: the queue's, or 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Run it this many times, each in a fresh instance unless the plugin's `instance` keeps them, and print
    /// the median time; stop at the first run that does not complete
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with = "watch"
    )]
    pub runs: u32,
    /// If the handler traps, or computes until its timeout, show the calls in which it was, with the lines of
    /// their source where the file has debug information
    #[arg(long)]
    pub backtrace: bool,
    /// Run again whenever the handler, the task's file or a field's has changed, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// The task's id, as enqueue printed it; or the name that the queue's `id` gives to it
    pub id: String,
    /// Print a line for every change until the task has ended
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct TasksArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// The state of the tasks; ended tasks are those of the queue's `events`
    #[arg(long, default_value = "queued", value_parser = PossibleValuesParser::new(ListedState::VARIANTS))]
    pub state: String,
    /// Count them by the value of this field, the most first; data/user/id is a place in the JSON of the
    /// field data
    #[arg(long, value_name = "FIELD")]
    pub by: Option<String>,
    #[command(flatten)]
    pub filter: TaskFilterArgs,
    #[command(flatten)]
    pub list: ListArgs,
}

/// The part of a list that is shown.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Show the fields of each task, too, without the values that [admin] mask hides
    #[arg(long, conflicts_with = "by")]
    pub fields: bool,
    /// List no more than this; with --by: no more groups
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = at_least_one::<usize>)]
    pub limit: usize,
    /// Go on where a list ended that had this as `next`
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// Task ids, at most 1000, as enqueue printed them; or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", conflicts_with = "all")]
    pub ids: Vec<String>,
    /// All that have not ended, or those of them that match the filters
    #[arg(long)]
    pub all: bool,
    /// With --all: only those in this state
    #[arg(
        long,
        requires = "all",
        conflicts_with = "ids",
        value_parser = PossibleValuesParser::new(["queued", "delayed", "held", "running"])
    )]
    pub state: Option<String>,
    #[command(flatten)]
    pub filter: TaskFilterArgs,
    /// Change nothing: tell what would become of each task; with --all, only count them
    #[arg(long)]
    pub dry_run: bool,
    /// With --all: do not ask before cancelling
    #[arg(long, requires = "all", conflicts_with = "ids")]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// Task ids, or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Change nothing: tell what would become of each task
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The queue's name in the configuration
    pub queue: String,
    #[command(flatten)]
    pub filter: TaskFilterArgs,
    /// Count only, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before cancelling
    #[arg(long)]
    pub yes: bool,
    /// Keep nothing: otherwise, `jobs undo` brings them back for 24 hours, and they take memory in Redis
    #[arg(long)]
    pub no_undo: bool,
    /// Write them to this new file in the end, as JSON Lines; `dead import` brings them back as dead letters
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "no_undo"])]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead letters, the newest first; or count them in groups
    List(DeadListArgs),
    /// Print a dead letter as a file for `tqhost try`: the task with its id, attempt, limits and fields; or
    /// write several to a file, here or in a job of the hosts
    Export {
        #[command(flatten)]
        chosen: RedriveArgs,
        /// Write them to this new file, as JSON Lines with every byte of them, which `dead import` reads;
        /// without it, `--all` begins a job, whose file `tqhost jobs file` writes
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Show a dead letter with its fields
    Show {
        /// The queue's name in the configuration
        queue: String,
        /// The task's id, or the name that the queue's `id` gives to it
        id: String,
    },
    /// Bring dead letters back into the queue, as tasks on their first attempt
    Requeue {
        #[command(flatten)]
        chosen: RedriveArgs,
        /// Count only, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// No faster than this, like 50/s: what failed once should not come back all at once
        #[arg(long, value_name = "RATE", value_parser = checked_rate)]
        rate: Option<String>,
    },
    /// Delete dead letters; with --all, they can be brought back for 24 hours
    Purge {
        #[command(flatten)]
        chosen: RedriveArgs,
        /// Count only, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask before deleting with --all
        #[arg(long)]
        yes: bool,
        /// Keep nothing with --all: otherwise, `jobs undo` brings them back for 24 hours, and they take
        /// memory in Redis
        #[arg(long)]
        no_undo: bool,
        /// Write them to this new file, too, as JSON Lines; `dead import` brings them back
        #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "no_undo"])]
        out: Option<PathBuf>,
    },
    /// Bring back dead letters that `dead purge --out` or a download wrote; those that are there already are
    /// left out
    Import(DeadImportArgs),
}

#[derive(Debug, Args)]
pub(super) struct DeadImportArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// A file with a dead letter on each line. Nothing is added unless every line is good
    pub file: PathBuf,
    /// Count only, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct DeadListArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// Count them in groups: by their error, by version, reason or hour (UTC); or by cause, which is reason,
    /// version and error together
    #[arg(long, value_parser = PossibleValuesParser::new(GroupBy::VARIANTS))]
    pub by: Option<String>,
    #[command(flatten)]
    pub filter: DeadFilterArgs,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Clone, Args)]
pub(super) struct RedriveArgs {
    /// The queue's name in the configuration
    pub queue: String,
    /// Task ids, or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", conflicts_with = "all")]
    pub ids: Vec<String>,
    /// All that are there now, or those of them that match the filters, which go with this option only
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub filter: DeadFilterArgs,
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::super::examples::command;
    use super::*;

    fn refused(line: &str) -> ErrorKind {
        Cli::try_parse_from(line.split(' ')).expect_err(line).kind()
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_help_text() {
        let mut command = command().term_width(100);
        command.build();
        let mut all = Vec::new();
        collect("tqhost", &mut command, &mut all);
        all.sort();
        insta::assert_snapshot!("help", all.join("\n\n"));
    }

    fn collect(name: &str, command: &mut clap::Command, all: &mut Vec<String>) {
        let help = command.render_help().to_string();
        all.push(format!("# {name} --help\n{}", help.trim_end()));
        for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
            collect(&format!("{name} {}", below.get_name()), below, all);
        }
    }

    #[test]
    fn options_may_stand_before_and_after_the_command() {
        for line in ["tqhost --config x --json queues", "tqhost queues --config x --json"] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert_eq!((cli.config, cli.json), (Some(PathBuf::from("x")), true));
        }
        let cli = Cli::try_parse_from(["tqhost", "--log-format", "json"]).expect("no command");
        assert_eq!((cli.command.is_none(), cli.run.log_format), (true, Some(LogFormat::Json)));
    }

    #[test]
    fn contradictory_arguments_are_refused() {
        assert_eq!(refused("tqhost enqueue q"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost enqueue q a=1 --jsonl f"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost enqueue q a=1 --timeout 5m"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost enqueue q a=1 --delay 10"), ErrorKind::ValueValidation);
        assert_eq!(refused("tqhost dead requeue q 1-0 --all"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost dead list q --by colour"), ErrorKind::InvalidValue);
        assert_eq!(refused("tqhost cancel q 1-0 --all"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost cancel q 1-0 2-0 --all --dry-run"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost cancel q 1-0 --yes"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost enqueue q --dry-run"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost enqueue q a=1 --key k --dry-run"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost enqueue q a=1 --wait --dry-run"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost queues --history"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost queues --history --match a"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost cancel q --all --state dead"), ErrorKind::InvalidValue);
        assert_eq!(refused("tqhost tasks q --state resting"), ErrorKind::InvalidValue);
        assert_eq!(refused("tqhost dead list q --reason tired"), ErrorKind::InvalidValue);
        assert_eq!(refused("tqhost dead list q --limit 0"), ErrorKind::ValueValidation);
        assert_eq!(refused("tqhost tasks q --limit 0"), ErrorKind::ValueValidation);
        assert_eq!(refused("tqhost rollback p --dry-run"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost try h.wasm"), ErrorKind::MissingRequiredArgument);
        assert_eq!(refused("tqhost try h.wasm t.json --attempt 0"), ErrorKind::ValueValidation);
        assert_eq!(refused("tqhost try h.wasm t.json --runs 5 --watch"), ErrorKind::ArgumentConflict);
        assert_eq!(refused("tqhost new x --lang cobol"), ErrorKind::InvalidValue);
        assert_eq!(refused("tqhost explode"), ErrorKind::InvalidSubcommand);
    }
}
