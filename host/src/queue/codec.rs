//! Turns stream entries into [`Task`]s, and tasks into entries.
//!
//! In: entries, or tasks. Out: tasks, or fields; or the reason why an entry is not a task. The fields of a
//! task belong to its producer, except those with the reserved prefix `tq-`: in these the host carries the
//! identity of the task from entry to entry. They count only in entries that a host wrote (`claim`). Those
//! that this version does not know are kept, because a newer host may have written them.
//!
//! Not here: handling an entry that cannot be decoded (`worker::intake` buries it as `malformed`).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::items::{self, ItemFault, ItemTimes};
use super::reason::Reason;
use super::value;
use crate::config;
use crate::field::{END_NAMES, HOST_FIELDS, MAX_FIELDS, MAX_TASK_BYTES};
use crate::task::{Field, Origin, Task};
use crate::telemetry::{TRACEPARENT, TraceContext};

/// The longest id of a task, in bytes. The id is part of a key.
pub const MAX_ID_BYTES: usize = 256;
/// The most reserved fields: those that the host knows, and room for those of other versions.
const MAX_RESERVED: usize = 50;
const MAX_RESERVED_BYTES: usize = 1 << 20;

/// The first millisecond of the year 2000. An entry's id with an earlier time was chosen by its producer.
const FIRST_TIME_MS: u64 = 946_684_800_000;
/// The longest delay of a task.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

const ID: &str = "tq-id";
const ATTEMPT: &str = "tq-attempt";
const DEFERRALS: &str = "tq-deferrals";
const CRASHES: &str = "tq-crashes";
/// The number of deliveries of the task under earlier entries.
const FENCE: &str = "tq-fence";
/// The key of the flow that the task joins.
const JOINS: &str = "tq-joins";
/// Why the flow that the task joins has failed.
const FLOW_FAILED: &str = "tq-flow-failed";
const ENQUEUED_AT: &str = "tq-enqueued-at";
/// The shortest time from the enqueueing of a task to its start, in milliseconds.
const DELAY: &str = "tq-delay-ms";
/// When a task that was delayed before its first attempt, or that came back from the dead letters, was due
/// (ms since the Unix epoch).
const DUE_AT: &str = "tq-due-at";
/// When a task last came back from the dead letters (ms since the Unix epoch). It keeps this field until it
/// comes back again.
pub(super) const REQUEUED_AT: &str = "tq-requeued-at";
const KEY: &str = "tq-key";
/// The reserved fields that a producer may write, and the flow of a child, which needs no proof because a
/// flow knows its children. All other ones count only in an entry that a host wrote.
const OPEN: [&str; 4] = [ID, KEY, DELAY, FLOW];
/// The latest time that a field may have (ms since the Unix epoch): in the year 9999.
const LATEST_MS: u64 = 253_402_300_799_999;
/// The highest fence that a field may have. A number in Lua is exact up to a higher one.
const MAX_FENCE: u64 = 1 << 48;
/// Reserved fields that [`Task`] has fields for.
const KNOWN: [&str; 8] = [ID, ATTEMPT, DEFERRALS, CRASHES, FENCE, DELAY, ENQUEUED_AT, DUE_AT];
/// [`Outages`]: two numbers with a space between them.
const OUTAGES: &str = "tq-outages";
/// The span of the last attempt, as a `traceparent`.
const SPAN: &str = "tq-span";
/// The spans of the last attempts of the children whose flow the task joins, with spaces between them.
const LINKS: &str = "tq-links";
/// The place of a child in its flow, and the key of the flow.
pub(super) const FLOW: &str = "tq-flow";
/// Fields that a dead letter adds to those of its task. They are dropped when it becomes a task again.
const DEAD_ONLY: [&str; 8] = [
    "tq-queue",
    "tq-reason",
    "tq-error",
    "tq-attempts",
    "tq-failed-at",
    "tq-consumer",
    "tq-plugin",
    "tq-packed",
];

/// The field of a list's item (`scripts/move.lua`).
const ITEM: &str = "data";

/// Field names and values as they stand in Redis.
pub type RawFields = Vec<(Vec<u8>, Vec<u8>)>;

/// One entry of a stream, as it was delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: String,
    pub fields: RawFields,
    /// How often it was delivered, as the group counts: 1 + the number of hosts that lost it.
    pub deliveries: u32,
}

impl StreamEntry {
    /// Its approximate size in bytes.
    pub fn bytes(&self) -> usize {
        bytes_in(&self.fields)
    }
}

/// The bytes of all names and values.
pub(crate) fn bytes_in(fields: &RawFields) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Why an entry is not a task.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a field's name is not UTF-8")]
    NameNotUtf8,
    #[error("the task has {0} fields; at most {MAX_FIELDS} are taken")]
    TooManyFields(usize),
    #[error("the task has {0} fields whose names begin with {HOST_FIELDS}; at most {MAX_RESERVED} are taken")]
    TooManyReserved(usize),
    #[error("the task has {0} bytes; at most {MAX_TASK_BYTES} (16MiB) are taken: keep large data in blobs")]
    TooLarge(usize),
    #[error("the task has {0} bytes in its reserved fields; at most {MAX_RESERVED_BYTES} are taken")]
    ReservedTooLarge(usize),
    #[error("{ID} is not text of 1 to {MAX_ID_BYTES} bytes")]
    BadId,
    #[error("{0} is not a number")]
    NotANumber(&'static str),
    #[error("{name} is {most} at most")]
    TooHigh { name: &'static str, most: u64 },
    #[error("{0}: the queue runs its tasks in a strict order, and takes none with a delay")]
    DelayInOrder(&'static str),
    #[error("{DELAY} is {0} ms; a delay is 365 days ({max} ms) at most", max = LONGEST_DELAY.as_millis())]
    DelayTooLong(u64),
    #[error("headers.eta is more than 365 days after the task came")]
    TooLate,
    #[error(transparent)]
    Item(#[from] ItemFault),
}

/// Reads an entry of the queue `queue`. The fields are moved, not copied; an entry that is not a task comes
/// back whole.
pub fn decode(queue: &Arc<str>, entry: StreamEntry) -> Result<Task, (Malformed, StreamEntry)> {
    let mut task = match read_reserved(queue, &entry) {
        Ok(task) => task,
        Err(why) => return Err((why, entry)),
    };
    let is_kept = |name: &str| !KNOWN.contains(&name) && !DEAD_ONLY.contains(&name);
    for (name, value) in entry.fields {
        // Every name was checked before.
        let Ok(name) = String::from_utf8(name) else { continue };
        if !is_of_host(&name) {
            task.fields.push(Field { name, value });
        } else if is_kept(&name) {
            task.reserved.push(Field { name, value });
        }
    }
    Ok(task)
}

/// Checks the number of an entry's fields, and their size.
fn check_size(entry: &StreamEntry) -> Result<(), Malformed> {
    let (mut reserved, mut reserved_bytes, mut own_bytes) = (0, 0, 0);
    for (name, value) in &entry.fields {
        let bytes = name.len() + value.len();
        if name.starts_with(HOST_FIELDS.as_bytes()) {
            reserved += 1;
            reserved_bytes += bytes;
        } else {
            own_bytes += bytes;
        }
    }
    let own = entry.fields.len() - reserved;
    // A task that tells of the end of another task has all fields of that one, and some more.
    if own > MAX_FIELDS && own - added_in(entry) > MAX_FIELDS {
        return Err(Malformed::TooManyFields(own));
    }
    if reserved > MAX_RESERVED {
        return Err(Malformed::TooManyReserved(reserved));
    }
    if own_bytes > MAX_TASK_BYTES {
        return Err(Malformed::TooLarge(own_bytes));
    }
    if reserved_bytes > MAX_RESERVED_BYTES {
        return Err(Malformed::ReservedTooLarge(reserved_bytes));
    }
    Ok(())
}

/// Reads the reserved fields of an entry. Returns the task without `fields` and `reserved`.
fn read_reserved(queue: &Arc<str>, entry: &StreamEntry) -> Result<Task, Malformed> {
    check_size(entry)?;
    let mut task = Task {
        fields: Vec::with_capacity(entry.fields.len()),
        crashes: entry.deliveries.saturating_sub(1),
        fence: u64::from(entry.deliveries.max(1)),
        enqueued_at_ms: entry_time_ms(&entry.id),
        ..Task::bare(queue.clone(), &entry.id)
    };
    let (mut has_id, mut is_enqueued, mut is_returned) = (false, false, false);
    for (name, value) in &entry.fields {
        let name = std::str::from_utf8(name).map_err(|_| Malformed::NameNotUtf8)?;
        match name {
            ID => (task.id, has_id) = (decode_id(value)?, true),
            ATTEMPT => (task.attempt, is_returned) = (number::<u32>(ATTEMPT, value)?.max(1), true),
            DEFERRALS => task.deferrals = number(DEFERRALS, value)?,
            CRASHES => task.crashes = task.crashes.saturating_add(number(CRASHES, value)?),
            FENCE => {
                (task.fence, is_returned) = (task.fence + at_most(MAX_FENCE, FENCE, value)?, true);
            }
            JOINS => task.joins = std::str::from_utf8(value).ok().map(str::to_owned),
            DELAY => task.delay = Some(delay(value)?),
            DUE_AT => task.waits_since_ms = Some(at_most(LATEST_MS, DUE_AT, value)?),
            ENQUEUED_AT => {
                (task.enqueued_at_ms, is_enqueued) = (at_most(LATEST_MS, ENQUEUED_AT, value)?, true);
            }
            TRACEPARENT => task.traceparent = std::str::from_utf8(value).ok().map(str::to_owned),
            _ => {}
        }
    }
    if !is_returned {
        // An entry's id that its producer chose, such as `1-1`, says nothing of when it came.
        let came = Some(task.enqueued_at_ms).filter(|ms| is_enqueued || *ms >= FIRST_TIME_MS);
        task.waits_since_ms = task.waits_since_ms.or(came);
    }
    task.origin = match (has_id, is_enqueued, is_returned) {
        (false, false, false) => Origin::Producer,
        (true, true, false) => Origin::Host,
        _ => Origin::Other,
    };
    Ok(task)
}

/// How many fields a host adds when it tells of the end of another task, the trace included.
fn added_in(entry: &StreamEntry) -> usize {
    let is_added = |name: &str| name == TRACEPARENT || END_NAMES.contains(&name);
    entry.fields.iter().filter(|(name, _)| std::str::from_utf8(name).is_ok_and(is_added)).count()
}

/// Whether an entry has fields that count only if a host wrote it.
///
/// The name of a flow needs no proof: the flow itself knows its children, so its name in a field grants
/// nothing. An entry that is malformed needs none either: it never runs.
pub(super) fn needs_proof(entry: &StreamEntry) -> bool {
    entry.fields.iter().any(|(name, _)| !is_open(name)) && read_reserved(&Arc::from(""), entry).is_ok()
}

/// Whether a producer may write this field.
fn is_open(name: &[u8]) -> bool {
    !name.starts_with(HOST_FIELDS.as_bytes()) || OPEN.iter().any(|known| known.as_bytes() == name)
}

/// Removes the reserved fields that only hosts write.
pub(super) fn keep_open(fields: &mut RawFields) {
    fields.retain(|(name, _)| is_open(name));
}

/// Whether this field names the flow that a task joins.
pub(super) fn is_joins(name: &[u8]) -> bool {
    name == JOINS.as_bytes()
}

/// The value of a reserved field that [`Task`] has no field for.
fn reserved<'t>(task: &'t Task, name: &str) -> Option<&'t [u8]> {
    task.reserved.iter().find(|field| field.name == name).map(|field| field.value.as_slice())
}

/// Like [`reserved`], for text. None: the field is missing, or is not UTF-8.
fn reserved_text<'t>(task: &'t Task, name: &str) -> Option<&'t str> {
    std::str::from_utf8(reserved(task, name)?).ok()
}

/// Sets a reserved field that [`Task`] has no field for, or removes it.
fn set_reserved(task: &mut Task, name: &str, value: Option<String>) {
    task.reserved.retain(|field| field.name != name);
    let value = value.map(|value| Field { name: name.to_owned(), value: value.into_bytes() });
    task.reserved.extend(value);
}

/// Whether an operator brought the task back from the dead letters.
pub fn was_requeued(task: &Task) -> bool {
    reserved(task, REQUEUED_AT).is_some()
}

/// Checks whether the queue can run this task. Returns how long after its enqueueing the first attempt may
/// begin; none: at once.
pub fn check(task: &Task, rules: &config::QueueRules) -> Result<Option<Duration>, Malformed> {
    let times = item_times(task, rules)?;
    // A task that was delayed until its item is due has waited for its first attempt since then.
    let is_early = |due: &u64| task.waits_since_ms.is_some_and(|since| *due > since);
    let wait_ms = times.due_ms.filter(is_early).map(|due| due.saturating_sub(task.enqueued_at_ms));
    let (name, delay) = match wait_ms.map(Duration::from_millis) {
        Some(wait) if wait > LONGEST_DELAY => return Err(Malformed::TooLate),
        Some(wait) => ("headers.eta", Some(wait)),
        None => (DELAY, task.delay),
    };
    match delay {
        Some(_) if rules.turns.are_strict() => Err(Malformed::DelayInOrder(name)),
        delay => Ok(delay),
    }
}

/// The times that a task's item says. They are empty if the queue reads no list.
pub fn item_times(task: &Task, rules: &config::QueueRules) -> Result<ItemTimes, Malformed> {
    let Some(list) = &rules.list else { return Ok(ItemTimes::default()) };
    let mut times = ItemTimes::default();
    for item in task.fields.iter().filter(|field| field.name == ITEM) {
        times = items::read(list.items, &item.value)?;
    }
    Ok(times)
}

fn delay(value: &[u8]) -> Result<Duration, Malformed> {
    let ms = number(DELAY, value)?;
    let delay = Duration::from_millis(ms);
    if delay > LONGEST_DELAY { Err(Malformed::DelayTooLong(ms)) } else { Ok(delay) }
}

/// The fields of `task` for its next delivery.
pub fn encode(task: &Task, attempt: u32, deferrals: u32) -> RawFields {
    let mut out = own_fields(task);
    out.push(raw(ID, &task.id));
    out.push(raw(ATTEMPT, &attempt));
    out.push(raw(ENQUEUED_AT, &task.enqueued_at_ms));
    out.push(fence(task));
    if deferrals > 0 {
        out.push(raw(DEFERRALS, &deferrals));
    }
    if task.crashes > 0 {
        out.push(raw(CRASHES, &task.crashes));
    }
    out
}

/// How often a task has failed for a cause outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outages {
    /// The number of failures that were not charged, without those while the queue was held.
    pub free: u32,
    /// When the first failure was (ms since the Unix epoch); 0: there was none, or it is not known.
    pub since_ms: u64,
}

/// The failures for a cause outside that the task has had.
pub fn outages(task: &Task) -> Outages {
    let mut numbers = reserved_text(task, OUTAGES).unwrap_or_default().split(' ');
    let free = numbers.next().and_then(|free| free.parse().ok()).unwrap_or_default();
    let since_ms = numbers.next().and_then(|since| since.parse().ok()).unwrap_or_default();
    Outages { free, since_ms }
}

/// Writes into the task's next entry the value that [`outages`] reads.
pub fn set_outages(task: &mut Task, outages: Outages) {
    let has_some = outages != Outages::default();
    set_reserved(task, OUTAGES, has_some.then(|| format!("{} {}", outages.free, outages.since_ms)));
}

/// The span of the last attempt. None: it had none.
pub(crate) fn last_span(task: &Task) -> Option<TraceContext> {
    reserved_text(task, SPAN).and_then(TraceContext::parse)
}

/// Sets the span that [`last_span`] returns.
pub(crate) fn set_span(task: &mut Task, span: TraceContext) {
    set_reserved(task, SPAN, Some(span.to_string()));
}

/// The spans of the children whose flow the task joins, with spaces between them.
pub(crate) fn links(task: &Task) -> Option<&str> {
    reserved_text(task, LINKS)
}

/// Whether the task is a child of a flow, as far as its fields tell.
pub(crate) fn is_child(task: &Task) -> bool {
    reserved(task, FLOW).is_some()
}

/// The field that says when a task that is delayed before its first attempt is due.
pub fn due_at(task: &Task, delay: Duration) -> (Vec<u8>, Vec<u8>) {
    raw(DUE_AT, &task.enqueued_at_ms.saturating_add(delay.as_millis() as u64))
}

/// Why the task cannot run: the flow that it joins has failed.
pub fn failure_of_flow(task: &Task) -> Option<String> {
    reserved(task, FLOW_FAILED).map(|why| String::from_utf8_lossy(why).into_owned())
}

/// The field that carries the number of deliveries so far to the next entry.
pub fn fence(task: &Task) -> (Vec<u8>, Vec<u8>) {
    raw(FENCE, &task.fence)
}

/// A task's idempotency key: `tq-key`, or else the value that the queue's configuration names.
pub fn idempotency_key<'t>(task: &'t Task, rules: &config::QueueRules) -> Option<Cow<'t, [u8]>> {
    value::idempotency_key(reserved(task, KEY), &task.fields, &rules.idempotency.key)
}

/// The producer's fields, and the reserved ones that this version only keeps.
pub fn own_fields(task: &Task) -> RawFields {
    let carried = task.fields.iter().chain(&task.reserved);
    carried.map(|field| (field.name.clone().into_bytes(), field.value.clone())).collect()
}

/// The task id in an entry, as far as it can be read: for messages and keys when the rest is malformed.
pub fn id_of(entry: &StreamEntry) -> String {
    // If there are several, the last one counts, as in `read_reserved`.
    let named = entry.fields.iter().rfind(|(name, _)| name == ID.as_bytes());
    named.and_then(|(_, value)| decode_id(value).ok()).unwrap_or_else(|| entry.id.clone())
}

/// The attempt that an entry is for, as far as it says.
pub(super) fn attempt_of(entry: &StreamEntry) -> u32 {
    let named = entry.fields.iter().rfind(|(name, _)| name == ATTEMPT.as_bytes());
    named.and_then(|(_, value)| number::<u32>(ATTEMPT, value).ok()).unwrap_or(1).max(1)
}

/// The fields of a dead letter as those of a task on its first attempt: without attempts, deferrals, crashes
/// and the reasons.
pub fn revived(id: &str, fields: &RawFields) -> RawFields {
    let spent = [ID, ATTEMPT, DEFERRALS, CRASHES, OUTAGES, DELAY, DUE_AT, REQUEUED_AT, FLOW_FAILED];
    let mut kept = fields.clone();
    // An entry that could not be read was not asked who wrote it.
    if kept.contains(&raw("tq-reason", Reason::Malformed.into_str())) {
        keep_open(&mut kept);
    }
    kept.retain(|(name, _)| {
        let is = |known: &&str| name == known.as_bytes();
        !spent.iter().any(is) && !DEAD_ONLY.iter().any(is)
    });
    kept.push(raw(ID, id));
    kept
}

/// One field in the form in which Redis takes it.
pub fn raw(name: &str, value: &(impl ToString + ?Sized)) -> (Vec<u8>, Vec<u8>) {
    (name.as_bytes().to_vec(), value.to_string().into_bytes())
}

/// Milliseconds since the Unix epoch, from the first half of an entry id. 0 for an id of another form.
pub fn entry_time_ms(entry: &str) -> u64 {
    entry.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0)
}

/// Whether `id` has the form of a stream entry's id: `ms-sequence`.
pub fn is_entry_id(id: &str) -> bool {
    let is_number =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_ok();
    id.split_once('-').is_some_and(|(ms, sequence)| is_number(ms) && is_number(sequence))
}

/// Whether the entry id `a` comes after `b`.
pub(crate) fn comes_after(a: &str, b: &str) -> bool {
    a != b && later(a, b) == a
}

/// The later one of two entry ids.
pub(super) fn later<'a>(a: &'a str, b: &'a str) -> &'a str {
    let number = |id: &str| -> (u64, u64) {
        let (ms, sequence) = id.split_once('-').unwrap_or((id, "0"));
        (ms.parse().unwrap_or(0), sequence.parse().unwrap_or(0))
    };
    [a, b].into_iter().min_by_key(|id| Reverse(number(id))).unwrap_or(a)
}

/// Whether this is a field of the host, not of the task's producer.
pub fn is_of_host(name: &str) -> bool {
    name.starts_with(HOST_FIELDS)
}

/// Whether this field names the flow that a task belongs to, or joins.
pub(super) fn is_of_flow(name: &[u8]) -> bool {
    [FLOW, JOINS].iter().any(|known| known.as_bytes() == name)
}

fn decode_id(value: &[u8]) -> Result<String, Malformed> {
    match std::str::from_utf8(value) {
        Ok(id) if !id.is_empty() && id.len() <= MAX_ID_BYTES => Ok(id.to_owned()),
        _ => Err(Malformed::BadId),
    }
}

/// Reads a number, of which hosts write none above `most`.
fn at_most(most: u64, name: &'static str, value: &[u8]) -> Result<u64, Malformed> {
    let number = number(name, value)?;
    if number > most { Err(Malformed::TooHigh { name, most }) } else { Ok(number) }
}

fn number<N: std::str::FromStr>(name: &'static str, value: &[u8]) -> Result<N, Malformed> {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(Malformed::NotANumber(name))
}

#[cfg(test)]
mod tests;
