//! The body of a request, as it is sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use wasmtime_wasi_http::{Error, WasiBody};

/// The request's body, up to its largest size.
pub(super) struct Outgoing {
    body: WasiBody,
    left: u64,
    most: u64,
}

impl Outgoing {
    pub(super) fn new(body: WasiBody, most: u64) -> Outgoing {
        Outgoing { body, left: most, most }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let size = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, |data| data.len() as u64);
        Poll::Ready(match self.left.checked_sub(size) {
            Some(left) => {
                self.left = left;
                frame
            }
            None => Some(Err(Error::HttpRequestBodySize(Some(self.most - self.left + size)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
