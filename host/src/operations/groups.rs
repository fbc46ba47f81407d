//! Dead letters in groups: which causes there are, and how many died of each.
//!
//! In: a filter. Out: groups by reason, version and the beginning of the error, the largest first. A bounded
//! number of the newest dead letters is looked at, for a bounded time, and the answer says how many these
//! were. Not here: lists of them (`dead`).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::error::OperationError;
use super::patience::patiently;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most dead letters that are looked at, and for how long.
const LOOKS: usize = 5_000;
const TIME: Duration = Duration::from_secs(3);
const PAGE: usize = 200;
/// Groups in an answer.
const GROUPS: usize = 50;
/// Characters of the error that name a group.
const ERROR_CHARS: usize = 60;

/// Dead letters with one cause. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadGroup {
    pub reason: String,
    /// `name@digest`, or empty.
    pub version: String,
    /// The text with which all errors of the group begin: up to the first digit.
    pub error: String,
    pub count: u64,
    pub first_ms: u64,
    pub last_ms: u64,
}

/// The groups of the newest dead letters.
#[derive(Debug, Default)]
pub(crate) struct DeadGroups {
    /// The largest first, at most 50.
    pub groups: Vec<DeadGroup>,
    /// Groups that are left out.
    pub more: usize,
    /// Dead letters that match the filter.
    pub matching: u64,
    pub examined: usize,
    /// Whether all dead letters were looked at.
    pub are_all: bool,
}

/// Groups the newest dead letters that match.
pub(crate) async fn dead_groups(queue: &Queue, filter: &TaskFilter) -> Result<DeadGroups, OperationError> {
    let now_ms = patiently(|| queue.now_ms()).await?;
    let mut found: BTreeMap<(String, String, String), DeadGroup> = BTreeMap::new();
    let mut groups = DeadGroups::default();
    let (mut after, end): (Option<String>, _) = (None, Instant::now() + TIME);
    loop {
        let page = patiently(|| queue.newest_dead(after.as_deref(), PAGE)).await?;
        groups.examined += page.len();
        for letter in page.iter().filter(|letter| filter.takes(&letter.traits(), now_ms)) {
            groups.matching += 1;
            add(&mut found, letter);
        }
        if page.len() < PAGE {
            groups.are_all = true;
            break;
        }
        if groups.examined >= LOOKS || Instant::now() >= end {
            break;
        }
        after = page.last().map(|last| last.entry.clone());
    }
    groups.groups = found.into_values().collect();
    groups.groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups.more = groups.groups.len().saturating_sub(GROUPS);
    groups.groups.truncate(GROUPS);
    Ok(groups)
}

fn add(found: &mut BTreeMap<(String, String, String), DeadGroup>, letter: &DeadLetter) {
    let error = beginning(&letter.error);
    let key = (letter.reason.clone(), letter.plugin.clone(), error.to_owned());
    let group = found.entry(key).or_insert_with(|| DeadGroup {
        reason: letter.reason.clone(),
        version: letter.plugin.clone(),
        error: error.to_owned(),
        count: 0,
        first_ms: letter.failed_at,
        last_ms: letter.failed_at,
    });
    group.count += 1;
    group.first_ms = group.first_ms.min(letter.failed_at);
    group.last_ms = group.last_ms.max(letter.failed_at);
}

/// The beginning of an error, which errors with the same cause share: numbers and what follows may differ.
fn beginning(error: &str) -> &str {
    let end = error.char_indices().enumerate().find_map(|(count, (at, char))| {
        (char.is_ascii_digit() || char == '\n' || count == ERROR_CHARS).then_some(at)
    });
    &error[..end.unwrap_or(error.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_with_other_numbers_begin_in_the_same_way() {
        assert_eq!(beginning("retry: status 503 of page 7"), "retry: status ");
        assert_eq!(beginning("retry: status 500"), "retry: status ");
        assert_eq!(beginning("trap\nat line"), "trap");
        assert_eq!(beginning(""), "");
        assert_eq!(beginning(&"ä".repeat(100)), "ä".repeat(ERROR_CHARS));
    }
}
