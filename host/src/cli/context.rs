//! The first steps of most commands: find the configuration and the queue that was named, connect to Redis.
//!
//! In: a path, a [`Config`] and names from the command line. Out: a [`Queue`], or several one after the
//! other; or a [`CommandError`] that says what to do. The private Redis of a host may end while a command
//! uses it, and a key of the queue may have another type; [`explain`] says so in the failure.
//! Not here: reading the configuration (`config`).

use std::env;
use std::io::ErrorKind;
use std::path::{self, Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::exit::{CommandError, CommandResult, is_caused_by};
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::app;
use crate::config::{self, Config};
use crate::embedded;
use crate::operations;
use crate::queue::{Link, Queue, QueueError, server};

/// The variable that names the configuration where the command line does not.
const VARIABLE: &str = "TQHOST_CONFIG";
/// The places of a configuration that nothing names.
const PLACES: [&str; 2] = ["tqhost.toml", "/etc/tqhost/tqhost.toml"];

/// The path of the configuration: `named` by the command line, else by the variable, else the first place
/// where there is one.
pub(super) fn config_file(named: Option<&Path>) -> CommandResult<PathBuf> {
    let by_variable = || env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    match named.map(Path::to_owned).or_else(by_variable) {
        Some(path) => Ok(path),
        None => first_place(&PLACES.map(|path| path::absolute(path).unwrap_or_else(|_| path.into()))),
    }
}

fn first_place(places: &[PathBuf; 2]) -> CommandResult<PathBuf> {
    // A link to nothing, and a folder that may not be read, are errors of their own, and not another place.
    let is_there =
        |path: &Path| !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    places.iter().find(|path| is_there(path)).cloned().ok_or_else(|| {
        let [here, of_machine] = places.each_ref().map(|path| path.display());
        CommandError::Config(format!(
            "there is no {here} and no {of_machine}, and neither --config nor {VARIABLE} names a \
             configuration: write one (docs/configuration.md has an example), or name it"
        ))
    })
}

/// The rules of the queue `name`.
pub(super) fn rules<'c>(config: &'c Config, name: &str) -> CommandResult<&'c config::QueueRules> {
    Ok(operations::rules(&config.queues, name)?)
}

/// The queues that a command is for.
#[derive(Debug, Args)]
pub(super) struct NamedQueues {
    /// The queues' names in the configuration
    #[arg(value_name = "QUEUE", conflicts_with = "all")]
    queues: Vec<String>,
    /// All queues of the configuration
    #[arg(long)]
    all: bool,
}

impl NamedQueues {
    /// Whether the output is that of several queues.
    pub(super) fn are_several(&self) -> bool {
        self.all || self.queues.len() > 1
    }

    fn rules<'c>(&self, config: &'c Config) -> CommandResult<Vec<&'c config::QueueRules>> {
        match (self.all, self.queues.is_empty()) {
            (true, _) => Ok(config.queues.iter().collect()),
            (false, true) => Err(CommandError::Usage("name a queue, or --all".into())),
            (false, false) => self.queues.iter().map(|name| rules(config, name)).collect(),
        }
    }
}

/// The result of a command for one queue.
#[derive(Debug)]
pub(super) struct QueueEnd<V> {
    /// The output as JSON, and for people.
    pub view: V,
    pub text: String,
    /// Whether the exit code can be 0.
    pub is_well: bool,
}

/// Calls `act` for one queue after the other. If a call fails for one of several queues, the others follow,
/// and the exit code is 1. `what` tells people what it does, and `cut` what Ctrl-C left.
pub(super) async fn each_queue<V: Serialize>(
    config: &Config,
    chosen: &NamedQueues,
    (what, cut): (&str, &str),
    act: impl AsyncFn(&Queue) -> CommandResult<QueueEnd<V>>,
    out: &mut Out,
) -> CommandResult {
    let all = chosen.rules(config)?;
    let link = connect(config).await?;
    let mut progress = CommandProgress::begin()?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let mut are_well = true;
    for rules in &all {
        let queue = Queue::new((*rules).clone(), link.clone());
        match progress.long_step(what, Box::pin(act(&queue))).await {
            Some(Ok(QueueEnd { view, text, is_well })) => {
                are_well &= is_well;
                done.push(view);
                if !out.json {
                    out.line(text);
                }
            }
            Some(Err(failure)) => {
                let failure = failure.naming(&rules.name);
                if !chosen.are_several() {
                    return Err(failure);
                }
                failed.push((&rules.name, failure.message().unwrap_or_default()));
            }
            None => break,
        }
        if progress.is_interrupted() {
            break;
        }
    }
    drop(progress);
    match done.first() {
        Some(view) if out.json && !chosen.are_several() => out.json(view),
        // The names are stable.
        _ if out.json => {
            let failed: Vec<_> =
                failed.iter().map(|(queue, why)| json!({ "queue": queue, "why": why })).collect();
            out.json(&json!({ "queues": done, "failed": failed }));
        }
        _ => {
            for (queue, why) in &failed {
                note(&text::escape_block(&format!("tqhost: {queue}: {why}")));
            }
        }
    }
    let seen = done.len() + failed.len();
    if seen < all.len() {
        let of = text::plural(all.len() as u64, "queue");
        return Err(interrupted(&format!("{cut}; {seen} of {of} gone through, in their order")));
    }
    if are_well && failed.is_empty() { Ok(()) } else { Err(CommandError::Reported) }
}

/// Whether the private Redis of a host does not run: no host runs, and nothing can be asked.
pub(super) fn is_embedded_down(config: &Config) -> bool {
    matches!(config.redis, config::RedisServer::Embedded) && !embedded::socket_path(&config.data_dir).exists()
}

/// Connects to the Redis of the configuration, and checks that it can be used.
pub(super) async fn connect(config: &Config) -> CommandResult<Link> {
    let link = app::open_redis(config)?.link();
    // Every command would have its large future.
    Box::pin(server::check(&link)).await?;
    Ok(link)
}

/// Adds to a failed connection what the user can do about it, and to a key of another type the name of its
/// queue. Other failures are unchanged. `queue` is the queue that the command line names.
pub(super) async fn explain(failure: CommandError, config: &Config, queue: Option<&str>) -> CommandError {
    let failure = match queue {
        Some(queue) => failure.naming(queue),
        None => failure,
    };
    match failure {
        CommandError::Failed(error) if is_caused_by(&error, QueueError::may_lack_tls) => {
            CommandError::Failed(
                error.context("the server may not speak TLS, which rediss:// in redis.url asks for"),
            )
        }
        CommandError::Failed(error)
            if matches!(config.redis, config::RedisServer::Embedded)
                && is_caused_by(&error, QueueError::is_connection) =>
        {
            let folder = config.data_dir.display();
            let what = if embedded::takes_connections(&config.data_dir).await {
                format!(
                    "the embedded Redis of {folder} is there and does not answer; \
                     the log of `tqhost run` says more"
                )
            } else {
                format!(
                    "no host is running with the embedded Redis of {folder}; \
                     start `tqhost run` first, or set redis.url"
                )
            };
            CommandError::Failed(error.context(what))
        }
        failure => failure,
    }
}

/// Finds the queue, then connects: a wrong name is reported without asking Redis.
pub(super) async fn open(config: &Config, name: &str) -> CommandResult<Queue> {
    let rules = rules(config, name)?.clone();
    Ok(Queue::new(rules, connect(config).await?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_configuration_is_looked_for_here_and_then_in_the_folder_of_the_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let places = ["here.toml", "machine.toml"].map(|name| folder.path().join(name));
        let Err(CommandError::Config(told)) = first_place(&places) else { panic!("there is none") };
        for part in [&*places[0].to_string_lossy(), &*places[1].to_string_lossy(), "--config", VARIABLE] {
            assert!(told.contains(part), "{part}: {told}");
        }
        fs::write(&places[1], "").expect("write");
        assert_eq!(first_place(&places).expect("that of the machine"), places[1]);
        // The link of a configuration that is just replaced.
        symlink("nowhere", &places[0]).expect("a link");
        assert_eq!(first_place(&places).expect("the link"), places[0]);
    }
}
