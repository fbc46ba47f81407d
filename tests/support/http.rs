//! A minimal HTTP client for the admin address, and for servers of tests.
//!
//! In: an address, a path, and what is posted. Out: status and body. Not here: servers (`web`, `llm`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: String,
}

/// Sends a GET request on a new connection.
pub fn get(address: &str, path: &str) -> Response {
    send(address, &format!("GET {path}"), "")
}

/// Sends a POST request on a new connection.
pub fn post(address: &str, path: &str, body: &str) -> Response {
    send(address, &format!("POST {path}"), body)
}

fn send(address: &str, what: &str, body: &str) -> Response {
    let mut stream = TcpStream::connect(address).expect("connect to the server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set a time-out");
    let length = body.len();
    let head = format!("{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").expect("send a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Response { status, body: body.to_owned() }
}
