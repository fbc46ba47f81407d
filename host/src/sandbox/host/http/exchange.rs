//! One request and its response, on the runtime for requests.
//!
//! In: an admitted request. Out: its response, or an error. The body comes in pieces, as the guest reads it.
//!
//! Every wait ends: by the timeouts of the plugin's configuration, by shorter ones of the guest, or with the
//! attempt. At most three pieces of a body wait for the guest. A request keeps its places until its body is
//! read or dropped, or the attempt ends. A connection whose response was read to its end may serve another
//! request.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use wasmtime_wasi_http::p2::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::{Error, WasiBody};

use super::connect::{self, Refused};
use super::counts::CountedRequest;
use super::grant::Grant;
use super::kept::{HttpConnection, MAX_BUFFER};
use super::outgoing::Outgoing;
use super::refusals::Refusals;
use super::requests::RequestEnd;
use super::target::Target;
use crate::config;

pub(super) struct Exchange {
    pub(super) grant: Arc<Grant>,
    pub(super) target: Target,
    pub(super) request: Request<WasiBody>,
    pub(super) times: RequestTimes,
    /// The attempt's place for the request.
    pub(super) place: OwnedSemaphorePermit,
    pub(super) refusals: Refusals,
}

/// The longest waits of one request, and when it ends at the latest.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTimes {
    pub(super) connect: Duration,
    pub(super) first_byte: Duration,
    pub(super) between_bytes: Duration,
    pub(super) end: Instant,
}

type Answer = oneshot::Sender<Result<Response<WasiBody>, Error>>;

impl Exchange {
    /// Sends the request. Answers with its response or an error, and then passes the body on until it ends.
    pub(super) async fn run(self, answer: Answer, counted: &mut CountedRequest) {
        let Exchange { grant, target, request, times, place, refusals } = self;
        let until = connect::until(times.connect, times.end);
        // The semaphore is never closed.
        let Ok(Ok(open_place)) = timeout_at(until, grant.connections.clone().acquire_owned()).await else {
            refusals.tell(
                "a request",
                &format!("max_connections = {} of the plugin are open", grant.bounds.max_connections),
            );
            counted.ended(RequestEnd::Denied);
            let _ = answer.send(Err(Error::ConnectionLimitReached));
            return;
        };
        let opened = Box::pin(open(&grant, &target, request, times, until));
        let (response, connection) = match timeout_at(times.end, opened).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(Refused { error, log })) => {
                if let Some(why) = log {
                    refusals.tell(&format!("a request to {target}"), &why);
                }
                counted.ended(RequestEnd::of(&error));
                // This fails only if nobody waits for the answer.
                let _ = answer.send(Err(error));
                return;
            }
            Err(_) => {
                counted.ended(RequestEnd::Timeout);
                let _ = answer.send(Err(Error::HttpResponseTimeout));
                return;
            }
        };
        let (head, incoming) = response.into_parts();
        counted.answered(head.status);
        let most = grant.bounds.max_response_body;
        if let Some(size) = incoming.size_hint().exact().filter(|size| *size > most) {
            counted.ended(RequestEnd::Error);
            let _ = answer.send(Err(Error::HttpResponseBodySize(Some(size))));
            return;
        }
        let fields = head.headers.clone();
        let (pieces, received) = mpsc::channel(1);
        let body = Received { pieces: Some(received), _place: place };
        if answer.send(Ok(Response::from_parts(head, body.boxed_unsync()))).is_err() {
            return;
        }
        let passing = Box::pin(pass_on(incoming, &pieces, times.between_bytes, most));
        let ended = timeout_at(times.end, passing).await.unwrap_or(Err(Error::HttpResponseTimeout));
        counted.ended(ended.as_ref().map_or_else(RequestEnd::of, |_| RequestEnd::Ok));
        // The connection is kept or closed before the guest sees the end, and makes its next request.
        match ended {
            Ok(ReadTo::End) => grant.kept.put(target, connection, &fields).await,
            _ => connection.close().await,
        }
        let _ = pieces.send(ended.map(|_| None)).await;
        // Keep the plugin's place here and not in the response. The end of the attempt ends this future, but
        // a guest that is kept for another task may still hold the response.
        pieces.closed().await;
        drop(open_place);
    }
}

/// Sends on a kept connection or a new one, and waits for the head of the response.
async fn open(
    grant: &Arc<Grant>,
    target: &Target,
    request: Request<WasiBody>,
    times: RequestTimes,
    until: Instant,
) -> Result<(Response<Incoming>, HttpConnection), Refused> {
    let mut request = prepare(target, request, &grant.bounds)?;
    if let Some(mut kept) = grant.kept.take(target) {
        let sent = timeout(times.first_byte, kept.send(request)).await;
        match sent.map_err(|_| Error::ConnectionReadTimeout)? {
            Ok(response) => return Ok((response, kept)),
            // The server had closed the kept connection.
            Err(mut failed) => match failed.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(hyper_error(failed.error()).into()),
            },
        }
    }
    grant.kept.shorten(grant.connections.available_permits()).await;
    let stream = connect::connect(grant, target, until).await?;
    let new = HttpConnection::over(stream, &grant.runtime, grant.polls.clone()).await;
    let mut new = new.map_err(|error| hyper_error(&error))?;
    let sent = timeout(times.first_byte, new.send(request)).await;
    let response = sent.map_err(|_| Error::ConnectionReadTimeout)?;
    Ok((response.map_err(|failed| hyper_error(failed.error()))?, new))
}

/// Turns the guest's request into the one to send.
fn prepare(
    target: &Target,
    request: Request<WasiBody>,
    bounds: &config::Http,
) -> Result<Request<Outgoing>, Error> {
    let most = bounds.max_request_body;
    let (mut head, body) = request.into_parts();
    let size =
        head.headers.get(header::CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse::<u64>().ok());
    if let Some(size) = size.filter(|size| *size > most) {
        return Err(Error::HttpRequestBodySize(Some(size)));
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().map_err(|_| Error::HttpRequestUriInvalid)?;
    head.version = http::Version::HTTP_11;
    let authority = HeaderValue::try_from(target.authority()).map_err(|_| Error::HttpRequestUriInvalid)?;
    head.headers.insert(header::HOST, authority);
    head.headers.remove(header::CONNECTION);
    if bounds.keep_alive.is_zero() {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(Request::from_parts(head, Outgoing::new(body, most)))
}

/// How far a response was read.
enum ReadTo {
    End,
    /// The guest has dropped the rest.
    Part,
}

/// Reads the body and hands it on in pieces, each as soon as the guest has room for it. Data that arrives
/// meanwhile is joined into one piece: each piece wakes two threads, and a server may send single bytes.
async fn pass_on(
    mut incoming: Incoming,
    pieces: &mpsc::Sender<Piece>,
    between_bytes: Duration,
    most: u64,
) -> Result<ReadTo, Error> {
    let (mut size, mut piece) = (0_u64, BytesMut::new());
    let ended = loop {
        let frame = tokio::select! {
            biased;
            room = pieces.reserve(), if !piece.is_empty() => match room {
                Ok(room) => {
                    room.send(Ok(Some(Frame::data(piece.split().freeze()))));
                    continue;
                }
                // The guest has dropped the body.
                Err(_) => return Ok(ReadTo::Part),
            },
            frame = timeout(between_bytes, incoming.frame()), if piece.len() < MAX_BUFFER => match frame {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => break Err(hyper_error(&error)),
                Ok(None) => break Ok(ReadTo::End),
                Err(_) => break Err(Error::ConnectionReadTimeout),
            },
        };
        match frame.into_data() {
            Ok(data) => {
                size = size.saturating_add(data.len() as u64);
                if size > most {
                    break Err(Error::HttpResponseBodySize(Some(size)));
                }
                piece.extend_from_slice(&data);
            }
            // Trailers, which come last.
            Err(frame) => {
                let before = std::mem::take(&mut piece).freeze();
                let data = (!before.is_empty()).then(|| Frame::data(before));
                for frame in data.into_iter().chain([frame]) {
                    if pieces.send(Ok(Some(frame))).await.is_err() {
                        return Ok(ReadTo::Part);
                    }
                }
            }
        }
    };
    // The guest gets the data before the end, even if the end is an error.
    if !piece.is_empty() {
        let _ = pieces.send(Ok(Some(Frame::data(piece.freeze())))).await;
    }
    ended
}

/// A part of a body, or None for its end. A body without this end is not whole.
type Piece = Result<Option<Frame<Bytes>>, Error>;

/// The response's body, as the guest reads it.
struct Received {
    pieces: Option<mpsc::Receiver<Piece>>,
    /// The attempt's place for a request. It is free before a guest that has read or dropped the body can
    /// make its next request.
    _place: OwnedSemaphorePermit,
}

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let piece = ready!(pieces.poll_recv(cx));
        if !matches!(piece, Some(Ok(Some(_)))) {
            self.pieces = None;
        }
        Poll::Ready(match piece {
            Some(Ok(frame)) => frame.map(Ok),
            Some(Err(error)) => Some(Err(error)),
            None => Some(Err(Error::ConnectionTerminated)),
        })
    }
}

/// Turns an error of hyper into one that has a meaningful code for the guest.
fn hyper_error(error: &hyper::Error) -> Error {
    let cause = error.source();
    match cause.and_then(|cause| cause.downcast_ref::<Error>()) {
        Some(Error::HttpRequestBodySize(size)) => return Error::HttpRequestBodySize(*size),
        Some(_) => return Error::HttpProtocolError,
        None => {}
    }
    let is_cut = cause
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .is_some_and(|cause| cause.kind() == io::ErrorKind::UnexpectedEof);
    if error.is_parse_too_large() {
        Error::HttpResponseHeaderSectionSize(None)
    } else if error.is_parse() || error.is_user() {
        Error::HttpProtocolError
    } else if error.is_incomplete_message() || is_cut {
        Error::HttpResponseIncomplete
    } else {
        Error::ConnectionTerminated
    }
}

/// The code of wasi:http for an error that ends a response's body.
pub(super) fn body_error_code(error: &Error) -> Option<ErrorCode> {
    Some(match error {
        Error::HttpResponseBodySize(size) => ErrorCode::HttpResponseBodySize(*size),
        Error::HttpRequestBodySize(size) => ErrorCode::HttpRequestBodySize(*size),
        Error::HttpResponseTimeout => ErrorCode::HttpResponseTimeout,
        Error::HttpResponseIncomplete => ErrorCode::HttpResponseIncomplete,
        Error::HttpProtocolError => ErrorCode::HttpProtocolError,
        Error::ConnectionReadTimeout => ErrorCode::ConnectionReadTimeout,
        Error::ConnectionTerminated => ErrorCode::ConnectionTerminated,
        _ => return None,
    })
}
