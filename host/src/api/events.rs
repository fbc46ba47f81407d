//! Endpoints: streams of events (SSE) of a task, a queue and the host.
//!
//! In: the event that the client had last (`Last-Event-ID`). Out: what came after it, as long as the client
//! listens. A stream ends with the host, and that of a task with the task. It looks at Redis again and again,
//! as Redis announces nothing.
//!
//! Not here: what Redis keeps (`queue::events`). Where it may keep no more what a client has missed, the
//! stream says so with the event `gap`: at its beginning, and whenever it was read too slowly.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

use super::extract::{ApiAnswer, ApiCall};
use super::state::Api;
use crate::admin::problem::{ApiProblem, invalid};
use crate::clock::now_ms;
use crate::mask::FieldMask;
use crate::operations::{OperationError, TaskView, changes, unknown_task};
use crate::plugins::Change;
use crate::queue::codec::entry_time_ms;
use crate::queue::events::{EventPlace, EventsAfter, TaskEvent};
use crate::queue::{Meant, Queue, TaskStatus};
use crate::secrets::hex;

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(300);
/// The longest time between two looks at a task that does not change.
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// Entries of one queue in one look. Tasks that were settled together share one, up to 20 in each.
const ENTRIES: usize = 50;
/// Events in one look: of one queue for its own stream, or of all queues together for the host's.
const MOST: usize = 1_000;
/// The host's stream takes at least this much of each queue in one look.
const LEAST_OF_EACH: usize = 20;
const LEAST_ENTRIES: usize = 10;
/// The most events of a stream in a second. A client that reads as quickly as it can takes little of
/// the time that a busy queue needs.
const RATE: f64 = 5_000.0;
/// The shortest time between two looks at all queues.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A client of the host's stream gets the events of this time before its last event again. So the id of an
/// event may be later by this time than the moment up to which all queues were read.
const OVERLAP_MS: u64 = 1_000;
/// Queues that are looked at at once.
const QUEUES_AT_ONCE: usize = 32;

/// An event of a stream, which has a line for each of these.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what `Event` writes")]
struct StreamedEvent {
    /// `task`, `plugin`, `change` or `gap`
    event: String,
    /// For `Last-Event-ID`.
    id: Option<String>,
    /// JSON.
    data: String,
}

/// The changes of a task, until it has ended
///
/// Each event `task` has the task as `GET …/tasks/{id}` shows it, without relatives and attempts. A client
/// that had the end already gets 204, at which browsers stop asking.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/tasks/{id}/events",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("id" = String, Path, description = "the task's id, or the name that the queue's `id` gives to it"),
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event"),
    ),
    responses(
        (status = 200, description = "events", body = StreamedEvent, content_type = "text/event-stream"),
        (status = 204, description = "the task has ended, and the client knows it"),
    )
)]
pub(super) async fn task_events(
    ApiCall { api, path: (name, id), .. }: ApiCall<(String, String)>,
    headers: HeaderMap,
) -> ApiAnswer {
    let (permit, known) = (api.stream_place()?, last_event_id(&headers)?);
    let queue = api.queue(&name).await?;
    let unknown = || OperationError::UnknownTask(unknown_task(&queue.rules, &id));
    let id = queue.find(&id, Meant::Newest).await?.ok_or_else(unknown)?;
    let now = queue.status(&id).await?.ok_or_else(unknown)?;
    let mask = api.mask().clone();
    let (_, mark) = task_event(&queue, &now, &mask);
    if known.as_ref() == Some(&mark) && now.summary.status.is_end() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let tail = TaskTail { queue, id, mask, known, pause: Duration::ZERO, is_over: false };
    Ok(events(&api, permit, tail))
}

/// The ends and moves of a queue's tasks, where the queue keeps `events`
///
/// Without `Last-Event-ID` the stream begins with what happens from now on.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/events",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event"),
    ),
    responses(
        (status = 200, description = "events", body = StreamedEvent, content_type = "text/event-stream"),
    )
)]
pub(super) async fn queue_events(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    headers: HeaderMap,
) -> ApiAnswer {
    let (permit, known) = (api.stream_place()?, last_event_id(&headers)?);
    let queue = api.queue(&name).await?;
    if queue.rules.events == 0 {
        return Err(OperationError::NoEvents(name).into());
    }
    let mut first = VecDeque::new();
    let after = match known {
        None => queue.last_event().await?,
        Some(known) => {
            let known = EventPlace::parse(&known).ok_or_else(|| not_ours(&known))?;
            if !queue.has_event(&known).await? {
                first.push_back(gap().data("{}"));
            }
            known
        }
    };
    let is_told = !first.is_empty();
    Ok(events(&api, permit, QueueTail { queue, after, is_told, ready: first, pause: Duration::ZERO }))
}

/// The events of all queues that keep some, of the plugins of this host, and the changes of operators
///
/// The id of an event is a time behind which a client can go on: its own, or an earlier one, as long as a
/// queue was not read as far. After `Last-Event-ID` the stream repeats the second before it. `gap` names the
/// queue of which events may be lost.
#[utoipa::path(
    get, path = "/v1/events",
    params(("Last-Event-ID" = Option<String>, Header, description = "the id of the last event")),
    responses(
        (status = 200, description = "events", body = StreamedEvent, content_type = "text/event-stream"),
    )
)]
pub(super) async fn host_events(State(api): State<Api>, headers: HeaderMap) -> ApiAnswer {
    let (permit, known) = (api.stream_place()?, last_event_id(&headers)?);
    let since = match known {
        None => None,
        Some(known) => Some(known.parse::<u64>().map_err(|_| not_ours(&known))?.saturating_sub(OVERLAP_MS)),
    };
    let link = api.link().await?;
    let read_to = match since {
        Some(since) => since,
        None => link.now_ms().await?,
    };
    let tail = HostTail {
        api: api.clone(),
        read_to,
        places: HashMap::new(),
        plugins_since: since.unwrap_or_else(now_ms),
        change: format!("{read_to}-0"),
        ready: VecDeque::new(),
        pause: Duration::ZERO,
    };
    Ok(events(&api, permit, tail))
}

/// A source of events.
trait Tail: Send + 'static {
    /// The next event; none at the end.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
}

fn events(api: &Api, permit: OwnedSemaphorePermit, tail: impl Tail) -> Response {
    api.streamed(permit, stream::unfold(tail, async |mut tail| Some((tail.next().await?, tail))))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, ApiProblem> {
    let id = headers.get("last-event-id").map(|id| id.to_str().map(str::to_owned));
    id.transpose().map_err(|_| not_ours("…")).map(|id| id.filter(|id| !id.is_empty()))
}

fn not_ours(id: &str) -> ApiProblem {
    invalid(format!("Last-Event-ID: {id:?} is not the id of an event of this stream"))
}

/// An event that says that others may be missing here. Clients ignore it until it has data.
fn gap() -> Event {
    Event::default().event("gap")
}

/// The changes of one task.
struct TaskTail {
    queue: Queue,
    id: String,
    mask: FieldMask,
    /// The id of the event that the client had last.
    known: Option<String>,
    pause: Duration,
    is_over: bool,
}

/// The event with what is known of a task, and its id.
fn task_event(queue: &Queue, task: &TaskStatus, mask: &FieldMask) -> (Event, String) {
    let view = TaskView::new(&queue.rules.name, task).masked(mask);
    let json = serde_json::to_string(&view).unwrap_or_default();
    let mark = hex(&Sha256::digest(&json)[..8]);
    (Event::default().event("task").id(&mark).data(json), mark)
}

impl Tail for TaskTail {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.is_over {
                return None;
            }
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 3 / 2).clamp(LOOK, SLOW_LOOK);
            match self.queue.status(&self.id).await {
                Ok(Some(task)) => {
                    self.is_over = task.summary.status.is_end();
                    let (event, mark) = task_event(&self.queue, &task, &self.mask);
                    if self.known.as_ref() != Some(&mark) {
                        (self.known, self.pause) = (Some(mark), LOOK);
                        return Some(event);
                    }
                }
                // The task ended, and nothing of it is kept.
                Ok(None) => return None,
                // The client learns it when Redis is back.
                Err(_) => self.pause = SLOW_LOOK,
            }
        }
    }
}

/// The events of one queue.
struct QueueTail {
    queue: Queue,
    after: EventPlace,
    /// Whether the client knows that events behind this place may be lost.
    is_told: bool,
    ready: VecDeque<Event>,
    pause: Duration,
}

fn view(queue: &Queue, event: &TaskEvent) -> String {
    let TaskEvent { place, id, status, attempt, due_at } = event;
    // When it happened, by Redis's clock.
    let (queue, at) = (&queue.rules.name, entry_time_ms(&place.entry));
    let view = json!({
        "queue": queue, "id": id, "status": status, "attempt": attempt, "due_at": due_at, "at": at,
    });
    view.to_string()
}

impl Tail for QueueTail {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            tokio::time::sleep(self.pause).await;
            self.pause = LOOK;
            let asked = self.queue.events_after(&self.after, ENTRIES, MOST).await;
            let Ok(EventsAfter { events: found, last, is_all, is_behind_gap }) = asked else { continue };
            if !is_all {
                self.pause = time_for(found.len());
            }
            if is_behind_gap && !self.is_told {
                self.ready.push_back(gap().data("{}"));
            }
            self.is_told &= found.is_empty();
            self.after = last;
            let event = |found: &TaskEvent| {
                Event::default().event("task").id(found.place.to_string()).data(view(&self.queue, found))
            };
            self.ready.extend(found.iter().map(event));
        }
    }
}

/// How long a stream waits after this number of events, to keep to [`RATE`].
fn time_for(events: usize) -> Duration {
    Duration::from_secs_f64(events as f64 / RATE)
}

/// The events of all queues, and of the plugins.
struct HostTail {
    api: Api,
    /// The time up to which all queues were read, by Redis's clock. At first it is the time from which the
    /// client wants events.
    read_to: u64,
    /// The place of the last event of each queue.
    places: HashMap<String, EventPlace>,
    plugins_since: u64,
    /// The last entry of the log of changes that was told.
    change: String,
    ready: VecDeque<Event>,
    pause: Duration,
}

impl HostTail {
    async fn look(&mut self) {
        let read = self.read_queues().await;
        // The ids of events end at the time up to which all queues were read, with its overlap. A client goes
        // on from the id of its last event, and with a later id it would miss events of the other queues.
        let latest = self.read_to.saturating_add(OVERLAP_MS);
        let event = |at: u64, kind: &str, data: String| {
            (at, Event::default().event(kind).id(at.min(latest).to_string()).data(data))
        };
        let mut found: Vec<(u64, Event)> = Vec::new();
        let mut soonest = LOOK;
        for (queue, EventsAfter { events, last, is_all, is_behind_gap }) in read {
            if !is_all {
                soonest = LOOK_AGAIN;
            }
            if let (true, Some(first)) = (is_behind_gap, events.first()) {
                let data = json!({ "queue": queue.rules.name }).to_string();
                found.push((entry_time_ms(&first.place.entry), gap().data(data)));
            }
            let of_task =
                |found: &TaskEvent| event(entry_time_ms(&found.place.entry), "task", view(&queue, found));
            found.extend(events.iter().map(of_task));
            self.places.insert(queue.rules.name.clone(), last);
        }
        self.pause = time_for(found.len()).max(soonest);
        let plugins_since = self.plugins_since;
        for plugin in self.api.0.plugins.status() {
            let new = plugin.history.iter().filter(|change| change.at_ms > plugins_since);
            for Change { at_ms, what, digest, reason, .. } in new {
                self.plugins_since = self.plugins_since.max(*at_ms);
                let label = digest.as_ref().and_then(|digest| plugin.builds.of(digest)?.label.as_ref());
                let view = json!({
                    "plugin": plugin.name, "what": what.into_str(), "version": digest, "label": label,
                    "reason": reason, "at": at_ms,
                });
                found.push(event(*at_ms, "plugin", view.to_string()));
            }
        }
        for (entry, change) in changes::after(&self.api.0.link, &self.change).await.unwrap_or_default() {
            found.push(event(change.at, "change", serde_json::to_string(&change).unwrap_or_default()));
            self.change = entry;
        }
        found.sort_by_key(|(at, _)| *at);
        self.ready.extend(found.into_iter().map(|(_, event)| event));
    }

    /// Reads the queues that keep events, and notes up to which time all of them were read. A queue that does
    /// not answer is left out.
    async fn read_queues(&mut self) -> Vec<(Queue, EventsAfter)> {
        let queues = self.api.queues();
        let watched = queues.iter().filter(|rules| rules.events > 0);
        let watched: Vec<(Queue, EventPlace)> = watched
            .map(|rules| {
                let place = self.places.get(&rules.name).cloned();
                let after = place.unwrap_or_else(|| EventPlace::before_ms(self.read_to));
                (Queue::new(rules.clone(), self.api.0.link.clone()), after)
            })
            .collect();
        // All of them together give about as many events as the stream of one queue.
        let most = (MOST / watched.len().max(1)).max(LEAST_OF_EACH);
        let entries = most.div_ceil(MOST / ENTRIES).max(LEAST_ENTRIES);
        let before = self.read_to;
        // A queue whose events are all read is read up to this moment at least.
        let begun = self.api.0.link.now_ms().await.unwrap_or(before);
        let looks = watched.into_iter().map(|(queue, after)| async move {
            let found = queue.events_after(&after, entries, most).await.ok();
            (queue, found)
        });
        let looks: Vec<_> = stream::iter(looks).buffered(QUEUES_AT_ONCE).collect().await;
        let read_to = looks.iter().map(|(_, found)| match found {
            Some(found) if found.is_all => begun,
            Some(found) => entry_time_ms(&found.last.entry),
            None => before,
        });
        self.read_to = read_to.min().unwrap_or(begun);
        looks.into_iter().filter_map(|(queue, found)| Some((queue, found?))).collect()
    }
}

impl Tail for HostTail {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            tokio::time::sleep(self.pause).await;
            self.look().await;
        }
    }
}
