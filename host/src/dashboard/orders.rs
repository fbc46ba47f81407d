//! The orders about a plugin: roll back a version, lift one, look at the file. The first two ask before, on a
//! page that names the version that stops and the one that starts.
//!
//! A version is always the one that the page showed: nothing else is withdrawn, whatever has happened since.
//! Not here: the page with the buttons (`plugin`), what hosts do about an order (`plugins` of the host).

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::confirm::{ConfirmForm, Confirmation};
use super::problem::{PageAnswer, done_at};
use super::session::Visitor;
use super::state::PageCall;
use super::text::{data, plural};
use super::values::{Values, plugin_path};
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, invalid};
use crate::config::AccessRole;
use crate::operations::{self, OrderView, lift, lift_preview, withdraw, withdraw_preview};

/// The version that the page showed.
fn seen(values: &Values) -> Result<&str, ApiProblem> {
    let missing = || invalid("version: begin at the page of the plugin");
    values.get("version").ok_or_else(missing)
}

pub(super) async fn confirm_rollback(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let view = withdraw_preview(dashboard.api.link().await?, &name, Some(seen(&values)?), None).await?;
    let [back, waiting] = [view.hosts_back, view.hosts_waiting].map(|hosts| hosts.unwrap_or_default() as u64);
    let stops = view.builds.words(&view.order.version);
    let starts = view.starts().unwrap_or_else(|| "the version before it".to_owned());
    let told = html! {
        @if back > 0 {
            p.count {
                strong { (data(&stops)) " stops, " (data(&starts)) " starts" }
                " on " (plural(back, "host")) "."
            }
        }
        @if waiting > 0 {
            p.error {
                (data(&stops)) " stops on " (plural(waiting, "host"))
                " with no version to go back to: the queues of the plugin wait there."
            }
        }
        p.note {
            "The version is withdrawn on all hosts, also on those that start later, until it is lifted. "
            "Hosts obey within seconds; tasks that run go on."
        }
    };
    let (is_needed, why) = (true, values.get("why").unwrap_or_default().to_owned());
    Ok(confirm(&visitor, (&name, "Roll back"), &view, told, Some((is_needed, why))))
}

pub(super) async fn confirm_lift(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let view = lift_preview(dashboard.api.link().await?, &name, Some(seen(&values)?)).await?;
    let lifted = view.builds.words(&view.order.version);
    let told = html! {
        p.count {
            strong { (data(&lifted)) " may run again" } " on " (plural(view.hosts as u64, "host")) "."
        }
        p {
            "Where the file of the plugin holds it, it starts within seconds, on probation, and "
            @if view.running.is_empty() { "the queues of the plugin go on." } @else {
                @for (at, version) in view.running.iter().enumerate() {
                    @if at > 0 { " or " }
                    (data(&view.builds.words(version)))
                }
                " stops."
            }
        }
    };
    Ok(confirm(&visitor, (&name, "Lift"), &view, told, None))
}

/// A page that says what an order does, and asks. With `why`, it also asks for a reason: whether that is
/// needed, and a proposal.
fn confirm(
    visitor: &Visitor,
    (name, verb): (&str, &str),
    view: &OrderView,
    told: Markup,
    why: Option<(bool, String)>,
) -> Response {
    let (path, version) = (plugin_path(name), &view.order.version);
    let is_rollback = view.order.withdrawn;
    let order = if is_rollback { "rollback" } else { "lift" };
    let form = ConfirmForm {
        action: format!("{path}/{order}"),
        hidden: html! { input type="hidden" name="version" value=(version); },
        why,
        button: format!("{verb} {}", view.builds.words(version)),
        is_dangerous: is_rollback,
    };
    let asked = Confirmation {
        trail: html! { a href=(at("/plugins")) { "Plugins" } " / " a href=(path) { "Plugin " (data(name)) } },
        back: &path,
        heading: verb.to_owned(),
        name,
        told: html! { (told) dl.facts { dt { "SHA-256" } dd { code { (version) } } } },
        role: AccessRole::Admin,
        form: Some(form),
        more: html! {},
    };
    asked.page(visitor)
}

pub(super) async fn roll_back(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let (seen, why) = (seen(&values)?, values.get("why").unwrap_or_default());
    withdraw(dashboard.api.link().await?, &name, seen, why, &visitor.caller.name).await?;
    ordered(name, "withdrawn")
}

pub(super) async fn lift_quarantine(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    lift(dashboard.api.link().await?, &name, Some(seen(&values)?), &visitor.caller.name).await?;
    ordered(name, "lifted")
}

pub(super) async fn reload(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, .. } = call;
    operations::reload(dashboard.api.link().await?, &name, &visitor.caller.name).await?;
    ordered(name, "reloading")
}

/// Leads back to the page of the plugin, which says what was done.
fn ordered(name: String, done: &str) -> PageAnswer {
    let page = plugin_path(&name);
    done_at(AuditNote { plugin: Some(name), ..AuditNote::default() }, &page, done)
}
