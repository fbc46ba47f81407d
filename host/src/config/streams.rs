//! Refuses keys that two queues would share: streams, dead letters, lists.
//!
//! In: all queues that were read, each with its table. Out: problems of the configuration. Not here: what one
//! key may look like (`names`).

use std::collections::BTreeMap;

use super::reader::Item;
use super::rules::QueueRules;

/// The parts of keys that the host adds to the name of a stream with a hash tag.
const PARTS: [&str; 4] = [":task", ":key", ":alias", ":attempts"];

/// Two queues with one stream would take each other's tasks; dead letters in a stream would be run again.
pub(super) fn check_streams(queues: &[(QueueRules, Item)]) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (queue, item) in queues {
        if let Some(owner) = owners.insert(&queue.stream, &queue.name) {
            item.at("stream").problem(format!(
                "{:?} is the stream of the queue {owner:?} too: give every queue its own",
                queue.stream
            ));
        }
    }
    let mut dead: BTreeMap<&str, &str> = BTreeMap::new();
    for (queue, item) in queues {
        if let Some(other) = owners.keys().find(|other| is_key_of(&queue.stream, other)) {
            item.at("stream").problem(format!(
                "{:?} looks like a key that belongs to the stream {other:?}: choose another name",
                queue.stream
            ));
        }
        let Some(dead_letter) = &queue.dead_letter else { continue };
        if let Some(owner) = owners.get(dead_letter.as_str()) {
            item.at("dead_letter").problem(format!(
                "{dead_letter:?} is the stream of the queue {owner:?}: \
                 dead letters need a stream that is no queue's"
            ));
        }
        if let Some(owner) = dead.insert(dead_letter, &queue.name) {
            item.at("dead_letter").problem(format!(
                "{dead_letter:?} holds the dead letters of the queue {owner:?} too: \
                 requeueing would mix them up"
            ));
        }
    }
    for (key, queue) in dead {
        owners.insert(key, queue);
    }
    check_lists(queues, owners);
}

/// Whether a key may belong to a stream. The keys of a stream with a hash tag begin with its whole name, so a
/// scan would mix the keys of both.
fn is_key_of(key: &str, stream: &str) -> bool {
    let Some(rest) = key.strip_prefix(stream).filter(|_| stream.contains('{')) else { return false };
    PARTS.iter().any(|part| rest == *part || rest.starts_with(&format!("{part}:")))
}

/// A list must not be a stream, and feeds one queue. `owners` are the queues of streams and dead letters.
fn check_lists<'q>(queues: &'q [(QueueRules, Item)], mut owners: BTreeMap<&'q str, &'q str>) {
    for (queue, item) in queues {
        let Some(list) = &queue.list else { continue };
        for key in list.all_keys().skip(1) {
            if let Some(owner) = owners.get(key.as_str()) {
                item.at("list").problem(format!(
                    "{key:?} belongs to this list, and is a key of the queue {owner:?} already"
                ));
            }
        }
        let key = &list.key;
        if let Some(owner) = owners.insert(key, &queue.name) {
            item.at("list").problem(format!(
                "{key:?} is a key of the queue {owner:?} already: give every queue a list of its own"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::refusals;

    #[test]
    fn keys_that_clash_are_told_at_their_lines() {
        let texts = [
            "[queues.a]\nstream = \"s\"\n[queues.b]\nlease = \"5s\"\nstream = \"s\"",
            "[queues.a]\nlease = \"5s\"\ndead_letter = \"a\"",
            "[queues.a]\ndead_letter = \"d\"\n[queues.b]\nlease = \"5s\"\ndead_letter = \"d\"",
            "[queues.a]\nlease = \"5s\"\nlist = \"a\"",
            "[queues.a]\nstream = \"x{t}\"\n[queues.b]\nlease = \"5s\"\nstream = \"x{t}:task\"",
        ];
        insta::assert_snapshot!(refusals("{}", &texts));
    }
}
