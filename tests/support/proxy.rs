//! A TCP proxy between a host and its Redis that loses replies: the command is carried out, the answer never comes.
//!
//! In: bytes to look for in what the client sends. When they are seen, the request goes on to Redis, its reply is awaited and thrown away,
//! and the connection is cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Runs until the test's process ends.
pub struct Proxy {
    pub port: u16,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    pattern: Vec<u8>,
    /// Replies that are still to be lost.
    left: usize,
    lost: usize,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `upstream`, a port of this machine.
    pub fn start(upstream: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let plan: Arc<Mutex<Plan>> = Arc::default();
        let shared = plan.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                let plan = shared.clone();
                std::thread::spawn(move || pass(client, server, &plan));
            }
        });
        Proxy { port, plan }
    }

    /// Loses the replies of the next `times` requests that contain `pattern`.
    pub fn lose_replies(&self, pattern: &str, times: usize) {
        *self.plan.lock().expect("the plan") = Plan { pattern: pattern.as_bytes().to_vec(), left: times, lost: 0 };
    }

    /// How many replies were lost since then.
    pub fn lost(&self) -> usize {
        self.plan.lock().expect("the plan").lost
    }
}

/// Passes one connection's bytes on, in both directions, until either side ends or a reply is lost.
fn pass(mut client: TcpStream, mut server: TcpStream, plan: &Mutex<Plan>) {
    let swallow = Arc::new(Mutex::new(false));
    let (mut back, mut out) = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
    let swallowing = swallow.clone();
    let replies = std::thread::spawn(move || {
        let mut buffer = [0; 1 << 16];
        while let Ok(read) = back.read(&mut buffer) {
            // What arrives from now on is the reply that is to be lost: the command has been carried out.
            if read == 0 || *swallowing.lock().expect("a flag") || out.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = out.shutdown(Shutdown::Both);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut buffer = [0; 1 << 16];
    // A pattern may lie across two reads: the end of the last one is kept.
    let mut tail: Vec<u8> = Vec::new();
    while let Ok(read) = client.read(&mut buffer) {
        if read == 0 {
            break;
        }
        tail.extend(&buffer[..read]);
        let hit = {
            let mut plan = plan.lock().expect("the plan");
            let hit = plan.left > 0 && tail.windows(plan.pattern.len()).any(|window| window == plan.pattern);
            if hit {
                plan.left -= 1;
                plan.lost += 1;
            }
            hit
        };
        if hit {
            *swallow.lock().expect("a flag") = true;
        }
        tail.drain(..tail.len().saturating_sub(64));
        if server.write_all(&buffer[..read]).is_err() {
            break;
        }
        if hit {
            break;
        }
    }
    if *swallow.lock().expect("a flag") {
        // The other thread cuts the connection when the reply is there.
        let _ = replies.join();
    } else {
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
        let _ = replies.join();
    }
}
