//! The server that every row of section `waits` asks: a model that thinks before it answers.
//!
//! In: how long an answer takes, and in how many events it comes. Out: a server on this machine, in this
//! process, and what it has seen. It ends when it is dropped.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Connections that wait to be accepted, when thousands of tasks begin at once.
const BACKLOG: u32 = 4096;

/// How the model answers.
#[derive(Debug, Clone, Copy)]
pub struct Answers {
    pub take: Duration,
    /// The number of events of a stream. None: one answer in JSON at the end.
    pub events: Option<u32>,
}

#[derive(Default)]
struct Seen {
    first: OnceLock<Instant>,
    requests: AtomicUsize,
    waiting: AtomicUsize,
    most: AtomicUsize,
}

pub struct Model {
    pub origin: String,
    seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

impl Model {
    pub fn start(answers: Answers) -> Model {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let seen: Arc<Seen> = Arc::default();
        let listener = runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("bind");
            socket.listen(BACKLOG).expect("listen")
        });
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(serve(listener, answers, seen.clone()));
        Model { origin, seen, runtime: Some(runtime) }
    }

    /// When the first request arrived.
    pub fn first(&self) -> Option<Instant> {
        self.seen.first.get().copied()
    }

    pub fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// The most requests that waited at the same time.
    pub fn most(&self) -> usize {
        self.seen.most.load(Ordering::SeqCst)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn serve(listener: TcpListener, answers: Answers, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = seen.clone();
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            // An error ends the connection, as does its client.
            while read(&mut stream).await.is_ok_and(|is_there| is_there) {
                seen.first.get_or_init(Instant::now);
                seen.requests.fetch_add(1, Ordering::SeqCst);
                let waiting = seen.waiting.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most.fetch_max(waiting, Ordering::SeqCst);
                let answered = answer(stream.get_mut(), answers).await;
                seen.waiting.fetch_sub(1, Ordering::SeqCst);
                if answered.is_err() {
                    break;
                }
            }
        });
    }
}

/// Reads a request to its end. False: the client has closed the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let (mut length, mut is_chunked, mut line) = (0, false, String::new());
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(false);
        }
        line.make_ascii_lowercase();
        if let Some(("content-length", value)) = line.split_once(": ") {
            length = value.trim().parse().expect("a length");
        }
        is_chunked |= line.starts_with("transfer-encoding: chunked");
    }
    while is_chunked {
        line.clear();
        stream.read_line(&mut line).await?;
        let size = usize::from_str_radix(line.trim(), 16).expect("the size of a chunk");
        stream.read_exact(&mut vec![0; size + 2]).await?;
        is_chunked = size > 0;
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(true)
}

async fn answer(stream: &mut TcpStream, answers: Answers) -> io::Result<()> {
    let Some(events) = answers.events else {
        tokio::time::sleep(answers.take).await;
        let body = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, "word ".repeat(400));
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
        return stream.write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for _ in 0..events {
        tokio::time::sleep(answers.take / events).await;
        let event =
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "word ".repeat(20));
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}
