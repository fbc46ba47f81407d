//! Tests the endpoints over real connections on loopback, with requests written by hand.
//!
//! Not here: what is in a scrape (`metrics`), when a host is ready (`health`).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::listener::{ClientWaits, Limited};
use super::tokens::Tokens;
use super::tokens::tests::admin;
use super::{AdminState, FetchState, Health, RefusedTokens, bind, serve_limited};

struct Server {
    addr: SocketAddr,
    health: Health,
    metrics: Arc<OnceLock<Registry>>,
    refused: RefusedTokens,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(token: Option<&str>, places: usize, head: Duration) -> Server {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let health = Health::new(Duration::from_secs(600));
        let metrics = Arc::<OnceLock<Registry>>::default();
        let refused = RefusedTokens::default();
        let state = AdminState {
            metrics: metrics.clone(),
            health: health.clone(),
            tokens: Tokens::of(&admin(token, None, &[])),
            refused: refused.clone(),
            listen: addr,
            api: Arc::default(),
            pages: Arc::default(),
        };
        let stop = CancellationToken::new();
        let times = ClientWaits { head, idle: Duration::from_secs(600) };
        let limited = Limited::with(listener, places, times);
        let serving = tokio::spawn(serve_limited(limited, state, stop.clone()));
        Server { addr, health, metrics, refused, stop, serving }
    }

    async fn plain() -> Server {
        Self::start(None, 8, Duration::from_secs(600)).await
    }

    async fn request(&self, line: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }
}

struct Answer {
    status: u16,
    /// In lower case.
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn assert_problem(&self, status: u16, title: &str) {
        assert_eq!(self.status, status, "{}", self.head);
        assert!(self.head.contains("\r\ncontent-type: application/problem+json"), "{}", self.head);
        assert_eq!(self.head.matches("content-type:").count(), 1, "{}", self.head);
        let body = self.json();
        assert_eq!((&body["status"], &body["title"]), (&json!(status), &json!(title)));
    }
}

#[tokio::test]
async fn readyz_follows_the_health_and_reports_it() {
    let server = Server::plain().await;
    let pulse = server.health.queue("mail");
    let answer = server.request("GET /readyz", "").await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("\r\ncontent-type: application/json"), "{}", answer.head);
    let body = answer.json();
    assert_eq!((&body["ready"], &body["started"]), (&json!(false), &json!(false)));
    assert_eq!(body["queues"][0]["state"], "starting");

    server.health.started();
    pulse.beat(FetchState::WaitingForPlugin);
    let answer = server.request("GET /readyz", "").await;
    assert_eq!(answer.status, 200);
    let mut body = answer.json();
    assert!(body["queues"][0]["since_ms"].take().is_u64());
    let queue = json!({
        "queue": "mail",
        "state": "waiting-for-plugin",
        "since_ms": null,
        "ok": true,
        "reason": "its plugin has no working version",
    });
    assert_eq!(body, json!({"ready": true, "started": true, "stopping": false, "queues": [queue]}));

    pulse.fault("connection refused".to_owned());
    let answer = server.request("GET /readyz", "").await;
    assert_eq!((answer.status, &answer.json()["queues"][0]["reason"]), (503, &json!("connection refused")));
}

#[tokio::test]
async fn metrics_are_open_without_a_token_also_before_there_are_any() {
    let server = Server::plain().await;
    let answer = server.request("GET /metrics", "").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0"),
        "{}",
        answer.head
    );
    assert_eq!(answer.body, "# EOF\n");
    let mut registry = Registry::default();
    registry.register("sent", "Letters", ConstCounter::new(7u64));
    server.metrics.set(registry).unwrap();
    let answer = server.request("GET /metrics", "").await;
    let body = "# HELP sent Letters.\n# TYPE sent counter\nsent_total 7\n# EOF\n";
    assert_eq!((answer.status, answer.body.as_str()), (200, body));
}

#[tokio::test]
async fn metrics_ask_for_the_token() {
    let server = Server::start(Some("s3cret"), 8, Duration::from_secs(600)).await;
    for refused in [
        "",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer s3cre\r\n",
        "Authorization: Bearer s3cret2\r\n",
    ] {
        let answer = server.request("GET /metrics", refused).await;
        answer.assert_problem(401, "Unauthorized");
        assert!(answer.head.contains("\r\nwww-authenticate: bearer"), "{}", answer.head);
        assert!(!answer.body.contains("s3cret"));
    }
    server
        .request("GET /metrics", "Authorization: Basic s3cret\r\n")
        .await
        .assert_problem(401, "Unauthorized");
    for accepted in ["Authorization: Bearer s3cret\r\n", "authorization: bearer s3cret\r\n"] {
        assert_eq!(server.request("GET /metrics", accepted).await.status, 200);
    }
    assert_eq!(server.request("GET /livez", "").await.status, 200);
    // A missing token is no guess.
    assert_eq!(server.refused.count().get(), 4);
}

#[tokio::test]
async fn readyz_names_no_queue_to_a_client_without_the_token() {
    let server = Server::start(Some("s3cret"), 8, Duration::from_secs(600)).await;
    server.health.queue("mail").fault("connection refused".to_owned());
    let answer = server.request("GET /readyz", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "{\"ready\":false}"));
    let answer = server.request("GET /readyz", "Authorization: Bearer s3cret\r\n").await;
    assert_eq!((answer.status, &answer.json()["queues"][0]["reason"]), (503, &json!("connection refused")));
    server.request("GET /readyz", "Authorization: Bearer x\r\n").await.assert_problem(401, "Unauthorized");
}

#[tokio::test]
async fn everything_else_is_not_found() {
    let server = Server::plain().await;
    for line in ["GET /metrics/", "GET /v1", "POST /queue", "GET /login.html"] {
        server.request(line, "").await.assert_problem(404, "Not Found");
    }
    for line in ["POST /livez", "DELETE /metrics"] {
        server.request(line, "").await.assert_problem(405, "Method Not Allowed");
    }
    for line in ["GET /v1/queues", "GET /", "POST /queues/a/pause", "GET /login"] {
        let answer = server.request(line, "").await;
        answer.assert_problem(503, "Service Unavailable");
        assert_eq!(answer.json()["code"], "starting", "there is no API yet");
        assert!(answer.head.contains("\r\nretry-after: 1"), "{}", answer.head);
    }
}

/// Asks on a connection that stays.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "it was closed");
    }
}

/// Whether the server closes it without an answer; the kernel chooses whether by FIN or by RST.
async fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    !rest.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn a_head_that_does_not_come_whole_in_time_closes_its_connection() {
    let server = Server::start(None, 8, Duration::from_millis(100)).await;
    let silent = TcpStream::connect(server.addr).await.unwrap();
    let mut slow = TcpStream::connect(server.addr).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: ").await.unwrap();
    let mut second = TcpStream::connect(server.addr).await.unwrap();
    ask(&mut second).await;
    second.write_all(b"GET /livez").await.unwrap();
    assert!(is_closed(silent).await && is_closed(slow).await && is_closed(second).await);
}

#[tokio::test]
async fn the_connection_that_waited_longest_for_its_client_makes_room() {
    let server = Server::start(None, 2, Duration::from_secs(600)).await;
    let oldest = TcpStream::connect(server.addr).await.unwrap();
    let mut kept = TcpStream::connect(server.addr).await.unwrap();
    ask(&mut kept).await;
    assert_eq!(server.request("GET /livez", "").await.status, 200);
    assert!(is_closed(oldest).await);
    ask(&mut kept).await;
}

#[tokio::test]
async fn a_request_that_is_being_answered_keeps_its_place() {
    let server = Server::start(Some("s3cret"), 1, Duration::from_secs(600)).await;
    let wrong = "Authorization: Bearer wrong\r\n";
    // The first answer is delayed, and the second client has to wait for its place.
    let second = async {
        while server.refused.count().get() == 0 {
            tokio::task::yield_now().await;
        }
        server.request("GET /livez", "").await
    };
    let (refused, lives) = tokio::join!(server.request("GET /metrics", wrong), second);
    assert_eq!((refused.status, lives.status, server.refused.count().get()), (401, 200, 1));
}

#[tokio::test]
async fn stop_ends_the_server_and_its_idle_connections() {
    let server = Server::plain().await;
    let mut idle = TcpStream::connect(server.addr).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.stop.cancel();
    server.serving.await.unwrap();
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(TcpStream::connect(server.addr).await.is_err());
}
