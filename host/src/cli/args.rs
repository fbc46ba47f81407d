//! The definition of the command line.
//!
//! In: the arguments of the process. Out: [`Cli`], or a help text or error that clap prints. The doc comments
//! of these types are the help texts. Not here: the arguments of each command, which are in its own file.

use std::path::PathBuf;

use clap::builder::{Styles, styling::AnsiColor};
use clap::{Args, Parser, Subcommand};

use super::adopt::AdoptArgs;
use super::cancel::CancelArgs;
use super::changes::ChangesArgs;
use super::control::{LiftArgs, PauseArgs, ReloadArgs, ResumeArgs, RollbackArgs};
use super::dead::DeadCommand;
use super::deploy::DeployArgs;
use super::doctor::DoctorArgs;
use super::drain::DrainArgs;
use super::enqueue::EnqueueArgs;
use super::jobs::JobsArgs;
use super::limit::LimitArgs;
use super::new::NewArgs;
use super::plugins::PluginsArgs;
use super::queues::QueuesArgs;
use super::retry::RetryArgs;
use super::status::StatusArgs;
use super::tasks::TasksArgs;
use super::trial::TryArgs;
use crate::logging::LogFormat;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage (also a queue that is not configured), \
                          78 missing or wrong configuration.";

/// The version of this crate. Packages of `make dist` add the commit.
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
    // For `tqhost` without a command. `run` has its own, and no other command takes these.
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
pub(super) struct ManArgs {
    /// The command, like `dead purge` [default: all of tqhost]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub command: Vec<String>,
    /// Write the pages of all commands to this folder
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
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
