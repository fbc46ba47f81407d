//! An application that takes tasks from `http-call`, and answers as a test says.
//!
//! In: a function from a call to a reply. Out: the calls so far, in their order. A connection stays open
//! after a page. It also answers other requests, such as those of handlers and old consumers.
//!
//! Not here: applications in other languages (`receiver`), pages that have nothing to do with tasks (`web`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// The secret that the tests share with their applications.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A server that runs until the test's process ends.
pub struct Application {
    pub port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: Mutex<Calls>,
    connections: AtomicUsize,
}

#[derive(Default)]
struct Calls {
    all: Vec<Call>,
    /// By queue and id: tasks of two queues may have the same id.
    by_id: HashMap<(String, String), usize>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// The first line and the headers.
    head: String,
    pub body: Vec<u8>,
    /// How many requests of this queue with this `webhook-id` came before.
    pub before: usize,
}

#[derive(Debug, Clone)]
pub enum Reply {
    /// A page with a body of the right length. Each of `headers` ends in `\r\n`.
    Page { status: u16, headers: String, body: String },
    /// A page whose body comes byte by byte, each after a pause.
    Trickle { body: String, pause: Duration },
    /// These bytes; then the connection is closed.
    Raw(Vec<u8>),
    /// A body without an end.
    Endless,
    /// Nothing, until the client closes the connection.
    Silence,
}

impl Reply {
    pub fn page(status: u16, headers: &str, body: &str) -> Reply {
        Reply::Page { status, headers: headers.to_owned(), body: body.to_owned() }
    }

    pub fn ok(body: &str) -> Reply {
        Reply::page(200, "", body)
    }

    /// The work is done, and the answer is lost.
    pub fn lost() -> Reply {
        Reply::Raw(Vec::new())
    }
}

impl Call {
    /// The value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    /// The path, without a query.
    pub fn path(&self) -> &str {
        let target = self.head.split(' ').nth(1).unwrap_or_default();
        target.split('?').next().unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub fn fence(&self) -> u64 {
        self.header("tqhost-fence").parse().expect("a fence")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// A field of the task that is text.
    pub fn field(&self, name: &str) -> String {
        self.json()["fields"][name].as_str().unwrap_or_default().to_owned()
    }
}

impl Application {
    pub fn start(answer: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Application {
        Application::on(TcpListener::bind("127.0.0.1:0").expect("listen"), answer)
    }

    /// Starts on this listener.
    pub fn on(listener: TcpListener, answer: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Application {
        let port = listener.local_addr().expect("an address").port();
        let (seen, answer) = (Arc::new(Seen::default()), Arc::new(answer));
        let kept = seen.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                kept.connections.fetch_add(1, Ordering::SeqCst);
                let (seen, answer) = (kept.clone(), answer.clone());
                // Otherwise the kernel holds small pieces back until those before are acknowledged.
                let _ = tcp.set_nodelay(true);
                thread::spawn(move || {
                    let mut stream = BufReader::new(tcp);
                    while serve(&mut stream, &seen, &*answer).is_some() {}
                });
            }
        });
        Application { port, seen }
    }

    /// `http://127.0.0.1:port`
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.seen.calls.lock().expect("the calls").all.clone()
    }

    /// How many calls there were so far.
    pub fn count(&self) -> usize {
        self.seen.calls.lock().expect("the calls").all.len()
    }

    /// The calls for one task.
    pub fn calls_for(&self, id: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.id() == id).collect()
    }

    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }
}

/// The table of the plugin `http-call` for an application at this origin, with further settings.
pub fn plugin(origin: &str, settings: &str) -> String {
    format!(
        "[plugins.http-call]\nallowed_hosts = [\"{origin}\"]\n\
         [plugins.http-call.config]\nurl = \"{origin}/tasks/{{queue}}\"\nsecret = \"{SECRET}\"\n{settings}\n"
    )
}

/// Answers one request. None ends the connection; the client is to blame for an error.
fn serve(stream: &mut BufReader<TcpStream>, seen: &Seen, answer: &dyn Fn(&Call) -> Reply) -> Option<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let mut call = Call { head, body: Vec::new(), before: 0 };
    // A GET has no body.
    call.body = vec![0; call.header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut call.body).ok()?;
    {
        let mut calls = seen.calls.lock().expect("the calls");
        let id = (call.header("tqhost-queue").to_owned(), call.id().to_owned());
        let count = calls.by_id.entry(id).or_default();
        call.before = *count;
        *count += 1;
        calls.all.push(call.clone());
    }
    let tcp = stream.get_mut();
    match answer(&call) {
        Reply::Page { status, headers, body } => {
            let size = body.len();
            let page = format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {size}\r\n\r\n{body}");
            tcp.write_all(page.as_bytes()).ok()
        }
        Reply::Trickle { body, pause } => {
            let head = format!("HTTP/1.1 200 Said\r\ncontent-length: {}\r\n\r\n", body.len());
            tcp.write_all(head.as_bytes()).ok()?;
            for byte in body.bytes() {
                thread::sleep(pause);
                tcp.write_all(&[byte]).ok()?;
            }
            Some(())
        }
        Reply::Raw(bytes) => {
            let _ = tcp.write_all(&bytes);
            None
        }
        Reply::Endless => {
            tcp.write_all(b"HTTP/1.1 200 Said\r\n\r\n").ok()?;
            while tcp.write_all(&[b'x'; 16 * 1024]).is_ok() {}
            None
        }
        Reply::Silence => {
            let mut bytes = [0; 1024];
            while tcp.read(&mut bytes).is_ok_and(|read| read > 0) {}
            None
        }
    }
}
