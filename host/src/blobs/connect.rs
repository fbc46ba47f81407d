//! The HTTP client of object stores in the network.
//!
//! In: a request of `object_store`. Out: its response.
//!
//! Not here: signing requests and trying them again (`object_store`), the time of a whole call (`blobs`).

use std::error::Error;
use std::io;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};

use crate::https::{self, HttpsClient};

/// Makes the clients of one store.
#[derive(Debug, Clone)]
pub(super) struct StoreConnector {
    tls: rustls::ClientConfig,
}

impl StoreConnector {
    pub(super) fn new(tls: rustls::ClientConfig) -> StoreConnector {
        StoreConnector { tls }
    }
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(StoreClient(https::client(self.tls.clone()))))
    }
}

#[derive(Debug)]
struct StoreClient(HttpsClient<HttpRequestBody>);

#[async_trait]
impl HttpService for StoreClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { kind(&error) };
            HttpError::new(kind, error)
        })?;
        Ok(response
            .map(|body| HttpResponseBody::new(body.map_err(|error| HttpError::new(kind(&error), error)))))
    }
}

/// The kind decides whether the request is tried again.
fn kind(error: &(dyn Error + 'static)) -> HttpErrorKind {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted() {
                return HttpErrorKind::Request;
            }
            if error.is_timeout() {
                return HttpErrorKind::Timeout;
            }
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            match error.kind() {
                io::ErrorKind::TimedOut => return HttpErrorKind::Timeout,
                io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof => return HttpErrorKind::Interrupted,
                _ => {}
            }
        }
        next = error.source();
    }
    HttpErrorKind::Unknown
}
