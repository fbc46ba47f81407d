//! Checks what clients send: queries of lists, and bodies of operations on many tasks.
//!
//! In: parameters and JSON, as serde has read them. Out: filters and choices, checked. Not here: reading
//! requests (`extract`).

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::VariantNames;
use utoipa::{IntoParams, ToSchema};

use super::extract::{TimeMs, of_query};
use crate::admin::problem::{ApiProblem, invalid};
use crate::admin::tokens::Caller;
use crate::config::FieldPlace;
use crate::config::units::{parse_duration, parse_rate};
use crate::mask::FieldMask;
use crate::operations::history::OVERVIEW;
use crate::operations::jobs::{Deed, JobOrder};
use crate::operations::{GroupBy, GroupKind, MOST_IDS};
use crate::queue::dead::{DRAINED, FOREIGN};
use crate::queue::listing::ListedState;
use crate::queue::minutes::{HistoryRange, MAX_MINUTES};
use crate::queue::{FieldCondition, Reason, TaskFilter};

/// Tasks in a list, where the client does not say, and at most.
const LIMIT: (usize, usize) = (50, 500);

/// A struct whose last fields are a filter. They are written here once: serde cannot refuse unknown keys in a
/// struct that is flattened. `$utoipa` is the attribute of utoipa's derive, `$list` says how a list is read.
macro_rules! with_filter {
    ($(#[$about:meta])* struct $name:ident ($utoipa:ident, $list:meta) { $($own:tt)* }) => {
        $(#[$about])*
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $($own)*
            /// Only those that are dead for this reason
            #[$utoipa(pattern = "^(rejected|retries-exhausted|deferrals-exhausted|crashed|malformed|\
                                 flow-failed|expired|foreign|drained)$")]
            reason: Option<String>,
            /// Only those whose fields fulfil all these conditions: `tenant=acme`, `tenant!=acme`,
            /// `tenant=acme*` (begins with it), `data/user/id=7` (in the JSON of the field `data`). They
            /// hold for no task whose fields are not known. A field that is hidden (`mask`) is refused
            #[serde(rename = "where", skip_serializing_if = "Vec::is_empty")]
            #[$list]
            #[$utoipa(max_items = 16)]
            conditions: Vec<String>,
            /// Only those with this text in their id, their error or the value of a field that is not hidden
            /// (`mask`). The fields of ended tasks are not known
            text: Option<String>,
            /// Only those with this text in their latest error; `…` in it stands for any text
            error: Option<String>,
            /// Only those with this text in the version that ran them last (`name@digest`)
            version: Option<String>,
            /// Only those with this text in the name of their host
            host: Option<String>,
            /// Only the task with this id
            id: Option<String>,
            /// Only since this time: milliseconds since the Unix epoch, or RFC 3339. It is the time when a
            /// task was queued, began, is due, died or ended, or when a held one was enqueued
            #[$utoipa(value_type = Option<String>)]
            from: Option<TimeMs>,
            /// Only up to this time
            #[$utoipa(value_type = Option<String>)]
            to: Option<TimeMs>,
            /// Only in their state (or dead) for at least this long, like `30m`; delayed and held ones:
            /// enqueued at least this long ago
            #[$utoipa(pattern = "^([0-9]+(d|h|m|s|ms))+$")]
            older_than: Option<String>,
            /// Only in their state (or dead) for less than this long; delayed and held ones: enqueued less
            /// than this long ago
            #[$utoipa(pattern = "^([0-9]+(d|h|m|s|ms))+$")]
            newer_than: Option<String>,
        }

        impl $name {
            pub(super) fn filter(&self, mask: &FieldMask) -> Result<TaskFilter, ApiProblem> {
                let conditions = FieldCondition::all(&self.conditions, mask);
                Ok(TaskFilter {
                    reason: reason(self.reason.as_deref())?,
                    conditions: conditions.map_err(|why| invalid(format!("where: {why}")))?,
                    text: self.text.clone(),
                    mask: mask.clone(),
                    error: self.error.clone(),
                    version: self.version.clone(),
                    host: self.host.clone(),
                    id: self.id.clone(),
                    from_ms: self.from.map(|TimeMs(ms)| ms),
                    to_ms: self.to.map(|TimeMs(ms)| ms),
                    older_than: duration("older_than", self.older_than.as_deref())?,
                    newer_than: duration("newer_than", self.newer_than.as_deref())?,
                    as_of_ms: None,
                })
            }
        }
    };
}

with_filter! {
    /// The query of a list of tasks.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    struct TasksQuery(param, serde(default, deserialize_with = "of_query")) {
        /// Tasks in this state
        #[param(inline, value_type = ListedState)]
        pub state: String,
        /// The most tasks in the answer: 1 to 500
        #[param(minimum = 1, maximum = 500, default = 50)]
        pub limit: Option<usize>,
        /// `next` of the answer before, with the same state and filters
        pub cursor: Option<String>,
        /// Whether the answer has the fields of the tasks
        #[serde(default)]
        pub fields: bool,
    }
}

with_filter! {
    /// The query of a list of dead letters.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    struct DeadQuery(param, serde(default, deserialize_with = "of_query")) {
        /// The most dead letters in the answer: 1 to 500
        #[param(minimum = 1, maximum = 500, default = 50)]
        pub limit: Option<usize>,
        /// `next` of the answer before, with the same filters
        pub cursor: Option<String>,
        /// Whether the answer has the fields of the tasks
        #[serde(default)]
        pub fields: bool,
    }
}

with_filter! {
    /// The query of groups of dead letters.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    struct GroupsQuery(param, serde(default, deserialize_with = "of_query")) {
        /// `cause` (reason, version and error together), `error`, `version`, `reason` or
        /// `hour`
        #[param(inline, value_type = Option<GroupBy>, default = "cause")]
        by: Option<String>,
        /// The most groups in the answer: 1 to 500
        #[param(minimum = 1, maximum = 500, default = 50)]
        pub limit: Option<usize>,
        /// `next` of the answer before, with the same filters
        pub cursor: Option<String>,
    }
}

with_filter! {
    /// The query of counts by a field.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    struct CountsQuery(param, serde(default, deserialize_with = "of_query")) {
        /// Tasks in this state, but not `ended`: their fields are not known
        #[param(inline, value_type = ListedState)]
        pub state: String,
        /// A field, or a place in its JSON, like `data/user/id`. One that is hidden (`mask`) is refused
        pub by: String,
        /// The most groups in the answer: 1 to 500
        #[param(minimum = 1, maximum = 500, default = 50)]
        pub limit: Option<usize>,
        /// `next` of the answer before, with the same state and filters
        pub cursor: Option<String>,
    }
}

with_filter! {
    /// The query of a download of dead letters.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    struct ExportQuery(param, serde(default, deserialize_with = "of_query")) {
        /// `next` of the download before, with the same filters
        pub cursor: Option<String>,
    }
}

/// The query of a history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// How many minutes: 1 to 180
    #[param(minimum = 1, maximum = 180, default = 60)]
    minutes: Option<u64>,
    /// Instead of `minutes`: the last hour by the minute, the last day in steps of ten minutes, or the last
    /// seven days in steps of an hour
    #[param(inline, value_type = Option<HistoryRange>)]
    range: Option<String>,
}

with_filter! {
    /// Work on many tasks: those with these `ids`, or all that match the filters.
    #[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
    #[serde(default)]
    #[schema(examples(
        json!({ "ids": ["order-7"] }),
        json!({ "all": true, "error": "timeout", "newer_than": "1h" }),
        json!({ "all": true, "where": ["tenant=acme", "data/user/id!=7"] }),
        json!({ "do": "requeue", "error": "timeout", "rate": "50/s", "why": "the model is back" }),
        json!({ "do": "drain", "dry_run": true }),
    ))]
    struct ManyBody(schema, serde(default)) {
        /// The work of a job. Paths that name the work do not take it.
        #[serde(rename = "do")]
        #[schema(inline)]
        pub deed: Option<Deed>,
        /// Ids of tasks, at most 1,000, or names that the queue's `id` gives to tasks. A job takes none.
        #[schema(min_items = 1, max_items = 1000)]
        pub ids: Option<Vec<String>>,
        /// All that match the filters. A job is always on all.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub all: bool,
        /// Count only, and change nothing.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub dry_run: bool,
        /// `next` of the answer before, with the same filters, or the same `ids`.
        pub cursor: Option<String>,
        /// `begin` of a count, with the same filters: the work is on the tasks that were there then, and on
        /// none that came later.
        pub begin: Option<String>,
        /// Only tasks in this state: `queued`, `delayed`, `held` or `running`. For cancelling.
        #[schema(inline, value_type = Option<ListedState>)]
        pub state: Option<String>,
        /// No faster than this, like `50/s`. For requeueing.
        #[schema(pattern = "^[0-9]+/(s|m|h)$")]
        pub rate: Option<String>,
        /// For draining and purging: whether the job keeps what it takes away for 24 hours, so that it can
        /// be undone.
        #[schema(default = true)]
        pub keep: Option<bool>,
        /// The reason, which everybody is shown who looks at jobs: at most 200 characters.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schema(max_length = 200)]
        pub why: String,
    }
}

impl GroupsQuery {
    pub(super) fn by(&self) -> Result<GroupBy, ApiProblem> {
        let Some(text) = self.by.as_deref() else { return Ok(GroupBy::Cause) };
        one_of("by", text)
    }
}

impl CountsQuery {
    pub(super) fn by(&self, mask: &FieldMask) -> Result<GroupKind, ApiProblem> {
        let place = FieldPlace::asked(&self.by, mask);
        place.map(GroupKind::Field).map_err(|why| invalid(format!("by: {:?}: {why}", self.by)))
    }
}

impl ManyBody {
    /// The ids, or none: all that match are meant. A mistake must not become "all".
    pub(super) fn chosen(&self, deed: Deed) -> Result<Option<&[String]>, ApiProblem> {
        let is_kept = self.keep == Some(true);
        let of_all = [self.begin.is_some(), self.state.is_some(), is_kept, !self.why.is_empty()];
        match &self.ids {
            _ if self.deed.is_some() => Err(invalid("do: the path says what is done")),
            Some(_) if self.all => Err(invalid("ids and all exclude each other: send one of them")),
            None if !self.all => Err(invalid("send ids, or all: true, with filters if you like")),
            None => Ok(None),
            Some(_) if deed == Deed::Drain => Err(invalid("ids: drain does not take them: send all: true")),
            Some(ids) if ids.is_empty() || ids.len() > MOST_IDS => {
                Err(invalid(format!("ids: {} of them are not 1 to {MOST_IDS}", ids.len())))
            }
            Some(_) if of_all.contains(&true) || !self.filter(&FieldMask::default())?.is_empty() => {
                Err(invalid("filters, state, begin, keep and why go with all, not with ids"))
            }
            Some(ids) => Ok(Some(ids)),
        }
    }

    /// The order of a job that does this to all that match.
    pub(super) fn order(&self, deed: Deed, by: &Caller, mask: &FieldMask) -> Result<JobOrder, ApiProblem> {
        let only = self.state.as_deref().map(parse_state).transpose()?;
        match only {
            Some(_) if deed != Deed::Cancel => return Err(invalid("state: only cancel takes it")),
            Some(ListedState::Dead | ListedState::Ended) => {
                let why = "state: what has ended cannot be cancelled: send queued, delayed, held or running";
                return Err(invalid(why));
            }
            _ => {}
        }
        match self.rate.as_deref().map(parse_rate) {
            Some(_) if deed != Deed::Requeue => return Err(invalid("rate: only requeue takes it")),
            Some(Err(why)) => return Err(invalid(format!("rate: {why}"))),
            _ => {}
        }
        let keep = match self.keep {
            _ if deed == Deed::Import => {
                return Err(invalid("do: `POST /v1/jobs/{id}/undo` and `tqhost dead import` bring back"));
            }
            Some(_) if !deed.can_undo() => return Err(invalid("keep: only drain and purge take it")),
            keep => keep.unwrap_or(true),
        };
        let counted = self.begin.clone().map(|begin| (begin, None));
        let (rate, who, why) = (self.rate.clone(), by.name.to_string(), self.why.clone());
        Ok(JobOrder { only, rate, keep, who, why, counted, ..JobOrder::new(deed, self.filter(mask)?) })
    }
}

/// The value that has this name.
fn one_of<T: FromStr + VariantNames>(key: &str, text: &str) -> Result<T, ApiProblem> {
    let wrong = |_| invalid(format!("{key}: {text:?} is none of {}", T::VARIANTS.join(", ")));
    text.parse().map_err(wrong)
}

pub(super) fn parse_state(text: &str) -> Result<ListedState, ApiProblem> {
    one_of("state", text)
}

pub(super) fn checked_limit(limit: Option<usize>) -> Result<usize, ApiProblem> {
    match limit.unwrap_or(LIMIT.0) {
        limit if (1..=LIMIT.1).contains(&limit) => Ok(limit),
        limit => Err(invalid(format!("limit: {limit} is not 1 to {}", LIMIT.1))),
    }
}

/// Why tasks are dead, as filters take it.
pub(crate) fn reasons() -> impl Iterator<Item = &'static str> {
    Reason::VARIANTS.iter().copied().chain([FOREIGN, DRAINED])
}

fn reason(text: Option<&str>) -> Result<Option<String>, ApiProblem> {
    match text {
        Some(text) if !reasons().any(|known| known == text) => {
            let known: Vec<&str> = reasons().collect();
            Err(invalid(format!("reason: {text:?} is none of {}", known.join(", "))))
        }
        text => Ok(text.map(str::to_owned)),
    }
}

/// Reads a value like `30m`.
pub(super) fn duration(key: &str, text: Option<&str>) -> Result<Option<Duration>, ApiProblem> {
    let duration = text.map(parse_duration).transpose();
    duration.map_err(|why| invalid(format!("{key}: {why}")))
}

impl HistoryQuery {
    /// None: the last `minutes`.
    pub(super) fn range(&self) -> Result<Option<HistoryRange>, ApiProblem> {
        let Some(text) = self.range.as_deref() else { return Ok(None) };
        if self.minutes.is_some() {
            return Err(invalid("minutes and range exclude each other"));
        }
        one_of("range", text).map(Some)
    }

    pub(super) fn minutes(&self) -> Result<u64, ApiProblem> {
        let minutes = self.minutes.unwrap_or(OVERVIEW);
        if (1..=MAX_MINUTES).contains(&minutes) {
            return Ok(minutes);
        }
        Err(invalid(format!("minutes: {minutes} is not between 1 and {MAX_MINUTES}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::table;

    fn refused(json: &str) -> String {
        let body: ManyBody = serde_json::from_str(json).expect(json);
        let by = Caller::nobody();
        let order = |_| body.order(Deed::Purge, &by, &FieldMask::default());
        body.chosen(Deed::Purge).and_then(order).map(drop).expect_err(json).detail
    }

    #[test]
    fn a_mistake_does_not_become_all() {
        let bodies = [
            "{}",
            "{\"ids\": [], \"all\": true}",
            "{\"ids\": []}",
            "{\"reason\": \"rejected\"}",
            "{\"ids\": [\"1\"], \"text\": \"a\"}",
            "{\"all\": true, \"older_than\": \"5\"}",
        ];
        insta::assert_snapshot!(table(&bodies, refused), @r#"
        {}
            send ids, or all: true, with filters if you like
        {"ids": [], "all": true}
            ids and all exclude each other: send one of them
        {"ids": []}
            ids: 0 of them are not 1 to 1000
        {"reason": "rejected"}
            send ids, or all: true, with filters if you like
        {"ids": ["1"], "text": "a"}
            filters, state, begin, keep and why go with all, not with ids
        {"all": true, "older_than": "5"}
            older_than: "5" has no unit: write "5s"
        "#);
        assert!(serde_json::from_str::<ManyBody>("{\"all\": true, \"resaon\": \"x\"}").is_err());
        let body: ManyBody = serde_json::from_str("{\"all\": true, \"from\": 5}").expect("a body");
        assert!(matches!(body.chosen(Deed::Purge), Ok(None)));
        assert_eq!(body.filter(&FieldMask::default()).expect("a filter").from_ms, Some(5));
    }
}
