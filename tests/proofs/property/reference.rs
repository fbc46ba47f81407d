//! The queue's rules without Redis: where each task has to be.
//!
//! In: the operations of the test. Out: the expected replies, places, statuses and keys. Not here: the
//! comparison with Redis (`look`), carrying out operations (`world`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tqhost::testing::queue::schedule::{self, Fired};
use tqhost::testing::queue::{Begun, Settled, Settlement, Start, Status};

/// The place of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Queued,
    /// `deliveries` is 1 + the number of consumers that died with it.
    Pending {
        entry: String,
        consumer: String,
        deliveries: u32,
    },
    /// A client deleted its entry, and this consumer may still end it.
    Kept {
        entry: String,
        consumer: String,
    },
    Delayed,
    Dead,
    /// It has ended without a dead letter, or a client deleted it.
    Nowhere,
}

/// The data of a task. Two tasks may have the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub id: String,
    pub place: Place,
    /// How it ended, if it did. A duplicate is cancelled.
    pub ended: Option<Status>,
    /// A client deleted its entry.
    pub deleted: bool,
    /// The order of ends: a task with a lower number ended before.
    died: u64,
    /// Its idempotency key.
    pub key: Option<usize>,
    /// The attempt of its entry, or of the entry before its end. Deferrals and crashes likewise.
    pub attempt: u32,
    pub deferrals: u32,
    pub crashes: u32,
    /// The entry under which it began to run alone, and how many crashes it had then.
    pub alone: Option<(String, u32)>,
    /// Its lease has expired.
    pub silent: bool,
    /// Its delay is over. The number is the order in which delays ended.
    pub ripe: Option<u64>,
    pub commits: u32,
}

/// A task of an outbox.
#[derive(Debug, Clone)]
pub struct NewFromOutbox {
    pub name: String,
    pub id: String,
    pub delayed: bool,
    pub key: Option<usize>,
}

/// The effects of an attempt.
#[derive(Debug, Clone)]
pub enum NewEffects {
    /// A task of the outbox. Such an attempt also counts, and writes to the record.
    Task(NewFromOutbox),
    /// Values of the state, by their keys.
    Values(BTreeMap<String, String>),
}

/// The status of an id.
#[derive(Debug, Default)]
pub struct Said {
    /// None while there is no status: no host has begun the task, or it ended and statuses are not kept.
    pub status: Option<Status>,
    /// The name of the task that it is about.
    about: Option<String>,
}

/// All tasks by their unique names, and the order of those that wait in the stream.
#[derive(Debug)]
pub struct Reference {
    pub tasks: BTreeMap<String, Known>,
    pub said: BTreeMap<String, Said>,
    pub queue: VecDeque<String>,
    /// The latest time of the schedule that was handled.
    scheduled: Option<u64>,
    died: u64,
    /// For each idempotency key, the task that has it, and whether that task is still to end. After its end,
    /// the key is kept for the window.
    pub keys: BTreeMap<usize, (String, bool)>,
    pub paused: bool,
    /// Whether the statuses of ended tasks are kept.
    keeps: bool,
    ripened: u64,
    /// How many attempts committed a count.
    pub counted: u64,
    /// The values of the state.
    pub values: BTreeMap<String, String>,
    /// The items of the list, oldest first.
    pub list: VecDeque<String>,
    /// Ids of cancelled tasks of which there is a note, where statuses are not kept.
    noted: BTreeSet<String>,
}

impl Reference {
    pub fn backlog(&self) -> usize {
        self.tasks
            .values()
            .filter(|task| !matches!(task.place, Place::Dead | Place::Nowhere | Place::Kept { .. }))
            .count()
    }

    pub fn new(keeps: bool) -> Reference {
        Reference {
            tasks: BTreeMap::new(),
            said: BTreeMap::new(),
            queue: VecDeque::new(),
            scheduled: None,
            died: 0,
            keys: BTreeMap::new(),
            paused: false,
            keeps,
            ripened: 0,
            counted: 0,
            values: BTreeMap::new(),
            list: VecDeque::new(),
            noted: BTreeSet::new(),
        }
    }

    /// A host or a command enqueues a task.
    pub fn enqueue(&mut self, name: &str, id: &str, delayed: bool, key: Option<usize>) {
        self.add(name, id, key);
        self.say(name, Some(Status::Pending));
        if delayed {
            self.task(name).place = Place::Delayed;
            self.queue.pop_back();
        }
        if let Some(key) = key {
            self.keys.insert(key, (id.to_owned(), true));
        }
    }

    /// A task that has completed enqueues this one. The key of a task that has ended makes it a duplicate at
    /// once; the key of one that has not stays with that one.
    fn enqueue_from_outbox(&mut self, new: &NewFromOutbox) {
        let NewFromOutbox { name, id, delayed, key } = new;
        let holder = key.and_then(|key| self.keys.get(&key).cloned());
        if holder.as_ref().is_some_and(|(_, lives)| !lives) {
            self.said.entry(id.clone()).or_default().status = self.keeps.then_some(Status::Cancelled);
            return;
        }
        self.enqueue(name, id, *delayed, if holder.is_none() { *key } else { None });
        self.task(name).key = *key;
    }

    /// A producer adds a task.
    pub fn add(&mut self, name: &str, id: &str, key: Option<usize>) {
        let task = Known {
            id: id.to_owned(),
            place: Place::Queued,
            ended: None,
            deleted: false,
            died: 0,
            key,
            attempt: 1,
            deferrals: 0,
            crashes: 0,
            alone: None,
            silent: false,
            ripe: None,
            commits: 0,
        };
        self.tasks.insert(name.to_owned(), task);
        self.said.entry(id.to_owned()).or_default();
        self.queue.push_back(name.to_owned());
    }

    /// A time of the schedule comes.
    pub fn fire(&mut self, time: u64, is_late: bool, is_full: bool) -> Fired {
        if self.scheduled >= Some(time) {
            return Fired::Known;
        }
        if is_full && !is_late {
            return Fired::Full;
        }
        self.scheduled = Some(time);
        if is_late {
            return Fired::TooLate;
        }
        let id = schedule::task_id(time);
        self.enqueue(&id, &id, false, None);
        Fired::Enqueued
    }

    fn say(&mut self, name: &str, status: Option<Status>) {
        let id = self.task(name).id.clone();
        self.noted.remove(&id);
        let said = self.said.entry(id).or_default();
        (said.status, said.about) = (status, status.map(|_| name.to_owned()));
    }

    pub fn status(&self, id: &str) -> Option<Status> {
        self.said.get(id).and_then(|said| said.status)
    }

    fn is_there(&self, name: &str) -> bool {
        !matches!(self.tasks[name].place, Place::Dead | Place::Nowhere)
    }

    /// Whether another task has this task's id, and is still to end or has completed.
    fn is_elsewhere(&self, name: &str) -> bool {
        let said = &self.said[&self.tasks[name].id];
        let Some(other) = said.about.as_deref().filter(|about| *about != name) else { return false };
        said.status == Some(Status::Completed)
            || (said.status.is_some_and(|status| !status.is_end()) && self.is_there(other))
    }

    /// The id that has this key, if it is another one than `id`. A deleted task has no key.
    pub fn holder(&mut self, key: Option<usize>, id: &str) -> Option<String> {
        let (first, lives) = self.keys.get(&key?).filter(|(first, _)| first != id).cloned()?;
        let said = &self.said[&first];
        let lost = said.about.clone().filter(|about| {
            lives && said.status.is_some_and(|status| !status.is_end()) && !self.is_there(about)
        });
        let Some(lost) = lost else { return Some(first) };
        self.lose(&lost);
        None
    }

    /// A task that was deleted is found to be lost.
    fn lose(&mut self, name: &str) {
        let id = self.task(name).id.clone();
        self.end(name, Place::Nowhere, Status::Failed);
        self.keys.retain(|_, (first, _)| *first != id);
    }

    fn end(&mut self, name: &str, place: Place, how: Status) {
        self.say(name, self.keeps.then_some(how));
        self.died += 1;
        let died = self.died;
        let task = self.task(name);
        (task.place, task.ended, task.died) = (place, Some(how), died);
        (task.ripe, task.silent) = (None, false);
        let id = task.id.clone();
        self.let_go_of_the_key(&id);
    }

    /// The task is a duplicate: another task has its id, and the status is about that one.
    fn drop(&mut self, name: &str) {
        let task = self.task(name);
        (task.place, task.ended, task.ripe, task.silent) =
            (Place::Nowhere, Some(Status::Cancelled), None, false);
    }

    /// A client deletes the entry. If it is pending, the consumer finds that out, and keeps the task.
    pub fn delete(&mut self, name: &str) {
        self.queue.retain(|queued| queued != name);
        let task = self.task(name);
        task.deleted = true;
        match task.place.clone() {
            Place::Pending { entry, consumer, .. } => {
                task.place = Place::Kept { entry, consumer };
                self.say(name, Some(Status::Processing));
            }
            _ => task.place = Place::Nowhere,
        }
    }

    /// Whether a client deleted the entry of a task of this id.
    pub fn is_deleted(&self, id: &str) -> bool {
        self.tasks.values().any(|task| task.id == id && task.deleted)
    }

    /// The task with this entry that `consumer` keeps.
    pub fn kept(&self, consumer: &str, entry: &str) -> Option<String> {
        let is = |place: &Place| match place {
            Place::Kept { entry: its, consumer: by } => its == entry && by == consumer,
            _ => false,
        };
        self.tasks.iter().find(|(_, task)| is(&task.place)).map(|(name, _)| name.clone())
    }

    fn let_go_of_the_key(&mut self, id: &str) {
        self.keys.values_mut().filter(|(first, _)| first == id).for_each(|(_, lives)| *lives = false);
    }

    /// Delivers the next task in the stream.
    pub fn read(&mut self, consumer: &str, entry: &str) -> Option<String> {
        let name = self.queue.pop_front()?;
        let task = self.task(&name);
        task.place = Place::Pending { entry: entry.to_owned(), consumer: consumer.to_owned(), deliveries: 1 };
        task.silent = false;
        Some(name)
    }

    pub fn owned(&self, consumer: &str, entry: &str) -> bool {
        self.pending().any(|(_, its_entry, owner, _)| its_entry == entry && owner == consumer)
    }

    /// The pending tasks: name, entry, consumer, and whether the lease has expired. In the order of names,
    /// not of entries.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &str, &str, bool)> {
        self.tasks.iter().filter_map(|(name, task)| match &task.place {
            Place::Pending { entry, consumer, .. } => {
                Some((name.as_str(), entry.as_str(), consumer.as_str(), task.silent))
            }
            _ => None,
        })
    }

    pub fn find(&self, entry: &str) -> Option<String> {
        self.pending().find(|(_, its_entry, ..)| *its_entry == entry).map(|(id, ..)| id.to_owned())
    }

    /// Gives the entry to another consumer. False when its lease has not expired. `died` says whether the
    /// owner died.
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

    /// The gate's reply. None: another task has its key, and the caller asks again after all others have
    /// begun.
    pub fn begin(
        &mut self,
        consumer: &str,
        start: &Start<'_>,
        max_crashes: u32,
        is_asked_again: bool,
    ) -> Option<Begun> {
        let Start { entry, crashes, alone, .. } = *start;
        let Some(name) = self.find(entry).filter(|_| self.owned(consumer, entry)) else {
            // A task whose entry was deleted cannot be delivered again, so it is lost.
            let gone = self.kept(consumer, entry);
            gone.iter().for_each(|name| self.lose(name));
            return Some(if gone.is_some() { Begun::Gone } else { Begun::Lost });
        };
        if self.is_elsewhere(&name) {
            self.drop(&name);
            return Some(Begun::Duplicate);
        }
        let task = self.task(&name);
        let has_died = task.alone.as_ref().is_some_and(|(ran, before)| ran == entry && crashes > *before);
        if has_died && crashes >= max_crashes {
            return Some(Begun::Crashed);
        }
        let Known { id, key, .. } = self.task(&name).clone();
        if !is_asked_again && key.and_then(|key| self.keys.get(&key)).is_some_and(|(first, _)| *first != id) {
            return None;
        }
        if self.holder(key, &id).is_some() {
            self.end(&name, Place::Nowhere, Status::Cancelled);
            return Some(Begun::Duplicate);
        }
        if let Some(key) = key {
            self.keys.insert(key, (id, true));
        }
        self.task(&name).alone = alone.then(|| (entry.to_owned(), crashes));
        self.say(&name, Some(Status::Processing));
        Some(Begun::Owned { fence: start.fence })
    }

    /// Settles an attempt, and gives whether it is carried out. `crashes` are those that the consumer knew
    /// of.
    pub fn settle(
        &mut self,
        consumer: &str,
        entry: &str,
        settlement: &Settlement,
        crashes: u32,
        effects: Option<&NewEffects>,
    ) -> Settled {
        let kept = self.kept(consumer, entry);
        let is_kept = kept.is_some();
        let Some(name) = kept.or_else(|| self.find(entry)) else { return Settled::Overtaken };
        let is_complete = matches!(settlement, Settlement::Complete { .. });
        if !is_complete && !is_kept && !self.owned(consumer, entry) {
            return Settled::Overtaken;
        }
        if !is_complete && self.is_elsewhere(&name) {
            self.drop(&name);
            return Settled::Duplicate;
        }
        match settlement {
            Settlement::Complete { .. } => {
                assert!(!self.is_elsewhere(&name), "two tasks of one id at the same time: {name}: {self:?}");
                self.task(&name).commits += 1;
                // The effects come before the end: until then, the task has its key.
                match effects {
                    Some(NewEffects::Task(new)) => {
                        self.counted += 1;
                        self.enqueue_from_outbox(new);
                    }
                    Some(NewEffects::Values(values)) => self.values.extend(values.clone()),
                    None => {}
                }
                self.end(&name, Place::Nowhere, Status::Completed);
            }
            Settlement::Bury { .. } => self.end(&name, Place::Dead, Status::Failed),
            Settlement::Park { delay, next_attempt, deferrals, .. } => {
                self.say(&name, Some(Status::Pending));
                let task = self.task(&name);
                task.deleted = false;
                (task.attempt, task.deferrals, task.crashes) = (*next_attempt, *deferrals, crashes);
                (task.ripe, task.silent) = (None, false);
                if delay.is_zero() {
                    task.place = Place::Queued;
                    self.queue.push_back(name);
                } else {
                    task.place = Place::Delayed;
                }
            }
        }
        Settled::Done
    }

    /// Makes a delayed task due, and gives its score.
    pub fn ripen(&mut self, name: &str) -> u64 {
        self.ripened += 1;
        let score = self.ripened;
        self.task(name).ripe = Some(score);
        score
    }

    /// Promotes due tasks, and gives how many.
    pub fn promote(&mut self, limit: usize) -> usize {
        let ripe = |(name, task): (&String, &Known)| {
            Some((task.ripe?, name.clone())).filter(|_| task.place == Place::Delayed)
        };
        let mut due: Vec<(u64, String)> = self.tasks.iter().filter_map(ripe).collect();
        due.sort();
        due.truncate(limit);
        due.iter().for_each(|(_, name)| self.run_now(name));
        due.len()
    }

    /// Puts a delayed task back into the stream.
    pub fn run_now(&mut self, name: &str) {
        let task = self.task(name);
        (task.place, task.ripe) = (Place::Queued, None);
        self.queue.push_back(name.to_owned());
    }

    /// The task with the oldest dead letter of this id.
    pub fn dead(&self, id: &str) -> Option<String> {
        let dead = self.tasks.iter().filter(|(_, task)| task.id == id && task.place == Place::Dead);
        dead.min_by_key(|(_, task)| task.died).map(|(name, _)| name.clone())
    }

    /// Requeues a dead letter, unless another task with its id has completed or runs. Gives whether it did.
    pub fn requeue(&mut self, name: &str) -> bool {
        let said = &self.said[&self.tasks[name].id];
        let is_there = |about: &String| self.is_there(about);
        let runs = said.status == Some(Status::Processing) && said.about.as_ref().is_some_and(is_there);
        if runs || said.status == Some(Status::Completed) {
            return false;
        }
        self.say(name, Some(Status::Pending));
        let task = self.task(name);
        (task.place, task.ended) = (Place::Queued, None);
        (task.attempt, task.deferrals, task.crashes) = (1, 0, 0);
        self.queue.push_back(name.to_owned());
        true
    }

    /// Cancels a task, and gives the status that the id had before. None when the id is unknown.
    pub fn cancel(&mut self, id: &str) -> Option<Status> {
        let said = &self.said[id];
        let name = match said.status {
            Some(before) if before.is_end() => return Some(before),
            Some(_) => said.about.clone()?,
            // The first one in the stream. Pending entries come before the others.
            None => {
                let of_id = |name: &&str| self.tasks[*name].id == id;
                let pending = self.pending().map(|(name, entry, ..)| (place_in_stream(entry), name));
                let first = pending.filter(|(_, name)| of_id(name)).min().map(|(_, name)| name);
                let Some(name) = first.or_else(|| self.queue.iter().map(String::as_str).find(of_id)) else {
                    return self.noted.contains(id).then_some(Status::Cancelled);
                };
                name.to_owned()
            }
        };
        let before = said.status.unwrap_or(Status::Pending);
        self.queue.retain(|queued| *queued != name);
        self.end(&name, Place::Nowhere, Status::Cancelled);
        if !self.keeps {
            self.noted.insert(id.to_owned());
        }
        Some(before)
    }

    pub fn task(&mut self, name: &str) -> &mut Known {
        self.tasks.get_mut(name).unwrap_or_else(|| panic!("{name} was enqueued"))
    }

    pub fn names(&self, is: impl Fn(&Known) -> bool) -> Vec<String> {
        self.tasks.iter().filter(|(_, task)| is(task)).map(|(name, _)| name.clone()).collect()
    }
}

/// The parts of an entry's id, MS-SEQUENCE.
fn place_in_stream(entry: &str) -> Option<(u64, u64)> {
    let (ms, sequence) = entry.split_once('-')?;
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}
