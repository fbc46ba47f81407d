//! The model of Redis: the places of a task, and each script as one step.
//!
//! In: calls of scripts. Out: their replies, and the new state. Fields whose comment begins with "Watched"
//! record what happened, for the properties; no step reads them to decide. Not here: hosts and faults
//! (`system`).

/// The most retries of a task; then it is buried.
const MAX_RETRIES: u8 = 1;
/// A task with this many crashes runs alone from then on, and is buried at the next crash.
const MAX_CRASHES: u8 = 1;

/// Any consumer that will never make a call again. Names are unique per process start, so such consumers need
/// not be told apart.
pub const GONE: u8 = u8::MAX;

/// The guards of the scripts: a mutated model goes without one of them.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    /// settle.lua checks the owner before it parks or buries.
    pub failures_look_for_the_owner: bool,
    /// settle.lua completes nothing when XACK returns 0.
    pub completion_needs_the_ack: bool,
    /// settle.lua gives a repeated call the reply of the first one.
    pub repeated_calls_get_their_reply: bool,
    /// settle.lua ends a task that is marked as cancelled.
    pub settlement_honours_the_mark: bool,
    /// begin.lua ends a task that is marked as cancelled.
    pub gate_honours_the_mark: bool,
    /// heartbeat.lua checks the owner before XCLAIM.
    pub heartbeat_looks_for_the_owner: bool,
    /// heartbeat.lua claims with JUSTID.
    pub heartbeat_counts_nothing: bool,
    /// reclaim.lua counts no delivery when the consumer owns the entry already.
    pub own_claims_count_nothing: bool,
    /// reclaim.lua counts no delivery when the former owner outlived its lease.
    pub living_owners_count_nothing: bool,
    /// A host runs nothing beside a suspect, a task with [`MAX_CRASHES`] crashes.
    pub suspects_run_alone: bool,
    /// settle.lua commits effects after XACK has answered, in the same step.
    pub effects_wait_for_the_ack: bool,
    /// lib.lua looks whether a child has been counted before it counts the child in its flow.
    pub children_count_once: bool,
    /// The end of a task is told by the script that finds its mark.
    pub found_marks_are_told: bool,
    /// cancel.lua tells nobody when it only marks a task.
    pub marks_are_not_told: bool,
}

impl Guards {
    pub const ALL: Guards = Guards {
        failures_look_for_the_owner: true,
        completion_needs_the_ack: true,
        repeated_calls_get_their_reply: true,
        settlement_honours_the_mark: true,
        gate_honours_the_mark: true,
        heartbeat_looks_for_the_owner: true,
        heartbeat_counts_nothing: true,
        own_claims_count_nothing: true,
        living_owners_count_nothing: true,
        suspects_run_alone: true,
        effects_wait_for_the_ack: true,
        children_count_once: true,
        found_marks_are_told: true,
        marks_are_not_told: true,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Pending,
    Processing,
    Completed,
    Failed,
    Cancelled,
}

/// The data that a task keeps from entry to entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload {
    pub task: u8,
    pub attempt: u8,
    pub crashes: u8,
    /// Whether it is as its producer wrote it, never parked or released.
    pub is_new: bool,
}

/// An entry as it was delivered to a consumer.
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

/// A call of settle.lua.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The call's number, while its sender waits for the reply. The model uses the entry as the number. None:
    /// the sender does not wait, and the number is an old one.
    pub number: Option<u8>,
    pub is_repeated: bool,
}

/// The reply of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    Owned,
    /// The consumer does not own it, or it was cancelled.
    Dropped,
    Crashed,
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
    /// The lease was not renewed in time.
    pub expired: bool,
    /// The owner read, claimed or sent a heartbeat for another entry after the lease had expired.
    pub outlived: bool,
    /// Watched: the consumer that read or reclaimed it last.
    pub claimed_by: u8,
    /// Watched: how often it was taken over from a silent consumer.
    pub losses: u8,
}

/// The data of a task besides its place. All tasks are children of one flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Known {
    pub status: Status,
    /// Whether its status names its entry or its delayed place. Promotion does not write that.
    pub is_found: bool,
    /// It was cancelled while it was not found: its next begin or settlement ends it.
    pub is_marked: bool,
    /// The entry under which it began to run alone, and its crashes then.
    pub alone: Option<(u8, u8)>,
    /// Watched: its owner runs nothing else, or ran nothing else when it crashed.
    pub runs_alone: bool,
    /// Watched: a consumer fell silent while the task ran alone.
    pub died_alone: bool,
    /// Watched: the gate said that it crashed, and no consumer had fallen silent while it ran alone.
    pub is_wronged: bool,
    /// Watched: how often it was ended as cancelled.
    pub cancelled: u8,
    /// Watched: the reply to a cancel said that it is cancelled.
    pub is_said_to_be_cancelled: bool,
    /// How often it was completed.
    pub commits: u8,
    /// How often its effects were committed.
    pub effects: u8,
    /// How often its end was told to another queue.
    pub told: u8,
    /// Whether it is counted in the flow.
    pub is_counted: bool,
    /// How many dead letters it has.
    pub dead: u8,
    /// Watched: retries that were carried out.
    pub retries: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store {
    /// The entries, in the order of their ids.
    pub stream: Vec<Entry>,
    /// The delayed tasks, each with the entry that it had before.
    pub delayed: Vec<(u8, Payload)>,
    pub tasks: Vec<Known>,
    /// The last reply to each consumer's settlements: which call it was, and whether it was carried out.
    pub replies: Vec<(u8, u8, bool)>,
    /// How many children the flow waits for.
    pub left: u8,
    /// How often the task that joins the flow was enqueued.
    pub joined: u8,
    /// Watched: a failure was settled by a consumer that was not the last one to claim the task.
    pub failed_by_a_stranger: bool,
    next_id: u8,
}

impl Store {
    /// A store with new tasks, all in the stream or all delayed.
    pub fn new(tasks: u8, are_delayed: bool) -> Store {
        let known = Known {
            status: Status::Pending,
            is_found: true,
            is_marked: false,
            alone: None,
            runs_alone: false,
            died_alone: false,
            is_wronged: false,
            cancelled: 0,
            is_said_to_be_cancelled: false,
            commits: 0,
            effects: 0,
            told: 0,
            is_counted: false,
            dead: 0,
            retries: 0,
        };
        let mut store = Store {
            stream: Vec::new(),
            delayed: Vec::new(),
            tasks: vec![known; usize::from(tasks)],
            replies: Vec::new(),
            left: tasks,
            joined: 0,
            failed_by_a_stranger: false,
            next_id: 1,
        };
        for task in 0..tasks {
            let payload = Payload { task, attempt: 1, crashes: 0, is_new: true };
            if are_delayed {
                // 0 is the id of no entry.
                store.delayed.push((0, payload));
            } else {
                store.add(payload);
            }
        }
        store
    }

    /// XREADGROUP with COUNT 1.
    pub fn read(&mut self, consumer: u8) -> Option<Delivered> {
        let entry = self.stream.iter_mut().find(|entry| entry.pending.is_none())?;
        entry.pending = Some(Pending {
            owner: consumer,
            deliveries: 1,
            expired: false,
            outlived: false,
            claimed_by: consumer,
            losses: 0,
        });
        let delivered = delivered(entry);
        self.is_alive(consumer);
        Some(delivered)
    }

    /// recover.lua: the first entry that is pending for the consumer and not in flight.
    pub fn recover(&self, consumer: u8, in_flight: impl Fn(u8) -> bool) -> Option<Delivered> {
        self.stream.iter().find(|entry| self.owns(consumer, entry.id) && !in_flight(entry.id)).map(delivered)
    }

    /// reclaim.lua with a limit of 1.
    pub fn reclaim(&mut self, consumer: u8, guards: &Guards) -> Option<Delivered> {
        let entry = self
            .stream
            .iter_mut()
            .find(|entry| entry.pending.as_ref().is_some_and(|pending| pending.expired))?;
        let pending = entry.pending.as_mut()?;
        let is_own = pending.owner == consumer;
        let is_free = is_own && guards.own_claims_count_nothing
            || pending.outlived && guards.living_owners_count_nothing;
        pending.deliveries += u8::from(!is_free);
        let is_loss = !is_own && !pending.outlived;
        pending.losses += u8::from(is_loss);
        let known = &mut self.tasks[usize::from(entry.payload.task)];
        known.died_alone |= is_loss && known.runs_alone;
        (pending.owner, pending.claimed_by, pending.expired, pending.outlived) =
            (consumer, consumer, false, false);
        let delivered = delivered(entry);
        self.is_alive(consumer);
        Some(delivered)
    }

    /// Redis notes the last read or claim of a consumer.
    fn is_alive(&mut self, consumer: u8) {
        let its = self
            .stream
            .iter_mut()
            .filter_map(|entry| entry.pending.as_mut())
            .filter(|pending| pending.owner == consumer);
        its.for_each(|pending| pending.outlived = pending.expired);
    }

    /// begin.lua for one entry.
    pub fn begin(&mut self, consumer: u8, of: Delivered, alone: bool, guards: &Guards) -> Begun {
        if !self.owns(consumer, of.entry) {
            return Begun::Dropped;
        }
        let known = &mut self.tasks[usize::from(of.payload.task)];
        if known.is_marked && guards.gate_honours_the_mark {
            self.end_cancelled(of, guards);
            return Begun::Dropped;
        }
        let crashes = of.payload.crashes;
        if crashes >= MAX_CRASHES
            && known.alone.is_some_and(|(ran, before)| ran == of.entry && crashes > before)
        {
            known.is_wronged |= !known.died_alone;
            return Begun::Crashed;
        }
        (known.status, known.is_found) = (Status::Processing, true);
        known.alone = alone.then_some((of.entry, crashes));
        Begun::Owned
    }

    /// cancel.lua.
    pub fn cancel(&mut self, task: u8, guards: &Guards) {
        let known = &mut self.tasks[usize::from(task)];
        if matches!(known.status, Status::Completed | Status::Failed | Status::Cancelled) {
            return;
        }
        (known.status, known.is_said_to_be_cancelled) = (Status::Cancelled, true);
        let is_delayed = self.delayed.iter().any(|(_, payload)| payload.task == task);
        known.told += u8::from(known.is_found || is_delayed || !guards.marks_are_not_told);
        if known.is_found || is_delayed {
            known.cancelled += 1;
            self.stream.retain(|entry| entry.payload.task != task);
            self.delayed.retain(|(_, payload)| payload.task != task);
        } else {
            known.is_marked = true;
        }
    }

    fn end_cancelled(&mut self, of: Delivered, guards: &Guards) {
        let known = &mut self.tasks[usize::from(of.payload.task)];
        (known.status, known.is_marked) = (Status::Cancelled, false);
        known.cancelled += 1;
        known.told += u8::from(guards.found_marks_are_told);
        self.stream.retain(|entry| entry.id != of.entry);
    }

    /// heartbeat.lua for one entry. False when the lease is lost.
    pub fn heartbeat(&mut self, consumer: u8, id: u8, guards: &Guards) -> bool {
        let owned = self.owns(consumer, id);
        match self.stream.iter_mut().find(|entry| entry.id == id).and_then(|entry| entry.pending.as_mut()) {
            Some(pending) if owned || !guards.heartbeat_looks_for_the_owner => {
                pending.owner = consumer;
                pending.expired = false;
                pending.deliveries += u8::from(!guards.heartbeat_counts_nothing);
                self.is_alive(consumer);
                true
            }
            _ => false,
        }
    }

    /// settle.lua for one attempt. True when it is carried out.
    pub fn settle(
        &mut self,
        consumer: u8,
        of: Delivered,
        settlement: Settlement,
        call: Call,
        guards: &Guards,
    ) -> bool {
        let last = self
            .replies
            .iter()
            .find(|(sender, number, _)| (*sender, Some(*number)) == (consumer, call.number));
        if let (Some((_, _, reply)), true) = (last, call.is_repeated && guards.repeated_calls_get_their_reply)
        {
            return *reply;
        }
        let is_done = self.end(consumer, of, settlement, guards);
        self.replies.retain(|(sender, ..)| *sender != consumer);
        self.replies.extend(call.number.map(|number| (consumer, number, is_done)));
        is_done
    }

    fn end(&mut self, consumer: u8, of: Delivered, settlement: Settlement, guards: &Guards) -> bool {
        let known = &mut self.tasks[usize::from(of.payload.task)];
        let index = self.stream.iter().position(|entry| entry.id == of.entry);
        let pending = index.and_then(|index| self.stream[index].pending.as_ref());
        if settlement == Settlement::Complete {
            known.effects += u8::from(!guards.effects_wait_for_the_ack);
            if pending.is_none() && guards.completion_needs_the_ack {
                return false;
            }
        } else {
            if guards.failures_look_for_the_owner && pending.is_none_or(|pending| pending.owner != consumer) {
                return false;
            }
            if pending.is_some_and(|pending| pending.claimed_by != consumer) {
                self.failed_by_a_stranger = true;
            }
        }
        if known.is_marked && guards.settlement_honours_the_mark {
            self.end_cancelled(of, guards);
            return true;
        }
        self.stream.retain(|entry| entry.id != of.entry);
        known.is_found = true;
        let payload = Payload { is_new: false, ..of.payload };
        match settlement {
            Settlement::Complete => {
                known.commits += 1;
                known.status = Status::Completed;
                known.effects += u8::from(guards.effects_wait_for_the_ack);
                known.told += 1;
                self.join(of.payload.task, guards);
            }
            Settlement::Retry if payload.attempt <= MAX_RETRIES => {
                known.retries += 1;
                known.status = Status::Pending;
                // In Redis, these are a hash and a sorted set, where the same member is replaced.
                self.delayed.retain(|(from, _)| *from != of.entry);
                self.delayed.push((of.entry, Payload { attempt: payload.attempt + 1, ..payload }));
            }
            Settlement::Release => {
                known.status = Status::Pending;
                self.add(payload);
            }
            Settlement::Retry | Settlement::Reject => {
                known.dead += 1;
                known.status = Status::Failed;
                known.told += 1;
            }
        }
        true
    }

    /// Counts a child that has completed. The last one enqueues the task that joins the flow.
    fn join(&mut self, task: u8, guards: &Guards) {
        let was_counted = std::mem::replace(&mut self.tasks[usize::from(task)].is_counted, true);
        if self.left == 0 || was_counted && guards.children_count_once {
            return;
        }
        self.left -= 1;
        self.joined += u8::from(self.left == 0);
    }

    /// promote.lua with a limit of 1. The model may promote the delayed tasks in any order.
    pub fn promote(&mut self, index: usize) {
        let (_, payload) = self.delayed.remove(index);
        self.tasks[usize::from(payload.task)].is_found = false;
        self.add(payload);
    }

    pub fn owns(&self, consumer: u8, id: u8) -> bool {
        self.stream.iter().any(|entry| {
            entry.id == id && entry.pending.as_ref().is_some_and(|pending| pending.owner == consumer)
        })
    }

    fn add(&mut self, payload: Payload) {
        self.stream.push(Entry { id: self.next_id, payload, pending: None });
        self.next_id += 1;
    }

    /// Renames entries by `rename`, which keeps their order, so that states that differ only in names become
    /// equal.
    pub fn rename_entries(&mut self, rename: impl Fn(u8) -> u8, next_id: u8) {
        self.delayed.iter_mut().for_each(|(from, _)| *from = rename(*from));
        self.delayed.sort_unstable();
        for known in &mut self.tasks {
            // No step reads a note about an entry that is gone.
            known.alone = known.alone.filter(|(ran, _)| self.stream.iter().any(|entry| entry.id == *ran));
        }
        let names = self.tasks.iter_mut().filter_map(|known| known.alone.as_mut());
        names.for_each(|(ran, _)| *ran = rename(*ran));
        self.stream.iter_mut().for_each(|entry| entry.id = rename(entry.id));
        self.replies.iter_mut().for_each(|(_, entry, _)| *entry = rename(*entry));
        self.replies.sort_unstable();
        self.next_id = next_id;
    }

    /// The number of places in which the task is. Two completions count once; another property checks them.
    pub fn places(&self, task: u8) -> usize {
        let known = &self.tasks[usize::from(task)];
        let queued = self.stream.iter().filter(|entry| entry.payload.task == task).count();
        let delayed = self.delayed.iter().filter(|(_, payload)| payload.task == task).count();
        queued
            + delayed
            + usize::from(known.dead)
            + usize::from(known.cancelled)
            + usize::from(known.commits.min(1))
    }

    pub fn all_ended(&self) -> bool {
        self.stream.is_empty() && self.delayed.is_empty()
    }
}

/// Whether a task has to run alone.
pub fn is_suspect(payload: &Payload) -> bool {
    payload.crashes >= MAX_CRASHES
}

fn delivered(entry: &Entry) -> Delivered {
    let deliveries = entry.pending.as_ref().map_or(1, |pending| pending.deliveries);
    let payload = Payload { crashes: entry.payload.crashes + deliveries - 1, ..entry.payload };
    Delivered { entry: entry.id, payload }
}
