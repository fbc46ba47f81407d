//! Refuses keys that two queues would share: streams, dead letters, lists.
//!
//! In: all queues that were read, each with its table. Out: problems of the configuration. Not here: what one
//! key may look like (`names`).

use std::collections::BTreeMap;

use super::model::QueueRules;
use super::reader::Item;

/// Two queues with one stream would take each other's tasks; dead letters in a stream would be run again.
pub(super) fn check_streams(queues: &[(QueueRules, Item)]) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (queue, item) in queues {
        if let Some(owner) = owners.insert(&queue.stream, &queue.name) {
            let why = format!(
                "{:?} is the stream of the queue {owner:?} too: give every queue its own",
                queue.stream
            );
            item.at("stream").problem(why);
        }
    }
    for (queue, item) in queues {
        let Some(dead_letter) = &queue.dead_letter else { continue };
        if let Some(owner) = owners.get(dead_letter.as_str()) {
            let why = format!(
                "{dead_letter:?} is the stream of the queue {owner:?}: \
                 dead letters need a stream that is no queue's"
            );
            item.at("dead_letter").problem(why);
        }
    }
    for (queue, item) in queues {
        // Keys of a stream with a hash tag begin with its whole name, so a scan would mix the keys of both.
        let inside = |other: &&&str| {
            let rest = queue.stream.strip_prefix(**other).filter(|_| other.contains('{'));
            rest.is_some_and(|rest| {
                [":task", ":key", ":alias", ":attempts"]
                    .iter()
                    .any(|part| rest == *part || rest.starts_with(&format!("{part}:")))
            })
        };
        if let Some(other) = owners.keys().find(inside) {
            let why = format!(
                "{:?} looks like a key that belongs to the stream {other:?}: choose another name",
                queue.stream
            );
            item.at("stream").problem(why);
        }
    }
    let mut dead: BTreeMap<&str, &str> = BTreeMap::new();
    for (queue, item) in queues {
        let Some(dead_letter) = &queue.dead_letter else { continue };
        if let Some(owner) = dead.insert(dead_letter, &queue.name) {
            let why = format!(
                "{dead_letter:?} holds the dead letters of the queue {owner:?} too: \
                 requeueing would mix them up"
            );
            item.at("dead_letter").problem(why);
        }
    }
    check_lists(queues, owners);
}

/// A list must not be a stream, and feeds one queue.
fn check_lists<'q>(queues: &'q [(QueueRules, Item)], mut owners: BTreeMap<&'q str, &'q str>) {
    for (queue, _) in queues {
        owners.extend(queue.dead_letter.as_deref().map(|key| (key, queue.name.as_str())));
    }
    for (queue, item) in queues {
        let Some(list) = &queue.list else { continue };
        let beside = list.keys().into_iter().skip(1).chain(list.sidekiq().into_iter().flat_map(|it| it.sets));
        for key in beside {
            if let Some(owner) = owners.get(key.as_str()) {
                let why =
                    format!("{key:?} belongs to this list, and is a key of the queue {owner:?} already");
                item.at("list").problem(why);
            }
        }
        let list = &list.key;
        if let Some(owner) = owners.insert(list, &queue.name) {
            let why = format!(
                "{list:?} is a key of the queue {owner:?} already: give every queue a list of its own"
            );
            item.at("list").problem(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::problem;

    #[test]
    fn keys_that_clash_are_told_at_their_lines() {
        let table = [
            (
                "[queues.a]\nstream = \"s\"\n[queues.b]\nlease = \"5s\"\nstream = \"s\"",
                "line 5: queues.b.stream: \"s\" is the stream of the queue \"a\" too",
            ),
            (
                "[queues.a]\nlease = \"5s\"\ndead_letter = \"a\"",
                "line 3: queues.a.dead_letter: \"a\" is the stream of the queue \"a\"",
            ),
            (
                "[queues.a]\ndead_letter = \"d\"\n[queues.b]\nlease = \"5s\"\ndead_letter = \"d\"",
                "line 5: queues.b.dead_letter: \"d\" holds the dead letters of the queue \"a\" too",
            ),
            (
                "[queues.a]\nlease = \"5s\"\nlist = \"a\"",
                "line 3: queues.a.list: \"a\" is a key of the queue \"a\" already",
            ),
            (
                "[queues.a]\nstream = \"x{t}\"\n[queues.b]\nlease = \"5s\"\nstream = \"x{t}:task\"",
                "line 5: queues.b.stream: \"x{t}:task\" looks like a key",
            ),
        ];
        for (text, why) in table {
            let problem = problem(text);
            assert!(problem.contains(why) && problem.contains("1 problem\n"), "{text}: {problem}");
        }
    }
}
