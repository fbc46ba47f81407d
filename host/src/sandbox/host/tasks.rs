//! `tqhost:extensions/tasks`: the tasks that an instance runs at the same time.
//!
//! Not here: their seats (`seats`), and their states (`seated`).

use std::sync::Arc;

use wasmtime::component::Resource;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::bindings::tqhost::handler::types as handler;
use super::effect_bindings::tqhost::extensions::tasks::{Event, Host, NumberedTask};
use super::effect_bindings::tqhost::handler::types;
use crate::sandbox::attempt::{Ended, deadline_ms};
use crate::sandbox::failure;
use crate::sandbox::reply::{self, Reply};
use crate::sandbox::seated::SeatedTasks;
use crate::sandbox::seats::{InstanceSeats, SeatEvent};
use crate::sandbox::state::GuestState;
use crate::task::{Field, Task};

impl Host for GuestState {
    fn next(&mut self) -> wasmtime::Result<Option<Event>> {
        let together = self.tasks()?;
        together.strays.get_or_insert_default();
        Ok(match together.seats.next() {
            None => None,
            Some(SeatEvent::Close) => Some(Event::Close),
            Some(SeatEvent::Stop(number)) => {
                if together.entered() == Some(number) {
                    self.enter_task(None)?;
                }
                self.tasks()?.refuse(number);
                Some(Event::Stop(number))
            }
            Some(SeatEvent::Start(number, seated)) => {
                let deadline_ms = deadline_ms(together.take(number, &seated));
                let max_attempts = seated.attempt.max_attempts;
                let first = seated.attempt.tasks.first();
                let task = first.map(|task| copied(task, max_attempts, deadline_ms));
                task.map(|task| Event::Start(NumberedTask { number, task }))
            }
        })
    }

    fn subscribe(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        let news = TaskNews(self.tasks()?.seats.clone());
        let news = self.table.push(news)?;
        subscribe(&mut self.table, news)
    }

    fn enter(&mut self, number: Option<u32>) -> wasmtime::Result<()> {
        self.enter_task(number)
    }

    fn finish(
        &mut self,
        number: u32,
        ended: Result<Option<Vec<u8>>, types::Failure>,
    ) -> wasmtime::Result<()> {
        self.finish_task(number, Some(ended.map_err(failure_of)))
    }

    fn fail(&mut self, number: u32) -> wasmtime::Result<()> {
        self.finish_task(number, None)
    }
}

/// The task in the types of this interface, which own their texts.
fn copied(task: &Task, max_attempts: u32, deadline_ms: u64) -> types::Task {
    let fields = task.fields.iter();
    let copied = |field: &Field| types::Field { name: field.name.clone(), value: field.value.clone() };
    types::Task {
        id: task.id.clone(),
        queue: task.queue.to_string(),
        fields: fields.map(copied).collect(),
        attempt: task.attempt,
        max_attempts,
        enqueued_at_ms: task.enqueued_at_ms,
        deadline_ms,
        traceparent: task.traceparent.clone(),
    }
}

/// The failure in the types of the exports, as replies of `handle` have it.
fn failure_of(failure: types::Failure) -> handler::Failure {
    match failure {
        types::Failure::Retry(types::Retry { message, after_ms }) => {
            handler::Failure::Retry(handler::Retry { message, after_ms })
        }
        types::Failure::Reject(message) => handler::Failure::Reject(message),
        types::Failure::Defer(types::Deferral { message, after_ms }) => {
            handler::Failure::Defer(handler::Deferral { message, after_ms })
        }
    }
}

impl GuestState {
    fn tasks(&mut self) -> wasmtime::Result<&mut SeatedTasks> {
        let together = self.together.as_deref_mut();
        together.ok_or_else(|| wasmtime::format_err!("`tasks` works only within `run` of concurrent-handler"))
    }

    /// Makes calls belong to a task of the instance, or to none.
    fn enter_task(&mut self, number: Option<u32>) -> wasmtime::Result<()> {
        let together = self.tasks()?;
        let before = together.entered();
        if before == number {
            return Ok(());
        }
        let next = match number {
            Some(number) => together.others.remove(&number),
            None => together.nobody.take(),
        };
        let Some(mut next) = next else {
            wasmtime::bail!("`tasks`: there is no task {}", number.unwrap_or_default())
        };
        if number.is_some() {
            together.others_bytes -= next.effects.bytes();
            together.strays = Some(0);
        }
        together.seats.enter(number);
        let memory = self.limits.turn_to(std::mem::take(&mut next.memory));
        let mut last = self.replace(next);
        last.memory = memory;
        let together = self.tasks()?;
        match before {
            Some(before) => {
                together.others_bytes += last.effects.bytes();
                together.others.insert(before, last);
            }
            None => together.nobody = Some(last),
        }
        Ok(())
    }

    /// Ends a task with the reply of the handler. None: the handler did not catch an exception.
    fn finish_task(&mut self, number: u32, reply: Option<Reply>) -> wasmtime::Result<()> {
        if let Some(computes) = self.tasks()?.entered().filter(|computes| *computes != number) {
            wasmtime::bail!("`tasks`: task {computes} computes, and cannot end task {number}");
        }
        self.enter_task(Some(number))?;
        if reply.is_none() {
            // The last line that it has printed tells why.
            self.log().finish();
        }
        let has_taken_most = self.has_taken_most();
        let refused = self.limits.take_refused();
        let peak = self.limits.peak();
        let (effects, outages) = self.attempt.effects.take();
        self.enter_task(None)?;
        let together = self.tasks()?;
        let (seats, max_output) = (together.seats.clone(), together.max_output);
        let Some(state) = together.others.remove(&number) else { return Ok(()) };
        seats.note_peak(peak);
        let log = state.log.lock();
        seats.ended(number, || match reply {
            Some(reply) => reply::ended(vec![reply], effects, &outages, max_output, log.mask()),
            None => {
                let (kind, message) = failure::uncaught(refused.as_deref(), &log);
                if refused.is_none() || has_taken_most {
                    Ended::Failed { kind, message }
                } else {
                    // Other tasks have taken the memory.
                    Ended::Disturbed { kind, message }
                }
            }
        });
        drop(log);
        if refused.is_some() || self.limits.is_nearly_full() {
            seats.spoil();
        }
        Ok(())
    }
}

/// Ready while there is an event for the guest.
struct TaskNews(Arc<InstanceSeats>);

#[async_trait]
impl Pollable for TaskNews {
    async fn ready(&mut self) {
        while !self.0.has_news() {
            self.0.news.notified().await;
        }
    }
}
