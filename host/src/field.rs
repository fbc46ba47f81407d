//! The fields of tasks and records.

/// One field of a task, as its producer wrote it. The value is any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub value: Vec<u8>,
}

impl Field {
    pub(crate) fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }
}

/// The text without the mark of UTF-8 that some programs put before it. JSON may be read so (RFC 8259).
pub(crate) fn without_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// The most fields that a task may have besides reserved ones: a script passes all of them to one call of
/// Redis.
pub(crate) const MAX_FIELDS: usize = 1000;

/// The most bytes of these fields, their names included. The host and Redis hold all of them in memory
/// whenever the task is read or moved.
pub(crate) const MAX_TASK_BYTES: usize = 16 << 20;

/// The prefix of the fields in which the host keeps what it knows of a task.
pub(crate) const HOST_FIELDS: &str = "tq-";
/// The prefix of the fields in which the host tells of the end of another task.
pub(crate) const END_FIELDS: &str = "end.";

/// The names with [`END_FIELDS`] that a host writes.
pub(crate) const END_NAMES: [&str; 9] = [
    "end.id",
    "end.queue",
    "end.status",
    "end.reason",
    "end.error",
    "end.result",
    "end.attempts",
    "end.enqueued_at",
    "end.finished_at",
];

/// The prefixes that no producer may use in the name of a field.
pub(crate) const RESERVED: [&str; 2] = [HOST_FIELDS, END_FIELDS];

/// The reserved prefix of this name, if it has one.
pub(crate) fn reserved(name: &str) -> Option<&'static str> {
    RESERVED.into_iter().find(|prefix| name.starts_with(prefix))
}
