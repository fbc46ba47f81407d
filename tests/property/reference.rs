//! Where each task has to be: the queue's rules, written down once more without Redis.

use std::collections::{BTreeMap, VecDeque};

use tqhost::queue::{Begun, Settlement, Start, Status};

/// Where a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Queued,
    /// `deliveries` is 1 + the consumers that died with it.
    Pending {
        entry: String,
        consumer: String,
        deliveries: u32,
    },
    Delayed,
    Dead,
    /// Ended, or deleted by somebody.
    Nowhere,
}

/// What must be known of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub place: Place,
    /// None while it has none: a producer added it and nobody told of it, or it ended and statuses are not kept.
    pub status: Option<Status>,
    /// How it ended, if it did.
    pub ended: Option<Status>,
    /// Its idempotency key.
    pub key: Option<usize>,
    /// Those that its entry bears, or the one that its dead letter had.
    pub attempt: u32,
    pub deferrals: u32,
    pub crashes: u32,
    /// The entry under which it began to run alone, and how many crashes it had then.
    pub alone: Option<(String, u32)>,
    /// Its lease ended; its delay ended, as the n-th one.
    pub silent: bool,
    pub ripe: Option<u64>,
    pub commits: u32,
}

/// All tasks by id, and the order of those that wait in the stream.
#[derive(Debug)]
pub struct Reference {
    pub tasks: BTreeMap<String, Known>,
    pub queue: VecDeque<String>,
    /// For each idempotency key, the task that has it, and whether that one is still to end: after its end the key is kept for a while.
    pub keys: BTreeMap<usize, (String, bool)>,
    pub paused: bool,
    /// Whether the statuses of tasks that ended are kept.
    keeps: bool,
    ripened: u64,
}

impl Reference {
    pub fn backlog(&self) -> usize {
        self.tasks.values().filter(|task| !matches!(task.place, Place::Dead | Place::Nowhere)).count()
    }

    pub fn new(keeps: bool) -> Reference {
        Reference { tasks: BTreeMap::new(), queue: VecDeque::new(), keys: BTreeMap::new(), paused: false, keeps, ripened: 0 }
    }

    /// A host or a command enqueued it.
    pub fn enqueue(&mut self, id: &str, delayed: bool, key: Option<usize>) {
        self.add(id, key);
        let task = self.task(id);
        task.status = Some(Status::Pending);
        if delayed {
            task.place = Place::Delayed;
            self.queue.pop_back();
        }
        if let Some(key) = key {
            self.keys.insert(key, (id.to_owned(), true));
        }
    }

    /// A producer added it.
    pub fn add(&mut self, id: &str, key: Option<usize>) {
        let task = Known {
            place: Place::Queued,
            status: None,
            ended: None,
            key,
            attempt: 1,
            deferrals: 0,
            crashes: 0,
            alone: None,
            silent: false,
            ripe: None,
            commits: 0,
        };
        self.tasks.insert(id.to_owned(), task);
        self.queue.push_back(id.to_owned());
    }

    /// The task that has this key, if that is another one.
    pub fn holder(&self, key: Option<usize>, id: &str) -> Option<String> {
        self.keys.get(&key?).filter(|(first, _)| first != id).map(|(first, _)| first.clone())
    }

    fn end(&mut self, id: &str, place: Place, how: Status) {
        let status = self.keeps.then_some(how);
        let task = self.task(id);
        (task.place, task.status, task.ended) = (place, status, Some(how));
        (task.ripe, task.silent) = (None, false);
        self.let_go_of_the_key(id);
    }

    fn let_go_of_the_key(&mut self, id: &str) {
        self.keys.values_mut().filter(|(first, _)| first == id).for_each(|(_, lives)| *lives = false);
    }

    /// The next one in the stream now is pending.
    pub fn read(&mut self, consumer: &str, entry: &str) -> Option<String> {
        let id = self.queue.pop_front()?;
        let task = self.task(&id);
        task.place = Place::Pending { entry: entry.to_owned(), consumer: consumer.to_owned(), deliveries: 1 };
        task.silent = false;
        Some(id)
    }

    pub fn owned(&self, consumer: &str, entry: &str) -> bool {
        self.pending().any(|(_, its_entry, owner, _)| its_entry == entry && owner == consumer)
    }

    /// Id, entry, consumer, and whether the lease ended; in the order of ids, not of entries.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &str, &str, bool)> {
        self.tasks.iter().filter_map(|(id, task)| match &task.place {
            Place::Pending { entry, consumer, .. } => Some((id.as_str(), entry.as_str(), consumer.as_str(), task.silent)),
            _ => None,
        })
    }

    pub fn find(&self, entry: &str) -> Option<String> {
        self.pending().find(|(_, its_entry, ..)| *its_entry == entry).map(|(id, ..)| id.to_owned())
    }

    /// False when there is nothing to take over under this entry. `died`: so did its owner.
    pub fn reclaim(&mut self, by: &str, entry: &str, died: bool) -> bool {
        let Some(id) = self.find(entry) else { return false };
        let task = self.task(&id);
        let was_silent = std::mem::take(&mut task.silent);
        if let Place::Pending { consumer, deliveries, .. } = &mut task.place
            && consumer != by
        {
            *deliveries += u32::from(died);
            by.clone_into(consumer);
        }
        was_silent
    }

    /// What the gate says.
    pub fn begin(&mut self, consumer: &str, start: &Start<'_>, max_crashes: u32) -> Begun {
        let Start { entry, crashes, alone, .. } = *start;
        let Some(id) = self.find(entry).filter(|_| self.owned(consumer, entry)) else { return Begun::Lost };
        let task = self.task(&id);
        let has_died = task.alone.as_ref().is_some_and(|(ran, before)| ran == entry && crashes > *before);
        if has_died && crashes >= max_crashes {
            return Begun::Crashed;
        }
        let key = task.key;
        if self.holder(key, &id).is_some() {
            self.end(&id, Place::Nowhere, Status::Cancelled);
            return Begun::Duplicate;
        }
        if let Some(key) = key {
            self.keys.insert(key, (id.clone(), true));
        }
        let task = self.task(&id);
        task.status = Some(Status::Processing);
        task.alone = alone.then(|| (entry.to_owned(), crashes));
        Begun::Owned
    }

    /// Whether it is carried out. The crashes are those that the consumer knew of.
    pub fn settle(&mut self, consumer: &str, entry: &str, settlement: &Settlement, crashes: u32) -> bool {
        let Some(id) = self.find(entry) else { return false };
        if !matches!(settlement, Settlement::Complete { .. }) && !self.owned(consumer, entry) {
            return false;
        }
        match settlement {
            Settlement::Complete { .. } => {
                self.task(&id).commits += 1;
                self.end(&id, Place::Nowhere, Status::Completed);
            }
            Settlement::Bury { .. } => self.end(&id, Place::Dead, Status::Failed),
            Settlement::Park { delay, next_attempt, deferrals, .. } => {
                let task = self.task(&id);
                task.status = Some(Status::Pending);
                (task.attempt, task.deferrals, task.crashes) = (*next_attempt, *deferrals, crashes);
                (task.ripe, task.silent) = (None, false);
                if delay.is_zero() {
                    task.place = Place::Queued;
                    self.queue.push_back(id);
                } else {
                    task.place = Place::Delayed;
                }
            }
        }
        true
    }

    /// The score under which a delayed task is due.
    pub fn ripen(&mut self, id: &str) -> u64 {
        self.ripened += 1;
        let score = self.ripened;
        self.task(id).ripe = Some(score);
        score
    }

    /// How many are moved.
    pub fn promote(&mut self, limit: usize) -> usize {
        let ripe = |(id, task): (&String, &Known)| Some((task.ripe?, id.clone())).filter(|_| task.place == Place::Delayed);
        let mut due: Vec<(u64, String)> = self.tasks.iter().filter_map(ripe).collect();
        due.sort();
        due.truncate(limit);
        for (_, id) in &due {
            let task = self.task(id);
            (task.place, task.ripe) = (Place::Queued, None);
            self.queue.push_back(id.clone());
        }
        due.len()
    }

    pub fn requeue(&mut self, id: &str) {
        let task = self.task(id);
        (task.place, task.status, task.ended) = (Place::Queued, Some(Status::Pending), None);
        (task.attempt, task.deferrals, task.crashes) = (1, 0, 0);
        self.queue.push_back(id.to_owned());
    }

    /// The status that it had before. None: it is not known any more.
    pub fn cancel(&mut self, id: &str) -> Option<Status> {
        let task = self.task(id);
        let is_there = !matches!(task.place, Place::Dead | Place::Nowhere);
        let before = task.status.or(is_there.then_some(Status::Pending))?;
        if before.is_end() {
            return Some(before);
        }
        self.queue.retain(|queued| queued != id);
        self.end(id, Place::Nowhere, Status::Cancelled);
        Some(before)
    }

    pub fn task(&mut self, id: &str) -> &mut Known {
        self.tasks.get_mut(id).unwrap_or_else(|| panic!("{id} was enqueued"))
    }

    pub fn ids(&self, is: impl Fn(&Known) -> bool) -> Vec<String> {
        self.tasks.iter().filter(|(_, task)| is(task)).map(|(id, _)| id.clone()).collect()
    }
}
