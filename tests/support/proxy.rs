//! A TCP proxy between a host and its Redis that imitates faults of networks.
//!
//! In: bytes to look for in requests ([`Proxy::lose_replies`], [`Proxy::hold`]), or a state of the whole
//! network ([`Proxy::part`], [`Proxy::forget_connections`], [`Proxy::delay`], [`Proxy::lead_to`]). Out: the
//! traffic, with these faults and otherwise unchanged. Not here: which faults a test plans, and when.
//!
//! Proxies for tests such as Toxiproxy cut or delay connections at a time. A test here has to lose the reply
//! to one certain request, so the proxy looks into requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A proxy that runs until the test's process ends.
pub struct Proxy {
    pub port: u16,
    network: Arc<Network>,
}

/// The fault of a connection whose request contains the planned pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Redis carries out the request. The reply is dropped, and the connection is closed.
    LoseReply,
    /// The request does not arrive. The connection stays open and silent.
    HoldRequest,
    /// Redis carries out the request, and the reply does not arrive. The connection stays open and silent.
    HoldReply,
}

#[derive(Default)]
struct Network {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    upstream: u16,
    plan: Option<Plan>,
    hits: usize,
    parted: bool,
    delay: Option<Range<u64>>,
    /// Delays of replies only, and a seed for them.
    reply_delay: Option<(Range<u64>, u64)>,
    /// The number of connections so far.
    born: usize,
    /// Connections with a lower number are forgotten.
    alive_from: usize,
}

struct Plan {
    pattern: Vec<u8>,
    fate: Fate,
    left: usize,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `upstream`, a port of this machine.
    pub fn start(upstream: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let network = Arc::new(Network::default());
        network.lock().upstream = upstream;
        let shared = network.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (number, upstream) = {
                    let mut state = shared.lock();
                    state.born += 1;
                    (state.born, state.upstream)
                };
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                let network = shared.clone();
                std::thread::spawn(move || {
                    Pass { network, number, fate: Arc::default() }.run(client, server);
                });
            }
        });
        Proxy { port, network }
    }

    /// Loses the replies of the next `times` requests that contain `pattern`.
    pub fn lose_replies(&self, pattern: &str, times: usize) {
        self.plan(pattern, Fate::LoseReply, times);
    }

    /// Holds the next request that contains `pattern`, or its reply.
    pub fn hold(&self, pattern: &str, fate: Fate) {
        self.plan(pattern, fate, 1);
    }

    /// Holds every request that contains `pattern`, until [`Proxy::heal`].
    pub fn hold_all(&self, pattern: &str) {
        self.plan(pattern, Fate::HoldRequest, usize::MAX);
    }

    fn plan(&self, pattern: &str, fate: Fate, left: usize) {
        let mut state = self.network.lock();
        let mut pattern = pattern.as_bytes().to_vec();
        // In a call the name of a command, or the digest of a script, stands at the end of a word. A library
        // of functions has them, too, in quotes.
        if pattern.iter().all(u8::is_ascii_alphanumeric) {
            pattern.extend(b"\r\n");
        }
        (state.plan, state.hits) = (Some(Plan { pattern, fate, left }), 0);
    }

    /// How many requests have met their planned fault.
    pub fn hits(&self) -> usize {
        self.network.lock().hits
    }

    /// Starts a partition: no data passes, and no connection is closed. After [`Proxy::heal`], delayed data
    /// arrives.
    pub fn part(&self) {
        self.network.lock().parted = true;
    }

    /// Forgets the present connections, like a router that restarts: they stay open and silent. New
    /// connections work.
    pub fn forget_connections(&self) {
        let mut state = self.network.lock();
        state.alive_from = state.born + 1;
    }

    /// Delays every piece of data by a random time in this range of milliseconds.
    pub fn delay(&self, milliseconds: Range<u64>) {
        self.network.lock().delay = Some(milliseconds);
    }

    /// Delays every piece of a reply by a random time in this range of milliseconds. The same connection has
    /// the same delays for the same seed. It lasts until the end of the proxy.
    pub fn delay_replies(&self, milliseconds: Range<u64>, seed: u64) {
        self.network.lock().reply_delay = Some((milliseconds, seed));
    }

    /// Sends new connections to another port. Present connections are unchanged.
    pub fn lead_to(&self, upstream: u16) {
        self.network.lock().upstream = upstream;
    }

    /// Ends all plans and faults. Connections that were held or forgotten stay silent.
    pub fn heal(&self) {
        let mut state = self.network.lock();
        (state.plan, state.parted, state.delay) = (None, false, None);
        drop(state);
        self.network.changed.notify_all();
    }
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the state of the network")
    }

    /// Waits for the end of a partition, then for the delay. False when the connection is forgotten.
    fn carries(&self, number: usize) -> bool {
        let state =
            self.changed.wait_while(self.lock(), |state| state.parted).expect("the state of the network");
        let (alive, delay) = (number >= state.alive_from, state.delay.clone());
        drop(state);
        if let Some(delay) = delay {
            std::thread::sleep(Duration::from_millis(fastrand::u64(delay)));
        }
        alive
    }

    /// The fault of a request in `data`, if one is planned. A held reply is counted when it arrives.
    fn fate(&self, data: &[u8]) -> Option<Fate> {
        let mut state = self.lock();
        let plan = state.plan.as_mut()?;
        if plan.left == 0 || !data.windows(plan.pattern.len()).any(|window| window == plan.pattern) {
            return None;
        }
        plan.left -= 1;
        let fate = plan.fate;
        if fate != Fate::HoldReply {
            state.hits += 1;
        }
        Some(fate)
    }
}

/// One connection, in both directions.
#[derive(Clone)]
struct Pass {
    network: Arc<Network>,
    number: usize,
    fate: Arc<Mutex<Option<Fate>>>,
}

impl Pass {
    fn fate(&self) -> Option<Fate> {
        *self.fate.lock().expect("the fate")
    }

    /// Passes data on until either side closes the connection or a reply is lost.
    fn run(self, mut client: TcpStream, mut server: TcpStream) {
        let (back, out) = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
        let replying = self.clone();
        let replies = std::thread::spawn(move || replying.replies(back, out));
        self.requests(&mut client, &mut server);
        if self.fate() == Some(Fate::LoseReply) {
            // The other thread closes the connection when the reply arrives.
            let _ = replies.join();
        } else {
            let _ = server.shutdown(Shutdown::Both);
            let _ = client.shutdown(Shutdown::Both);
            let _ = replies.join();
        }
    }

    fn requests(&self, client: &mut TcpStream, server: &mut TcpStream) {
        let mut buffer = [0; 1 << 16];
        // A pattern may be split between two reads, so the end of the last read is kept.
        let mut tail: Vec<u8> = Vec::new();
        while let Ok(read) = client.read(&mut buffer) {
            if read == 0 {
                break;
            }
            if !self.network.carries(self.number) || self.fate().is_some() {
                continue;
            }
            tail.extend(&buffer[..read]);
            let fate = self.network.fate(&tail);
            *self.fate.lock().expect("the fate") = fate;
            tail.drain(..tail.len().saturating_sub(64));
            if fate == Some(Fate::HoldRequest) {
                continue;
            }
            if server.write_all(&buffer[..read]).is_err() || fate == Some(Fate::LoseReply) {
                break;
            }
        }
    }

    fn replies(&self, mut back: TcpStream, mut out: TcpStream) {
        let mut buffer = [0; 1 << 16];
        let mut held = false;
        let delay = self.network.lock().reply_delay.clone();
        let mut delay =
            delay.map(|(range, seed)| (range, fastrand::Rng::with_seed(seed ^ self.number as u64)));
        while let Ok(read) = back.read(&mut buffer) {
            if let Some((range, random)) = &mut delay {
                std::thread::sleep(Duration::from_millis(random.u64(range.clone())));
            }
            // Data that arrives after a request with a planned fault is its reply: the command was carried
            // out.
            match self.fate() {
                _ if read == 0 => break,
                Some(Fate::LoseReply) => break,
                Some(Fate::HoldReply) if !held => {
                    held = true;
                    self.network.lock().hits += 1;
                }
                Some(_) => {}
                None if self.network.carries(self.number) && out.write_all(&buffer[..read]).is_err() => break,
                None => {}
            }
        }
        let _ = out.shutdown(Shutdown::Both);
        let _ = back.shutdown(Shutdown::Both);
    }
}
