//! Redis Cluster places keys by their hash tags: a key's slot. A script reaches the keys of one slot only.
//!
//! In: queues and plugins. Out: the keys of the configuration that need several slots, each with the way out.
//! Where Redis is a cluster they are problems, otherwise notes: one server has all slots.
//!
//! Two names without a tag may have one slot by chance. That counts as two: another name would break it.

use std::collections::BTreeMap;

use super::model::{Config, Plugin};
use super::names::hash_tag;
use super::rules::{QueueRules, TargetQueue};

/// A key of the configuration that a cluster refuses.
pub(super) struct Split {
    pub key: String,
    pub why: String,
}

impl Config {
    /// The changes that a cluster would need. A configuration of a cluster has none.
    pub(crate) fn slot_notes(&self) -> Vec<String> {
        let note = |Split { key, why }| format!("{key}: a Redis Cluster would refuse it: {why}");
        splits(&self.queues, &self.plugins).into_iter().map(note).collect()
    }
}

/// All keys that need several slots.
pub(super) fn splits(queues: &[QueueRules], plugins: &BTreeMap<String, Plugin>) -> Vec<Split> {
    let of_queues = queues.iter().flat_map(of_queue);
    of_queues.chain(plugins.iter().filter_map(|(name, plugin)| of_records(name, plugin, queues))).collect()
}

/// Finds the queues to which tasks of other slots go. A flow stays within one slot.
pub(super) fn find_relays(queues: &mut [QueueRules]) {
    for QueueRules { stream, enqueue_to, on_end, flow_partners, .. } in queues {
        let is_elsewhere = |target: &TargetQueue| slot(&target.stream) != slot(stream);
        let of_ends = [&mut on_end.completed, &mut on_end.dead, &mut on_end.cancelled];
        for target in of_ends.into_iter().flatten().chain(enqueue_to) {
            target.is_relayed = is_elsewhere(target);
        }
        flow_partners.retain(|target| !is_elsewhere(target));
    }
}

fn of_queue(queue: &QueueRules) -> Vec<Split> {
    let stream = &queue.stream;
    let is_elsewhere = |key: &str| slot(key) != slot(stream);
    let split = |key: &str, why: String| Split { key: format!("queues.{}.{key}", queue.name), why };
    let mut found = Vec::new();
    // The names of tqhost's own keys contain the stream.
    if hash_tag(stream).is_none() && stream.contains(['{', '}']) {
        let why = format!("\"{stream}\" has braces without a {{tag}} between them: choose another name");
        found.push(split("stream", why));
    }
    if let Some(dead) = queue.dead_letter.as_deref().filter(|dead| is_elsewhere(dead)) {
        let why = format!(
            "\"{dead}\" may lie in another slot than the stream \"{stream}\": take the key out, or give it \
             the stream's {{tag}}"
        );
        found.push(split("dead_letter", why));
    }
    let list = queue.list.as_ref();
    if list.is_some_and(|list| list.items.is_of_others()) {
        let why = "Celery and Sidekiq have keys for a queue that lie in several slots, and so work with no \
                   Redis Cluster";
        found.push(split("list", why.to_owned()));
    } else if let Some(list) = list.map(|list| &list.key).filter(|list| is_elsewhere(list)) {
        let why = format!(
            "\"{list}\" may lie in another slot than the stream \"{stream}\": write \
             stream = \"{{{}}}:stream\", which changes nothing for producers",
            slot(list)
        );
        found.push(split("list", why));
    }
    found
}

fn of_records(name: &str, plugin: &Plugin, queues: &[QueueRules]) -> Option<Split> {
    let of_plugin = || queues.iter().filter(|queue| queue.plugin == name);
    let elsewhere = |pattern: &&String| of_plugin().any(|queue| slot(&queue.stream) != slot(pattern));
    let pattern = plugin.records.patterns().iter().find(elsewhere)?;
    let streams: Vec<String> = of_plugin().map(|queue| format!("\"{}\"", queue.stream)).collect();
    let why = format!(
        "\"{pattern}\" may lie in another slot than {}: give the pattern and the streams one {{tag}}",
        streams.join(", ")
    );
    Some(Split { key: format!("plugins.{name}.records"), why })
}

/// The part of a key that determines its slot. A star in a pattern may stand for a tag.
fn slot(key: &str) -> &str {
    hash_tag(key).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, problem};

    fn notes(text: &str) -> String {
        parse(text).expect("valid").slot_notes().join("\n")
    }

    #[test]
    fn keys_with_one_tag_need_no_note() {
        let text = "[queues.a]\nstream = \"{t}:a\"\nplugin = \"p\"\nenqueue_to = [\"b\"]\non_end = \"b\"\n\
                    dead_letter = \"dead:{t}\"\nlist = \"{t}:list\"\n\
                    [queues.b]\nstream = \"{t}:b\"\nplugin = \"p\"\n[plugins.p]\nrecords = [\"kb:{t}:*\"]";
        assert_eq!(notes(text), "");
        assert_eq!(
            notes("[queues.a]\nenqueue_to = [\"a\"]\n[queues.b]\nlist = \"l\"\nstream = \"{l}:s\""),
            ""
        );
    }

    #[test]
    fn lists_of_celery_and_sidekiq_work_with_no_cluster() {
        for (key, items) in [("{t}", "celery"), ("{t}:queue:a", "sidekiq")] {
            let list = format!("list = {{ key = \"{key}\", items = \"{items}\" }}");
            let text = format!("[queues.a]\nstream = \"{{t}}:a\"\n{list}\n");
            let cluster = problem(&format!("{text}[redis]\nurl = [\"redis://a\"]\n"));
            insta::allow_duplicates! { insta::assert_snapshot!(cluster, @"
            /etc/tqhost/tqhost.toml: 1 problem
              queues.a.list: a Redis Cluster would refuse it: Celery and Sidekiq have keys for a queue that \
              lie in several slots, and so work with no Redis Cluster
            ") };
        }
    }

    #[test]
    fn a_key_of_another_slot_is_named_with_the_way_out() {
        let text = "[queues.a]\nplugin = \"p\"\nenqueue_to = [\"b\"]\non_end = \"b\"\n[queues.b]\n\
                    list = \"b:queue\"\ndead_letter = \"b:dead\"\n\
                    [plugins.p]\nrecords = [\"{a}:*\", \"kb:{kb}:*\"]\n";
        insta::assert_snapshot!(notes(text));
        insta::assert_snapshot!(problem(&format!("{text}[redis]\nurl = [\"redis://a\"]\n")));
        let cluster_of =
            |text: &str| parse(&format!("{text}[redis]\nurl = [\"redis://a\"]\n")).expect("valid");
        let text = "[queues.a]\nstream = \"{t}:a\"\nenqueue_to = [\"b\", \"c\"]\non_end = { dead = \"b\" }\n\
                    [queues.b]\n[queues.c]\nstream = \"{t}:c\"\n";
        let a = &cluster_of(text).queues[0];
        assert_eq!(a.enqueue_to.iter().map(|target| target.is_relayed).collect::<Vec<_>>(), [true, false]);
        assert!(a.on_end.is_relayed() && !parse(text).expect("valid").queues[0].on_end.is_relayed());
    }
}
