//! The first steps of most commands: find the queue that was named, connect to Redis.
//!
//! In: a [`Config`] and names from the command line. Out: a [`Queue`], or a [`CommandError`] that says what
//! to do. The private Redis of a host may end while a command uses it; [`explain`] says so in the failure.
//! Not here: reading the configuration (`config`).

use std::future::Future;
use std::time::{Duration, Instant};

use super::exit::CommandError;
use crate::app;
use crate::config::{self, Config, edits};
use crate::embedded;
use crate::queue::{Link, Queue, QueueError, server};

/// How long a call is repeated while Redis does not answer, as Redis may be restarting. A [`Link`] waits
/// before each try.
const PATIENCE: Duration = Duration::from_secs(20);

/// The rules of the queue `name`.
pub(super) fn rules<'c>(config: &'c Config, name: &str) -> Result<&'c config::QueueRules, CommandError> {
    config.queues.iter().find(|queue| queue.name == name).ok_or_else(|| {
        let names: Vec<&str> = config.queues.iter().map(|queue| queue.name.as_str()).collect();
        CommandError::Usage(unknown_queue(name, &names))
    })
}

fn unknown_queue(name: &str, names: &[&str]) -> String {
    let allowed = (name.len() / 3).clamp(1, 3);
    let nearest =
        if name.len() > 64 { None } else { names.iter().map(|known| (edits(name, known), *known)).min() };
    let meant =
        nearest.filter(|(edits, _)| *edits <= allowed).map(|(_, known)| format!("; did you mean {known}?"));
    format!(
        "no queue {name:?} is configured{} Configured: {}",
        meant.as_deref().unwrap_or("."),
        names.join(", ")
    )
}

/// Connects to the Redis of the configuration, and checks that it can be used.
pub(super) async fn connect(config: &Config) -> Result<Link, CommandError> {
    let link = app::open_redis(config)?.link();
    server::check(&link).await?;
    Ok(link)
}

/// Adds to a failed connection to the private Redis what the user can do about it. Other failures are
/// unchanged.
pub(super) async fn explain(failure: CommandError, config: &Config) -> CommandError {
    let is_connection = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(QueueError::is_connection)
    };
    match failure {
        CommandError::Failed(error)
            if matches!(config.redis, config::RedisServer::Embedded) && error.chain().any(is_connection) =>
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
pub(super) async fn open(config: &Config, name: &str) -> Result<Queue, CommandError> {
    let rules = rules(config, name)?.clone();
    Ok(Queue::new(rules, connect(config).await?))
}

/// Repeats a call while Redis does not answer. Only for calls that change nothing when they are carried out
/// twice.
pub(super) async fn patiently<T, F: Future<Output = Result<T, QueueError>>>(
    call: impl Fn() -> F,
) -> Result<T, QueueError> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error)
                if error.is_connection() && !error.is_authentication() && start.elapsed() < PATIENCE => {}
            reply => return reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_queue_names_the_known_ones() {
        let names = ["resume-analyze", "reports"];
        let expected = "no queue \"resume_analyse\" is configured; did you mean resume-analyze? \
                        Configured: resume-analyze, reports";
        assert_eq!(unknown_queue("resume_analyse", &names), expected);
        assert_eq!(
            unknown_queue("mail", &names),
            "no queue \"mail\" is configured. Configured: resume-analyze, reports"
        );
    }
}
