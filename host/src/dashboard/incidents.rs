//! Incidents: a card for each, with its way out as a button, and the operator who knows of it.
//!
//! Not here: which incidents there are (`operations::incidents`).

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, form_token};
use super::problem::{PageAnswer, done_at};
use super::session::Visitor;
use super::state::PageCall;
use super::text::{age, clock, data, moment, plural};
use super::values::{dead_path, link, part, plugin_path, queue_path};
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::builds::short;
use crate::clock::now_ms;
use crate::operations::alarms::{Alarm, AlarmSubject};
use crate::operations::changes::MAX_WHY;
use crate::operations::incidents::{self, Incident};

/// The cards that are shown at once; the rest is folded.
const CARDS: usize = 5;
/// The most cards, and alarms of one card, that unfold.
const FOLDED: usize = 50;
const MORE: usize = 20;

/// Where an incident is acknowledged.
fn acknowledge_path(id: &str) -> String {
    at(&format!("/incidents/{}/acknowledge", part(id)))
}

/// All incidents of a page: the open ones, and below them those that somebody knows of.
pub(super) fn section(visitor: &Visitor, incidents: &[Incident], empty: &str) -> Markup {
    let (open, known): (Vec<&Incident>, Vec<&Incident>) =
        incidents.iter().partition(|incident| incident.is_open());
    let (first, rest) = open.split_at(open.len().min(CARDS));
    let count = match open.len() {
        0 => "Incidents".to_owned(),
        count => plural(count as u64, "incident"),
    };
    html! {
        section.incidents aria-label="Incidents" data-live="incidents" {
            @if !incidents.is_empty() || !empty.is_empty() { h2 id="incidents" { (count) } }
            @if open.is_empty() { p.quiet { (empty) } }
            @if !first.is_empty() {
                div.cards role="region" aria-label="The first incidents" tabindex="0" {
                    ul.alarms { @for incident in first { (card(visitor, incident)) } }
                }
            }
            @for (folded, word) in [(rest, "more"), (&known, "acknowledged")] {
                @if !folded.is_empty() {
                    details { summary { (folded.len()) " " (word) } ul.alarms {
                        @for incident in folded.iter().take(FOLDED) { (card(visitor, incident)) }
                        (not_shown(folded.len(), FOLDED))
                    } }
                }
            }
        }
    }
}

/// The end of a list that is cut.
fn not_shown(all: usize, most: usize) -> Markup {
    html! { @if all > most { li.note { (all - most) " more are not shown; the API has all of them." } } }
}

fn card(visitor: &Visitor, incident: &Incident) -> Markup {
    let Incident { alarm, acknowledged, more, .. } = incident;
    html! {
        li class=[alarm.is_urgent.then_some("urgent")] {
            p {
                strong { @if alarm.is_urgent { "Act now:" } @else { "Look:" } }
                " " (subject(&alarm.about)) " " (data(&alarm.what)) " " span.way-out { (alarm.way_out) }
            }
            p.note { (since(incident)) }
            @if let Some(note) = acknowledged {
                p.note {
                    "Acknowledged by " (data(&note.by)) " " (moment(Some(note.at), now_ms()))
                    @match note.until {
                        Some(until) => { ", until " (moment(Some(until), now_ms())) }
                        None => ", until it ends",
                    }
                    @if !note.why.is_empty() { ": " (data(&note.why)) } @else { "." }
                }
            }
            @if visitor.may_change() {
                div.actions { (action(visitor, incident)) (acknowledge_form(visitor, incident)) }
            }
            @if !more.is_empty() {
                details { summary { (more.len()) " more with this cause" } ul {
                    @for alarm in more.iter().take(MORE) {
                        li { (subject(&alarm.about)) " " (data(&alarm.what)) }
                    }
                    (not_shown(more.len(), MORE))
                } }
            }
        }
    }
}

/// Since when there is the incident, and what has changed just before.
fn since(incident: &Incident) -> Markup {
    let now = now_ms();
    let at = incident.since_ms;
    html! {
        @if incident.is_exact { "Since " } @else { "Seen since " }
        (clock(at, now)) " (" (age(now.saturating_sub(at) / 1000 * 1000)) ")"
        @if let Some(change) = &incident.before {
            @if change.at_ms < at {
                ", " (age((at - change.at_ms) / 1000 * 1000)) " after "
            } @else {
                ", together with "
            }
            (data(&change.what))
        }
        "."
    }
}

fn subject(about: &AlarmSubject) -> Markup {
    html! {
        @match about {
            AlarmSubject::Queue(name) => a href=(queue_path(name)) { "queue " (data(name)) },
            AlarmSubject::Dead(name) => a href=(dead_path(name)) { "dead letters of " (data(name)) },
            AlarmSubject::Plugin(name) => a href=(plugin_path(name)) { "plugin " (data(name)) },
            AlarmSubject::Hosts => a href=(at("/hosts")) { "hosts" },
            AlarmSubject::Redis => "Redis",
        }
        ":"
    }
}

/// The way out, as a form or as a link to the page that asks.
fn action(visitor: &Visitor, incident: &Incident) -> Markup {
    let Alarm { queue, plugin, version, what, .. } = &incident.alarm;
    html! {
        @match (incident.action, queue, plugin) {
            (Some("resume"), Some(queue), _) => {
                (button(visitor, &format!("{}/resume", queue_path(queue)), "Resume"))
            }
            (Some("reload"), _, Some(plugin)) if visitor.may_administer() => {
                (button(visitor, &format!("{}/reload", plugin_path(plugin)), "Reload"))
            }
            (Some("roll-back"), _, Some(plugin)) if visitor.may_administer() => {
                @let version = version.as_deref().unwrap_or_default();
                @let why: String = what.chars().take(MAX_WHY).collect();
                @let asks = format!("{}/rollback", plugin_path(plugin));
                a.button.primary href=(link(&asks, &[("version", version), ("why", &why)])) {
                    "Roll back " (short(version)) "…"
                }
            }
            (Some("requeue"), Some(queue), _) => {
                a.button href=(link(&format!("{}/confirm", dead_path(queue)), &[("what", "requeue")])) {
                    "Requeue…"
                }
            }
            _ => {}
        }
    }
}

/// A form that says that the visitor knows of the incident, or takes that back.
fn acknowledge_form(visitor: &Visitor, incident: &Incident) -> Markup {
    html! {
        form.inline method="post" action=(acknowledge_path(&incident.id)) {
            (form_token(visitor))
            @if incident.is_open() {
                select name="for" aria-label="Acknowledge for" {
                    option value="" { "until it ends" }
                    option value="1h" { "for an hour" }
                    option value="8h" { "for 8 hours" }
                    option value="7d" { "for a week" }
                }
                button { "Acknowledge" }
            } @else {
                input type="hidden" name="for" value="0s";
                button { "Open again" }
            }
        }
    }
}

pub(super) async fn acknowledge(call: PageCall, Path(id): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let (time, why) = (values.get("for"), values.get("why").unwrap_or_default());
    let link = dashboard.api.link().await?;
    let noted = incidents::acknowledge(link, &id, time, why, &visitor.caller.name).await?;
    let done = if noted.is_some() { "acknowledged" } else { "reopened" };
    done_at(AuditNote { ids: vec![id], ..AuditNote::default() }, &at("/"), done)
}
