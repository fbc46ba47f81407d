//! Tasks in groups: which causes of dead letters there are, or values of a field, and how many have each.
//!
//! In: a state, a filter, and what the groups are told apart by. Out: groups with counts. One step looks at a
//! bounded number of tasks, in the order of their list, for a bounded time; the answer says how many these
//! were, and has a cursor where there are more. The dashboard, the API and the commands group in the same
//! way. Not here: lists of them (`dead`, `list`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use strum::{EnumString, IntoStaticStr, VariantNames};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cause::{cause, without_numbers};
use super::cursor;
use super::error::{OperationError, OperationResult};
use super::list::{TaskWalk, position};
use crate::config::FieldPlace;
use crate::mask::FieldMask;
use crate::queue::filter::Traits;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::repeat::patiently;
use crate::queue::{Queue, TaskFilter};

/// The most tasks that one step looks at, and for how long.
const LOOKS: usize = 5_000;
const TIME: Duration = Duration::from_secs(3);
/// The most groups that are told apart. Tasks of further ones are only counted.
const MOST: usize = 1_000;
/// Causes that differ in short numbers only, and are more than these, are one: the numbers are no causes.
const MOST_NUMBERED: usize = 8;
/// Characters of a reason, version or value in a group: what other programs wrote may be large.
const NAME_CHARS: usize = 200;
const HOUR_MS: u64 = 3_600_000;

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

/// The property by which groups are told apart.
#[derive(Debug)]
pub(crate) enum GroupKind {
    Property(GroupBy),
    /// The value of a field, or of a place in its JSON; of several, the first one.
    Field(FieldPlace),
}

/// The properties that the tasks of a group share. A property by which they are not grouped is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub(crate) struct GroupKey {
    pub reason: Option<String>,
    /// `name@digest`, or empty where no version is known.
    pub version: Option<String>,
    /// The first line of the errors, with `…` for what differs from task to task: quoted texts, ids, UUIDs,
    /// hexadecimal digits and numbers of more than 5 digits; and for all numbers, where the errors differ in
    /// more than 8 of them. As a filter of `error`, it takes the dead letters of the group.
    pub error: Option<String>,
    /// The beginning of the hour, in milliseconds since the Unix epoch.
    pub hour: Option<u64>,
    /// The value of the field, at most 200 characters of it; null also for tasks without the field.
    pub value: Option<String>,
}

impl GroupKey {
    fn new(kind: &GroupKind, task: &Traits, mask: &FieldMask) -> GroupKey {
        let reason = || Some(shortened(task.reason));
        let version = || Some(shortened(task.plugin));
        let error = || Some(cause(task.error));
        let none = GroupKey::default;
        let by = match kind {
            GroupKind::Property(by) => by,
            GroupKind::Field(place) => {
                let values = place.values(task.fields, mask).unwrap_or_default();
                let first = values.first().map(|value| shortened(&String::from_utf8_lossy(value)));
                return GroupKey { value: first, ..none() };
            }
        };
        match by {
            GroupBy::Cause => GroupKey { reason: reason(), version: version(), error: error(), ..none() },
            GroupBy::Error => GroupKey { error: error(), ..none() },
            GroupBy::Version => GroupKey { version: version(), ..none() },
            GroupBy::Reason => GroupKey { reason: reason(), ..none() },
            GroupBy::Hour => {
                let at = task.since_ms.unwrap_or(0);
                GroupKey { hour: Some(at - at % HOUR_MS), ..none() }
            }
        }
    }
}

/// Tasks that have something in common. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TaskGroup {
    #[serde(flatten)]
    pub key: GroupKey,
    pub count: u64,
    /// When its tasks died; by a field: the time from which their age counts.
    pub oldest_at: u64,
    pub newest_at: u64,
    /// The id of the newest task.
    pub example: String,
}

/// Groups of tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskGroups {
    /// `cause`, `error`, `version`, `reason`, `hour`, or the field's name.
    pub by: String,
    /// The largest first; hours: the latest first.
    pub groups: Vec<TaskGroup>,
    /// Groups that are left out.
    pub more_groups: usize,
    /// Tasks of groups that are left out.
    pub others: u64,
    /// Tasks that match the filter, of those that were looked at.
    pub matching: u64,
    /// How many tasks were looked at; of dead letters, the newest first.
    pub examined: usize,
    /// The cursor with which further ones are grouped; null when all were looked at.
    pub next: Option<String>,
}

/// Groups that grow step by step.
#[derive(Debug)]
pub(crate) struct TaskGrouping {
    kind: GroupKind,
    state: ListedState,
    walk: TaskWalk,
    found: BTreeMap<GroupKey, TaskGroup>,
    /// Groups whose errors differ in short numbers only, by the key without these numbers. None: they became
    /// one group.
    numbered: BTreeMap<GroupKey, Option<Vec<GroupKey>>>,
    /// Tasks of more groups than are told apart.
    ungrouped: u64,
    matching: u64,
    pub examined: usize,
}

impl TaskGrouping {
    pub(crate) fn new(
        kind: GroupKind,
        state: ListedState,
        cursor: Option<&str>,
    ) -> OperationResult<TaskGrouping> {
        if state == ListedState::Ended {
            return Err(OperationError::Invalid("state: the fields of ended tasks are not known".to_owned()));
        }
        let after = cursor.map(|cursor| position(state, cursor)).transpose()?;
        let walk = TaskWalk::new(state, after, usize::MAX);
        let (found, numbered) = (BTreeMap::new(), BTreeMap::new());
        let (ungrouped, matching, examined) = (0, 0, 0);
        Ok(TaskGrouping { kind, state, walk, found, numbered, ungrouped, matching, examined })
    }

    /// Looks at 5,000 further tasks, or for 3 seconds. Returns whether there are more.
    pub(crate) async fn step(&mut self, queue: &Queue, filter: &TaskFilter) -> OperationResult<bool> {
        let now_ms = patiently(|| queue.now_ms()).await?;
        let (looks, end) = (self.examined + LOOKS, Instant::now() + TIME);
        while self.examined < looks
            && Instant::now() < end
            && let Some(page) = self.walk.page(queue).await?
        {
            self.examined += page.examined;
            for task in page.tasks.iter().map(FoundTask::traits).filter(|task| filter.takes(task, now_ms)) {
                self.add(&task, &filter.mask);
            }
        }
        Ok(self.walk.position().is_some())
    }

    fn add(&mut self, task: &Traits, mask: &FieldMask) {
        self.matching += 1;
        let key = self.folded(GroupKey::new(&self.kind, task, mask));
        if self.found.len() >= MOST && !self.found.contains_key(&key) {
            self.ungrouped += 1;
            return;
        }
        let (at, example) = (task.since_ms.unwrap_or(0), task.id.to_owned());
        self.put(TaskGroup { key, count: 1, oldest_at: at, newest_at: at, example });
    }

    /// Adds the tasks of a group to those with the same key.
    fn put(&mut self, new: TaskGroup) {
        let Some(group) = self.found.get_mut(&new.key) else {
            self.found.insert(new.key.clone(), new);
            return;
        };
        group.count += new.count;
        group.oldest_at = group.oldest_at.min(new.oldest_at);
        if new.newest_at > group.newest_at {
            (group.newest_at, group.example) = (new.newest_at, new.example);
        }
    }

    /// The key under which a task is counted: without the short numbers of its error, once more than
    /// [`MOST_NUMBERED`] groups differ in nothing else. These groups become one then.
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
                        self.put(TaskGroup { key: shared.clone(), ..group });
                    }
                }
                shared
            }
            None => shared,
        }
    }

    /// The first `limit` groups.
    pub(crate) fn finish(self, limit: usize) -> TaskGroups {
        let TaskGrouping { kind, state, walk, found, numbered: _, ungrouped, matching, examined } = self;
        let mut groups: Vec<TaskGroup> = found.into_values().collect();
        let grouped: u64 = groups.iter().map(|group| group.count).sum();
        debug_assert_eq!(grouped + ungrouped, matching, "each task that matches is counted once");
        groups.sort_by_key(|group| match kind {
            GroupKind::Property(GroupBy::Hour) => Reverse((group.newest_at, group.count)),
            _ => Reverse((group.count, group.newest_at)),
        });
        let left_out = groups.split_off(limit.min(groups.len()));
        let others = ungrouped + left_out.iter().map(|group| group.count).sum::<u64>();
        let next = walk.position().map(|position| cursor::write(state.into_str(), &[position]));
        let by = match kind {
            GroupKind::Property(by) => by.into_str().to_owned(),
            GroupKind::Field(place) => place.name,
        };
        TaskGroups { by, groups, more_groups: left_out.len(), others, matching, examined, next }
    }
}

/// Groups the first 5,000 tasks of this state, or those behind the cursor.
pub(crate) async fn task_groups(
    queue: &Queue,
    state: ListedState,
    filter: &TaskFilter,
    kind: GroupKind,
    cursor: Option<&str>,
    limit: usize,
) -> OperationResult<TaskGroups> {
    let mut grouping = TaskGrouping::new(kind, state, cursor)?;
    grouping.step(queue, filter).await?;
    Ok(grouping.finish(limit))
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::DeadLetter;
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

    fn grouped_as(kind: GroupKind, letters: &[DeadLetter], limit: usize) -> TaskGroups {
        let mut grouping = TaskGrouping::new(kind, ListedState::Dead, None).expect("no cursor");
        letters.iter().for_each(|letter| grouping.add(&letter.traits(), &FieldMask::default()));
        grouping.finish(limit)
    }

    fn grouped(by: GroupBy, letters: &[DeadLetter], limit: usize) -> TaskGroups {
        grouped_as(GroupKind::Property(by), letters, limit)
    }

    #[test]
    fn values_of_a_field_are_counted() {
        let letter = |n: usize, fields: &[(&str, &str)]| {
            let own = fields.iter().map(|(name, value)| raw(name, value));
            let fields = own.chain([raw("tq-id", &n), raw("tq-reason", "rejected")]).collect();
            DeadLetter::read(StreamEntry { id: format!("{n}-0"), fields, deliveries: 1 })
        };
        let json = "{\"user\": {\"id\": 7}}";
        let letters = [
            letter(1, &[("tenant", "acme"), ("data", json)]),
            letter(2, &[("tenant", "beta"), ("tenant", "acme"), ("data", json)]),
            letter(3, &[("tenant", "beta"), ("data", "no JSON")]),
            letter(4, &[]),
        ];
        let values = |name: &str, limit| {
            let place = FieldPlace::parse(name).expect(name);
            let groups = grouped_as(GroupKind::Field(place), &letters, limit);
            assert_eq!((groups.by.as_str(), groups.matching), (name, 4));
            let values = groups.groups.into_iter().map(|group| (group.key.value, group.count));
            (values.collect::<Vec<_>>(), groups.more_groups, groups.others)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(values("tenant", 1), (vec![(some("beta"), 2)], 2, 2));
        assert_eq!(values("data/user/id", 9), (vec![(None, 2), (some("7"), 2)], 0, 0));
    }

    #[test]
    fn the_largest_group_comes_first_and_hours_by_time() {
        let letters = [letter(1, "a 'x'", 5), letter(2, "a 'y'", 5), letter(3, "b", 7)];
        let counts = |by| grouped(by, &letters, 9).groups.iter().map(|group| group.count).collect::<Vec<_>>();
        assert_eq!(counts(GroupBy::Error), [2, 1]);
        assert_eq!(counts(GroupBy::Hour), [1, 2]);
        assert_eq!(counts(GroupBy::Reason), [3]);
        let first = &grouped(GroupBy::Error, &letters, 9).groups[0];
        assert_eq!((first.key.error.as_deref(), first.example.as_str()), (Some("a '…'"), "id-2"));
        assert_eq!((first.oldest_at, first.newest_at), (5 * HOUR_MS + 1, 5 * HOUR_MS + 2));
        let error = first.key.error.clone();
        assert_eq!(first.key, GroupKey { error, ..GroupKey::default() });
    }

    #[test]
    fn a_status_tells_groups_apart_and_numbers_of_rows_do_not() {
        let statuses = [503, 429, 503].map(|status| format!("upstream answered {status}"));
        let rows = (0..=MOST_NUMBERED).map(|row| format!("row {row} is bad"));
        let errors: Vec<String> = statuses.into_iter().chain(rows).collect();
        let letters: Vec<_> = (0..).zip(&errors).map(|(n, error)| letter(n, error, 5)).collect();
        let groups = grouped(GroupBy::Error, &letters, 9).groups;
        let counted: Vec<_> = groups
            .iter()
            .map(|group| (group.key.error.as_deref().unwrap_or_default(), group.count))
            .collect();
        assert_eq!(
            counted,
            [("row … is bad", 9), ("upstream answered 503", 2), ("upstream answered 429", 1)]
        );
        assert_eq!((groups[0].oldest_at, &*groups[0].example), (5 * HOUR_MS + 3, "id-11"));
        // One fewer, and each is a group of its own.
        assert_eq!(grouped(GroupBy::Error, &letters[..11], 99).groups.len(), 10);
    }

    #[test]
    fn left_out_groups_are_counted() {
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
