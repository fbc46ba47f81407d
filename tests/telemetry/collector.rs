//! A small collector of traces: OTLP over HTTP, in protobuf.
//!
//! In: the requests of hosts. Out: their spans, and what else they said. It decodes the messages with the
//! types that are generated from the definitions of OTLP, and refuses what is not such a message.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::support::eventually;

/// A span as the tests look at it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub service: String,
    pub name: String,
    pub kind: i32,
    pub trace: String,
    pub span: String,
    pub parent: String,
    pub attributes: HashMap<String, String>,
    pub links: Vec<String>,
    pub error: Option<String>,
    pub times: (u64, u64),
}

/// How the collector answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Takes,
    Answers(u16),
    /// It never answers.
    Hangs,
}

pub struct Collector {
    port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    manner: Manner,
    spans: Vec<Seen>,
    /// The heads of all requests, in lower case.
    heads: Vec<String>,
}

impl Collector {
    pub fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let state = State { manner: Manner::Takes, spans: Vec::new(), heads: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let server = state.clone();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let state = server.clone();
                thread::spawn(move || serve(connection, &state));
            }
        });
        Collector { port, state }
    }

    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, manner: Manner) {
        self.state.lock().expect("the state").manner = manner;
    }

    pub fn heads(&self) -> Vec<String> {
        self.state.lock().expect("the state").heads.clone()
    }

    pub fn spans(&self) -> Vec<Seen> {
        self.state.lock().expect("the state").spans.clone()
    }

    /// Waits for so many spans with this name, and gives them in the order of their start.
    #[track_caller]
    pub fn until(&self, name: &str, count: usize) -> Vec<Seen> {
        eventually(&format!("{count} spans `{name}`"), || {
            let mut found = self.spans();
            found.retain(|span| span.name == name);
            found.sort_by_key(|span| span.times.0);
            (found.len() >= count).then_some(found)
        })
    }

    /// Waits for the one span with this name.
    #[track_caller]
    pub fn span(&self, name: &str) -> Seen {
        let mut found = self.until(name, 1);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

/// Answers the requests of one connection.
fn serve(connection: TcpStream, state: &Mutex<State>) {
    let mut input = BufReader::new(connection);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !matches!(input.read_line(&mut head), Ok(1..)) {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or_default()];
        if input.read_exact(&mut body).is_err() {
            return;
        }
        let is_otlp = head.starts_with("post /v1/traces http/1.1")
            && head.contains("content-type: application/x-protobuf\r\n");
        let message = ExportTraceServiceRequest::decode(body.as_slice()).ok().filter(|_| is_otlp);
        let status = {
            let mut state = state.lock().expect("the state");
            state.heads.push(head);
            match (state.manner, message) {
                (Manner::Takes, Some(message)) => {
                    state.spans.extend(seen(message));
                    200
                }
                (Manner::Takes, None) => 400,
                (Manner::Answers(status), _) => status,
                (Manner::Hangs, _) => {
                    drop(state);
                    // The client closes the connection when it has waited for long enough.
                    let _ = input.read(&mut [0]);
                    return;
                }
            }
        };
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        if input.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn seen(message: ExportTraceServiceRequest) -> Vec<Seen> {
    let mut all = Vec::new();
    for part in message.resource_spans {
        let service = texts(&part.resource.expect("a resource").attributes).remove("service.name");
        let service = service.expect("the name of a service");
        let spans = part.scope_spans.into_iter().flat_map(|scope| scope.spans);
        all.extend(spans.map(|span| see(&service, span)));
    }
    all
}

fn see(service: &str, span: Span) -> Seen {
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8), "{span:?}");
    assert!(span.start_time_unix_nano > 0 && span.end_time_unix_nano >= span.start_time_unix_nano);
    Seen {
        service: service.to_owned(),
        name: span.name,
        kind: span.kind,
        trace: hex(&span.trace_id),
        span: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        attributes: texts(&span.attributes),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        error: span.status.filter(|status| status.code == 2).map(|status| status.message),
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
    }
}

fn texts(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("an attribute is {other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
