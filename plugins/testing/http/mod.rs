//! Requests through `wasi:http` itself, which works with every toolchain.
//!
//! In: a request. Out: its response, or the name of an error code of wasi:http.
//!
//! Not here: redirects, and the use of a body.

use bindings::wasi::http::outgoing_handler::handle;
use bindings::wasi::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody,
    OutgoingRequest, RequestOptions, Scheme, http_error_code,
};
use bindings::wasi::io::streams::{InputStream, OutputStream, StreamError};

mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
        world: "tqhost:testing/requester",
        generate_all,
    });
}

/// A request that is not sent yet.
#[derive(Default)]
pub struct Request<'a> {
    pub method: Option<&'a str>,
    pub url: &'a str,
    pub body_size: usize,
    /// One `name: value` per line.
    pub headers: &'a str,
    pub first_byte_ms: Option<u64>,
}

/// A request that is sent. The head of its response has not arrived yet.
pub struct Sent(FutureIncomingResponse);

/// A response with an unread body.
pub struct Response {
    pub status: u16,
    pub location: Option<String>,
    pub content_type: Option<String>,
    stream: InputStream,
    // These are dropped after `stream`, which is their child.
    _body: IncomingBody,
    _response: IncomingResponse,
}

/// A request that is never sent, with as much of a body as the host holds.
pub struct Held {
    // The fields are in the order in which they must be dropped.
    _stream: OutputStream,
    _body: OutgoingBody,
    _request: OutgoingRequest,
}

impl Request<'_> {
    /// Sends the request with its whole body.
    pub fn send(&self) -> Result<Sent, String> {
        let request = self.make()?;
        let body = if self.body_size > 0 { Some(request.body().map_err(|()| "no body")?) } else { None };
        let options = RequestOptions::new();
        options
            .set_first_byte_timeout(self.first_byte_ms.map(|ms| ms * 1_000_000))
            .map_err(|()| "no first-byte timeout")?;
        let sent = handle(request, Some(options)).map_err(|code| text(&code))?;
        if let Some(body) = body {
            let written = write(&body, self.body_size);
            // If the server did not take the body, the response has the reason.
            if written.is_ok() {
                OutgoingBody::finish(body, None).map_err(|code| text(&code))?;
            }
        }
        Ok(Sent(sent))
    }

    /// Writes as much body as the host takes, and does not send the request.
    pub fn hold(&self) -> Result<Held, String> {
        let request = self.make()?;
        let body = request.body().map_err(|()| "no body")?;
        let stream = body.write().map_err(|()| "no stream")?;
        loop {
            let room = stream.check_write().map_err(|error| stream_error(&error))?;
            if room == 0 {
                break;
            }
            stream
                .write(&vec![b'x'; usize::try_from(room).unwrap_or(0)])
                .map_err(|error| stream_error(&error))?;
        }
        Ok(Held { _stream: stream, _body: body, _request: request })
    }

    fn make(&self) -> Result<OutgoingRequest, String> {
        let fields = Fields::new();
        for line in self.headers.lines() {
            let (name, value) = line.split_once(": ").ok_or("a header without a colon")?;
            fields.append(name, value.as_bytes()).map_err(|error| format!("{name}: {error:?}"))?;
        }
        let request = OutgoingRequest::new(fields);
        let (scheme, rest) = self.url.split_once("://").ok_or("a url without a scheme")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            other => Scheme::Other(other.to_owned()),
        };
        let method = match self.method.unwrap_or("GET") {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "CONNECT" => Method::Connect,
            other => Method::Other(other.to_owned()),
        };
        request.set_method(&method).map_err(|()| "the method is refused")?;
        request.set_scheme(Some(&scheme)).map_err(|()| "the scheme is refused")?;
        request.set_authority(Some(authority)).map_err(|()| "the authority is refused")?;
        request
            .set_path_with_query(Some(if path.is_empty() { "/" } else { path }))
            .map_err(|()| "the path is refused")?;
        Ok(request)
    }
}

/// Writes `size` bytes, each an `x`.
fn write(body: &OutgoingBody, size: usize) -> Result<(), String> {
    let stream = body.write().map_err(|()| "no stream")?;
    let mut left = size;
    while left > 0 {
        // A blocking write takes at most 4096 bytes.
        let piece = left.min(4096);
        stream.blocking_write_and_flush(&vec![b'x'; piece]).map_err(|error| stream_error(&error))?;
        left -= piece;
    }
    Ok(())
}

impl Sent {
    pub fn wait(self) -> Result<Response, String> {
        self.0.subscribe().block();
        let response = self.0.get().ok_or("not ready")?.map_err(|()| "taken")?.map_err(|code| text(&code))?;
        let headers = response.headers();
        let header = |name| {
            headers.get(name).into_iter().next().map(|value| String::from_utf8_lossy(&value).into_owned())
        };
        let (location, content_type) = (header("location"), header("content-type"));
        drop(headers);
        let body = response.consume().map_err(|()| "no body")?;
        let stream = body.stream().map_err(|()| "no stream")?;
        Ok(Response {
            status: response.status(),
            location,
            content_type,
            stream,
            _body: body,
            _response: response,
        })
    }
}

impl Response {
    /// The next bytes, or `None` at the end.
    pub fn read(&self) -> Result<Option<Vec<u8>>, String> {
        match self.stream.blocking_read(64 * 1024) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StreamError::Closed) => Ok(None),
            Err(error) => Err(stream_error(&error)),
        }
    }
}

fn stream_error(error: &StreamError) -> String {
    match error {
        StreamError::Closed => "closed".to_owned(),
        StreamError::LastOperationFailed(error) => {
            http_error_code(error).map_or_else(|| "no code".to_owned(), |code| text(&code))
        }
    }
}

fn text(code: &ErrorCode) -> String {
    format!("{code:?}").trim_start_matches("ErrorCode::").to_owned()
}
