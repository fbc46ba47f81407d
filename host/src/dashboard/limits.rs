//! The limits of a queue that an operator sets for a time: what holds, a form, and the button that clears.
//!
//! Not here: which limits a queue can have (`operations::limits`).

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, field, form_token, why_field};
use super::problem::{PageAnswer, done_at};
use super::session::Visitor;
use super::state::PageCall;
use super::values::queue_path;
use crate::admin::audit::AuditNote;
use crate::admin::problem::invalid;
use crate::config::QueueRules;
use crate::config::units::show_rate;
use crate::operations;
use crate::queue::limits::QueueLimits;

/// The form that sets limits, and the button that clears the present ones.
pub(super) fn form(visitor: &Visitor, rules: &QueueRules, limits: Option<&QueueLimits>) -> Markup {
    let path = format!("{}/limits", queue_path(&rules.name));
    let rate = rules.rate_limit.map_or_else(|| "any rate".to_owned(), show_rate);
    let rate = format!("The configuration allows {rate}.");
    let tracks = rules.turns.tracks.as_ref().filter(|tracks| tracks.field.is_some());
    html! {
        section aria-labelledby="limits" {
            @if limits.is_some() { (button(visitor, &format!("{path}/clear"), "Clear the limits")) }
            details {
                summary {
                    h2 id="limits" { @if limits.is_some() { "Set other limits" } @else { "Limit the queue" } }
                }
                form.stacked method="post" action=(path) {
                    (form_token(visitor))
                    p.note id="limits-note" {
                        "Limits only lower what the configuration allows, in all hosts within seconds. What \
                         runs goes on. Leave empty what is not to be limited."
                    }
                    (field("rate", "Rate, in all hosts together", "5/s", &rate))
                    label for="concurrency" { "Attempts at once in each host" }
                    input id="concurrency" name="concurrency" type="number" min="1" max=(rules.concurrency)
                        aria-describedby="limits-note";
                    @if let Some(tracks) = tracks.filter(|tracks| tracks.limit > 1) {
                        label for="per_key" { "Tasks of one key at once" }
                        input id="per_key" name="per_key" type="number" min="1" max=(tracks.limit)
                            aria-describedby="limits-note";
                    }
                    (field("for", "For", "1h", "Empty: until they are cleared."))
                    (why_field("limits-why", "", true))
                    button.primary { "Limit" }
                }
            }
        }
    }
}

pub(super) async fn limit(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let number = |name: &str| {
        let wrong = |text| invalid(format!("{name}: {text:?} is no whole number"));
        values.get(name).map(|text| text.trim().parse().map_err(|_| wrong(text))).transpose()
    };
    let limits = QueueLimits {
        rate: values.get("rate").map(|text| text.trim().to_owned()),
        concurrency: number("concurrency")?,
        per_key: number("per_key")?,
        why: values.get("why").unwrap_or_default().to_owned(),
        by: visitor.caller.name.to_string(),
        ..QueueLimits::default()
    };
    let lasting = values.duration("for")?;
    let queue = dashboard.api.queue(&name).await?;
    operations::limit(&queue, limits, lasting).await?;
    done_at(AuditNote::queue(&name), &queue_path(&name), "limited")
}

pub(super) async fn clear(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let queue = call.dashboard.api.queue(&name).await?;
    operations::clear_limits(&queue, &call.visitor.caller.name).await?;
    done_at(AuditNote::queue(&name), &queue_path(&name), "unlimited")
}
