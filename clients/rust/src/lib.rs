//! A producer's client for tqhost, on the crate `redis`.
//!
//! In: a connection of `redis`, and the name of a queue's stream. Out: tasks by plain XADD, their statuses,
//! waits that end, cancels through the HTTP API, and webhooks of `http-call` that are checked. A program on
//! tokio calls it in `spawn_blocking`. Not here: handlers, and what only hosts write.

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{ConnectionLike, RedisResult, Value, cmd};

const MAX_FIELDS: usize = 1000;
const MAX_TASK_BYTES: usize = 16 << 20;
const MAX_ID_BYTES: usize = 256;
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);
const RESERVED: [&str; 2] = ["tq-", "end."];
/// Redis does not announce changes of a status, so a wait looks a few times a second.
const PERIOD: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub enum Error {
    /// No host would take such a task. Nothing was written.
    NotATask(String),
    /// As many tasks as `max_backlog` wait or run. Nothing was written.
    QueueFull(String),
    /// The time is over, and the task still waits or runs. Holds the status that was read last.
    NotEnded(Box<Status>),
    /// The HTTP API refuses; `code` is one of docs/api.md, such as `unknown-task` or `task-ended`.
    ApiRefused {
        http_status: u16,
        code: String,
        detail: String,
    },
    /// The HTTP API was not reached.
    Http(String),
    /// The request is not one of `http-call`: answer 401.
    BadWebhook(&'static str),
    /// Nothing can be checked with this secret.
    BadSecret,
    Redis(redis::RedisError),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::NotATask(why) | Error::QueueFull(why) | Error::Http(why) => f.write_str(why),
            Error::NotEnded(status) => write!(f, "not ended in time: {} is {}", status.id, status.status),
            Error::ApiRefused { http_status, code, detail } => write!(f, "{code} ({http_status}): {detail}"),
            Error::BadWebhook(why) => f.write_str(why),
            Error::BadSecret => f.write_str("the secret is not whsec_ and 24 to 64 bytes in base64"),
            Error::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<redis::RedisError> for Error {
    fn from(error: redis::RedisError) -> Error {
        Error::Redis(error)
    }
}

/// What a task has beside its fields. `id` has at most 256 bytes; without it, the task has that of its entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'o> {
    pub id: Option<&'o str>,
    pub key: Option<&'o str>,
    pub delay: Duration,
    pub traceparent: Option<&'o str>,
}

/// The fields of docs/status.md. UNKNOWN: the id is not known, or not yet, or not any more. Times are
/// milliseconds since the Unix epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub id: String,
    pub status: String,
    pub attempt: Option<u64>,
    pub enqueued_at: Option<u64>,
    pub due_at: Option<u64>,
    pub started_at: Option<u64>,
    pub finished_at: Option<u64>,
    pub progress: Option<u64>,
    pub note: Option<String>,
    pub error: Option<String>,
    pub duplicate_of: Option<String>,
    pub result: Option<Vec<u8>>,
}

/// The fields of a status in Redis, in the order in which they are read.
const NAMES: &str =
    "status attempt enqueued_at due_at started_at finished_at progress note error duplicate_of result";

impl Status {
    pub fn has_ended(&self) -> bool {
        ["COMPLETED", "FAILED", "CANCELLED"].contains(&self.status.as_str())
    }
}

/// The names and values of the task's entry, by the rules of `tqhost enqueue`.
fn entry<'e>(fields: &'e [(&str, &[u8])], options: &Options<'e>) -> Result<Vec<(&'e str, Vec<u8>)>, Error> {
    let refuse = |why: String| Err(Error::NotATask(why));
    if fields.is_empty() {
        return refuse("a task needs at least one field".into());
    }
    if fields.len() > MAX_FIELDS {
        return refuse(format!("a task has at most {MAX_FIELDS} fields, this one has {}", fields.len()));
    }
    let size: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > MAX_TASK_BYTES {
        let limit = format!("{MAX_TASK_BYTES} bytes (16MiB)");
        return refuse(format!("a task has at most {limit}, this one has {size}: keep large data in blobs"));
    }
    for (name, _) in fields {
        if let Some(prefix) = RESERVED.iter().find(|prefix| name.starts_with(**prefix)) {
            return refuse(format!(
                "field `{name}`: names that start with `{prefix}` are reserved for tqhost"
            ));
        }
    }
    if options.delay > MAX_DELAY {
        return refuse("a delay is 365d at most".into());
    }
    if options.key == Some("") {
        return refuse("an idempotency key has at least one byte, this one is empty".into());
    }
    if let Some(id) = options.id.filter(|id| id.is_empty() || id.len() > MAX_ID_BYTES) {
        return refuse(format!("a task's id has 1 to {MAX_ID_BYTES} bytes, this one has {}", id.len()));
    }
    if options.traceparent.is_some_and(|text| !is_trace(text)) {
        let form = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        return refuse(format!("not a W3C trace context: write it like {form}"));
    }
    let mut entry: Vec<_> = fields.iter().map(|(name, value)| (*name, value.to_vec())).collect();
    let mut add = |name, value: Option<&str>| entry.extend(value.map(|value| (name, value.into())));
    // As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
    if fields.len() < MAX_FIELDS && fields.iter().all(|(name, _)| *name != "traceparent") {
        add("traceparent", options.traceparent);
    }
    add("tq-id", options.id);
    add("tq-key", options.key);
    // A part of a millisecond counts as a whole one.
    let delay = options.delay.as_nanos().div_ceil(1_000_000);
    add("tq-delay-ms", Some(delay.to_string().as_str()).filter(|_| delay > 0));
    Ok(entry)
}

/// Whether this is a trace context of W3C: version 00, or a later one, which may append to it.
fn is_trace(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, span, flags, more @ ..] = &parts[..] else { return false };
    let is_hex = |part: &str, digits| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
    let is_text = text.len() <= 256 && text.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase());
    let has_parts = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    let has_zeros = [trace, span].iter().any(|part| part.bytes().all(|byte| byte == b'0'));
    is_text && has_parts && !has_zeros && *version != "ff" && (*version == "00") == more.is_empty()
}

/// A queue, by the name of its stream.
#[derive(Debug, Clone)]
pub struct Queue {
    stream: String,
    /// The beginning of the queue's other keys.
    base: String,
    max_backlog: Option<u64>,
}

impl Queue {
    /// `max_backlog` is that of the queue's configuration; without it, no task is refused.
    pub fn new(stream: &str, max_backlog: Option<u64>) -> Queue {
        // A stream's own hash tag is that of its other keys.
        let base = if stream.contains('{') { format!("tq:{stream}") } else { format!("tq:{{{stream}}}") };
        Queue { stream: stream.into(), base, max_backlog }
    }

    /// Adds a task, and returns its id: the given one, or that of its entry.
    pub fn enqueue(
        &self,
        redis: &mut impl ConnectionLike,
        fields: &[(&str, &[u8])],
        options: &Options<'_>,
    ) -> Result<String, Error> {
        let entry = entry(fields, options)?;
        if let Some(most) = self.max_backlog {
            let queued: u64 = cmd("XLEN").arg(&self.stream).query(redis)?;
            let delayed: u64 = cmd("ZCARD").arg(format!("{}:delayed", self.base)).query(redis)?;
            if queued + delayed >= most {
                return Err(Error::QueueFull(format!(
                    "the queue of {} is full: {most} tasks or more wait or run (max_backlog); try again \
                     later, or raise it",
                    self.stream
                )));
            }
        }
        let added: String = cmd("XADD").arg(&self.stream).arg("*").arg(entry).query(redis)?;
        Ok(options.id.map_or(added, str::to_owned))
    }

    pub fn status(&self, redis: &mut impl ConnectionLike, id: &str) -> Result<Status, Error> {
        let unknown = |status: &str| Status { id: id.into(), status: status.into(), ..Status::default() };
        let mut found = self.read(redis, id)?;
        // A task that waits for its first host has no status, but an entry. One that left its entry between
        // these two commands has a status now.
        if found[0].is_none() && is_entry_id(id) {
            let entries: Vec<Value> = cmd("XRANGE").arg(&self.stream).arg(id).arg(id).query(redis)?;
            if !entries.is_empty() {
                return Ok(unknown("PENDING"));
            }
            found = self.read(redis, id)?;
        }
        let result = found[10].take();
        let text = |n: usize| found[n].as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
        let number = |n: usize| text(n)?.parse().ok();
        let Some(status) = text(0) else { return Ok(unknown("UNKNOWN")) };
        Ok(Status {
            id: id.into(),
            status,
            attempt: number(1),
            enqueued_at: number(2),
            due_at: number(3),
            started_at: number(4),
            finished_at: number(5),
            progress: number(6),
            note: text(7),
            error: text(8),
            duplicate_of: text(9),
            result,
        })
    }

    fn read(&self, redis: &mut impl ConnectionLike, id: &str) -> RedisResult<[Option<Vec<u8>>; 11]> {
        let names: Vec<&str> = NAMES.split(' ').collect();
        cmd("HMGET").arg(format!("{}:task:{id}", self.base)).arg(names).query(redis)
    }

    /// The status after the task's end, however it ended.
    pub fn wait(
        &self,
        redis: &mut impl ConnectionLike,
        id: &str,
        timeout: Duration,
    ) -> Result<Status, Error> {
        let begin = Instant::now();
        loop {
            let status = self.status(redis, id)?;
            if status.has_ended() {
                return Ok(status);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Error::NotEnded(Box::new(status)));
            }
            sleep(left.min(PERIOD));
        }
    }
}

fn is_entry_id(id: &str) -> bool {
    id.split_once('-').is_some_and(|(ms, sequence)| is_number(ms, 19) && is_number(sequence, 19))
}

fn is_number(text: &str, digits: usize) -> bool {
    (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Cancels a task through the HTTP API, since only hosts may end tasks. Returns the status that it had.
///
/// `api` is a host's address, such as `http://127.0.0.1:7700`; `queue` the name in the configuration.
#[cfg(feature = "cancel")]
pub fn cancel(api: &str, queue: &str, id: &str, token: Option<&str>) -> Result<String, Error> {
    const TIMEOUT: Duration = Duration::from_secs(30);
    const MAX_ANSWER: u64 = 1 << 20;
    let coded = |part: &str| -> String {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        let code = |byte| if is_plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
        part.bytes().map(code).collect()
    };
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
    let agent = ureq::Agent::from(config.max_redirects(0).build());
    let url = format!("{}/v1/queues/{}/tasks/{}", api.trim_end_matches('/'), coded(queue), coded(id));
    let mut request = agent.delete(url);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut answer = request.call().map_err(|error| Error::Http(error.to_string()))?;
    let http_status = answer.status().as_u16();
    let read = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().unwrap_or_default();
    let body: serde_json::Value = serde_json::from_slice(&read).unwrap_or_default();
    let text = |name: &str| body[name].as_str().map(str::to_owned);
    let (code, detail) = match (text("before"), text("code")) {
        (Some(before), _) if http_status == 200 => return Ok(before),
        (_, Some(code)) => (code, text("detail").unwrap_or_default()),
        _ => ("unreadable".into(), "the answer is not one of tqhost".into()),
    };
    Err(Error::ApiRefused { http_status, code, detail })
}

/// Checks a request of `http-call` (Standard Webhooks), and returns its `webhook-id`.
///
/// `header` returns the value of a header by its name in small letters; `body` is the bytes as they came. The
/// request's time may be as far away from `now` as `tolerance` says, both in seconds; 300 are usual.
#[cfg(feature = "webhooks")]
pub fn verify_webhook<'h>(
    secret: &str,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now: u64,
    tolerance: u64,
) -> Result<&'h str, Error> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use hmac::{Hmac, KeyInit, Mac};

    let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or(secret)).unwrap_or_default();
    if !(24..=64).contains(&key.len()) {
        return Err(Error::BadSecret);
    }
    let get = |name| header(name).filter(|value| !value.is_empty());
    let missing = Error::BadWebhook("webhook-id, webhook-timestamp or webhook-signature is missing");
    let all = (get("webhook-id"), get("webhook-timestamp"), get("webhook-signature"));
    let (Some(id), Some(stamp), Some(signatures)) = all else { return Err(missing) };
    if !is_number(stamp, 15) {
        return Err(Error::BadWebhook("webhook-timestamp is not a number"));
    }
    if stamp.parse::<u64>().is_ok_and(|stamp| stamp.abs_diff(now) > tolerance) {
        return Err(Error::BadWebhook("webhook-timestamp is too old or too new"));
    }
    let mut is_equal = false;
    for signature in signatures.split(' ').filter_map(|one| one.strip_prefix("v1,")) {
        let Ok(signature) = BASE64_STANDARD.decode(signature) else { continue };
        let mac = Hmac::<sha2::Sha256>::new_from_slice(&key).map_err(|_| Error::BadSecret)?;
        let mac = mac.chain_update(id).chain_update(".").chain_update(stamp).chain_update(".");
        // It compares in constant time.
        is_equal |= mac.chain_update(body).verify_slice(&signature).is_ok();
    }
    if is_equal { Ok(id) } else { Err(Error::BadWebhook("no signature matches")) }
}
