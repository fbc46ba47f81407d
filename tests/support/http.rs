//! A minimal HTTP client for the admin address, and for servers of tests.
//!
//! In: an address, a path, headers, a body. Out: status, head and body; or the events of a stream. Not here:
//! servers (`web`, `llm`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: String,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The value of a header, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends a GET request on a new connection.
pub fn get(address: &str, path: &str) -> Response {
    send(address, "GET", path, &[], None)
}

/// Sends a POST request on a new connection.
pub fn post(address: &str, path: &str, body: &str) -> Response {
    send(address, "POST", path, &[], Some(body))
}

/// Sends a request on a new connection. Headers may replace `Host`.
pub fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Response {
    let mut stream = open(address, method, path, headers, body);
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn open(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connect to the server");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set a time-out");
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    // A server that refuses a large body may close the connection before it has read all of it.
    let _ = stream.write_all(format!("{head}\r\n{}", body.unwrap_or_default()).as_bytes());
    stream
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub kind: String,
    pub id: String,
    pub data: Value,
}

/// A stream of events (SSE).
pub struct Events {
    lines: std::io::Lines<BufReader<TcpStream>>,
    pub status: u16,
}

impl Events {
    /// Opens a stream, and reads its head.
    pub fn open(address: &str, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut lines = BufReader::new(open(address, "GET", path, headers, None)).lines();
        let mut head = lines.by_ref().map(|line| line.expect("a line of the head"));
        let status = head.next().expect("a status line");
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        head.take_while(|line| !line.is_empty()).for_each(drop);
        Events { lines, status }
    }
}

/// The events, until the server closes the stream. The sizes of chunks stand between them, and are no event.
impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let (mut kind, mut id) = (String::new(), String::new());
        let mut data = None;
        for line in self.lines.by_ref() {
            let line = line.expect("a line of the stream");
            match line.split_once(": ") {
                Some(("event", value)) => value.clone_into(&mut kind),
                Some(("id", value)) => value.clone_into(&mut id),
                Some(("data", value)) => data = Some(serde_json::from_str(value).expect("JSON")),
                _ if line.is_empty() => {
                    if let Some(data) = data.take() {
                        return Some(Event { kind, id, data });
                    }
                }
                _ => {}
            }
        }
        None
    }
}
