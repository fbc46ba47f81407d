//! `wasi:http/outgoing-handler`: requests to the hosts that the plugin's configuration allows.
//!
//! In: a request of a guest. Out: its response, or an error code of wasi:http. The log has one line for each
//! refused request. Redirects are not followed: a guest that follows one makes another request, which is
//! checked like the first.
//!
//! ```text
//! handle ─▶ Hooks::admit (allowed_hosts, counts) ─▶ exchange, on the runtime for requests
//!              ─▶ connect (addresses, TLS), or a kept connection ─▶ response
//! ```
//!
//! Not here: what an entry of allowed_hosts allows (`config::allowed`), linking the interface (`link`).

mod address;
mod connect;
mod counts;
mod exchange;
mod grant;
mod kept;
pub(super) mod link;
mod outgoing;
mod refusals;
pub(in crate::sandbox) mod requests;
mod target;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use wasmtime_wasi_http::p2::types::{HostIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{Error, FieldMap, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpHooks};

use crate::sandbox::log::Subject;
use crate::sandbox::waits::GuestWaits;
use crate::telemetry::RequestTrace;

use counts::CountedRequest;
pub(in crate::sandbox) use grant::Grant;
use refusals::Refusals;
use requests::RequestEnd;
use target::Target;

/// Bytes of the header fields of one message. They are in the host's memory, and each handle of a guest may
/// stand for such fields.
const MAX_FIELDS: usize = 16 * 1024;
/// Bytes of one chunk of a request's body; two chunks may wait to be sent. The default of a megabyte would be
/// too much, since a guest may hold many requests.
const BODY_CHUNK: usize = 16 * 1024;
/// The time from the attempt's deadline until its requests end by themselves. The end of the attempt stops
/// them before that, so the guest gets no error in its last moment.
const AFTER_ATTEMPT: Duration = Duration::from_secs(1);

/// Bytes that a header field takes in a map, beside its name and value.
const FIELD: usize = 160;

/// Bytes of the host that a handle stands for. They do not include unread responses, which `max_concurrent`
/// bounds.
pub(in crate::sandbox) fn weight(handle: &dyn Any) -> u64 {
    let fields = |fields: &FieldMap| {
        fields.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum::<usize>()
    };
    let bytes = if let Some(map) = handle.downcast_ref::<FieldMap>() {
        fields(map)
    } else if let Some(request) = handle.downcast_ref::<HostOutgoingRequest>() {
        let texts =
            [&request.authority, &request.path_with_query].map(|text| text.as_ref().map_or(0, String::len));
        let body = if request.body.is_some() { 2 * BODY_CHUNK } else { 0 };
        fields(&request.headers) + texts.iter().sum::<usize>() + body
    } else if let Some(response) = handle.downcast_ref::<HostIncomingResponse>() {
        fields(&response.headers)
    } else {
        0
    };
    bytes as u64
}

/// The client of one attempt. Its requests end when it is dropped.
pub(in crate::sandbox) struct Client {
    hooks: Hooks,
    ctx: WasiHttpCtx,
}

struct Hooks {
    grant: Arc<Grant>,
    requests: u32,
    /// Free places for requests.
    places: Arc<Semaphore>,
    refusals: Refusals,
    trace: RequestTrace,
    waits: Arc<GuestWaits>,
    /// The time when the attempt's requests end, if nothing has stopped them before.
    latest: Instant,
    stop: CancellationToken,
    _stops: DropGuard,
    /// Whether the requests belong to a task. In an instance that runs several tasks, a call may belong to
    /// none.
    has_task: bool,
}

impl Client {
    pub(in crate::sandbox) fn new(
        grant: Arc<Grant>,
        subject: Option<Subject>,
        deadline: std::time::Instant,
        trace: RequestTrace,
        waits: Arc<GuestWaits>,
        over: CancellationToken,
        has_task: bool,
    ) -> Client {
        let (stop, mut ctx) = (over.child_token(), WasiHttpCtx::new());
        ctx.set_field_size_limit(MAX_FIELDS);
        let hooks = Hooks {
            requests: 0,
            places: Arc::new(Semaphore::new(grant.bounds.max_concurrent as usize)),
            refusals: Refusals { subject, seen: Arc::default() },
            trace,
            waits,
            latest: Instant::from(deadline) + AFTER_ATTEMPT,
            _stops: stop.clone().drop_guard(),
            stop,
            has_task,
            grant,
        };
        Client { hooks, ctx }
    }

    pub(in crate::sandbox) fn parts(&mut self) -> (&mut dyn WasiHttpHooks, &mut WasiHttpCtx) {
        (&mut self.hooks, &mut self.ctx)
    }
}

impl Hooks {
    /// Checks a request as far as possible before the name lookup.
    fn admit(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
    ) -> Result<exchange::Exchange, Error> {
        let bounds = &self.grant.bounds;
        if !self.has_task {
            self.refusals.tell("a request", "it belongs to no task");
            return Err(Error::HttpRequestDenied);
        }
        let Some(target) = Target::of(request.uri()) else {
            self.refusals.tell("a request", "its url has no valid host, or a user name in it");
            return Err(Error::HttpRequestUriInvalid);
        };
        if self.grant.entries(&target).next().is_none() {
            self.refusals.tell(&format!("a request to {target}"), "allowed_hosts does not allow it");
            return Err(Error::HttpRequestDenied);
        }
        if self.requests >= bounds.max_requests {
            self.refusals.tell(
                "a request",
                &format!("the attempt has made max_requests = {} already", bounds.max_requests),
            );
            return Err(Error::HttpRequestDenied);
        }
        self.requests += 1;
        // CONNECT would open a tunnel to another host.
        if request.method() == http::Method::CONNECT {
            return Err(Error::HttpRequestMethodInvalid);
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.refusals.tell(
                "a request",
                &format!("max_concurrent = {} requests of the attempt are open", bounds.max_concurrent),
            );
            return Err(Error::ConnectionLimitReached);
        };
        let asked = options.unwrap_or_default();
        let bounded = |asked: Option<Duration>, most: Duration| asked.map_or(most, |asked| asked.min(most));
        let times = exchange::RequestTimes {
            connect: bounded(asked.connect_timeout, bounds.connect_timeout),
            first_byte: bounded(asked.first_byte_timeout, bounds.first_byte_timeout),
            between_bytes: bounded(asked.between_bytes_timeout, bounds.between_bytes_timeout),
            end: bounds.timeout.map_or(self.latest, |timeout| connect::until(timeout, self.latest)),
        };
        let (grant, refusals) = (self.grant.clone(), self.refusals.clone());
        Ok(exchange::Exchange { grant, target, request, times, place, refusals })
    }
}

/// The end of a request, after its response.
type RequestDone = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for Hooks {
    /// `exchange` sets the header from the checked target, not from the guest's text.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_CHUNK
    }

    fn send_request(
        &mut self,
        mut request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: RequestDone,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, RequestDone), Error>> + Send> {
        let mut counted =
            CountedRequest::new(self.grant.owner.share().clone(), self.trace.begin(&mut request));
        let open = self.waits.request(&request);
        let exchange = match self.admit(request, options) {
            Ok(exchange) => exchange,
            Err(error) => {
                counted.ended(RequestEnd::of(&error));
                return Box::new(std::future::ready(Err(error)));
            }
        };
        let (answer, response) = oneshot::channel();
        let stop = self.stop.clone();
        let running = async move {
            let _open = open;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = exchange.run(answer, &mut counted) => {}
            }
        };
        // The request stops when the attempt ends, or when the guest drops its handle.
        let running = self.grant.runtime.spawn(self.grant.polls.clone().run(running));
        let running = AbortOnDropHandle::new(running);
        Box::new(async move {
            let response = response.await.unwrap_or(Err(Error::ConnectionTerminated))?;
            let done: RequestDone = Box::new(running.map(|_| Ok(())));
            Ok((response, done))
        })
    }
}
