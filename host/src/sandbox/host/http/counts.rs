//! Counts the results of requests, for each plugin over all of its versions.
//!
//! In: a [`Counted`] for each request, from before it is admitted until its last resource is dropped. Out:
//! the counts of its plugin (`requests`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wasmtime_wasi_http::Error;

use crate::sandbox::share::Share;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
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

impl End {
    pub(super) fn of(error: &Error) -> End {
        match error {
            Error::HttpRequestDenied
            | Error::HttpRequestUriInvalid
            | Error::HttpRequestMethodInvalid
            | Error::DestinationIpProhibited
            | Error::ConnectionLimitReached => End::Denied,
            Error::DnsTimeout
            | Error::ConnectionTimeout
            | Error::ConnectionReadTimeout
            | Error::HttpResponseTimeout => End::Timeout,
            _ => End::Error,
        }
    }
}

/// Counts one request when it is dropped. It counts as aborted, unless another result was set.
pub(super) struct Counted {
    share: Arc<Share>,
    end: End,
}

impl Counted {
    pub(super) fn new(share: Arc<Share>) -> Counted {
        Counted { share, end: End::Aborted }
    }

    pub(super) fn ended(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.share.requests.0[self.end as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::Requests;
    use super::*;

    #[test]
    fn each_request_is_counted_once_under_its_name() {
        let share: Arc<Share> = Arc::default();
        let requests = &share.requests;
        for (name, end) in
            Requests::RESULTS.into_iter().zip([End::Ok, End::Denied, End::Timeout, End::Error, End::Aborted])
        {
            let mut counted = Counted::new(share.clone());
            counted.ended(End::Error);
            counted.ended(end);
            let before = requests.totals();
            drop(counted);
            for ((found, before), (_, after)) in before.into_iter().zip(requests.totals()) {
                assert_eq!(after - before, u64::from(found == name), "{name}");
            }
        }
        drop(Counted::new(share.clone()));
        assert_eq!(requests.totals()[4], ("aborted", 2));
    }

    #[test]
    fn errors_are_of_few_kinds() {
        for (error, end) in [
            (Error::DestinationIpProhibited, End::Denied),
            (Error::ConnectionLimitReached, End::Denied),
            (Error::HttpResponseTimeout, End::Timeout),
            (Error::DnsTimeout, End::Timeout),
            (Error::ConnectionRefused, End::Error),
            (Error::HttpResponseBodySize(None), End::Error),
        ] {
            assert_eq!(End::of(&error), end, "{error:?}");
        }
    }
}
