//! `tqhost:extensions/tasks`: the tasks that an instance runs at the same time.
//!
//! Not here: their seats (`seats`), and their states (`seated`).

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::Resource;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::effect_bindings::tqhost::extensions::tasks::{Event, Host, NumberedTask};
use super::effect_bindings::tqhost::handler::types;
use crate::sandbox::attempt::{Ended, deadline_ms};
use crate::sandbox::failure;
use crate::sandbox::reply::{self, Reply, ReplyFailure};
use crate::sandbox::seated::SeatedTasks;
use crate::sandbox::seats::{InstanceSeats, SeatEvent};
use crate::sandbox::state::GuestState;

impl Host for GuestState {
    fn next(&mut self) -> wasmtime::Result<Option<Event>> {
        Ok(match self.next_event()? {
            Err(()) => Some(Event::Close),
            Ok(None) => None,
            Ok(Some((SeatEvent::Stop(number), _))) => Some(Event::Stop(number)),
            Ok(Some((SeatEvent::Start(number, seated), deadline))) => {
                let attempt = &seated.attempt;
                let deadline_ms = deadline_ms(deadline);
                let task = attempt.tasks.first().map(|task| types::Task {
                    id: task.id.clone(),
                    queue: task.queue.to_string(),
                    fields: task
                        .fields
                        .iter()
                        .map(|field| types::Field { name: field.name.clone(), value: field.value.clone() })
                        .collect(),
                    attempt: task.attempt,
                    max_attempts: attempt.max_attempts,
                    enqueued_at_ms: task.enqueued_at_ms,
                    deadline_ms,
                    traceparent: task.traceparent.clone(),
                });
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
        self.finish_task(number, Some(ended.map_err(told)))
    }

    fn fail(&mut self, number: u32) -> wasmtime::Result<()> {
        self.finish_task(number, None)
    }
}

fn told(failure: types::Failure) -> ReplyFailure {
    match failure {
        types::Failure::Retry(types::Retry { message, after_ms }) => {
            ReplyFailure::Retry { message, after_ms }
        }
        types::Failure::Reject(message) => ReplyFailure::Reject(message),
        types::Failure::Defer(types::Deferral { message, after_ms }) => {
            ReplyFailure::Defer { message, after_ms }
        }
    }
}

impl GuestState {
    fn tasks(&mut self) -> wasmtime::Result<&mut SeatedTasks> {
        let together = self.together.as_deref_mut();
        together.ok_or_else(|| wasmtime::format_err!("`tasks` works only within `run` of concurrent-handler"))
    }

    /// The next event for the guest, and the deadline of a task that starts. `Err`: all tasks have ended.
    fn next_event(&mut self) -> wasmtime::Result<Result<Option<(SeatEvent, Instant)>, ()>> {
        let together = self.tasks()?;
        together.strays.get_or_insert_default();
        Ok(match together.seats.next() {
            Ok(Some(event)) => {
                let deadline = match &event {
                    SeatEvent::Start(number, seated) => together.take(*number, seated),
                    SeatEvent::Stop(number) => {
                        let number = *number;
                        if together.entered() == Some(number) {
                            self.enter_task(None)?;
                        }
                        self.tasks()?.refuse(number);
                        Instant::now()
                    }
                };
                Ok(Some((event, deadline)))
            }
            Ok(None) => Ok(None),
            Err(()) => Err(()),
        })
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
        together.others_bytes -= if number.is_some() { next.effects.bytes() } else { 0 };
        if number.is_some() {
            together.strays = Some(0);
        }
        together.seats.enter(number);
        let seen = self.limits.turn_to(std::mem::take(&mut next.seen));
        let mut last = self.replace(next);
        last.seen = seen;
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

    /// Ends a task with what the handler returned. None: with an exception that nobody caught.
    fn finish_task(&mut self, number: u32, reply: Option<Reply>) -> wasmtime::Result<()> {
        let is_exception = reply.is_none();
        if let Some(computes) = self.tasks()?.entered().filter(|computes| *computes != number) {
            wasmtime::bail!("`tasks`: task {computes} computes, and cannot end task {number}");
        }
        self.enter_task(Some(number))?;
        if is_exception {
            // Its last line tells why.
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
                    // Others have taken the memory.
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
