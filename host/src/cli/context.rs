//! The first steps of most commands: find the queue that was named, connect to Redis.
//!
//! In: a [`Config`] and names from the command line. Out: a [`Queue`], or a [`CommandError`] that says what
//! to do. The private Redis of a host may end while a command uses it, and a key of the queue may have
//! another type; [`explain`] says so in the failure.
//! Not here: reading the configuration (`config`).

use super::exit::{CommandError, is_caused_by};
use crate::app;
use crate::config::{self, Config};
use crate::embedded;
use crate::operations;
use crate::queue::{Link, Queue, QueueError, server};

/// The rules of the queue `name`.
pub(super) fn rules<'c>(config: &'c Config, name: &str) -> Result<&'c config::QueueRules, CommandError> {
    Ok(operations::rules(&config.queues, name)?)
}

/// Connects to the Redis of the configuration, and checks that it can be used.
pub(super) async fn connect(config: &Config) -> Result<Link, CommandError> {
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
pub(super) async fn open(config: &Config, name: &str) -> Result<Queue, CommandError> {
    let rules = rules(config, name)?.clone();
    Ok(Queue::new(rules, connect(config).await?))
}
