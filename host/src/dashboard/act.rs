//! Work on all tasks that match: a page that counts and asks, and the start of the job.
//!
//! The page finds the place where the work begins, so tasks that come after the count are left alone. It
//! counts in bounded parts: where more is left, it hands on where the work begins, where the count goes on,
//! and what it has counted. Hosts carry the job out, and its own page tells how far it is (`jobs`).

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::confirm::{ConfirmForm, Confirmation};
use super::jobs::job_path;
use super::layout::samples;
use super::problem::{PageAnswer, changed};
use super::session::Visitor;
use super::state::PageCall;
use super::text::{data, grouped, plural};
use super::values::{Values, dead_path, link, queue_path};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, invalid};
use crate::api::guard::role_of;
use crate::config::rules::Rate;
use crate::config::units::{parse_rate, show_rate};
use crate::operations::jobs::{self, Deed, JobCount, JobOrder};

const KEPT: &str = "They are kept for 24 hours: the page of the job has a button that brings them back, and \
                    a file to download.";

/// Counts the dead letters that match, and asks.
pub(super) async fn confirm(call: PageCall, name: Path<String>) -> PageAnswer {
    let deed = match call.values.get("what") {
        Some("requeue") => Deed::Requeue,
        Some("purge") => Deed::Purge,
        Some("export") => Deed::Export,
        _ => return Err(invalid("what: it is none of requeue, purge and export").into()),
    };
    ask(call, name, deed).await
}

/// The page that asks.
struct Question<'q> {
    deed: Deed,
    name: &'q str,
    values: &'q Values,
    rate: Option<Rate>,
    count: JobCount,
    /// How many there are, whether they match or not.
    all: u64,
    /// Whether all are meant, so that none was looked at.
    is_known: bool,
}

/// Counts what the work would be done to, and asks.
pub(super) async fn ask(call: PageCall, Path(name): Path<String>, deed: Deed) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let (filter, rate) = (values.filter(dashboard.api.mask())?, rate(&values)?);
    let queue = dashboard.api.queue(&name).await?;
    let counted = values.get("begin").map(|begin| (begin.to_owned(), None));
    let order = JobOrder { counted, ..JobOrder::new(deed, filter) };
    let all = jobs::places(&queue.census().await?, deed, None);
    // All that wait can be cancelled, and every dead letter can be purged.
    let is_known = order.filter.is_empty() && deed != Deed::Requeue;
    let count = if is_known {
        let count = jobs::sample(&queue, &order).await?;
        JobCount { matched: all, examined: all, next: None, ..count }
    } else {
        let part = jobs::rough_count(&queue, &order, values.get("at")).await?;
        let (matched, examined) =
            (values.sum("counted", part.matched), values.sum("examined", part.examined));
        JobCount { matched, examined, ..part }
    };
    let question = Question { deed, name: &name, values: &values, rate, count, all, is_known };
    Ok(question.page(&visitor))
}

impl Question<'_> {
    fn page(&self, visitor: &Visitor) -> Response {
        let (name, values, JobCount { matched, next, sample, .. }) = (self.name, self.values, &self.count);
        let (back, origin) = match self.is_of_dead() {
            true => (link(&dead_path(name), &values.filter_pairs()), "Dead letters of "),
            false => (queue_path(name), "Queue "),
        };
        let nothing = *matched == 0 && next.is_none();
        let asked = Confirmation {
            trail: html! { a href=(back) { (origin) (data(name)) } },
            back: &back,
            heading: format!("{} {}s of", self.deed.label(), self.deed.noun()),
            name,
            told: html! {
                (self.count())
                @if self.is_of_dead() { (filter_words(values)) } @else { (filter_form(name, values)) }
                (samples(name, sample))
                (self.warnings())
                @if nothing { p { "There is nothing to do." } }
            },
            role: role_of(self.deed),
            form: (*matched > 0).then(|| self.form()),
            more: self.count_form(),
        };
        asked.page(visitor)
    }

    fn is_of_dead(&self) -> bool {
        matches!(self.deed, Deed::Requeue | Deed::Purge | Deed::Export)
    }

    /// How many there are, and how that is known.
    fn count(&self) -> Markup {
        let JobCount { matched, examined, next, .. } = &self.count;
        let (has_more, is_filtered) = (next.is_some(), !self.values.filter_pairs().is_empty());
        html! {
            p.count {
                @if has_more { "At least " }
                strong { (plural(*matched, self.deed.noun())) }
                @if self.is_of_dead() {
                    " of queue " (data(self.name))
                    @if is_filtered || has_more { " match." }
                    @else if matched == examined { ": all of them." }
                    @else { " can be requeued." }
                    @if !self.is_known {
                        " " (grouped(*examined)) " were looked at"
                        @if has_more { ", the oldest of " (grouped(self.all)) } "."
                    }
                } @else {
                    @if *matched == 1 { " waits" } @else { " wait" } " in queue " (data(self.name))
                    ": queued, delayed or held" @if is_filtered { ", and match" } "."
                }
            }
        }
    }

    /// Warnings, and the way to keep what would be lost.
    fn warnings(&self) -> Markup {
        html! {
            @match self.deed {
                Deed::Requeue => (export_link(&dead_path(self.name), self.values)),
                Deed::Purge => {
                    p.note { (KEPT) " After that only a file that you have downloaded is left." }
                    (export_link(&dead_path(self.name), self.values))
                }
                Deed::Export => p.note {
                    "They stay. The file has all of them, up to 256 MiB, which Redis keeps for 24 hours: the \
                     page of the job has it. A download needs no memory in Redis, and has the newest 100,000."
                },
                _ => {
                    p.note {
                        (KEPT) " What runs goes on, and so does a task that waits for its flow."
                    }
                    p.note {
                        "Tasks that producers add from now on stay, and tasks that run may be tried again."
                    }
                }
            }
        }
    }

    /// The button that begins the job.
    fn form(&self) -> ConfirmForm {
        let JobCount { matched, next, .. } = &self.count;
        let many = match next {
            Some(_) => "all that match".to_owned(),
            None => plural(*matched, self.deed.noun()),
        };
        let rate = self.rate.map(|rate| format!(", {}", show_rate(rate))).unwrap_or_default();
        let verb = if self.deed == Deed::Drain { "Cancel" } else { self.deed.label() };
        let path = if self.is_of_dead() { dead_path(self.name) } else { queue_path(self.name) };
        let deed: &str = self.deed.into();
        ConfirmForm {
            action: format!("{path}/{deed}"),
            hidden: html! {
                (self.chosen())
                @if next.is_none() { input type="hidden" name="matched" value=(matched); }
                @if self.deed.can_undo() {
                    label { input type="checkbox" name="no_undo"; " Keep nothing: memory in Redis is short" }
                }
            },
            why: Some((false, String::new())),
            button: format!("{verb} {many}{rate}"),
            is_dangerous: !matches!(self.deed, Deed::Requeue | Deed::Export),
        }
    }

    /// The choice as hidden fields, for the next page.
    fn chosen(&self) -> Markup {
        html! {
            (self.values.hidden_filter())
            @if let Some(rate) = self.values.get("rate") { input type="hidden" name="rate" value=(rate); }
            input type="hidden" name="begin" value=(self.count.begin);
        }
    }

    /// Counts further. As long as none is found there is nothing else to do, so it goes on by itself.
    fn count_form(&self) -> Markup {
        let JobCount { matched, examined, next, .. } = &self.count;
        let action = match self.is_of_dead() {
            true => format!("{}/confirm", dead_path(self.name)),
            false => format!("{}/drain", queue_path(self.name)),
        };
        let deed: &str = self.deed.into();
        html! {
            @if let Some(next) = next {
                p.note {
                    "More may match."
                    @if *matched == 0 { " With JavaScript this page goes on by itself; leave it to stop." }
                }
                form method="get" action=(action) data-continue[*matched == 0] {
                    input type="hidden" name="what" value=(deed);
                    (self.chosen())
                    input type="hidden" name="at" value=(next);
                    input type="hidden" name="counted" value=(matched);
                    input type="hidden" name="examined" value=(examined);
                    button { "Go on counting" }
                }
            }
        }
    }
}

/// The link to the file with the dead letters that match.
pub(super) fn export_link(path: &str, values: &Values) -> Markup {
    let export = link(&format!("{path}/export"), &values.filter_pairs());
    html! { p { a href=(export) { "Download as JSON lines" } } }
}

fn filter_words(values: &Values) -> Markup {
    html! {
        @let pairs = values.filter_pairs();
        @if !pairs.is_empty() {
            dl.facts { @for (name, value) in pairs { dt { (name) } dd { (data(value)) } } }
        }
    }
}

/// The filter of tasks that wait, which counts again.
fn filter_form(name: &str, values: &Values) -> Markup {
    let drain = format!("{}/drain", queue_path(name));
    html! {
        form.filter method="get" action=(drain) role="search" aria-label="Filter of tasks that wait" {
            (values.condition_inputs())
            (values.inputs(&[
                ("Text in id, error or field", "text", None),
                ("Text in the latest error", "error", None),
                ("Latest version", "version", None),
                ("Waits for at least", "older_than", Some("1h")),
                ("Waits for less than", "newer_than", Some("1h")),
            ]))
            button { "Count" }
            @if !values.filter_pairs().is_empty() { a href=(drain) { "All that wait" } }
        }
    }
}

/// Begins the job, and leads to its page.
pub(super) async fn start(call: PageCall, Path(name): Path<String>, deed: Deed) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let filter = values.filter(dashboard.api.mask())?;
    rate(&values)?;
    // Without this place, the job would be on other tasks than those that were counted.
    let Some(begin) = values.get("begin") else {
        return Err(invalid("begin: begin at the page that counts").into());
    };
    let matched = values.get("matched").and_then(|matched| matched.parse().ok());
    let queue = dashboard.api.queue(&name).await?;
    let order = JobOrder {
        rate: values.get("rate").filter(|_| deed == Deed::Requeue).map(|rate| rate.trim().to_owned()),
        who: visitor.caller.name.to_string(),
        why: values.trimmed("why").to_owned(),
        keep: values.get("no_undo").is_none(),
        counted: Some((begin.to_owned(), matched)),
        ..JobOrder::new(deed, filter)
    };
    let note = AuditNote::queue(&name).with_filter(&values.filter_map());
    let job = jobs::start(&queue.link, &queue, order).await;
    if job.is_ok() {
        dashboard.api.parts().jobs.ring();
    }
    changed(note, job.map(|job| job_path(&job.id)))
}

fn rate(values: &Values) -> Result<Option<Rate>, ApiProblem> {
    let rate = values.get("rate").map(|text| parse_rate(text.trim())).transpose();
    rate.map_err(|why| invalid(format!("rate: {why}")))
}
