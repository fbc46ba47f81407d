//! The values of a query or of a form, and the filter among them.
//!
//! In: `application/x-www-form-urlencoded`. Out: values by name, a [`TaskFilter`], links and hidden fields
//! that carry the filter on. An empty value counts as none: browsers send every field of a form.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, invalid};
use crate::clock::parse_ms;
use crate::config::units::parse_duration;
use crate::mask::FieldMask;
use crate::queue::{FieldCondition, TaskFilter};

/// The names of a filter.
pub(super) const FILTER: [&str; 11] = [
    "reason",
    CONDITIONS,
    "text",
    "error",
    "version",
    "host",
    "id",
    "from",
    "to",
    "newer_than",
    "older_than",
];
/// The name that a filter may have several times.
const CONDITIONS: &str = "where";
const NO_TIME: &str = "it is no time like 2026-11-25T03:00:00Z";

#[derive(Debug, Clone, Default)]
pub(super) struct Values(Vec<(String, String)>);

/// The values of the form, which the guard has read; or else of the query.
impl<S: Sync> FromRequestParts<S> for Values {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Values, Infallible> {
        let form = parts.extensions.get::<Values>().cloned();
        Ok(form.unwrap_or_else(|| Values::read(parts.uri.query().unwrap_or_default().as_bytes())))
    }
}

impl Values {
    pub(super) fn read(text: &[u8]) -> Values {
        Values(form_urlencoded::parse(text).into_owned().collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str());
        values.filter(|value| !value.trim().is_empty())
    }

    /// The value without the space around it; empty if there is none.
    pub(super) fn trimmed(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default().trim()
    }

    /// A value like `30m`.
    pub(super) fn duration(&self, name: &str) -> Result<Option<Duration>, ApiProblem> {
        let duration = self.get(name).map(|text| parse_duration(text.trim())).transpose();
        duration.map_err(|why| invalid(format!("{name}: {why}")))
    }

    /// All values but these.
    pub(super) fn without(&self, names: &[&str]) -> Vec<(&str, &str)> {
        let pairs = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        pairs.filter(|(name, _)| !names.contains(name)).collect()
    }

    /// A count that an earlier page hands on, with what came to it since then.
    pub(super) fn sum(&self, name: &str, more: u64) -> u64 {
        let before: u64 = self.get(name).and_then(|count| count.parse().ok()).unwrap_or(0);
        before.saturating_add(more)
    }

    /// The filter of tasks.
    pub(super) fn filter(&self, mask: &FieldMask) -> Result<TaskFilter, ApiProblem> {
        let text = |name: &str| self.get(name).map(str::to_owned);
        let time = |name: &str| {
            let why = || invalid(format!("{name}: {NO_TIME}"));
            self.get(name).map(|text| parse_ms(text.trim()).ok_or_else(why)).transpose()
        };
        let conditions: Vec<&str> = self.all(CONDITIONS).collect();
        let conditions = FieldCondition::all(&conditions, mask);
        let unread = |why| invalid(format!("{CONDITIONS}: {why}"));
        Ok(TaskFilter {
            reason: text("reason"),
            conditions: conditions.map_err(unread)?,
            text: text("text"),
            mask: mask.clone(),
            error: text("error"),
            version: text("version"),
            host: text("host"),
            id: text("id"),
            from_ms: time("from")?,
            to_ms: time("to")?,
            older_than: self.duration("older_than")?,
            newer_than: self.duration("newer_than")?,
            as_of_ms: None,
        })
    }

    /// The filter's values.
    pub(super) fn filter_pairs(&self) -> Vec<(&'static str, &str)> {
        FILTER.into_iter().flat_map(|name| self.all(name).map(move |value| (name, value))).collect()
    }

    /// The filter for the audit, as the API has it.
    pub(super) fn filter_map(&self) -> Map<String, Value> {
        let pairs = FILTER.into_iter().filter_map(|name| match name {
            CONDITIONS => {
                let all: Vec<&str> = self.all(name).collect();
                (!all.is_empty()).then(|| (name.to_owned(), all.into()))
            }
            name => Some((name.to_owned(), self.get(name)?.into())),
        });
        pairs.collect()
    }

    /// The inputs of a form for the filter's conditions: one for each, and an empty one.
    pub(super) fn condition_inputs(&self) -> Markup {
        html! {
            @for condition in self.all(CONDITIONS).chain([""]) {
                label { "Field is " input name=(CONDITIONS) placeholder="tenant=acme" value=(condition); }
            }
        }
    }

    /// Inputs of a form, each with its label, its name and an example, which begin with the present values.
    pub(super) fn inputs(&self, inputs: &[(&str, &str, Option<&str>)]) -> Markup {
        html! {
            @for (label, name, example) in inputs {
                label {
                    (label) " "
                    input name=(name) placeholder=[*example] value=(self.get(name).unwrap_or_default());
                }
            }
        }
    }

    /// The inputs of a form for the times of a filter that has some: a chart leads to such a list.
    pub(super) fn time_inputs(&self) -> Markup {
        match self.get("from").or(self.get("to")) {
            Some(_) => self.inputs(&[("From", "from", None), ("To", "to", None)]),
            None => html! {},
        }
    }

    /// The filter as hidden fields of a form.
    pub(super) fn hidden_filter(&self) -> Markup {
        html! {
            @for (name, value) in self.filter_pairs() { input type="hidden" name=(name) value=(value); }
        }
    }
}

/// A path, as a browser sees it, with a query. Pairs without a value are left out.
pub(super) fn link(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// The path of a plugin.
pub(super) fn plugin_path(plugin: &str) -> String {
    at(&format!("/plugins/{}", part(plugin)))
}

/// A part of a path.
pub(super) fn part(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(super) fn queue_path(queue: &str) -> String {
    at(&format!("/queues/{}", part(queue)))
}

pub(super) fn task_path(queue: &str, id: &str) -> String {
    format!("{}/tasks/{}", queue_path(queue), part(id))
}

pub(super) fn dead_path(queue: &str) -> String {
    format!("{}/dead", queue_path(queue))
}
