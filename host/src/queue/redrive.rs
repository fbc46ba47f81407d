//! Requeues and purges dead letters, in bounded steps, oldest first.
//!
//! In: which dead letters, and what becomes of them. Out: counts. An operation on all that match can be split
//! into steps, each with a budget, and taken up again where the step before it ended.
//!
//! Not here: finding dead letters (`dead`).

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::codec;
use super::dead::{DeadLetter, PAGE, Pages};
use super::error::QueueError;
use super::filter::TaskFilter;
use super::handle::Queue;
use super::reply;
use super::script::{self, ScriptCall, with_fields};
use crate::config::model::Rate;

/// The reply of requeue.lua for a task whose flow is not known any more.
const REQUEUED_WITHOUT_FLOW: u64 = 2;

/// The dead letters that an operation applies to.
#[derive(Debug, Clone)]
pub enum DeadChoice {
    /// By task id, or by alias: then the newest task with this alias.
    Ids(Vec<String>),
    /// All that exist now and pass the filter.
    All(TaskFilter),
}

/// The result of a requeue or purge. Both numbers together are the number of dead letters asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Redriven {
    pub succeeded: u64,
    /// Is not dead (any more), or can never run.
    pub skipped: u64,
    /// So many of the succeeded ones belong to a flow that is not known any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_flow: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why a requeue or purge ended too early, and how far it came. It may be repeated.
#[derive(Debug)]
pub struct RedriveError {
    pub cause: QueueError,
    /// The dead letters that were requeued or purged for certain.
    pub succeeded: u64,
    /// Whether Redis may have carried out the last step, since its reply did not come.
    pub in_doubt: bool,
}

/// The fate of the chosen dead letters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Redrive {
    /// At most at this rate.
    Requeue(Option<Rate>),
    Purge,
    /// Nothing: those are counted that a requeue (`true`) or purge would take.
    Count(bool),
}

impl Redrive {
    /// How many dead letters one step takes: at a rate, those of a tenth of a second, at least one.
    fn at_once(self) -> usize {
        let Redrive::Requeue(Some(rate)) = self else { return PAGE };
        let tenth = f64::from(rate.count) / rate.per.as_secs_f64() / 10.0;
        (tenth as usize).clamp(1, PAGE)
    }
}

/// How far an operation on all dead letters that match has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadWalk {
    /// The first entry of the rest, as XRANGE takes it.
    pub from: String,
    /// Tasks that die during the operation are left out, as it might never end.
    pub last: String,
}

/// The most that a step of an operation does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBudget {
    /// Entries that it looks at.
    pub entries: u64,
    pub until: Instant,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct Redrove {
    pub done: Redriven,
    pub examined: u64,
    /// None: nothing is left.
    pub next: Option<DeadWalk>,
}

#[derive(Default)]
struct RedriveProgress {
    asked_for: u64,
    examined: u64,
    succeeded: u64,
    without_flow: u64,
    is_writing: bool,
}

impl RedriveProgress {
    fn done(&self) -> Redriven {
        Redriven {
            succeeded: self.succeeded,
            skipped: self.asked_for - self.succeeded,
            without_flow: self.without_flow,
        }
    }

    fn failed(&self, cause: QueueError) -> RedriveError {
        let in_doubt = self.is_writing && cause.is_connection();
        RedriveError { succeeded: self.succeeded, in_doubt, cause }
    }
}

/// The rest of the chosen dead letters, while they are read page by page.
#[derive(Debug, Clone)]
pub(crate) enum DeadRest {
    Matching(DeadWalk),
    /// The entries of those that were named.
    Named(Vec<String>),
}

/// A page of the chosen dead letters.
#[derive(Debug)]
pub(crate) struct DeadPage {
    pub letters: Vec<DeadLetter>,
    /// None: these were the last ones.
    pub next: Option<DeadRest>,
}

impl Queue {
    /// Begins to read the chosen dead letters: those that are there now.
    pub(crate) async fn begin_chosen(&self, choice: &DeadChoice) -> Result<DeadRest, QueueError> {
        let walk = self.begin_walk().await?;
        match choice {
            DeadChoice::All(_) => Ok(DeadRest::Matching(walk)),
            DeadChoice::Ids(names) => {
                let mut entries: Vec<_> = self.dead_entries(names, &walk.last).await?.into_iter().collect();
                entries.sort_unstable();
                Ok(DeadRest::Named(entries))
            }
        }
    }

    /// Reads a page of the chosen dead letters, oldest first.
    pub(crate) async fn chosen_page(
        &self,
        choice: &DeadChoice,
        rest: &DeadRest,
    ) -> Result<DeadPage, QueueError> {
        match (choice, rest) {
            (DeadChoice::All(filter), DeadRest::Matching(walk)) => {
                let now_ms = self.now_ms().await?;
                let mut pages = Pages::between(walk.from.clone(), walk.last.clone());
                let page = pages.next(self).await?.unwrap_or_default();
                let next = page.last().filter(|_| pages.has_more()).map(|last| {
                    let (from, last) = (format!("({}", last.entry), walk.last.clone());
                    DeadRest::Matching(DeadWalk { from, last })
                });
                let matches = |letter: &DeadLetter| filter.takes(&letter.traits(), now_ms);
                Ok(DeadPage { letters: page.into_iter().filter(matches).collect(), next })
            }
            (_, DeadRest::Named(entries)) => {
                let (now, later) = entries.split_at(entries.len().min(PAGE));
                let mut letters = Vec::with_capacity(now.len());
                for entry in now {
                    let found = self.range(&self.keys.dead, entry, entry, 1).await?;
                    letters.extend(found.into_iter().map(DeadLetter::read));
                }
                let next = (!later.is_empty()).then(|| DeadRest::Named(later.to_vec()));
                Ok(DeadPage { letters, next })
            }
            (DeadChoice::Ids(_), DeadRest::Matching(_)) => Ok(DeadPage { letters: Vec::new(), next: None }),
        }
    }

    /// Brings dead letters back into the queue, as tasks on their first attempt. `rate` keeps tasks that
    /// failed from all coming back at once. May be interrupted and repeated.
    pub async fn requeue(&self, choice: &DeadChoice, rate: Option<Rate>) -> Result<Redriven, RedriveError> {
        self.redrive(choice, Redrive::Requeue(rate)).await
    }

    /// Deletes dead letters for good. May be interrupted and repeated.
    pub async fn purge(&self, choice: &DeadChoice) -> Result<Redriven, RedriveError> {
        self.redrive(choice, Redrive::Purge).await
    }

    /// Requeues, purges or counts all that are chosen. Without `id` in the queue's rules, or by filter, each
    /// dead letter is looked at once; there is no other bound.
    pub(crate) async fn redrive(&self, choice: &DeadChoice, what: Redrive) -> Result<Redriven, RedriveError> {
        let mut progress = RedriveProgress::default();
        match self.redrive_chosen(choice, what, &mut progress).await {
            Ok(()) => Ok(progress.done()),
            Err(cause) => Err(progress.failed(cause)),
        }
    }

    /// Takes one step of an operation on all dead letters that match. `walk` is what the step before left.
    pub(crate) async fn redrive_step(
        &self,
        filter: &TaskFilter,
        what: Redrive,
        walk: Option<DeadWalk>,
        budget: StepBudget,
    ) -> Result<Redrove, RedriveError> {
        let mut progress = RedriveProgress::default();
        let begun = match walk {
            Some(walk) => Ok(walk),
            None => self.begin_walk().await,
        };
        let mut walk = begun.map_err(|cause| progress.failed(cause))?;
        match self.redrive_all(filter, what, &mut walk, Some(budget), &mut progress).await {
            Ok(is_over) => Ok(Redrove {
                done: progress.done(),
                examined: progress.examined,
                next: Some(walk).filter(|_| !is_over),
            }),
            Err(cause) => Err(progress.failed(cause)),
        }
    }

    /// Requeues, purges or counts the dead letters with these names, as far as [`Queue::dead_named`] finds
    /// them.
    pub(crate) async fn redrive_named(
        &self,
        names: &[String],
        what: Redrive,
    ) -> Result<Redriven, RedriveError> {
        let mut progress = RedriveProgress { asked_for: names.len() as u64, ..Default::default() };
        let letters = self.dead_named(names).await.map_err(|cause| progress.failed(cause))?;
        match self.redrive_page(&letters, what, &mut progress).await {
            Ok(()) => Ok(progress.done()),
            Err(cause) => Err(progress.failed(cause)),
        }
    }

    async fn begin_walk(&self) -> Result<DeadWalk, QueueError> {
        Ok(DeadWalk { from: "-".to_owned(), last: self.last_dead().await? })
    }

    async fn redrive_chosen(
        &self,
        choice: &DeadChoice,
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> Result<(), QueueError> {
        let mut walk = self.begin_walk().await?;
        let mut pages = Pages::new(Some(walk.last.clone()));
        match choice {
            DeadChoice::All(filter) => {
                self.redrive_all(filter, what, &mut walk, None, progress).await?;
            }
            // A task may be named by its alias, and only a look at all of them tells which one is the newest.
            DeadChoice::Ids(names) if self.rules.id.is_some() => {
                progress.asked_for = names.len() as u64;
                let mut entries = self.dead_entries(names, &walk.last).await?;
                while !entries.is_empty()
                    && let Some(page) = pages.next(self).await?
                {
                    let chosen: Vec<_> =
                        page.into_iter().filter(|letter| entries.remove(&letter.entry)).collect();
                    self.redrive_page(&chosen, what, progress).await?;
                }
            }
            DeadChoice::Ids(ids) => {
                progress.asked_for = ids.len() as u64;
                let mut open: HashSet<&str> = ids.iter().map(String::as_str).collect();
                while !open.is_empty()
                    && let Some(page) = pages.next(self).await?
                {
                    let named: Vec<_> = page.into_iter().filter(|letter| letter.is_named(&open)).collect();
                    let chosen: Vec<_> =
                        named.into_iter().filter(|letter| open.remove(letter.id.as_str())).collect();
                    self.redrive_page(&chosen, what, progress).await?;
                }
            }
        }
        Ok(())
    }

    /// Goes through all dead letters from `walk` on, until the budget is spent. Gives whether none is left.
    async fn redrive_all(
        &self,
        filter: &TaskFilter,
        what: Redrive,
        walk: &mut DeadWalk,
        budget: Option<StepBudget>,
        progress: &mut RedriveProgress,
    ) -> Result<bool, QueueError> {
        let now_ms = self.now_ms().await?;
        let is_late = || budget.is_some_and(|budget| Instant::now() >= budget.until);
        let mut pages = Pages::between(walk.from.clone(), walk.last.clone());
        while let Some(page) = pages.next(self).await? {
            progress.examined += page.len() as u64;
            let end = page.last().map(|last| last.entry.clone()).unwrap_or_default();
            let chosen: Vec<_> =
                page.into_iter().filter(|letter| filter.takes(&letter.traits(), now_ms)).collect();
            for some in chosen.chunks(what.at_once()) {
                progress.asked_for += some.len() as u64;
                self.redrive_some(some, what, progress).await?;
                if let (true, Some(last)) = (is_late(), some.last()) {
                    walk.from = format!("({}", last.entry);
                    return Ok(false);
                }
            }
            walk.from = format!("({end}");
            let is_spent = budget.is_some_and(|budget| progress.examined >= budget.entries);
            if (is_spent || is_late()) && pages.has_more() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn redrive_page(
        &self,
        letters: &[DeadLetter],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> Result<(), QueueError> {
        for some in letters.chunks(what.at_once()) {
            self.redrive_some(some, what, progress).await?;
        }
        Ok(())
    }

    /// Takes as many as one step may.
    async fn redrive_some(
        &self,
        letters: &[DeadLetter],
        what: Redrive,
        progress: &mut RedriveProgress,
    ) -> Result<(), QueueError> {
        let able = || letters.iter().filter(|letter| !letter.is_packed());
        match what {
            Redrive::Count(true) => progress.succeeded += able().count() as u64,
            Redrive::Count(false) => progress.succeeded += letters.len() as u64,
            Redrive::Requeue(rate) => {
                let calls: Vec<ScriptCall> = able().map(|letter| self.requeue_call(letter)).collect();
                if calls.is_empty() {
                    return Ok(());
                }
                progress.is_writing = true;
                let replies = self.link.scripts("requeue", &calls).await?;
                let counts: Vec<Result<u64, QueueError>> =
                    replies.into_iter().map(|reply| self.shaped("requeue", reply::count(&reply?))).collect();
                let of_kind = |is: fn(&u64) -> bool| counts.iter().flatten().filter(|n| is(n)).count() as u64;
                progress.succeeded += of_kind(|n| *n > 0);
                progress.without_flow += of_kind(|n| *n == REQUEUED_WITHOUT_FLOW);
                counts.into_iter().collect::<Result<Vec<u64>, QueueError>>()?;
                progress.is_writing = false;
                let named: Vec<_> = able()
                    .filter_map(|letter| self.waiting(&letter.id, &letter.fields, letter.enqueued_at))
                    .collect();
                self.note(&self.keys, &named).await?;
                if let Some(rate) = rate {
                    let pause = rate.per.mul_f64(calls.len() as f64 / f64::from(rate.count));
                    tokio::time::sleep(pause).await;
                }
            }
            Redrive::Purge if letters.is_empty() => {}
            Redrive::Purge => {
                let mut delete = redis::cmd("XDEL");
                delete
                    .arg(&self.keys.dead)
                    .arg(letters.iter().map(|letter| &letter.entry).collect::<Vec<_>>());
                progress.is_writing = true;
                let reply = self.link.command("purge", &delete).await?;
                progress.succeeded += self.shaped("purge", reply::count(&reply))?;
                progress.is_writing = false;
            }
        }
        Ok(())
    }

    fn requeue_call(&self, letter: &DeadLetter) -> ScriptCall {
        let call = ScriptCall::new(&script::REQUEUE)
            .key(&self.keys.stream)
            .key(&self.keys.dead)
            .key(self.keys.task(&letter.id))
            .telling(Arc::clone(&self.told));
        with_fields(call.arg(&letter.entry).arg(letter.enqueued_at), codec::revived(&letter.id, &letter.raw))
    }
}
