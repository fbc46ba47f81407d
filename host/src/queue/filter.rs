//! Decides which tasks an operation applies to.
//!
//! In: a [`TaskFilter`] and what is known of a task. Out: whether the filter takes it. Not here: finding the
//! tasks (`listing`, `dead`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::codec::RawFields;
use super::condition::FieldCondition;
use crate::mask::FieldMask;

/// Stands for any text in a filter of errors, as in the causes of dead letters.
pub(crate) const ANY: &str = "…";

/// Whether the parts of `wanted` between [`ANY`] occur in the text, one after the other.
pub(crate) fn occurs(wanted: &str, text: &str) -> bool {
    let mut rest = text;
    wanted.split(ANY).all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A filter for tasks of one state. An empty one takes all. No filter takes a property that is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskFilter {
    /// The value of `tq-reason` of a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Text that occurs in the error, in the id or in what is shown of a field's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Conditions on its fields, which must all hold. They hold for no task without known fields.
    #[serde(rename = "where", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<FieldCondition>,
    /// Hides values: `text` and `conditions` do not look at hidden ones. A mask alone refuses no task.
    #[serde(skip)]
    pub mask: FieldMask,
    /// Text that occurs in the error; [`ANY`] in it stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Text that occurs in `name@digest` of the plugin's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Text that occurs in the name of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The task's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The earliest and the latest [`Traits::at_ms`], each inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<u64>,
    /// The least age, which counts from [`Traits::since_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<Duration>,
    /// The age that a task must not have reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<Duration>,
    /// The time to which ages count (ms since the Unix epoch, by Redis's clock). None: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of_ms: Option<u64>,
}

/// The properties of a task that filters look at. Empty text: not known. Times are milliseconds since the
/// Unix epoch, by Redis's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits<'t> {
    pub id: &'t str,
    pub reason: &'t str,
    pub error: &'t str,
    pub plugin: &'t str,
    pub consumer: &'t str,
    /// The time that belongs to the state, for example when the task died or is due. None: not known.
    pub at_ms: Option<u64>,
    /// The time from which the age counts: when the state began; but for a delayed or held task, when it was
    /// enqueued. None: not known.
    pub since_ms: Option<u64>,
    pub fields: &'t RawFields,
}

impl TaskFilter {
    /// Whether the filter is empty and takes all.
    pub fn is_empty(&self) -> bool {
        *self == TaskFilter { mask: self.mask.clone(), ..TaskFilter::default() }
    }

    /// Whether a task passes each part of the filter. `now_ms` is by Redis's clock.
    pub(crate) fn takes(&self, task: &Traits, now_ms: u64) -> bool {
        let now_ms = self.as_of_ms.unwrap_or(now_ms);
        let age = task.since_ms.map(|since| Duration::from_millis(now_ms.saturating_sub(since)));
        let wants =
            |wanted: &Option<String>, matches: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(matches);
        wants(&self.reason, &|reason| task.reason == reason)
            && wants(&self.id, &|id| task.id == id)
            && wants(&self.error, &|error| occurs(error, task.error))
            && wants(&self.version, &|version| task.plugin.contains(version))
            && wants(&self.host, &|host| task.consumer.contains(host))
            && self.from_ms.is_none_or(|from| task.at_ms.is_some_and(|at| at >= from))
            && self.to_ms.is_none_or(|to| task.at_ms.is_some_and(|at| at <= to))
            && self.older_than.is_none_or(|least| age.is_some_and(|age| age >= least))
            && self.newer_than.is_none_or(|most| age.is_some_and(|age| age < most))
            && wants(&self.text, &|text| self.is_shown_in(task, text))
            && (self.conditions.is_empty() || !task.fields.is_empty())
            && self.conditions.iter().all(|condition| condition.holds(task.fields, &self.mask))
    }

    /// Whether a text occurs in the task's error, its id, or in what is shown of a field's value.
    fn is_shown_in(&self, task: &Traits, text: &str) -> bool {
        let is_in_value = |(name, value): &(Vec<u8>, Vec<u8>)| {
            self.mask.shown(name, value).is_some_and(|shown| shown.contains(text))
        };
        task.error.contains(text) || task.id.contains(text) || task.fields.iter().any(is_in_value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(texts: &[&str]) -> Vec<FieldCondition> {
        FieldCondition::all(texts, &FieldMask::default()).expect("conditions")
    }

    #[test]
    fn each_part_of_a_filter_can_refuse_a_task() {
        let fields = vec![(b"name".to_vec(), b"Ada".to_vec())];
        let task = Traits {
            id: "7",
            reason: "rejected",
            error: "no such page",
            plugin: "echo@ab12",
            consumer: "box-1",
            at_ms: Some(5_000),
            since_ms: Some(5_000),
            fields: &fields,
        };
        let text = |text: &str| Some(text.to_owned());
        let none = TaskFilter::default;
        let reason = |reason: &str| TaskFilter { reason: text(reason), ..none() };
        let error = |error: &str| TaskFilter { error: text(error), ..none() };
        let where_all = |texts| TaskFilter { conditions: conditions(texts), ..none() };
        let older = |seconds| TaskFilter { older_than: Some(Duration::from_secs(seconds)), ..none() };
        let newer = |seconds| TaskFilter { newer_than: Some(Duration::from_secs(seconds)), ..none() };
        let table = [
            (reason("rejected"), reason("crashed")),
            (TaskFilter { text: text("Ada"), ..none() }, TaskFilter { text: text("Bob"), ..none() }),
            (where_all(&["name=Ada", "name!=Bob"]), where_all(&["name=Ada", "name!=Ada"])),
            (error("page"), error("Ada")),
            (error("no…page"), error("page…no")),
            (TaskFilter { version: text("@ab"), ..none() }, TaskFilter { version: text("@cd"), ..none() }),
            (TaskFilter { host: text("box-1"), ..none() }, TaskFilter { host: text("box-2"), ..none() }),
            (TaskFilter { id: text("7"), ..none() }, TaskFilter { id: text("77"), ..none() }),
            (TaskFilter { from_ms: Some(5_000), ..none() }, TaskFilter { from_ms: Some(5_001), ..none() }),
            (TaskFilter { to_ms: Some(5_000), ..none() }, TaskFilter { to_ms: Some(4_999), ..none() }),
            (older(2), older(3)),
            (newer(3), newer(2)),
        ];
        assert!(none().is_empty() && none().takes(&task, 7_000));
        for (taking, refusing) in table {
            assert!(taking.takes(&task, 7_000) && !taking.is_empty(), "{taking:?}");
            assert!(!refusing.takes(&task, 7_000), "{refusing:?}");
        }
    }

    /// A task of which only its id and fields are known.
    fn with_fields(fields: &RawFields) -> Traits<'_> {
        let (reason, error, plugin, consumer) = ("", "", "", "");
        Traits { id: "7", reason, error, plugin, consumer, at_ms: None, since_ms: None, fields }
    }

    #[test]
    fn text_is_not_looked_for_in_hidden_values() {
        let fields = vec![
            (b"email".to_vec(), b"ada@example".to_vec()),
            (b"body".to_vec(), b"{\"Email\": \"ada@example\", \"city\": \"London\"}".to_vec()),
        ];
        let task = with_fields(&fields);
        let mask = FieldMask::new(&["email".into()]);
        let takes = |text: &str, mask: &FieldMask| {
            let filter =
                TaskFilter { text: Some(text.to_owned()), mask: mask.clone(), ..TaskFilter::default() };
            filter.takes(&task, 0)
        };
        assert!(takes("ada@", &FieldMask::default()) && !takes("ada@", &mask));
        assert!(takes("London", &mask), "the rest of the JSON is shown");
        let none = TaskFilter { mask, ..TaskFilter::default() };
        assert!(none.is_empty() && none.takes(&task, 0));
    }

    #[test]
    fn conditions_hold_for_no_task_of_which_no_field_is_known() {
        let fields = Vec::new();
        let filter = TaskFilter { conditions: conditions(&["tenant!=acme"]), ..TaskFilter::default() };
        assert!(!filter.takes(&with_fields(&fields), 0));
    }

    #[test]
    fn an_unknown_time_matches_no_filter_of_times() {
        let fields = Vec::new();
        let task = with_fields(&fields);
        let none = TaskFilter::default;
        let filters = [
            TaskFilter { from_ms: Some(0), ..none() },
            TaskFilter { to_ms: Some(u64::MAX), ..none() },
            TaskFilter { older_than: Some(Duration::ZERO), ..none() },
            TaskFilter { newer_than: Some(Duration::MAX), ..none() },
        ];
        assert!(none().takes(&task, 7_000));
        for filter in filters {
            assert!(!filter.takes(&task, 7_000), "{filter:?}");
        }
        // A delayed task is due later, and was enqueued before.
        let task = Traits { at_ms: Some(90_000), since_ms: Some(5_000), ..task };
        let old = TaskFilter { older_than: Some(Duration::from_secs(2)), ..none() };
        let young = TaskFilter { newer_than: Some(Duration::from_secs(2)), ..none() };
        assert!(old.takes(&task, 7_000) && !young.takes(&task, 7_000));
        assert!(young.takes(&task, 6_000) && !old.takes(&task, 6_000));
        assert!(TaskFilter { from_ms: Some(80_000), ..none() }.takes(&task, 7_000));
    }
}
