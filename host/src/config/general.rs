//! The top of the file: folders, limits of the whole host, and the time for shutdown.
//!
//! In: the whole file. Out: a [`Config`]. This file also calls the readers of all tables.

use std::path::Path;

use toml::de::DeValue;

use super::model::{Config, RedisServer};
use super::reader::{Context, Table};
use super::slots::{self, Split};
use super::{admin, blobs, keys, plugin, queue, redis_url, telemetry};

/// Reads the whole file. Problems are added to the context; if there are any, the value must not be used.
pub(super) fn read<'a>(cx: &'a Context<'a>, file: &'a DeValue<'a>, path: &Path) -> Config {
    let root = Table::root(cx, file, &keys::TOP);
    let folder = |name| {
        let set = root.get(name).and_then(|item| item.path());
        set.unwrap_or_else(|| cx.folder.join(keys::TOP.text(name)))
    };
    let shutdown_grace = root.value_or_default("shutdown_grace");
    let concurrency = root.value("concurrency");
    let mut queues = queue::read(cx, &root);
    if concurrency.is_none() && queues.iter().any(|queue| queue.priority != queues[0].priority) {
        let why = "queues: they have different priorities, but nothing to compete for: \
                   set concurrency at the top of the file";
        cx.warnings.borrow_mut().push(why.to_owned());
    }
    let data_dir = folder("data_dir");
    let (redis, redis_wait) = redis_url::read(&root.table("redis"));
    let plugins = plugin::read(&root, &queues);
    if matches!(redis, RedisServer::Cluster { .. }) {
        slots::find_relays(&mut queues);
        for Split { key, why } in slots::splits(&queues, &plugins) {
            cx.problem(&key, format!("a Redis Cluster would refuse it: {why}"));
        }
    }
    Config {
        path: path.to_owned(),
        plugins_dir: folder("plugins_dir"),
        blobs: blobs::read(&root.table("blobs"), &data_dir),
        data_dir,
        concurrency,
        memory: root.value("memory"),
        shutdown_grace,
        redis,
        redis_wait,
        admin: admin::read(&root.table("admin")),
        telemetry: telemetry::read(&root.table("telemetry")),
        plugins,
        queues,
        warnings: cx.warnings.take(),
        secret_files: cx.secret_files.take(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::testing::{parse, refusals};

    #[test]
    fn relative_paths_begin_at_the_folder_of_the_file() {
        let config = parse(
            "plugins_dir = \"p/q\"\ndata_dir = \"/var/lib/tqhost\"\nshutdown_grace = \"0s\"\n[queues.a]",
        )
        .expect("valid");
        assert_eq!(config.plugins_dir, Path::new("/etc/tqhost/p/q"));
        assert_eq!(config.data_dir, Path::new("/var/lib/tqhost"));
        assert_eq!(config.shutdown_grace, Duration::ZERO);
        let config = parse("[queues.a]").expect("valid");
        assert_eq!(
            (config.plugins_dir.as_path(), config.data_dir.as_path()),
            (Path::new("/etc/tqhost/plugins"), Path::new("/etc/tqhost/.tqhost"))
        );
        assert_eq!(config.shutdown_grace, Duration::from_secs(30));
    }

    #[test]
    fn priorities_without_anything_to_compete_for_are_told() {
        let queues = "[queues.a]\npriority = 2\n[queues.b]";
        let warnings = |text: &str| parse(text).expect("valid").warnings;
        let [warning] = &warnings(queues)[..] else { panic!("one warning") };
        insta::assert_snapshot!(warning, @"
        queues: they have different priorities, but nothing to compete for: set concurrency at the top of \
        the file
        ");
        let config = parse(&format!("concurrency = 5\n{queues}")).expect("valid");
        assert_eq!(
            (config.concurrency, config.queues[0].priority, config.queues[1].priority),
            (Some(5), 2, 1)
        );
        assert_eq!(config.warnings, Vec::<String>::new());
        assert_eq!(warnings("[defaults]\npriority = 2\n[queues.a]\n[queues.b]"), Vec::<String>::new());
    }

    #[test]
    fn bad_tops() {
        let texts = [
            "plugins_dir = \"\"",
            "data_dir = 1",
            "plugin_dir = \"x\"",
            "memory = \"64MiB\"",
            "blobs = \"file:x\"",
            "nonsense = 1",
        ];
        insta::assert_snapshot!(refusals("{}\n[queues.a]", &texts));
    }
}
