//! Jobs: a list, and a page for each, which tells how far it is and can pause and stop it.
//!
//! Not here: the start of a job (`act`), and its steps (`operations::job_step`).

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, page};
use super::problem::{PageAnswer, changed};
use super::session::Visitor;
use super::state::{Dashboard, PageCall};
use super::table::{cell, count, figure, link, sorted, text, time};
use super::text::{NONE, age, data, grouped, moment, plural};
use super::values::{part, queue_path};
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::api::guard::{check_resume, role_of};
use crate::api::jobs::file as kept_file;
use crate::clock::{ms, now_ms};
use crate::operations::jobs::{self, BulkJob, Deed, JobState};
use crate::operations::{self, OperationResult};

pub(super) fn job_path(id: &str) -> String {
    at(&format!("/jobs/{}", part(id)))
}

/// The work of a job in a word.
fn work(job: &BulkJob) -> &'static str {
    if job.from.as_ref().is_some_and(|from| *from != job.id) { "Undo" } else { job.deed.label() }
}

pub(super) async fn list(PageCall { dashboard, visitor, values }: PageCall) -> PageAnswer {
    let (all, now) = (jobs::list(dashboard.api.link().await?).await?, now_ms());
    let row = |job: &BulkJob| {
        let name = html! { a href=(job_path(&job.id)) { (work(job)) " " (job.id) } };
        vec![
            cell("Job", name).by(work(job)),
            link("Queue", &queue_path(&job.queue), &job.queue),
            cell("State", state(job)).by(<&str>::from(job.state)),
            figure("Part", job.percent().as_deref().unwrap_or(NONE)).by(job.part()),
            count("Done", job.done),
            count("Skipped", job.skipped),
            time("Began", Some(job.started_at), now),
            text("Who", &job.who),
            cell("Undo", undo_button(&visitor, job, &all, now)),
        ]
    };
    let main = html! {
        h1 { "Jobs" }
        p.note {
            "A job is work on all tasks of a queue that match: cancel, drain, requeue, purge or export. \
             Hosts carry it out, also when the page or the terminal that began it is closed."
        }
        section aria-label="All jobs" data-live="jobs" {
            @if all.is_empty() {
                p.quiet {
                    "No job is under way, and none ended lately. Drain… on the page of a queue begins one, \
                     and so do Requeue…, Purge… and Export… of its dead letters, and "
                    code { "tqhost cancel QUEUE --all" } "."
                }
            } @else {
                (sorted("Jobs", all.iter().map(row), &values, &at("/jobs")))
            }
        }
    };
    Ok(page(&visitor, "Jobs", &main))
}

pub(super) async fn show(call: PageCall, Path(id): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, .. } = call;
    let link = dashboard.api.link().await?;
    let job = operations::with_kept(&dashboard.api.queues(), link, &id).await?;
    let (all, now) = (jobs::list(link).await?, now_ms());
    let path = job_path(&job.id);
    let title = format!("{} of {}", work(&job), job.queue);
    let main = html! {
        p.trail { a href=(at("/jobs")) { "Jobs" } }
        h1 { (work(&job)) " of " (data(&job.queue)) }
        section aria-label="The job" data-live="job" {
            (progress(&job))
            (facts(&job))
            div.actions {
                @if job.state == JobState::Running { (button(&visitor, &format!("{path}/pause"), "Pause")) }
                @if job.state == JobState::Paused && visitor.caller.may(role_of(job.deed)) {
                    (button(&visitor, &format!("{path}/resume"), "Resume"))
                }
                @if !job.state.is_over() { (button(&visitor, &format!("{path}/stop"), "Stop")) }
                (undo_button(&visitor, &job, &all, now))
            }
            @if let Some(kept) = job.kept.as_ref().filter(|kept| kept.until > now) {
                @let can = if job.deed.can_undo() { "can be brought back" } else { "are kept" };
                p.note {
                    (plural(kept.tasks, job.deed.noun())) " " (can) " until "
                    (moment(Some(kept.until), now)) ". "
                    @if job.deed.can_undo() || job.state == JobState::Done {
                        a href=(format!("{path}/file")) { "Download as JSON lines" }
                    }
                }
            }
        }
        p { a href=(queue_path(&job.queue)) { "Watch queue " (data(&job.queue)) } }
    };
    Ok(page(&visitor, &title, &main))
}

/// A sentence of its results.
fn progress(job: &BulkJob) -> Markup {
    let (noun, done) = job.done_words();
    html! {
        p.done role="status" {
            (plural(job.done, noun))
            @if job.done == 1 { " is " } @else { " are " } (done)
            @if job.skipped > 0 { ", " (grouped(job.skipped)) " skipped: " (job.deed.why_skipped()) }
            @match job.state {
                JobState::Done if job.deed == Deed::Export => ", all that were counted. They stay.",
                JobState::Done => ", and none is left that was counted.",
                JobState::Running => "; it goes on.",
                JobState::Paused => "; it is paused.",
                JobState::Stopped => "; it was stopped.",
                JobState::Failed => "; it failed.",
            }
        }
        @if let Some(part) = job.part() {
            progress max="1" value=(format!("{part:.3}")) aria-label="Part that is done" {}
        }
        @if job.without_flow > 0 {
            p.note { (grouped(job.without_flow)) " of them belong to a flow that is not known any more." }
        }
        @if let Some(error) = &job.error { p.error { (data(error)) } }
    }
}

fn facts(job: &BulkJob) -> Markup {
    let now = now_ms();
    html! {
        dl.facts {
            dt { "State" } dd { (state(job)) }
            dt { "Part" } dd { (job.percent().as_deref().unwrap_or(NONE)) }
            dt { "Looked at" } dd { (grouped(job.examined)) " of " (grouped(job.places.max(job.examined))) }
            @if let Some(rate) = job.per_second() { dt { "Speed" } dd { (format!("{rate:.0}/s")) } }
            @if let Some(left) = job.left() { dt { "Left" } dd { (age(ms(left))) } }
            @if let Some(from) = job.from.as_ref().filter(|from| **from != job.id) {
                dt { "Undoes" } dd { a href=(job_path(from)) { (from) } }
            }
            @if let Some(rate) = &job.rate { dt { "No faster than" } dd { (data(rate)) } }
            dt { "Began" } dd { (moment(Some(job.started_at), now)) }
            @if job.ended_at.is_some() { dt { "Ended" } dd { (moment(job.ended_at, now)) } }
            dt { "Who" } dd { (data(&job.who)) }
            @if !job.why.is_empty() { dt { "Why" } dd { (data(&job.why)) } }
            @if !job.host.is_empty() { dt { "Carried out by" } dd { (data(&job.host)) } }
        }
    }
}

fn state(job: &BulkJob) -> Markup {
    let state: &str = job.state.into();
    super::layout::state(state)
}

/// The way back, while the job keeps what it has taken away.
fn undo_button(visitor: &Visitor, job: &BulkJob, all: &[BulkJob], now: u64) -> Markup {
    let is_undo = |other: &&BulkJob| {
        let is_in_vain = matches!(other.state, JobState::Stopped | JobState::Failed);
        other.from.as_ref() == Some(&job.id) && other.id != job.id && !is_in_vain
    };
    let is_ready = job.state.is_over() && job.deed != Deed::Export;
    let kept = job.kept.as_ref().filter(|kept| is_ready && kept.until > now);
    html! {
        @if let Some(undo) = all.iter().find(is_undo) {
            a href=(job_path(&undo.id)) { "Undone by " (undo.id) }
        } @else if let Some(kept) = kept {
            @let label = format!("Undo: bring back {}", plural(kept.tasks, job.deed.noun()));
            (button(visitor, &format!("{}/undo", job_path(&job.id)), &label))
        }
    }
}

/// Begins to bring back what a job has taken away, and leads to the page of the job that does it.
pub(super) async fn undo(call: PageCall, Path(id): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, .. } = call;
    let (queues, link) = (dashboard.api.queues(), dashboard.api.link().await?);
    let undone = operations::undo(&queues, link, &id, &visitor.caller.name, "").await;
    lead_to(&dashboard, undone)
}

/// The tasks that a job keeps, as JSON lines.
pub(super) async fn file(call: PageCall, Path(id): Path<String>) -> PageAnswer {
    let dashboard = call.dashboard;
    Ok(kept_file(&dashboard.api, &id).await?)
}

/// Pauses a job, lets it go on, or stops it, and leads back to its page.
pub(super) async fn change(call: PageCall, Path(id): Path<String>, to: JobState) -> PageAnswer {
    let PageCall { dashboard, visitor, .. } = call;
    if to == JobState::Running {
        check_resume(dashboard.api.link().await?, &visitor.caller, &id).await?;
    }
    let changed = jobs::change(dashboard.api.link().await?, &id, to, &visitor.caller.name).await;
    lead_to(&dashboard, changed)
}

/// Leads to the page of a job that was changed or begun.
fn lead_to(dashboard: &Dashboard, job: OperationResult<BulkJob>) -> PageAnswer {
    if job.is_ok() {
        dashboard.api.parts().jobs.ring();
    }
    let note = job.as_ref().map_or_else(|_| AuditNote::default(), |job| AuditNote::queue(&job.queue));
    changed(note, job.map(|job| job_path(&job.id)))
}
