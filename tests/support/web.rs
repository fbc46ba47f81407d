//! A web server for requests of handlers, with pages that behave badly.
//!
//! In: requests for the paths below, with or without TLS. Out: their answers, and counts of requests and
//! connections.
//!
//! | path | answers |
//! |---|---|
//! | `/echo` | the head of the request as it came |
//! | `/size` | the size of the request's body |
//! | `/zipped` | the text `zipped`, as gzip that nobody asked for |
//! | `/kept` | how many requests this connection has brought; the connection stays open |
//! | `/kept-for?SECONDS` | like `/kept`, and says for how long |
//! | `/closing` | like `/kept`, but the connection is closed |
//! | `/left` | a MiB; the connection stays open |
//! | `/busy` | 429 with `retry-after: 7` |
//! | `/down` | 503 with `retry-after: 9` |
//! | `/status?CODE` | this status, and `told` |
//! | `/held` | 200, once the test has called [`Web::open_held`] |
//! | `/meet` | 200, as soon as two requests for it wait at the same time |
//! | `/service` | as [`Web::set_service`] says; 200 at first |
//! | `/redirect?to=URL` | 302 to the URL |
//! | `/declared` | the head of a response of 1 GiB, and no body |
//! | `/endless` | a body without end |
//! | `/chunks` | a body without end, in chunks of one byte |
//! | `/drip` | a body without end, a byte every 20 ms |
//! | `/drip-head` | a head without end, a byte every 20 ms |
//! | `/silent` | nothing; waits until the client closes the connection |
//! | `/stuck` | the head and one byte, then like `/silent` |
//! | `/cut` | ten bytes of a declared hundred |
//! | `/big-head` | a head of 64 KiB |

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A server that runs until the test's process ends.
pub struct Web {
    pub port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    connections: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
    meeting: OnceLock<Barrier>,
    service: Mutex<Service>,
    held_is_open: Mutex<bool>,
    opened: Condvar,
    changed: Condvar,
}

/// The answer of `/service`: a status with headers, or nothing until it changes. By default 200.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Service {
    #[default]
    Up,
    /// A status, and headers that end with a line break.
    Answers(&'static str, &'static str),
    /// Waits until it is changed.
    Hangs,
}

/// A certificate authority for one test.
pub struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Web {
    pub fn start() -> Web {
        Web::serve(answer)
    }

    /// Starts a server with TLS and a certificate for this name.
    pub fn start_tls(authority: &Authority, name: &str) -> Web {
        let config = Arc::new(authority.server(name));
        Web::serve(move |tcp, seen| {
            let connection = ServerConnection::new(config.clone()).expect("a TLS connection");
            answer(StreamOwned::new(connection, tcp), seen);
        })
    }

    /// Starts a server with TLS that shows the authority's own certificate.
    pub fn start_tls_of(authority: &Authority) -> Web {
        let (certificate, key) = authority.own();
        let config = Arc::new(server_of(&certificate, &key));
        Web::serve(move |tcp, seen| {
            let connection = ServerConnection::new(config.clone()).expect("a TLS connection");
            answer(StreamOwned::new(connection, tcp), seen);
        })
    }

    fn serve(answer: impl Fn(TcpStream, &Seen) + Send + Sync + 'static) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let (seen, answer) = (Arc::new(Seen::default()), Arc::new(answer));
        let server = seen.clone();
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (server.clone(), answer.clone());
                // Otherwise the kernel holds small pieces back until those before are acknowledged.
                let _ = tcp.set_nodelay(true);
                seen.connections.fetch_add(1, Ordering::SeqCst);
                let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most_open.fetch_max(open, Ordering::SeqCst);
                thread::spawn(move || {
                    answer(tcp, &seen);
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Web { port, seen }
    }

    /// `http://127.0.0.1:port`
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A page that answers when the test says so: a handler that asks for it runs until then.
    pub fn held(&self) -> String {
        format!("{}/held", self.origin())
    }

    /// From now on everybody gets an answer from [`Web::held`], also who waits for it.
    pub fn open_held(&self) {
        *self.seen.held_is_open.lock().expect("the page") = true;
        self.seen.opened.notify_all();
    }

    /// Changes what `/service` answers, also to those who wait for it.
    pub fn set_service(&self, service: Service) {
        *self.seen.service.lock().expect("the page") = service;
        self.seen.changed.notify_all();
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// The connections that are open now, and the most that were open at once.
    pub fn open(&self) -> (usize, usize) {
        (self.seen.open.load(Ordering::SeqCst), self.seen.most_open.load(Ordering::SeqCst))
    }
}

impl Authority {
    pub fn new() -> Authority {
        Authority::with_names(Vec::new())
    }

    /// An authority whose certificate is for this server, as `openssl req -x509` makes it.
    pub fn for_server(name: &str) -> Authority {
        Authority::with_names(vec![name.to_owned()])
    }

    fn with_names(names: Vec<String>) -> Authority {
        let mut params = rcgen::CertificateParams::new(names).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        Authority(rcgen::CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its own certificate and key, in PEM.
    pub fn own(&self) -> (String, String) {
        (self.0.pem(), self.0.key().serialize_pem())
    }

    /// A certificate for this name, and its key, in PEM.
    pub fn certificate(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        // OpenSSL takes a certificate with the name of its issuer for one that signed itself.
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.signed_by(&key, &self.0).expect("a certificate").pem(), key.serialize_pem())
    }

    fn server(&self, name: &str) -> ServerConfig {
        let (certificate, key) = self.certificate(name);
        server_of(&certificate, &key)
    }
}

fn server_of(certificate: &str, key: &str) -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    builder.with_no_client_auth().with_single_cert(vec![certificate], key).expect("a server")
}

/// The text `zipped` as gzip.
const ZIPPED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xca\x2c\x28\x48\x4d\x01\x00\x57\x68\
    \xc2\xe2\x06\x00\x00\x00";

/// Answers the requests of a connection. An error ends it; the client is to blame for it.
fn answer(stream: impl Read + Write, seen: &Seen) {
    let mut stream = BufReader::new(stream);
    let mut requests = 0;
    while let Some(path) = answer_one(&mut stream, seen, &mut requests)
        && ["/kept", "/kept-for", "/left"].contains(&path.split('?').next().unwrap_or_default())
    {}
}

/// Reads one request and answers it. Gives its path.
fn answer_one(
    stream: &mut BufReader<impl Read + Write>,
    seen: &Seen,
    requests: &mut usize,
) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        match stream.read_line(&mut head) {
            Ok(read) if read > 0 => {}
            _ => return None,
        }
    }
    seen.requests.fetch_add(1, Ordering::SeqCst);
    *requests += 1;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    // An error is expected: some pages write until the client closes the connection.
    let _ = match path.split('?').next().unwrap_or_default() {
        "/kept" | "/closing" => kept(stream.get_mut(), "", &requests.to_string()),
        "/kept-for" => {
            let seconds = path.split_once('?').map_or("0", |(_, seconds)| seconds);
            let header = format!("keep-alive: timeout={seconds}\r\n");
            kept(stream.get_mut(), &header, &requests.to_string())
        }
        "/left" => kept(stream.get_mut(), "", &"x".repeat(1 << 20)),
        "/echo" => page(stream.get_mut(), "200 OK", "content-type: text/plain\r\n", &head),
        "/zipped" => {
            let stream = stream.get_mut();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", ZIPPED.len());
            write!(stream, "{head}content-encoding: gzip\r\nconnection: close\r\n\r\n")
                .and_then(|()| stream.write_all(ZIPPED))
        }
        "/size" => {
            let size = match length(&head) {
                Some(length) => {
                    std::io::copy(&mut stream.by_ref().take(length), &mut std::io::sink()).unwrap_or(0)
                }
                None => chunks(stream) as u64,
            };
            page(stream.get_mut(), "200 OK", "", &size.to_string())
        }
        "/busy" => page(stream.get_mut(), "429 Too Many Requests", "retry-after: 7\r\n", ""),
        "/down" => page(stream.get_mut(), "503 Service Unavailable", "retry-after: 9\r\n", ""),
        "/status" => {
            let code = path.split_once('?').map_or("200", |(_, code)| code);
            page(stream.get_mut(), &format!("{code} As Told"), "", "told")
        }
        "/held" => {
            let closed = seen.held_is_open.lock().expect("the page");
            drop(seen.opened.wait_while(closed, |is_open| !*is_open).expect("the page"));
            page(stream.get_mut(), "200 OK", "", "opened")
        }
        "/service" => {
            let service = seen.service.lock().expect("the page");
            let now =
                seen.changed.wait_while(service, |now| *now == Service::Hangs).expect("the page").clone();
            match now {
                Service::Answers(status, headers) => page(stream.get_mut(), status, headers, ""),
                Service::Up | Service::Hangs => page(stream.get_mut(), "200 OK", "", "up"),
            }
        }
        "/meet" => {
            seen.meeting.get_or_init(|| Barrier::new(2)).wait();
            page(stream.get_mut(), "200 OK", "", "met")
        }
        "/redirect" => {
            let to = path.split_once("to=").map(|(_, to)| to).unwrap_or_default();
            page(stream.get_mut(), "302 Found", &format!("location: {to}\r\n"), "")
        }
        "/declared" => stream
            .get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
            .map(|()| gone(stream)),
        "/endless" => endless(stream.get_mut()),
        "/chunks" => chunked(stream.get_mut()),
        "/drip" => {
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\n").and_then(|()| drip(stream.get_mut()))
        }
        "/drip-head" => {
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nx-slow: ").and_then(|()| drip(stream.get_mut()))
        }
        "/stuck" => stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\nx").map(|()| gone(stream)),
        // A client may add a path of its own.
        path if path.starts_with("/silent") => {
            gone(stream);
            Ok(())
        }
        "/cut" => stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789"),
        "/big-head" => page(stream.get_mut(), "200 OK", &format!("x-big: {}\r\n", "x".repeat(64 * 1024)), ""),
        _ => page(stream.get_mut(), "404 Not Found", "", ""),
    };
    let _ = stream.get_mut().flush();
    Some(path)
}

/// A page that leaves the connection open.
fn kept(stream: &mut impl Write, headers: &str, body: &str) -> std::io::Result<()> {
    let page = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(page.as_bytes())?;
    stream.flush()
}

fn page(stream: &mut impl Write, status: &str, headers: &str, body: &str) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn endless(stream: &mut impl Write) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    loop {
        stream.write_all(&[b'x'; 16 * 1024])?;
    }
}

fn chunked(stream: &mut impl Write) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let chunks = b"1\r\nx\r\n".repeat(1024);
    loop {
        stream.write_all(&chunks)?;
    }
}

/// Writes a byte every 20 ms, so that no wait for the next byte is long.
fn drip(stream: &mut impl Write) -> std::io::Result<()> {
    loop {
        stream.write_all(b"x")?;
        stream.flush()?;
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Waits until the client closes the connection.
fn gone(stream: &mut impl Read) {
    let mut bytes = [0; 1024];
    while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
}

/// The `content-length` of a request's head.
fn length(head: &str) -> Option<u64> {
    let head = head.to_ascii_lowercase();
    head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
}

/// Reads a chunked body and gives its size.
fn chunks(stream: &mut impl BufRead) -> usize {
    let mut total = 0;
    loop {
        let mut line = String::new();
        if !stream.read_line(&mut line).is_ok_and(|read| read > 0) {
            return total;
        }
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        let mut chunk = vec![0; size + 2];
        if stream.read_exact(&mut chunk).is_err() || size == 0 {
            return total;
        }
        total += size;
    }
}
