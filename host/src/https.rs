//! The HTTP client of the host's own requests: hyper's, with rustls.
//!
//! In: settings of TLS. Out: a client that keeps a few connections. It follows no redirect and uses no proxy.
//!
//! Not here: requests of guests (`sandbox::host::http`), how long a whole request may take (its sender).

use std::time::Duration;

use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be unused.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most unused connections to one server.
const MAX_IDLE: usize = 16;

pub(crate) type HttpsClient<B> = Client<HttpsConnector<HttpConnector>, B>;

pub(crate) fn client<B: Body<Data: Send> + Send>(tls: ClientConfig) -> HttpsClient<B> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(https.enable_http1().wrap_connector(tcp))
}
