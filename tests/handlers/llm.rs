//! A server with the interface of OpenAI's chat completions, whose answers a test writes.
//!
//! In: the answers, in the order of the requests; the last answer is for all later requests. Out: the
//! requests that it received. Not here: servers that misbehave in other ways (`web`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

/// A server that runs until the test's process ends.
pub struct Llm {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: Instant,
    /// Its first line and its headers.
    pub head: String,
    /// Null, if it has none.
    pub body: Value,
}

/// One answer.
#[derive(Debug, Clone)]
pub enum Said {
    Page {
        status: u16,
        headers: String,
        body: String,
    },
    /// Nothing, until the client closes the connection.
    Silence,
    /// Half of a response.
    Half,
}

impl Said {
    /// A completion with this text.
    pub fn content(content: &str) -> Said {
        Said::choice(
            &json!({ "message": { "role": "assistant", "content": content }, "finish_reason": "stop" }),
        )
    }

    pub fn choice(choice: &Value) -> Said {
        Said::status(200, "", &json!({ "choices": [choice] }).to_string())
    }

    /// Each of `headers` ends in `\r\n`.
    pub fn status(status: u16, headers: &str, body: &str) -> Said {
        Said::Page { status, headers: headers.to_owned(), body: body.to_owned() }
    }
}

impl Llm {
    pub fn start(says: Vec<Said>) -> Llm {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let (asked, says) = (kept.clone(), says.clone());
                // An error ends the connection; the client is to blame for it.
                thread::spawn(move || answer(tcp, &asked, &says));
            }
        });
        Llm { port, asked }
    }

    /// `http://127.0.0.1:port`
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("the requests").clone()
    }
}

fn answer(tcp: TcpStream, asked: &Mutex<Vec<Asked>>, says: &[Said]) -> Option<()> {
    let mut stream = BufReader::new(tcp);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let size = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; size.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).ok()? };
    let number = {
        let mut asked = asked.lock().expect("the requests");
        asked.push(Asked { at: Instant::now(), head, body });
        asked.len() - 1
    };
    let tcp = stream.get_mut();
    match says.get(number).or(says.last())? {
        Said::Page { status, headers, body } => {
            let head = format!(
                "HTTP/1.1 {status} Said\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n",
                body.len()
            );
            write!(tcp, "{head}connection: close\r\n\r\n{body}").ok()
        }
        Said::Silence => {
            let mut bytes = [0; 1024];
            while tcp.read(&mut bytes).is_ok_and(|read| read > 0) {}
            None
        }
        Said::Half => write!(tcp, "HTTP/1.1 200 Said\r\ncontent-length: 1000\r\n\r\n{{\"choices\": [").ok(),
    }
}
