//! Redis Cluster places keys by their hash tags. A step of a script reaches the keys of one place only.
//!
//! In: a valid configuration. Out: a note for each queue and plugin that needs keys in several places. One
//! Redis server has all keys in one place, so nothing is wrong there.

use super::model::{Config, QueueRules};
use super::names::hash_tag;

impl Config {
    /// The rules that would not work on Redis Cluster, each with the way out.
    pub(crate) fn slot_notes(&self) -> Vec<String> {
        let queues = self.queues.iter().filter_map(note_on_targets);
        queues.chain(self.plugins.keys().filter_map(|name| self.note_on_records(name))).collect()
    }

    fn note_on_records(&self, plugin: &str) -> Option<String> {
        let patterns = self.plugins[plugin].records.patterns();
        let of_plugin = || self.queues.iter().filter(|queue| queue.plugin == plugin);
        let elsewhere = |pattern: &&String| of_plugin().any(|queue| slot(&queue.stream) != slot(pattern));
        let pattern = patterns.iter().find(elsewhere)?;
        let streams: Vec<&str> = of_plugin().map(|queue| queue.stream.as_str()).collect();
        Some(format!(
            "plugins.{plugin}.records: \"{pattern}\" may lie in another slot than {}, so that a cluster \
             would refuse its records: give the pattern and the streams one {{tag}}",
            streams.join(", ")
        ))
    }
}

fn note_on_targets(queue: &QueueRules) -> Option<String> {
    let targets = queue.enqueue_to.iter().chain(queue.on_end.targets());
    let mut elsewhere: Vec<&str> = targets
        .filter(|target| slot(&target.stream) != slot(&queue.stream))
        .map(|target| target.stream.as_str())
        .collect();
    elsewhere.dedup();
    (!elsewhere.is_empty()).then(|| {
        format!(
            "queues.{}: it sends tasks to {}, which may lie in other slots than {}, so that a cluster would \
             refuse them: give all these streams one {{tag}}",
            queue.name,
            elsewhere.join(", "),
            queue.stream
        )
    })
}

/// The part of a key that determines its slot. A star in a pattern may stand for a tag.
fn slot(key: &str) -> &str {
    hash_tag(key).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    fn notes(text: &str) -> String {
        parse(text).expect("valid").slot_notes().join("\n")
    }

    #[test]
    fn streams_and_records_with_one_tag_need_no_note() {
        let text = "[queues.a]\nstream = \"{t}:a\"\nplugin = \"p\"\nenqueue_to = [\"b\"]\non_end = \"b\"\n\
                    [queues.b]\nstream = \"{t}:b\"\nplugin = \"p\"\n[plugins.p]\nrecords = [\"kb:{t}:*\"]";
        assert_eq!(notes(text), "");
        assert_eq!(notes("[queues.a]\nenqueue_to = [\"a\"]\n[queues.b]"), "");
    }

    #[test]
    fn what_lies_elsewhere_is_named_with_the_way_out() {
        let found = notes(
            "[queues.a]\nplugin = \"p\"\nenqueue_to = [\"b\"]\non_end = \"b\"\n[queues.b]\n\
             [plugins.p]\nrecords = [\"{a}:*\", \"kb:{kb}:*\"]",
        );
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines.len(), 2, "{found}");
        assert!(lines[0].starts_with("queues.a: it sends tasks to b, which") && lines[0].contains("{tag}"));
        assert!(lines[1].starts_with("plugins.p.records: \"kb:{kb}:*\"") && lines[1].contains("than a,"));
    }
}
