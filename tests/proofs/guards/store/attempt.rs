//! The attempts that scenarios settle, and their effects, as settle.lua takes them.
//!
//! Not here: the calls of the scripts.

use super::{GROUP, HOUR_MS, JOIN, key, owned};

/// One effect of an attempt, as settle.lua takes it.
#[derive(Debug, Clone)]
pub struct Effect {
    pub keys: Vec<String>,
    pub values: Vec<String>,
}

impl Effect {
    pub fn add(key: &str) -> Effect {
        Effect { keys: owned(&[key]), values: owned(&["A", "1"]) }
    }

    pub fn set(key: &str) -> Effect {
        Effect { keys: owned(&[key]), values: owned(&["S", "x", "0"]) }
    }

    pub fn put(key: &str) -> Effect {
        Effect { keys: owned(&[key]), values: owned(&["H", "0", "-1", "2", "a", "1"]) }
    }

    /// A task for `queue`. `marker` is the key of its idempotency key.
    pub fn task(queue: &str, id: &str, marker: Option<&str>) -> Effect {
        let mut keys = vec![queue.to_owned()];
        keys.extend(["delayed", "parked", &format!("task:{id}")].map(|what| key(queue, what)));
        keys.push(marker.unwrap_or(queue).to_owned());
        Effect { keys, values: owned(&["T", id, "0", HOUR_MS, "2", "n", "1"]) }
    }

    /// The flow whose last task has this id in `queue`. Its children were staged for [`JOIN`].
    pub fn flow(queue: &str, id: &str, children: usize) -> Effect {
        Effect::keyed_flow(queue, id, children, None)
    }

    /// A flow whose last task has an idempotency key, which `marker` holds.
    pub fn keyed_flow(queue: &str, id: &str, children: usize, marker: Option<&str>) -> Effect {
        let about = key(JOIN, &format!("flow:{id}"));
        let mut keys = vec![about.clone(), format!("{about}:children"), queue.to_owned()];
        keys.extend(["delayed", "parked", "dead", &format!("task:{id}")].map(|what| key(queue, what)));
        keys.push(marker.unwrap_or(queue).to_owned());
        let total = children.to_string();
        let values = owned(&["F", id, &total, GROUP, "0", HOUR_MS, "4", "n", "1", "tq-joins", &about]);
        Effect { keys, values }
    }
}

/// A delivered child of a flow: its entry, its id, and the field `tq-flow`.
pub type Child = (String, String, String);

/// An attempt that is settled.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// It is settled in the short form of those that complete a task without a status.
    pub is_plain: bool,
    pub how: &'static str,
    /// It is settled only if its consumer owns the task.
    pub needs_owner: bool,
    pub has_record: bool,
    pub entry: String,
    pub id: String,
    /// The fields of the dead letter.
    pub fields: Vec<String>,
    pub effects: Vec<Effect>,
    pub delay: &'static str,
    /// The result of a plain attempt without effects.
    pub result: Option<String>,
}

impl Attempt {
    /// The first attempt of a task without a status. It completes without a result.
    pub fn plain(entry: &str) -> Attempt {
        Attempt { is_plain: true, ..Attempt::completed(entry) }
    }

    /// A plain attempt with a result of so many bytes.
    pub fn resulting(entry: &str, bytes: usize) -> Attempt {
        Attempt { result: Some("r".repeat(bytes)), ..Attempt::plain(entry) }
    }

    /// A plain attempt that sets a value.
    pub fn setter(entry: &str, key: &str) -> Attempt {
        Attempt { effects: vec![Effect::set(key)], ..Attempt::plain(entry) }
    }

    pub fn completed(entry: &str) -> Attempt {
        let (entry, id) = (entry.to_owned(), entry.to_owned());
        Attempt {
            is_plain: false,
            how: "COMPLETED",
            needs_owner: false,
            has_record: false,
            entry,
            id,
            fields: Vec::new(),
            effects: Vec::new(),
            delay: "0",
            result: None,
        }
    }

    /// An attempt of a task with an id of its own.
    pub fn named(entry: &str, id: &str) -> Attempt {
        let fields = owned(&["n", "1", "tq-id", id]);
        Attempt { id: id.to_owned(), fields, ..Attempt::completed(entry) }
    }

    pub fn child((entry, id, flow): &Child) -> Attempt {
        let fields = owned(&["n", "1", "tq-id", id, "tq-flow", flow]);
        Attempt { id: id.clone(), fields, ..Attempt::completed(entry) }
    }

    /// The last task of a flow.
    pub fn join(entry: &str, id: &str) -> Attempt {
        let fields = owned(&["n", "1", "tq-id", id, "tq-joins", &key(JOIN, &format!("flow:{id}"))]);
        Attempt { id: id.to_owned(), fields, ..Attempt::completed(entry) }
    }

    /// The attempt is one of the task with this id.
    pub fn under(self, id: &str) -> Attempt {
        Attempt { id: id.to_owned(), ..self }
    }

    /// The task goes to the end of the stream.
    pub fn released(self) -> Attempt {
        Attempt { how: "PENDING", ..self.owned() }
    }

    /// The task comes back after a minute.
    pub fn delayed(self) -> Attempt {
        Attempt { delay: "60000", ..self.released() }
    }

    /// As in a queue that limits which tasks run beside each other.
    pub fn owned(self) -> Attempt {
        Attempt { is_plain: false, needs_owner: true, ..self }
    }

    pub fn buried(self) -> Attempt {
        Attempt { how: "FAILED", ..self.owned() }
    }

    /// The attempt has failed, and its record is kept. The task goes to the end of the stream.
    pub fn failed(self) -> Attempt {
        Attempt { has_record: true, ..self.released() }
    }

    /// The attempt has failed, and its record is kept. The task is dead.
    pub fn failed_for_good(self) -> Attempt {
        Attempt { has_record: true, ..self.buried() }
    }

    pub fn with(mut self, effect: Effect) -> Attempt {
        self.is_plain = false;
        self.effects.push(effect);
        self
    }
}
