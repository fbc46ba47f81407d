//! The rules and grants of `tqhost try`: those of a configuration, or the defaults.
//!
//! In: the configuration, plugin and queue that the command line names. Out: the limits and grants of the
//! trial. Not here: the limits that come with a task (`task_file`).

use std::path::{Path, PathBuf};

use super::super::context::{load_config, rules};
use super::super::exit::{CommandError, CommandResult};
use crate::config::{self, Config};

pub(super) struct TrialGrants {
    /// The plugin's name.
    pub plugin: String,
    pub rules: config::QueueRules,
    pub grants: config::Plugin,
    /// The folder in which hosts of the configuration keep compiled code. None: the defaults hold.
    pub cache_dir: Option<PathBuf>,
}

impl TrialGrants {
    /// Takes the defaults if no configuration, plugin or queue is named. Otherwise the plugin is the one that
    /// is named, or that of the queue, or the one that is called like the handler's file. Its rules are those
    /// of the queue, or of the first queue of the plugin, or of the first queue.
    pub(super) fn find(
        named: Option<&Path>,
        handler: &Path,
        plugin: Option<&str>,
        queue: Option<&str>,
    ) -> CommandResult<TrialGrants> {
        let stem = || handler.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if named.is_none() && plugin.is_none() && queue.is_none() {
            // A queue with the default rules.
            let config = Config::parse("[queues.try]\n", Path::new("/tqhost.toml"), &|_| None);
            let config = config.map_err(|errors| CommandError::Config(errors.to_string()))?;
            let rules = rules(&config, "try")?.clone();
            return Ok(TrialGrants {
                plugin: stem(),
                rules,
                grants: config::Plugin::default(),
                cache_dir: None,
            });
        }
        let config = load_config(named)?;
        let queue = queue.map(|name| rules(&config, name)).transpose()?;
        let plugin = plugin.map(str::to_owned).or_else(|| queue.map(|queue| queue.plugin.clone()));
        let plugin = plugin.unwrap_or_else(stem);
        let user = config.queues.iter().find(|queue| queue.plugin == plugin);
        if user.is_none() && !config.plugins.contains_key(&plugin) {
            let file = config.path.display();
            let why = format!(
                "{file} has no plugin {plugin:?}: name one with --plugin or --queue, \
                 or leave --config out for the defaults"
            );
            return Err(CommandError::Usage(why));
        }
        let grants = config.plugins.get(&plugin).cloned().unwrap_or_default();
        let Some(rules) = queue.or(user).or(config.queues.first()).cloned() else {
            return Err(CommandError::Config(format!("{} has no queue", config.path.display())));
        };
        Ok(TrialGrants { plugin, rules, grants, cache_dir: Some(config.cache_dir()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plugin, the timeout in seconds, and the memory in MiB.
    fn found(
        named: Option<&Path>,
        handler: &str,
        plugin: Option<&str>,
        queue: Option<&str>,
    ) -> CommandResult<(String, u64, u64)> {
        let found = TrialGrants::find(named, Path::new(handler), plugin, queue)?;
        Ok((found.plugin, found.rules.timeout.as_secs(), found.grants.memory >> 20))
    }

    #[test]
    fn grants_and_rules_come_from_the_configuration_or_are_the_defaults() {
        assert_eq!(found(None, "a/b.wasm", None, None).expect("defaults"), ("b".to_owned(), 60, 128));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tqhost.toml");
        let text = "[queues.a]\ntimeout = \"5s\"\nplugin = \"p\"\n[queues.b]\ntimeout = \"7s\"\n\
                    [plugins.p]\nmemory = \"64MiB\"\n";
        std::fs::write(&path, text).expect("write");
        let of_p = Some(("p", 5, 64));
        let table = [
            ("p.wasm", None, None, of_p),
            ("x.wasm", Some("p"), None, of_p),
            ("x.wasm", None, Some("a"), of_p),
            ("p.wasm", None, Some("b"), Some(("b", 7, 128))),
            ("x.wasm", None, None, None),
            ("x.wasm", None, Some("c"), None),
            ("x.wasm", Some("c"), None, None),
        ];
        for (handler, plugin, queue, expected) in table {
            let found = found(Some(&path), handler, plugin, queue);
            let found = found.as_ref().map(|(name, timeout, memory)| (name.as_str(), *timeout, *memory));
            let told = format!("{handler} {plugin:?} {queue:?}");
            match expected {
                Some(expected) => assert_eq!(found.expect(handler), expected, "{told}"),
                None => assert!(matches!(found, Err(CommandError::Usage(_))), "{told}"),
            }
        }
    }
}
