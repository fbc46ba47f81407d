//! Holds the parts of the host that the endpoints act on, and the limits on requests.
//!
//! In: the parts of the host that the API needs. Out: the queues of the configuration as it is now, on a
//! connection to Redis that answers. Not here: the endpoints, and who may ask (`guard`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::tokens::Tokens;
use crate::config::QueueRules;
use crate::jobs::JobBell;
use crate::mask::FieldMask;
use crate::operations::find_queue;
use crate::plugins::Plugins;
use crate::queue::{Link, Queue};
use crate::reload::ConfigReloads;
use crate::telemetry::Traces;

/// The most bytes of a request's body.
pub(super) const MAX_BODY: usize = 4 << 20;
/// The most requests that are answered at once, streams aside.
const AT_ONCE: usize = 16;
/// The most streams of events at once. They take connections, of which the listener has 64.
const STREAMS: usize = 24;
/// In a stream a comment goes out this often: the listener closes connections to which nothing is written.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a request waits for a first sign of Redis.
const REDIS_ANSWERS: Duration = Duration::from_secs(2);

/// The parts of the host that the endpoints act on. Clones share them.
#[derive(Clone)]
pub(crate) struct Api(pub(super) Arc<ApiParts>);

pub(crate) struct ApiParts {
    /// The queues of the configuration as it is now.
    pub reloads: ConfigReloads,
    /// Lets this host carry out jobs.
    pub jobs: JobBell,
    /// A connection that nothing else uses.
    pub link: Link,
    /// The plugins of this host.
    pub plugins: Plugins,
    pub tokens: Tokens,
    /// The fields whose values are hidden.
    pub mask: FieldMask,
    /// The address of the listener.
    pub listen: SocketAddr,
    /// Ends the streams.
    pub stop: CancellationToken,
    pub limits: ApiLimits,
    /// The spans of tasks that are enqueued.
    pub traces: Traces,
}

/// How many requests are answered at once.
pub(crate) struct ApiLimits {
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits { requests: Arc::new(Semaphore::new(AT_ONCE)), streams: Arc::new(Semaphore::new(STREAMS)) }
    }
}

impl Api {
    pub(crate) fn new(parts: ApiParts) -> Api {
        Api(Arc::new(parts))
    }

    pub(crate) fn queues(&self) -> Arc<[QueueRules]> {
        self.0.reloads.queues()
    }

    pub(crate) fn parts(&self) -> &ApiParts {
        &self.0
    }

    pub(crate) fn mask(&self) -> &FieldMask {
        &self.0.mask
    }

    /// A place among the requests that are answered at once.
    pub(crate) fn place(&self) -> Result<SemaphorePermit<'_>, ApiProblem> {
        self.0.limits.requests.try_acquire().map_err(|_| busy())
    }

    /// Waits for a place among the requests. Only the looks of streams wait, and they are few.
    pub(crate) async fn place_in_line(&self) -> Result<SemaphorePermit<'_>, ApiProblem> {
        self.0.limits.requests.acquire().await.map_err(|_| busy())
    }

    /// A place among the streams.
    pub(crate) fn stream_place(&self) -> Result<OwnedSemaphorePermit, ApiProblem> {
        self.0.limits.streams.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("{STREAMS} streams of events are open at present, which is the most");
            ApiProblem::new(ProblemCode::Busy, detail)
        })
    }

    /// Streams events until they end, or the host stops.
    pub(crate) fn streamed(
        &self,
        place: OwnedSemaphorePermit,
        events: impl Stream<Item = Event> + Send + 'static,
    ) -> Response {
        // The place is free again when the stream is dropped.
        let events = events.map(move |event| {
            let _held = &place;
            Ok::<Event, Infallible>(event)
        });
        let events = events.take_until(self.0.stop.clone().cancelled_owned());
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }

    /// The connection to Redis, which answers at present.
    pub(crate) async fn link(&self) -> Result<&Link, ApiProblem> {
        match tokio::time::timeout(REDIS_ANSWERS, self.0.link.ping()).await {
            Ok(Ok(())) => Ok(&self.0.link),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let why = format!("Redis at {} does not answer", self.0.link.address());
                Err(ApiProblem::new(ProblemCode::RedisUnavailable, why))
            }
        }
    }

    /// The queue `name`, if it is configured, and Redis answers.
    pub(crate) async fn queue(&self, name: &str) -> Result<Queue, ApiProblem> {
        let queue = find_queue(&self.queues(), name, &self.0.link)?;
        self.link().await?;
        Ok(queue)
    }
}

fn busy() -> ApiProblem {
    let detail = format!("{AT_ONCE} requests are being answered at present, which is the most");
    ApiProblem::new(ProblemCode::Busy, detail)
}
