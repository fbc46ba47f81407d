//! `[plugins.NAME]`: the grants of a plugin.

use std::collections::BTreeMap;

use super::model::{Http, Plugin, QueueRules};
use super::names::check_name;
use super::oci::OciReference;
use super::reader::Item;
use super::records::{RecordGrants, check_pattern};
use super::secret::Secret;
use super::source::secret_of_run;
use super::{hosts, http, instance, keys};

impl Default for Plugin {
    fn default() -> Plugin {
        Plugin {
            config: BTreeMap::new(),
            memory: keys::PLUGIN.default("memory"),
            max_output: keys::PLUGIN.default("max_output"),
            max_log_rate: keys::PLUGIN.default("max_log_rate"),
            allowed_hosts: Vec::new(),
            http: Http::default(),
            warm: None,
            records: RecordGrants::default(),
            source: None,
        }
    }
}

/// Reads all plugins. A plugin without a queue is only a warning, since its queue may be added later.
pub(super) fn read(item: Option<Item>, queues: &[QueueRules]) -> BTreeMap<String, Plugin> {
    let named = item.map(|item| item.named()).unwrap_or_default();
    named
        .into_iter()
        .filter_map(|(name, item)| Some((name.to_owned(), read_plugin(name, &item, queues)?)))
        .collect()
}

fn read_plugin(name: &str, item: &Item, queues: &[QueueRules]) -> Option<Plugin> {
    if let Err(why) = check_name(name) {
        item.problem(format!("the plugin's name {why}"));
    } else if !queues.iter().any(|queue| queue.plugin == name) {
        item.warn("no queue has this plugin");
    }
    let table = item.table(&keys::PLUGIN)?;
    let allowed_hosts = table.get("allowed_hosts").map(|item| hosts::read(&item)).unwrap_or_default();
    let http_item = table.get("http");
    if let (Some(item), true) = (&http_item, allowed_hosts.is_empty()) {
        item.warn("bounds requests that allowed_hosts does not allow");
    }
    let own = queues.iter().filter(|queue| queue.plugin == name);
    let usual = http::default(own.map(|queue| queue.concurrency).fold(0, u32::saturating_add));
    Some(Plugin {
        config: table.get("config").map(|item| read_config(&item)).unwrap_or_default(),
        memory: table.value_or_default("memory"),
        max_output: table.value_or_default("max_output"),
        max_log_rate: table.value_or_default("max_log_rate"),
        allowed_hosts,
        http: http_item.map_or_else(|| usual.clone(), |item| http::read(&item, usual.clone())),
        warm: table.get("instance").and_then(|item| instance::read(&item)),
        records: table.get("records").map(|item| read_records(&item, queues)).unwrap_or_default(),
        source: table.get("source").and_then(|item| read_source(&item)),
    })
}

fn read_source(item: &Item) -> Option<OciReference> {
    let text = item.checked(|text| OciReference::parse(text).map(drop))?;
    OciReference::parse(&text).ok()
}

fn read_records(item: &Item, queues: &[QueueRules]) -> RecordGrants {
    let entries = item.list().unwrap_or_default();
    let patterns = entries.iter().filter_map(|entry| entry.checked(check_pattern));
    RecordGrants::new(patterns.collect(), keys_of(queues))
}

/// Streams, lists and dead letters.
fn keys_of(queues: &[QueueRules]) -> Vec<String> {
    let keys = queues.iter().flat_map(|queue| {
        let lists = queue.list.iter().flat_map(|list| {
            let sets = list.sidekiq().into_iter().flat_map(|sidekiq| sidekiq.sets);
            list.keys().into_iter().chain(sets)
        });
        [Some(queue.stream.clone()), queue.dead_letter.clone()].into_iter().flatten().chain(lists)
    });
    keys.collect()
}

fn read_config(item: &Item) -> BTreeMap<String, Secret> {
    item.named()
        .into_iter()
        .filter_map(|(name, item)| Some((name.to_owned(), secret_of_run(&item)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{all_wrong, parse, problem};

    #[test]
    fn good_plugins() {
        let text = r#"
            [queues.a]
            [queues.b]
            [plugins.a]
            [plugins.b]
            memory = "64MiB"
            max_output = 4096
            max_log_rate = "2MiB"
            config = { model = "small" }
            [plugins.spare]
        "#;
        let config = parse(text).expect("valid");
        let grants: Vec<_> = config
            .plugins
            .values()
            .map(|plugin| (plugin.memory, plugin.max_output, plugin.max_log_rate))
            .collect();
        assert_eq!(
            grants,
            [(128 << 20, 1 << 20, 1 << 20), (64 << 20, 4096, 2 << 20), (128 << 20, 1 << 20, 1 << 20)]
        );
        assert_eq!(config.plugins["b"].config["model"].expose(), "small");
        assert_eq!(config.warnings, ["line 10: plugins.spare: no queue has this plugin"]);
    }

    #[test]
    fn bad_plugins() {
        let table = [
            ("memory = \"512KiB\"", "\"512KiB\" is out of bounds: write \"1MiB\" to \"4GiB\""),
            ("memory = \"5GiB\"", "out of bounds"),
            ("memory = 64", "\"64B\" is out of bounds"),
            ("memory = \"64MB\"", "like \"64MiB\""),
            ("memory = -1", "is negative"),
            ("memory = true", "must be a size like"),
            ("max_output = 0", "write \"1B\" to \"64MiB\""),
            ("max_log_rate = \"100B\"", "write \"1KiB\" to \"1GiB\""),
            ("config = \"x\"", "must be a table"),
            ("config = { retries = 5 }", "plugins.a.config.retries: is an integer, but must be a string"),
            (
                "allowed_hosts = \"https://a.example\"",
                "plugins.a.allowed_hosts: is a string, but must be a list",
            ),
            ("source = 7", "source: is an integer, but must be a string"),
            (
                "source = \"ghcr.io/team/a:1\"",
                "plugins.a.source: \"ghcr.io/team/a:1\" does not begin with oci://",
            ),
            ("source = \"oci://ghcr.io/team/a\"", "has neither tag nor digest: add a tag"),
            ("http = \"10s\"", "plugins.a.http: is a string, but must be a table"),
            ("memroy = 5", "did you mean `memory`"),
        ];
        all_wrong("[queues.a]\n[plugins.a]\n{}", "line 3: plugins.a.", &table);
        assert!(problem("[queues.a]\n[plugins.\"a b\"]").contains("the plugin's name may have only"));
        assert!(
            problem("[queues.a]\n[plugins]\na = 1").contains("plugins.a: is an integer, but must be a table")
        );
    }
}
