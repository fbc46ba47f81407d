//! `[plugins.NAME]`: the grants of a plugin.

use std::collections::BTreeMap;

use super::model::Plugin;
use super::names::check_name;
use super::oci::OciReference;
use super::reader::{Item, Table};
use super::records::{RecordGrants, check_pattern};
use super::rules::QueueRules;
use super::source::{Readers, maybe_secret};
use super::{hosts, http, instance, keys};

impl Default for Plugin {
    fn default() -> Plugin {
        read_table(&Table::absent(&keys::PLUGIN), 0, &[])
    }
}

/// Reads all plugins. A plugin without a queue is only a warning, since its queue may be added later.
pub(super) fn read(root: &Table, queues: &[QueueRules]) -> BTreeMap<String, Plugin> {
    let named = root.named("plugins");
    named.into_iter().map(|(name, item)| (name.to_owned(), read_plugin(name, &item, queues))).collect()
}

fn read_plugin(name: &str, item: &Item, queues: &[QueueRules]) -> Plugin {
    let own_queues = || queues.iter().filter(|queue| queue.plugin == name);
    if let Err(why) = check_name(name) {
        item.problem(format!("the plugin's name {why}"));
    } else if own_queues().next().is_none() {
        item.warn("no queue has this plugin");
    }
    let at_once = own_queues().map(|queue| queue.concurrency).fold(0, u32::saturating_add);
    let plugin = read_table(&item.table(&keys::PLUGIN), at_once, queues);
    if item.has("http") && plugin.allowed_hosts.is_empty() {
        item.at("http").warn("bounds requests that allowed_hosts does not allow");
    }
    plugin
}

/// Reads the grants of a plugin whose queues run `at_once` tasks at once in this host.
fn read_table(table: &Table, at_once: u32, queues: &[QueueRules]) -> Plugin {
    let config = table.get("config").map(|item| item.named()).unwrap_or_default();
    let value = |(name, item): (&str, Item)| Some((name.to_owned(), maybe_secret(&item, Readers::Hosts)?));
    Plugin {
        config: config.into_iter().filter_map(value).collect(),
        memory: table.value_or_default("memory"),
        max_output: table.value_or_default("max_output"),
        max_log_rate: table.value_or_default("max_log_rate"),
        allowed_hosts: table.get("allowed_hosts").map(|item| hosts::read(&item)).unwrap_or_default(),
        http: http::read(&table.table("http"), at_once),
        warm: instance::read(table),
        records: table.get("records").map(|item| read_records(&item, queues)).unwrap_or_default(),
        source: table.get("source").and_then(|item| item.parsed(OciReference::parse)),
    }
}

fn read_records(item: &Item, queues: &[QueueRules]) -> RecordGrants {
    let entries = item.list().unwrap_or_default();
    let patterns = entries.iter().filter_map(|entry| entry.checked(check_pattern));
    RecordGrants::new(patterns.collect(), keys_of(queues))
}

/// Streams, lists and dead letters.
fn keys_of(queues: &[QueueRules]) -> Vec<String> {
    let mut keys = Vec::new();
    for queue in queues {
        keys.push(queue.stream.clone());
        keys.extend(queue.dead_letter.clone());
        keys.extend(queue.list.iter().flat_map(|list| list.all_keys()));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};

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
        insta::assert_snapshot!(config.warnings.join("\n"), @r"
        line 10: plugins.spare: no queue has this plugin
        ");
    }

    #[test]
    fn bad_plugins() {
        let texts = [
            "memory = \"512KiB\"",
            "memory = 64",
            "memory = \"64MB\"",
            "memory = -1",
            "memory = true",
            "config = \"x\"",
            "config = { retries = 5 }",
            "allowed_hosts = \"https://a.example\"",
            "source = 7",
            "source = \"ghcr.io/team/a:1\"",
            "source = \"oci://ghcr.io/team/a\"",
            "http = \"10s\"",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[plugins.a]\n{}", &texts));
        let texts = ["[plugins.\"a b\"]", "[plugins]\na = 1"];
        insta::assert_snapshot!(refusals("[queues.a]\n{}", &texts), @"
        [plugins.\"a b\"]
            line 2: plugins.\"a b\": the plugin's name may have only letters, digits, dots, dashes and \
            underscores
        [plugins]
        a = 1
            line 3: plugins.a: is an integer, but must be a table
        ");
    }
}
