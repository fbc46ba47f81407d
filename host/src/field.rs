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

/// The most fields that a task may have besides reserved ones: all are arguments of one call in a script.
pub(crate) const MAX_FIELDS: usize = 1000;

/// The most bytes of these fields, their names included: each is held in memory, by the host and by Redis, as
/// often as it is read or moved.
pub(crate) const MAX_TASK_BYTES: usize = 16 << 20;

/// The beginning of the names of fields in which the host carries what it knows of a task.
pub(crate) const HOST_FIELDS: &str = "tq-";
/// The beginning of the names of fields in which the host tells of the end of another task.
pub(crate) const END_FIELDS: &str = "end.";

/// The fields of this kind that a host writes.
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

/// How names begin that no producer may give to a field of a new task.
pub(crate) const RESERVED: [&str; 2] = [HOST_FIELDS, END_FIELDS];

/// The reserved beginning of this name, if it has one.
pub(crate) fn reserved(name: &str) -> Option<&'static str> {
    RESERVED.into_iter().find(|prefix| name.starts_with(prefix))
}
