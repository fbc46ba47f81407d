//! Counts how requests end, for each plugin over all of its versions, and ends their spans.
//!
//! In: a [`CountedRequest`] for each request, from before it is admitted until its last resource is dropped.
//! Out: the counts of its plugin (`requests`).

use std::sync::Arc;

use http::StatusCode;
use wasmtime_wasi_http::Error;

use super::requests::RequestEnd;
use crate::sandbox::share::Share;
use crate::telemetry::RequestSpan;

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

/// Counts one request when it is dropped, and ends its span. It counts as aborted, unless another end was
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
        self.share.requests.count(self.end);
        if let Some(span) = self.span.take() {
            span.ended((self.end != RequestEnd::Ok).then(|| self.end.into_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_once_by_its_last_end() {
        let share: Arc<Share> = Arc::default();
        let mut counted = CountedRequest::new(share.clone(), None);
        counted.ended(RequestEnd::Error);
        counted.ended(RequestEnd::Denied);
        drop(counted);
        drop(CountedRequest::new(share.clone(), None));
        let totals = share.requests.totals();
        assert_eq!(totals, [("ok", 0), ("denied", 1), ("timeout", 0), ("error", 0), ("aborted", 1)]);
    }
}
