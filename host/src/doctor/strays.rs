//! Streams that nobody reads: the name of one differs from that of a queue's stream by a letter or two, as a
//! producer writes it that has the name wrong.
//!
//! In: the queues of the configuration. Out: for each of their streams, the strays beside it that have
//! entries. Not here: what is in the queues' own keys (`walk`).

use super::walk::{Page, SCAN, START, page};
use crate::config::{QueueRules, edits};
use crate::queue::keys::EVERYTHING;
use crate::queue::reply;
use crate::queue::{Link, QueueError, QueueResult};

const WHAT: &str = "look for streams that no queue reads";
/// How far a name may be from that of a queue.
const EDITS: usize = 2;
/// Shorter names differ by two letters all the time.
const SHORTEST: usize = 5;
/// The most strays that are told.
const MOST: usize = 20;

/// A stream that no queue reads.
#[derive(Debug)]
pub(crate) struct Stray {
    /// The queue's stream, which it resembles.
    pub beside: String,
    pub stream: String,
    pub entries: u64,
}

/// Looks through the streams in Redis, in at most `most_pages` pages of keys.
pub(crate) async fn strays(link: &Link, queues: &[QueueRules], most_pages: usize) -> QueueResult<Vec<Stray>> {
    let (mut found, mut pages) = (Vec::new(), 0);
    for node in link.at_each_node().await? {
        let mut next = Some(START.to_owned());
        while let Some(cursor) = next.filter(|_| pages < most_pages) {
            pages += 1;
            let page = streams(&node, &cursor).await?;
            for stream in page.items {
                if let Some(beside) = resembled(&stream, queues)
                    && found.len() < MOST
                {
                    let length = redis::cmd("XLEN").arg(&stream).to_owned();
                    // The user of a Redis with access rules may not look into other streams.
                    let Ok(entries) = link.at_key(&stream).command(WHAT, &length).await else { continue };
                    let entries = reply::count(&entries).unwrap_or(0);
                    if entries > 0 {
                        found.push(Stray { beside: beside.to_owned(), stream, entries });
                    }
                }
            }
            next = page.next;
        }
    }
    Ok(found)
}

/// The streams among the next keys of a server.
async fn streams(node: &Link, cursor: &str) -> QueueResult<Page<String>> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("COUNT").arg(SCAN).arg("TYPE").arg("stream");
    let reply = node.command(WHAT, &scan).await?;
    let name = |key| Ok(String::from_utf8_lossy(&reply::bytes(key)?).into_owned());
    page(reply, START, name).map_err(|_| QueueError::unexpected(WHAT, node.address()))
}

/// The queue's stream whose name was probably meant.
fn resembled<'q>(stream: &str, queues: &'q [QueueRules]) -> Option<&'q str> {
    let names = queues.iter().map(|queue| queue.stream.as_str());
    let mut known = names.clone().chain(queues.iter().filter_map(|queue| queue.dead_letter.as_deref()));
    let is_own = EVERYTHING.strip_suffix('*').is_some_and(|prefix| stream.starts_with(prefix));
    if stream.len() < SHORTEST || is_own || known.any(|name| name == stream) {
        return None;
    }
    let near = names.filter(|name| name.len().abs_diff(stream.len()) <= EDITS);
    let near = near.map(|name| (edits(stream, name), name)).filter(|(edits, _)| *edits <= EDITS);
    near.min().map(|(_, name)| name)
}
