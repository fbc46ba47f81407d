//! The first steps of most commands: find the configuration and the queue that was named, connect to Redis.
//!
//! In: a path, a [`Config`] and a name from the command line. Out: a [`Queue`], or a [`CommandError`] that
//! says what to do. Not here: reading the configuration (`config`), several queues (`each_queue`).

use std::env;
use std::io::ErrorKind;
use std::path::{self, Path, PathBuf};

use super::exit::{CommandError, CommandResult};
use crate::app;
use crate::config::{Config, QueueRules, RedisServer};
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

/// The configuration of a host. Commands that run no handler use `Config::load_for_commands`.
pub(super) fn load_config(named: Option<&Path>) -> CommandResult<Config> {
    Config::load(&config_file(named)?).map_err(|errors| CommandError::Config(errors.to_string()))
}

/// The rules of the queue `name`.
pub(super) fn rules<'c>(config: &'c Config, name: &str) -> CommandResult<&'c QueueRules> {
    Ok(operations::rules(&config.queues, name)?)
}

/// Connects to the Redis of the configuration, and checks that it can be used.
pub(super) async fn connect(config: &Config) -> CommandResult<Link> {
    let link = app::open_redis(config)?.link();
    // Without the box, the future of every command would be as large as this one.
    Box::pin(server::check(&link)).await?;
    Ok(link)
}

/// Connects as [`connect`] does. None: the private Redis of a host does not run, so no host runs.
pub(super) async fn connect_if_running(config: &Config) -> CommandResult<Option<Link>> {
    if matches!(config.redis, RedisServer::Embedded) && !embedded::socket_path(&config.data_dir).exists() {
        return Ok(None);
    }
    connect(config).await.map(Some)
}

/// Adds to a failed connection what the user can do about it, and to a key of another type the name of its
/// queue. Other failures are unchanged. `queue` is the queue that the command line names.
pub(super) async fn explain(failure: CommandError, config: &Config, queue: Option<&str>) -> CommandError {
    let failure = match queue {
        Some(queue) => failure.naming(queue),
        None => failure,
    };
    if failure.is_caused_by(QueueError::may_lack_tls) {
        return failure.context("the server may not speak TLS, which rediss:// in redis.url asks for");
    }
    let is_embedded = matches!(config.redis, RedisServer::Embedded);
    if !is_embedded || !failure.is_caused_by(QueueError::is_connection) {
        return failure;
    }
    let folder = config.data_dir.display();
    let why = if embedded::takes_connections(&config.data_dir).await {
        format!(
            "the embedded Redis of {folder} is there and does not answer; the log of `tqhost run` says more"
        )
    } else {
        format!(
            "no host is running with the embedded Redis of {folder}; start `tqhost run` first, or set \
             redis.url"
        )
    };
    failure.context(&why)
}

/// Finds the queue, then connects: a wrong name is reported without asking Redis.
pub(super) async fn open(config: &Config, name: &str) -> CommandResult<Queue> {
    let rules = rules(config, name)?.clone();
    Ok(Queue::new(rules, connect(config).await?))
}

/// The operator as orders and the log of changes keep it: the user, and the machine.
pub(super) fn operator() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}@{}", user.unwrap_or_else(|| uid.to_string()), host.unwrap_or_else(|| "a host".to_owned()))
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
