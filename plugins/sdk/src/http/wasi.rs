//! Sends a request through `wasi:http`.
//!
//! In: a request and the parts of its url. Out: its response. One timer limits every wait, so the whole
//! request ends in time. Whatever is still open then is dropped, and the host closes it.

use std::time::Duration;

use bindings::wasi::clocks::monotonic_clock::subscribe_duration;
use bindings::wasi::http::outgoing_handler::handle;
use bindings::wasi::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingResponse, Method as WasiMethod, OutgoingBody,
    OutgoingRequest, Scheme, http_error_code,
};
use bindings::wasi::io::poll::{Pollable, poll};
use bindings::wasi::io::streams::StreamError;

use super::{Error, Method, Request, Response, Target, time_left};

mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit", "wit"],
        world: "tqhost:sdk/http-client",
        generate_all,
    });
}

/// The most bytes that one call reads.
const PIECE: u64 = 64 * 1024;

pub(super) fn send(request: &Request, target: &Target<'_>) -> Result<Response, Error> {
    let left = time_left();
    let timer = Timer::start(request.timeout.map_or(left, |timeout| timeout.min(left)));
    let message = message(request, target)?;
    let body = if request.body.is_empty() { None } else { Some(message.body().map_err(|()| refused())?) };
    let sent = handle(message, None).map_err(|code| unanswered(&code, target))?;
    // The server may stop reading the body. Then its response, or the error instead of a response, has the
    // reason, so only a timeout ends the request here.
    if let Some(Err(Error::Timeout)) = body.map(|body| write(body, &request.body, &timer)) {
        return Err(Error::Timeout);
    }
    read(&head(sent, &timer, target)?, request.max_response, &timer, target)
}

/// Asks the host with the method CONNECT. The host never sends that, and refuses it for its method only if
/// the url is allowed.
pub(super) fn is_granted(target: &Target<'_>) -> Result<(), Error> {
    let message = addressed(Fields::new(), &WasiMethod::Connect, target)?;
    let code = match handle(message, None) {
        Err(code) => code,
        Ok(sent) => {
            // The refusal is there at once.
            poll(&[&sent.subscribe()]);
            match sent.get().and_then(Result::ok) {
                Some(Err(code)) => code,
                _ => return Ok(()),
            }
        }
    };
    if matches!(code, ErrorCode::HttpRequestMethodInvalid) { Ok(()) } else { Err(error(&code, target)) }
}

struct Timer(Pollable);

impl Timer {
    fn start(duration: Duration) -> Timer {
        Timer(subscribe_duration(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn wait(&self, event: &Pollable) -> Result<(), Error> {
        // If both are ready, the event is in time.
        if poll(&[event, &self.0]).contains(&0) { Ok(()) } else { Err(Error::Timeout) }
    }
}

fn message(request: &Request, target: &Target<'_>) -> Result<OutgoingRequest, Error> {
    let fields = Fields::new();
    let size = ("content-length".to_owned(), request.body.len().to_string());
    for (name, value) in request.headers.iter().chain((request.method == Method::Post).then_some(&size)) {
        // The error names only the header, because its value may be a secret.
        fields
            .append(name, value.as_bytes())
            .map_err(|_| Error::Invalid(format!("the header `{name}` cannot be sent")))?;
    }
    let method = match request.method {
        Method::Get => WasiMethod::Get,
        Method::Post => WasiMethod::Post,
    };
    addressed(fields, &method, target)
}

fn addressed(fields: Fields, method: &WasiMethod, target: &Target<'_>) -> Result<OutgoingRequest, Error> {
    let message = OutgoingRequest::new(fields);
    let scheme = if target.tls { Scheme::Https } else { Scheme::Http };
    let set = message.set_method(method);
    let set = set.and_then(|()| message.set_scheme(Some(&scheme)));
    let set = set.and_then(|()| message.set_authority(Some(target.authority)));
    set.and_then(|()| message.set_path_with_query(Some(&target.path))).map_err(|()| refused())?;
    Ok(message)
}

fn refused() -> Error {
    Error::Invalid("the url has characters that it cannot have".into())
}

fn write(body: OutgoingBody, bytes: &[u8], timer: &Timer) -> Result<(), Error> {
    let ended = || Error::Network("the request could not be sent".into());
    let stream = body.write().map_err(|()| ended())?;
    let mut left = bytes;
    while !left.is_empty() {
        let room = stream.check_write().map_err(|_| ended())?;
        if room == 0 {
            timer.wait(&stream.subscribe())?;
            continue;
        }
        let (piece, rest) = left.split_at(left.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        stream.write(piece).map_err(|_| ended())?;
        left = rest;
    }
    drop(stream);
    OutgoingBody::finish(body, None).map_err(|_| ended())
}

fn head(sent: FutureIncomingResponse, timer: &Timer, target: &Target<'_>) -> Result<IncomingResponse, Error> {
    timer.wait(&sent.subscribe())?;
    // The response is ready, and nothing else has taken it.
    let response = sent.get().and_then(Result::ok).ok_or_else(|| Error::Network("no response".into()))?;
    response.map_err(|code| unanswered(&code, target))
}

fn read(
    response: &IncomingResponse,
    most: usize,
    timer: &Timer,
    target: &Target<'_>,
) -> Result<Response, Error> {
    let headers = response.headers().entries();
    let headers = headers
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase(), String::from_utf8(value).ok()?)))
        .collect();
    let body = response.consume().map_err(|()| Error::Network("no body".into()))?;
    let stream = body.stream().map_err(|()| Error::Network("no body".into()))?;
    let mut bytes = Vec::new();
    loop {
        timer.wait(&stream.subscribe())?;
        match stream.read(PIECE) {
            Ok(piece) if bytes.len() + piece.len() > most => {
                return Err(Error::TooLarge(format!("the response is larger than {most} bytes")));
            }
            Ok(piece) => bytes.extend(piece),
            Err(StreamError::Closed) => {
                return Ok(Response { status: response.status(), headers, body: bytes });
            }
            Err(StreamError::LastOperationFailed(failed)) => {
                let code = http_error_code(&failed);
                return Err(code.map_or_else(
                    || Error::Network("the response ended too early".into()),
                    |code| error(&code, target),
                ));
            }
        }
    }
}

/// The error of a request to which no answer began.
fn unanswered(code: &ErrorCode, target: &Target<'_>) -> Error {
    match (code, error(code, target)) {
        (ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete, Error::Network(why)) => {
            Error::Unreachable(why)
        }
        (_, error) => error,
    }
}

fn error(code: &ErrorCode, target: &Target<'_>) -> Error {
    let name = target.authority;
    match code {
        ErrorCode::HttpRequestDenied => Error::Denied(format!(
            "the request to {name} is refused: the plugin's allowed_hosts do not allow it, \
             or max_requests were made"
        )),
        ErrorCode::DestinationIpProhibited => {
            Error::Denied(format!("the request to {name} is refused: its address is not public"))
        }
        ErrorCode::HttpRequestUriInvalid | ErrorCode::HttpRequestMethodInvalid => refused(),
        ErrorCode::HttpResponseTimeout
        | ErrorCode::ConnectionReadTimeout
        | ErrorCode::ConnectionWriteTimeout => Error::Timeout,
        ErrorCode::HttpRequestBodySize(_) => {
            Error::TooLarge("the request is larger than the plugin's max_request_body".into())
        }
        ErrorCode::HttpResponseBodySize(_) => {
            Error::TooLarge("the response is larger than the plugin's max_response_body".into())
        }
        ErrorCode::DnsError(_) | ErrorCode::DnsTimeout => {
            Error::Unreachable(format!("{name} could not be looked up"))
        }
        ErrorCode::ConnectionRefused => Error::Unreachable(format!("{name} refuses connections")),
        ErrorCode::ConnectionTimeout => Error::Unreachable(format!("{name} could not be reached in time")),
        ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => {
            Error::Network(format!("{name} ended the connection too early"))
        }
        ErrorCode::TlsCertificateError => {
            Error::Unreachable(format!("the certificate of {name} is not trusted"))
        }
        ErrorCode::DestinationNotFound
        | ErrorCode::DestinationUnavailable
        | ErrorCode::DestinationIpUnroutable
        | ErrorCode::TlsProtocolError
        | ErrorCode::TlsAlertReceived(_)
        | ErrorCode::ConfigurationError => Error::Unreachable(failed(code, name)),
        other => Error::Network(failed(other, name)),
    }
}

fn failed(code: &ErrorCode, name: &str) -> String {
    format!("the request to {name} failed: {}", format!("{code:?}").trim_start_matches("ErrorCode::"))
}
