//! Where each task has to be: the queue's rules, written down once more without Redis.

use std::collections::{BTreeMap, VecDeque};

use tqhost::queue::{Settlement, Status};

/// Where a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Queued,
    /// `deliveries` is 1 + the consumers that lost it.
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
    pub status: Status,
    /// Those that its entry bears, or the one that its dead letter had.
    pub attempt: u32,
    pub deferrals: u32,
    pub crashes: u32,
    /// Its lease ended; its delay ended, as the n-th one.
    pub silent: bool,
    pub ripe: Option<u64>,
    pub commits: u32,
}

/// All tasks by id, and the order of those that wait in the stream.
#[derive(Debug, Default)]
pub struct Reference {
    pub tasks: BTreeMap<String, Known>,
    pub queue: VecDeque<String>,
    pub paused: bool,
    ripened: u64,
}

impl Reference {
    pub fn backlog(&self) -> usize {
        self.tasks.values().filter(|task| !matches!(task.place, Place::Dead | Place::Nowhere)).count()
    }

    pub fn enqueue(&mut self, id: &str, delayed: bool) {
        let task = Known {
            place: if delayed { Place::Delayed } else { Place::Queued },
            status: Status::Pending,
            attempt: 1,
            deferrals: 0,
            crashes: 0,
            silent: false,
            ripe: None,
            commits: 0,
        };
        self.tasks.insert(id.to_owned(), task);
        if !delayed {
            self.queue.push_back(id.to_owned());
        }
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

    /// False when there is nothing to take over under this entry.
    pub fn reclaim(&mut self, by: &str, entry: &str) -> bool {
        let Some(id) = self.find(entry) else { return false };
        let task = self.task(&id);
        let was_silent = std::mem::take(&mut task.silent);
        if let Place::Pending { consumer, deliveries, .. } = &mut task.place
            && consumer != by
        {
            *deliveries += 1;
            by.clone_into(consumer);
        }
        was_silent
    }

    /// Whether the task may run.
    pub fn begin(&mut self, consumer: &str, entry: &str) -> Option<Status> {
        if !self.owned(consumer, entry) {
            return None;
        }
        let id = self.find(entry)?;
        let task = self.task(&id);
        task.status = Status::Processing;
        Some(task.status)
    }

    /// Whether it is carried out. The crashes are those that the consumer knew of.
    pub fn settle(&mut self, consumer: &str, entry: &str, settlement: &Settlement, crashes: u32) -> bool {
        let Some(id) = self.find(entry) else { return false };
        if !matches!(settlement, Settlement::Complete { .. }) && !self.owned(consumer, entry) {
            return false;
        }
        let task = self.task(&id);
        task.silent = false;
        match settlement {
            Settlement::Complete { .. } => {
                (task.place, task.status) = (Place::Nowhere, Status::Completed);
                task.commits += 1;
            }
            Settlement::Bury { .. } => (task.place, task.status) = (Place::Dead, Status::Failed),
            Settlement::Park { delay, next_attempt, deferrals, .. } => {
                task.status = Status::Pending;
                (task.attempt, task.deferrals, task.crashes) = (*next_attempt, *deferrals, crashes);
                task.ripe = None;
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
        (task.place, task.status) = (Place::Queued, Status::Pending);
        (task.attempt, task.deferrals, task.crashes) = (1, 0, 0);
        self.queue.push_back(id.to_owned());
    }

    /// The status that it had before.
    pub fn cancel(&mut self, id: &str) -> Status {
        let task = self.task(id);
        let before = task.status;
        if before.is_end() {
            return before;
        }
        (task.status, task.place, task.ripe, task.silent) = (Status::Cancelled, Place::Nowhere, None, false);
        self.queue.retain(|queued| queued != id);
        before
    }

    pub fn task(&mut self, id: &str) -> &mut Known {
        self.tasks.get_mut(id).unwrap_or_else(|| panic!("{id} was enqueued"))
    }

    pub fn ids(&self, is: impl Fn(&Known) -> bool) -> Vec<String> {
        self.tasks.iter().filter(|(_, task)| is(task)).map(|(id, _)| id.clone()).collect()
    }
}
