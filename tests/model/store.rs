//! Redis as the model sees it: the places a task can be in, and each script as one step on them.
//!
//! What only watches (who claimed last, how often a lease passed on, what took effect) is kept beside the data and decides nothing.

/// Tasks attempted more often than this are buried.
const MAX_RETRIES: u8 = 1;
/// Tasks that as many hosts lost are buried.
const MAX_CRASHES: u8 = 2;

/// A consumer that will never ask for anything again. Names are unique per process start, so all of them are alike.
pub const GONE: u8 = u8::MAX;

/// The guards of the scripts: a mutated model goes without one of them.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    /// park.lua and bury.lua look for the owner first.
    pub failures_look_for_the_owner: bool,
    /// complete.lua writes nothing when XACK says 0.
    pub completion_needs_the_ack: bool,
    /// heartbeat.lua looks for the owner before XCLAIM.
    pub heartbeat_looks_for_the_owner: bool,
    /// heartbeat.lua claims with JUSTID.
    pub heartbeat_counts_nothing: bool,
    /// reclaim.lua counts no delivery of what the consumer owns already.
    pub own_claims_count_nothing: bool,
}

impl Guards {
    pub const ALL: Guards = Guards {
        failures_look_for_the_owner: true,
        completion_needs_the_ack: true,
        heartbeat_looks_for_the_owner: true,
        heartbeat_counts_nothing: true,
        own_claims_count_nothing: true,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Pending,
    Processing,
    Completed,
    Failed,
}

/// What a task carries from entry to entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload {
    pub task: u8,
    pub attempt: u8,
    pub crashes: u8,
}

/// An entry as a consumer was given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delivered {
    pub entry: u8,
    pub payload: Payload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Settlement {
    Complete,
    Retry,
    Reject,
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub id: u8,
    pub payload: Payload,
    pub pending: Option<Pending>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pending {
    pub owner: u8,
    pub deliveries: u8,
    /// Nobody renewed the lease in time.
    pub expired: bool,
    /// Watched: who read or reclaimed it last, and how often it passed from one consumer to another.
    pub claimed_by: u8,
    pub losses: u8,
}

/// What is known of a task apart from where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Known {
    pub status: Status,
    /// How often its effects became visible.
    pub commits: u8,
    /// Dead letters of it.
    pub dead: u8,
    /// Watched: retries that were carried out.
    pub retries: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store {
    /// In the order of their ids.
    pub stream: Vec<Entry>,
    /// By the entry that each came from.
    pub delayed: Vec<(u8, Payload)>,
    pub tasks: Vec<Known>,
    /// Watched: a failure was settled for a consumer that was not the last one to claim the task.
    pub failed_by_a_stranger: bool,
    next_id: u8,
}

impl Store {
    pub fn new(tasks: u8) -> Store {
        let known = Known { status: Status::Pending, commits: 0, dead: 0, retries: 0 };
        let mut store = Store {
            stream: Vec::new(),
            delayed: Vec::new(),
            tasks: vec![known; usize::from(tasks)],
            failed_by_a_stranger: false,
            next_id: 1,
        };
        for task in 0..tasks {
            store.add(Payload { task, attempt: 1, crashes: 0 });
        }
        store
    }

    /// XREADGROUP with COUNT 1.
    pub fn read(&mut self, consumer: u8) -> Option<Delivered> {
        let entry = self.stream.iter_mut().find(|entry| entry.pending.is_none())?;
        entry.pending = Some(Pending { owner: consumer, deliveries: 1, expired: false, claimed_by: consumer, losses: 0 });
        Some(delivered(entry))
    }

    /// recover.lua: the first entry that is pending for the consumer, and not among those in flight.
    pub fn recover(&self, consumer: u8, in_flight: impl Fn(u8) -> bool) -> Option<Delivered> {
        self.stream.iter().find(|entry| self.owns(consumer, entry.id) && !in_flight(entry.id)).map(delivered)
    }

    /// reclaim.lua with a limit of 1.
    pub fn reclaim(&mut self, consumer: u8, guards: &Guards) -> Option<Delivered> {
        let entry = self.stream.iter_mut().find(|entry| entry.pending.as_ref().is_some_and(|pending| pending.expired))?;
        let pending = entry.pending.as_mut()?;
        let is_own = pending.owner == consumer;
        pending.deliveries += u8::from(!is_own || !guards.own_claims_count_nothing);
        pending.losses += u8::from(!is_own);
        (pending.owner, pending.claimed_by, pending.expired) = (consumer, consumer, false);
        Some(delivered(entry))
    }

    /// begin.lua for one entry; false when the consumer does not own it.
    pub fn begin(&mut self, consumer: u8, of: Delivered) -> bool {
        let owned = self.owns(consumer, of.entry);
        if owned {
            self.tasks[usize::from(of.payload.task)].status = Status::Processing;
        }
        owned
    }

    /// heartbeat.lua for one entry; false when the lease is lost.
    pub fn heartbeat(&mut self, consumer: u8, id: u8, guards: &Guards) -> bool {
        let owned = self.owns(consumer, id);
        match self.stream.iter_mut().find(|entry| entry.id == id).and_then(|entry| entry.pending.as_mut()) {
            Some(pending) if owned || !guards.heartbeat_looks_for_the_owner => {
                pending.owner = consumer;
                pending.expired = false;
                pending.deliveries += u8::from(!guards.heartbeat_counts_nothing);
                true
            }
            _ => false,
        }
    }

    /// complete.lua, park.lua or bury.lua.
    pub fn settle(&mut self, consumer: u8, of: Delivered, settlement: Settlement, guards: &Guards) {
        let known = &mut self.tasks[usize::from(of.payload.task)];
        let index = self.stream.iter().position(|entry| entry.id == of.entry);
        let pending = index.and_then(|index| self.stream[index].pending.as_ref());
        if settlement == Settlement::Complete {
            if pending.is_none() && guards.completion_needs_the_ack {
                return;
            }
            known.commits += 1;
            known.status = Status::Completed;
            self.stream.retain(|entry| entry.id != of.entry);
            return;
        }
        if guards.failures_look_for_the_owner && pending.is_none_or(|pending| pending.owner != consumer) {
            return;
        }
        if pending.is_some_and(|pending| pending.claimed_by != consumer) {
            self.failed_by_a_stranger = true;
        }
        self.stream.retain(|entry| entry.id != of.entry);
        match settlement {
            Settlement::Retry if of.payload.attempt <= MAX_RETRIES => {
                known.retries += 1;
                known.status = Status::Pending;
                // A hash and a set: what is there already is replaced.
                self.delayed.retain(|(from, _)| *from != of.entry);
                self.delayed.push((of.entry, Payload { attempt: of.payload.attempt + 1, ..of.payload }));
            }
            Settlement::Release => {
                known.status = Status::Pending;
                self.add(of.payload);
            }
            _ => {
                known.dead += 1;
                known.status = Status::Failed;
            }
        }
    }

    /// promote.lua with a limit of 1. Which of several is due first is left open.
    pub fn promote(&mut self, index: usize) {
        let (_, payload) = self.delayed.remove(index);
        self.add(payload);
    }

    pub fn owns(&self, consumer: u8, id: u8) -> bool {
        self.stream.iter().any(|entry| entry.id == id && entry.pending.as_ref().is_some_and(|pending| pending.owner == consumer))
    }

    fn add(&mut self, payload: Payload) {
        self.stream.push(Entry { id: self.next_id, payload, pending: None });
        self.next_id += 1;
    }

    /// Renames entries by `rename`, which keeps their order, so that states that differ in names only become one.
    pub fn rename_entries(&mut self, rename: impl Fn(u8) -> u8, next_id: u8) {
        self.stream.iter_mut().for_each(|entry| entry.id = rename(entry.id));
        self.delayed.iter_mut().for_each(|(from, _)| *from = rename(*from));
        self.delayed.sort_unstable();
        self.next_id = next_id;
    }

    /// In how many places the task is. Two completions count once here: they are looked at apart.
    pub fn places(&self, task: u8) -> usize {
        let known = &self.tasks[usize::from(task)];
        let queued = self.stream.iter().filter(|entry| entry.payload.task == task).count();
        let delayed = self.delayed.iter().filter(|(_, payload)| payload.task == task).count();
        queued + delayed + usize::from(known.dead) + usize::from(known.commits.min(1))
    }

    pub fn all_ended(&self) -> bool {
        self.stream.is_empty() && self.delayed.is_empty()
    }
}

/// Whether a task has brought down as many hosts as it may.
pub fn crashed(payload: &Payload) -> bool {
    payload.crashes >= MAX_CRASHES
}

fn delivered(entry: &Entry) -> Delivered {
    let deliveries = entry.pending.as_ref().map_or(1, |pending| pending.deliveries);
    let payload = Payload { crashes: entry.payload.crashes + deliveries - 1, ..entry.payload };
    Delivered { entry: entry.id, payload }
}
