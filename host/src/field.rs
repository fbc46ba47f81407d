//! The fields of tasks and records.

/// One field of a task, as its producer wrote it. The value is any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub value: Vec<u8>,
}
