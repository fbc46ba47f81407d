//! Dead letters in groups: which causes there are, and how many died of each.
//!
//! In: a filter, and what the groups are told apart by. Out: groups with counts. One step looks at a bounded
//! number of dead letters, the newest first, for a bounded time; the answer says how many these were, and has
//! a cursor where there are more. The dashboard, the API and the commands group in the same way. Not here:
//! lists of them (`dead`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use strum::{EnumString, IntoStaticStr, VariantNames};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cause::{cause, without_numbers};
use super::cursor;
use super::error::OperationError;
use super::paging;
use super::patience::patiently;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most dead letters that one step looks at, and for how long.
const LOOKS: usize = 5_000;
const TIME: Duration = Duration::from_secs(3);
/// The most groups that are told apart. Dead letters of further ones are only counted.
const MOST: usize = 1_000;
/// Causes that differ in short numbers only, and are more than these, are one: the numbers are no causes.
const MOST_NUMBERED: usize = 8;
/// Characters of a reason or version in a group: what other programs wrote may be large.
const NAME_CHARS: usize = 200;
const HOUR_MS: u64 = 3_600_000;
const KIND: &str = "dead-groups";

/// The property by which dead letters are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames, ToSchema)]
#[strum(serialize_all = "lowercase", const_into_str)]
#[schema(rename_all = "lowercase")]
pub(crate) enum GroupBy {
    /// Reason, version and the error together.
    Cause,
    /// The error, without what differs from task to task.
    Error,
    Version,
    Reason,
    /// The hour (UTC) in which the task died.
    Hour,
}

impl Serialize for GroupBy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.into_str())
    }
}

/// The properties that the dead letters of a group share. None: the groups are not told apart by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    reason: Option<String>,
    version: Option<String>,
    error: Option<String>,
    hour: Option<u64>,
}

impl GroupKey {
    fn new(by: GroupBy, letter: &DeadLetter) -> GroupKey {
        let reason = || Some(shortened(&letter.reason));
        let version = || Some(shortened(&letter.plugin));
        let error = || Some(cause(&letter.error));
        let none = GroupKey::default;
        match by {
            GroupBy::Cause => GroupKey { reason: reason(), version: version(), error: error(), ..none() },
            GroupBy::Error => GroupKey { error: error(), ..none() },
            GroupBy::Version => GroupKey { version: version(), ..none() },
            GroupBy::Reason => GroupKey { reason: reason(), ..none() },
            GroupBy::Hour => GroupKey { hour: Some(letter.failed_at - letter.failed_at % HOUR_MS), ..none() },
        }
    }
}

/// Dead letters that have something in common. What they are not grouped by is null. Times are milliseconds
/// since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DeadGroup {
    pub reason: Option<String>,
    /// `name@digest`, or empty where no version is known.
    pub version: Option<String>,
    /// The first line of the errors, with `…` for what differs from task to task: quoted texts, ids, UUIDs,
    /// hexadecimal digits and numbers of more than 5 digits; and for all numbers, where the errors differ in
    /// more than 8 of them. As a filter of `error`, it takes the dead letters of the group.
    pub error: Option<String>,
    /// The beginning of the hour.
    pub hour: Option<u64>,
    pub count: u64,
    pub oldest_at: u64,
    pub newest_at: u64,
    /// The id of the task that died last.
    pub example: String,
}

/// Groups of dead letters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadGroups {
    /// `cause`, `error`, `version`, `reason` or `hour`.
    #[schema(value_type = String)]
    pub by: GroupBy,
    /// The largest first; hours: the latest first.
    pub groups: Vec<DeadGroup>,
    /// Groups that are left out.
    pub more_groups: usize,
    /// Dead letters of groups that are left out.
    pub others: u64,
    /// Dead letters that match the filter, of those that were looked at.
    pub matching: u64,
    /// How many dead letters were looked at, the newest first.
    pub examined: usize,
    /// The cursor with which older ones are grouped; null when all were looked at.
    pub next: Option<String>,
}

/// Groups that grow step by step.
#[derive(Debug)]
pub(crate) struct DeadGrouping {
    by: GroupBy,
    found: BTreeMap<GroupKey, DeadGroup>,
    /// The groups whose errors differ in short numbers only, by what they share. None: they became one.
    numbered: BTreeMap<GroupKey, Option<Vec<GroupKey>>>,
    /// Dead letters of more groups than are told apart.
    ungrouped: u64,
    matching: u64,
    pub examined: usize,
    /// The entry behind which the next step begins.
    after: Option<String>,
    is_over: bool,
}

impl DeadGrouping {
    pub(crate) fn new(by: GroupBy, cursor: Option<&str>) -> Result<DeadGrouping, OperationError> {
        let after = cursor.map(|cursor| cursor::read_entry(KIND, cursor)).transpose()?;
        let (found, numbered) = (BTreeMap::new(), BTreeMap::new());
        let (ungrouped, matching, examined) = (0, 0, 0);
        Ok(DeadGrouping { by, found, numbered, ungrouped, matching, examined, after, is_over: false })
    }

    /// Looks at 5,000 further dead letters, or for 3 seconds. Gives whether there are more.
    pub(crate) async fn step(&mut self, queue: &Queue, filter: &TaskFilter) -> Result<bool, OperationError> {
        let now_ms = patiently(|| queue.now_ms()).await?;
        let (mut looks, mut count, end) = (0, paging::FIRST, Instant::now() + TIME);
        while !self.is_over && looks < LOOKS && Instant::now() < end {
            let page = patiently(|| queue.newest_dead(self.after.as_deref(), count)).await?;
            looks += page.len();
            for letter in page.iter().filter(|letter| filter.takes(&letter.traits(), now_ms)) {
                self.add(letter);
            }
            self.is_over = page.len() < count;
            self.after = page.last().map(|last| last.entry.clone()).or_else(|| self.after.take());
            let bytes: usize = page.iter().map(DeadLetter::bytes).sum();
            count = paging::next(count, bytes);
        }
        self.examined += looks;
        Ok(!self.is_over)
    }

    fn add(&mut self, letter: &DeadLetter) {
        self.matching += 1;
        let key = self.folded(GroupKey::new(self.by, letter));
        let (at, example) = (letter.failed_at, letter.id.clone());
        let GroupKey { reason, version, error, hour } = key.clone();
        let group =
            DeadGroup { reason, version, error, hour, count: 1, oldest_at: at, newest_at: at, example };
        if self.found.len() < MOST || self.found.contains_key(&key) {
            self.put(key, group);
        } else {
            self.ungrouped += 1;
        }
    }

    fn put(&mut self, key: GroupKey, new: DeadGroup) {
        let Some(group) = self.found.get_mut(&key) else {
            self.found.insert(key, new);
            return;
        };
        group.count += new.count;
        group.oldest_at = group.oldest_at.min(new.oldest_at);
        if new.newest_at > group.newest_at {
            (group.newest_at, group.example) = (new.newest_at, new.example);
        }
    }

    /// The key without numbers, once there are too many that differ in nothing else. Their groups become one.
    fn folded(&mut self, key: GroupKey) -> GroupKey {
        let Some(error) = &key.error else { return key };
        let shared = GroupKey { error: Some(without_numbers(error)), ..key.clone() };
        if shared == key || self.found.contains_key(&key) {
            return key;
        }
        if self.found.len() >= MOST && !self.numbered.contains_key(&shared) {
            return key;
        }
        let numbered = self.numbered.entry(shared.clone()).or_insert_with(|| Some(Vec::new()));
        match numbered {
            Some(known) if known.len() < MOST_NUMBERED => {
                known.push(key.clone());
                key
            }
            Some(_) => {
                for before in numbered.take().into_iter().flatten() {
                    if let Some(group) = self.found.remove(&before) {
                        self.put(shared.clone(), DeadGroup { error: shared.error.clone(), ..group });
                    }
                }
                shared
            }
            None => shared,
        }
    }

    /// The first `limit` groups.
    pub(crate) fn finish(self, limit: usize) -> DeadGroups {
        let DeadGrouping { by, found, numbered: _, ungrouped, matching, examined, after, is_over } = self;
        let mut groups: Vec<DeadGroup> = found.into_values().collect();
        groups.sort_by_key(|group| match by {
            GroupBy::Hour => Reverse((group.newest_at, group.count)),
            _ => Reverse((group.count, group.newest_at)),
        });
        let left_out = groups.split_off(limit.min(groups.len()));
        let others = ungrouped + left_out.iter().map(|group| group.count).sum::<u64>();
        let next = after.filter(|_| !is_over).map(|entry| cursor::write(KIND, &[&entry]));
        DeadGroups { by, groups, more_groups: left_out.len(), others, matching, examined, next }
    }
}

/// Groups 5,000 dead letters that match, the newest ones or those behind the cursor.
pub(crate) async fn dead_groups(
    queue: &Queue,
    filter: &TaskFilter,
    by: GroupBy,
    cursor: Option<&str>,
    limit: usize,
) -> Result<DeadGroups, OperationError> {
    let mut grouping = DeadGrouping::new(by, cursor)?;
    grouping.step(queue, filter).await?;
    Ok(grouping.finish(limit))
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::codec::{StreamEntry, raw};

    fn letter(number: usize, error: &str, hours: u64) -> DeadLetter {
        let failed_at = hours * HOUR_MS + number as u64;
        let fields = vec![
            raw("tq-id", &format!("id-{number}")),
            raw("tq-reason", "rejected"),
            raw("tq-error", error),
            raw("tq-failed-at", &failed_at),
        ];
        DeadLetter::read(StreamEntry { id: format!("{number}-0"), fields, deliveries: 1 })
    }

    fn grouped(by: GroupBy, letters: &[DeadLetter], limit: usize) -> DeadGroups {
        let mut grouping = DeadGrouping::new(by, None).expect("no cursor");
        letters.iter().for_each(|letter| grouping.add(letter));
        grouping.finish(limit)
    }

    #[test]
    fn the_largest_group_comes_first_and_hours_by_time() {
        let letters = [letter(1, "a 'x'", 5), letter(2, "a 'y'", 5), letter(3, "b", 7)];
        let counts = |by| grouped(by, &letters, 9).groups.iter().map(|group| group.count).collect::<Vec<_>>();
        assert_eq!(counts(GroupBy::Error), [2, 1]);
        assert_eq!(counts(GroupBy::Hour), [1, 2]);
        assert_eq!(counts(GroupBy::Reason), [3]);
        let first = &grouped(GroupBy::Error, &letters, 9).groups[0];
        assert_eq!((first.error.as_deref(), first.example.as_str()), (Some("a '…'"), "id-2"));
        assert_eq!((first.oldest_at, first.newest_at), (5 * HOUR_MS + 1, 5 * HOUR_MS + 2));
        assert_eq!((&first.reason, &first.version, first.hour), (&None, &None, None));
    }

    #[test]
    fn a_status_tells_groups_apart_and_numbers_of_rows_do_not() {
        let statuses = [503, 429, 503].map(|status| format!("upstream answered {status}"));
        let rows = (0..=MOST_NUMBERED).map(|row| format!("row {row} is bad"));
        let errors: Vec<String> = statuses.into_iter().chain(rows).collect();
        let letters: Vec<_> = (0..).zip(&errors).map(|(n, error)| letter(n, error, 5)).collect();
        let groups = grouped(GroupBy::Error, &letters, 9).groups;
        let counted: Vec<_> =
            groups.iter().map(|group| (group.error.as_deref().unwrap_or_default(), group.count)).collect();
        assert_eq!(
            counted,
            [("row … is bad", 9), ("upstream answered 503", 2), ("upstream answered 429", 1)]
        );
        assert_eq!((groups[0].oldest_at, &*groups[0].example), (5 * HOUR_MS + 3, "id-11"));
        // One fewer, and each is a group of its own.
        assert_eq!(grouped(GroupBy::Error, &letters[..11], 99).groups.len(), 10);
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let errors = |count: usize| -> Vec<DeadLetter> {
            (0..count).map(|n| letter(n, &"é".repeat(n % 61), n as u64)).collect()
        };
        let groups = grouped(GroupBy::Error, &errors(61), 50);
        assert_eq!(
            (groups.groups.len(), groups.more_groups, groups.others, groups.matching),
            (50, 11, 11, 61)
        );
        let groups = grouped(GroupBy::Hour, &errors(MOST + 5), 50);
        assert_eq!((groups.more_groups, groups.others), (MOST - 50, MOST as u64 - 45));
    }
}
