//! Counts the results of requests, for each plugin over all of its versions, and ends their spans.
//!
//! In: a [`CountedRequest`] for each request, from before it is admitted until its last resource is dropped.
//! Out: the counts of its plugin (`requests`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::StatusCode;
use wasmtime_wasi_http::Error;

use super::requests::Requests;
use crate::sandbox::share::Share;
use crate::telemetry::RequestSpan;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// There was a response, and as much of it as the handler wanted.
    Ok,
    /// The host refused the request: its host, its address, or too many requests at once.
    Denied,
    Timeout,
    /// The request failed: the name, the connection, TLS, the server, or a size limit.
    Error,
    /// The attempt ended, or the handler dropped the request, before there was a response.
    Aborted,
}

impl RequestEnd {
    pub(super) fn of(error: &Error) -> RequestEnd {
        match error {
            Error::HttpRequestDenied
            | Error::HttpRequestUriInvalid
            | Error::HttpRequestMethodInvalid
            | Error::DestinationIpProhibited
            | Error::ConnectionLimitReached => RequestEnd::Denied,
            Error::DnsTimeout
            | Error::ConnectionTimeout
            | Error::ConnectionReadTimeout
            | Error::HttpResponseTimeout => RequestEnd::Timeout,
            _ => RequestEnd::Error,
        }
    }
}

/// Counts one request when it is dropped, and ends its span. It counts as aborted, unless another result was
/// set.
pub(super) struct CountedRequest {
    share: Arc<Share>,
    span: Option<RequestSpan>,
    end: RequestEnd,
}

impl CountedRequest {
    pub(super) fn new(share: Arc<Share>, span: Option<RequestSpan>) -> CountedRequest {
        CountedRequest { share, span, end: RequestEnd::Aborted }
    }

    /// Notes the status of the response in the span.
    pub(super) fn answered(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.span {
            span.answered(status.as_u16());
        }
    }

    pub(super) fn ended(&mut self, end: RequestEnd) {
        self.end = end;
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.share.requests.0[self.end as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(span) = self.span.take() {
            let failure = (self.end != RequestEnd::Ok).then(|| Requests::RESULTS[self.end as usize]);
            span.ended(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once_under_its_name() {
        let share: Arc<Share> = Arc::default();
        let requests = &share.requests;
        for (name, end) in Requests::RESULTS.into_iter().zip([
            RequestEnd::Ok,
            RequestEnd::Denied,
            RequestEnd::Timeout,
            RequestEnd::Error,
            RequestEnd::Aborted,
        ]) {
            let mut counted = CountedRequest::new(share.clone(), None);
            counted.ended(RequestEnd::Error);
            counted.ended(end);
            let before = requests.totals();
            drop(counted);
            for ((found, before), (_, after)) in before.into_iter().zip(requests.totals()) {
                assert_eq!(after - before, u64::from(found == name), "{name}");
            }
        }
        drop(CountedRequest::new(share.clone(), None));
        assert_eq!(requests.totals()[4], ("aborted", 2));
    }

    #[test]
    fn errors_are_of_few_kinds() {
        for (error, end) in [
            (Error::DestinationIpProhibited, RequestEnd::Denied),
            (Error::ConnectionLimitReached, RequestEnd::Denied),
            (Error::HttpResponseTimeout, RequestEnd::Timeout),
            (Error::DnsTimeout, RequestEnd::Timeout),
            (Error::ConnectionRefused, RequestEnd::Error),
            (Error::HttpResponseBodySize(None), RequestEnd::Error),
        ] {
            assert_eq!(RequestEnd::of(&error), end, "{error:?}");
        }
    }
}
