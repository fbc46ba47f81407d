//! The spans of a handler's HTTP requests, and their header `traceparent`.
//!
//! In: a request that is about to be sent, and how it ended. Out: its span. If the handler has set the header
//! itself, the header stays, and the request has no span. A span names the server and not the path, which may
//! hold a secret.

use std::time::SystemTime;

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Uri};

use super::context::{TRACEPARENT, TraceContext};
use super::span::{Span, SpanKind};
use super::traces::Traces;

/// The trace of all requests of one attempt.
#[derive(Debug, Default)]
pub(crate) enum RequestTrace {
    #[default]
    None,
    /// Requests carry this header, and have no spans.
    PassingOn(HeaderValue),
    /// Each request has a span below that of the run.
    Below { traces: Traces, run: TraceContext },
}

impl RequestTrace {
    pub(super) fn passing_on(traceparent: Option<String>) -> RequestTrace {
        let header = traceparent.and_then(|text| HeaderValue::try_from(text).ok());
        header.map_or(RequestTrace::None, RequestTrace::PassingOn)
    }

    /// Adds the header, and begins the span of the request if it has one.
    pub(crate) fn begin<B>(&self, request: &mut Request<B>) -> Option<RequestSpan> {
        if request.headers().contains_key(TRACEPARENT) {
            return None;
        }
        let (traces, run) = match self {
            RequestTrace::None => return None,
            RequestTrace::PassingOn(header) => {
                request.headers_mut().insert(TRACEPARENT, header.clone());
                return None;
            }
            RequestTrace::Below { traces, run } => (traces, run),
        };
        let context = run.child();
        request.headers_mut().insert(TRACEPARENT, HeaderValue::try_from(context.to_string()).ok()?);
        Some(RequestSpan {
            traces: traces.clone(),
            context,
            parent: run.span,
            start: SystemTime::now(),
            method: request.method().clone(),
            server: request.uri().authority().cloned(),
            port: port_of(request.uri()),
            status: None,
        })
    }
}

fn port_of(uri: &Uri) -> Option<u16> {
    uri.port_u16().or(match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    })
}

/// A request on its way. Its span is recorded when its end is known.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    traces: Traces,
    context: TraceContext,
    /// The run that makes the request.
    parent: u64,
    start: SystemTime,
    method: Method,
    server: Option<Authority>,
    port: Option<u16>,
    /// The status of the response.
    status: Option<u16>,
}

impl RequestSpan {
    /// Notes the status of the response.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Records the span. `failure` is why there was no response, or not all of it.
    pub(crate) fn ended(self, failure: Option<&str>) {
        let RequestSpan { traces, context, parent, start, method, server, port, status } = self;
        traces.record(|| {
            let host = server.as_ref().map_or("", Authority::host);
            let mut span =
                Span::new(method.as_str().to_owned(), SpanKind::Client, context, Some(parent), start)
                    .text("http.request.method", method.as_str())
                    .text("server.address", host);
            if let Some(port) = port {
                span = span.number("server.port", port);
            }
            if let Some(status) = status {
                span = span.number("http.response.status_code", status);
            }
            // By OpenTelemetry's rules, a client's span has failed with each status from 400 on.
            let bad = status.filter(|status| *status >= 400).map(|status| status.to_string());
            match bad.as_deref().or(failure) {
                Some(kind) => span.failed(kind, ""),
                None => span,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::export::tests::kept;

    fn request() -> Request<()> {
        Request::get("https://example.com/secret?key=secret").body(()).expect("a request")
    }

    #[test]
    fn a_request_has_a_span_below_the_run_and_names_it_in_its_header() {
        let (traces, mut spans) = kept(1.0);
        let run = TraceContext::root(true);
        let mut sent = request();
        let mut span = RequestTrace::Below { traces, run }.begin(&mut sent).expect("a span");
        let header = sent.headers()[TRACEPARENT].to_str().expect("text").to_owned();
        span.answered(503);
        span.ended(Some("timeout"));
        let span = spans.try_recv().expect("a span");
        assert_eq!((header, span.parent), (span.context.to_string(), Some(run.span)));
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
        let error = &span.attributes.last().expect("attributes");
        assert_eq!(error.key, "error.type");
        assert!(format!("{error:?}").contains("503"), "{error:?}");
    }

    #[test]
    fn the_header_of_the_handler_stays() {
        let (traces, mut spans) = kept(1.0);
        let mut sent = request();
        sent.headers_mut().insert(TRACEPARENT, HeaderValue::from_static("own"));
        let run = TraceContext::root(true);
        assert!(RequestTrace::Below { traces, run }.begin(&mut sent).is_none());
        assert_eq!(sent.headers()[TRACEPARENT], "own");
        assert!(spans.try_recv().is_err());
        let mut sent = request();
        assert!(RequestTrace::passing_on(Some("text".into())).begin(&mut sent).is_none());
        assert_eq!(sent.headers()[TRACEPARENT], "text");
    }
}
