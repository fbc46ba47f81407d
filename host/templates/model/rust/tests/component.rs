//! The built component in the sandbox of a host, with a server of its own. `make test` builds it first.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::TcpListener;
use std::process::Command;
use std::{fs, thread};

use serde_json::{Value, json};

/// Answers one request like a server with OpenAI's interface, which knows one sentence.
fn answer(listener: &TcpListener) -> Result<()> {
    let (stream, _) = listener.accept()?;
    let (mut from, mut length) = (BufReader::new(&stream), 0);
    for line in from.by_ref().lines() {
        let line = line?.to_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a number");
        } else if line.is_empty() {
            break;
        }
    }
    from.read_exact(&mut vec![0; length])?;
    let mut to = &stream;
    to.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
    for piece in ["Seven", " words."] {
        let chunk = json!({ "choices": [{ "delta": { "content": piece } }] });
        write!(to, "data: {chunk}\n\n")?;
    }
    to.write_all(b"data: [DONE]\n\n")
}

#[test]
fn the_component_asks_a_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || answer(&listener).expect("a request"));
    let config = concat!(env!("CARGO_TARGET_TMPDIR"), "/tqhost.toml");
    let grants = format!("allowed_hosts = [{origin:?}]\nconfig = {{ url = \"{origin}/v1\" }}\n");
    let grants = format!("[queues.q]\nplugin = \"p\"\n[plugins.p]\n{grants}");
    fs::write(config, grants).expect("a file");
    let tqhost = std::env::var("TQHOST").unwrap_or_else(|_| "tqhost".into());
    let ran = Command::new(&tqhost)
        .args(["try", "{{NAME}}.wasm", "task.json", "--json"])
        .args(["--config", config, "--queue", "q"])
        .output();
    let ran = ran.unwrap_or_else(|error| panic!("{tqhost}: {error}"));
    let view: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
    assert_eq!(view["result"]["summary"], "Seven words.", "{view}");
}
