//! The model of hosts: what they hold, what is on its way to Redis, and every step that can come next.
//!
//! In: the number of tasks, the guards, and a budget of faults. Out: states and steps, for the model checker.
//! A step is one script or one local action of a host, so two hosts interleave in every way that Redis
//! allows. Faults are steps too. The budget bounds them, since the number of states would be infinite without
//! it. Not here: the scripts (`store`), the properties (`lib.rs`).

use std::collections::BTreeSet;

use stateright::Model;

use super::store::{self, Begun, Call, Delivered, GONE, Guards, Settlement, Store};

/// How far a host is with one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    Claimed,
    Running,
    /// A plain task: it runs, and Redis does not know yet.
    Begun,
    /// It passed the gate, and waits until nothing else runs.
    Gated,
    /// It runs, and nothing else does.
    Alone,
    /// A heartbeat found that the lease is lost: the attempt is being stopped.
    Lost,
    /// The settlement is sent again until there is a reply.
    Settling(Settlement),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub of: Delivered,
    pub stage: Stage,
    /// Nothing else runs in this host until its settlement is known.
    pub is_alone: bool,
    /// Its settlement was sent, and there was no reply.
    pub is_sent: bool,
    /// Watched: its settlement was carried out.
    pub is_settled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    Up,
    /// It claims nothing, and releases what it holds.
    Stopping,
    Down,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    pub life: Life,
    pub consumer: u8,
    /// The in-flight table.
    pub held: Vec<Hold>,
    /// The reply to a claim was lost: entries may have been delivered unseen.
    pub unseen: bool,
}

/// A settlement that was sent and has not reached Redis. Its sender will never get the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Late {
    consumer: u8,
    of: Delivered,
    settlement: Settlement,
    is_repeated: bool,
    /// Its sender does not wait for a reply: it got one to a repetition, or has died.
    is_forgotten: bool,
}

/// Faults that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Faults {
    pub crashes: u8,
    pub stops: u8,
    /// Leases that expire although their owner lives.
    pub stalls: u8,
    pub lost_replies: u8,
    /// Tasks that a client cancels, which is no fault.
    pub cancels: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Store,
    pub hosts: Vec<Host>,
    pub late: Vec<Late>,
    pub left: Faults,
    /// Watched: the reply to a settlement said that it was not carried out, and it was.
    pub is_miscounted: bool,
}

/// A step of the model. Hosts are numbers, entries are ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Read(usize),
    ReadUnheard(usize),
    Recover(usize),
    Reclaim(usize),
    ReclaimUnheard(usize),
    Begin(usize, u8),
    /// The host writes to Redis that a plain task runs.
    Tell(usize, u8),
    /// A suspect starts to run, as nothing else runs.
    Alone(usize, u8),
    Heartbeat(usize, u8),
    /// The handler ends, or a stopping host ends it.
    End(usize, u8, Settlement),
    /// The host forgets a task whose lease is lost.
    Drop(usize, u8),
    Settle(usize, u8),
    /// The settlement is sent. It arrives later or never, and its reply is lost.
    SettleUnheard(usize, u8),
    Arrive(usize),
    Promote(usize),
    Cancel(u8),
    Expire(u8),
    Crash(usize),
    Stop(usize),
    Start(usize),
}

/// The model: two hosts, some tasks, the guards of the scripts, and a budget of faults.
#[derive(Debug, Clone)]
pub struct System {
    pub tasks: u8,
    /// Whether the tasks are enqueued with a delay.
    pub are_delayed: bool,
    /// The permits of each host.
    pub permits: usize,
    pub faults: Faults,
    pub guards: Guards,
}

const HOSTS: usize = 2;

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let host = |consumer| Host { life: Life::Up, consumer, held: Vec::new(), unseen: false };
        let hosts = (0..HOSTS as u8).map(host).collect();
        vec![State {
            store: Store::new(self.tasks, self.are_delayed),
            hosts,
            late: Vec::new(),
            left: self.faults,
            is_miscounted: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.good_steps(state, steps);
        let left = &state.left;
        for (n, host) in state.hosts.iter().enumerate() {
            if host.life == Life::Down {
                continue;
            }
            for hold in &host.held {
                let entry = hold.of.entry;
                steps.push(Step::Heartbeat(n, entry));
                match hold.stage {
                    Stage::Begun | Stage::Running | Stage::Alone => {
                        steps.extend(
                            [Settlement::Retry, Settlement::Reject].map(|end| Step::End(n, entry, end)),
                        );
                    }
                    Stage::Settling(_) if left.lost_replies > 0 && may_send(host, entry) => {
                        steps.push(Step::SettleUnheard(n, entry));
                    }
                    _ => {}
                }
            }
            if left.lost_replies > 0 && self.may_claim(host) {
                steps.extend([Step::ReadUnheard(n), Step::ReclaimUnheard(n)]);
            }
            if left.crashes > 0 {
                steps.push(Step::Crash(n));
            }
            if left.stops > 0 && host.life == Life::Up {
                steps.push(Step::Stop(n));
            }
        }
        if left.cancels > 0 {
            steps.extend((0..self.tasks).map(Step::Cancel));
        }
        if left.stalls > 0 {
            let kept = |id| !is_abandoned(state, id);
            steps.extend(
                state
                    .store
                    .stream
                    .iter()
                    .filter(|entry| can_expire(entry) && kept(entry.id))
                    .map(|entry| Step::Expire(entry.id)),
            );
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step)?;
        tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<System>> {
        super::properties(self)
    }
}

impl System {
    /// The steps without further faults. Their order is such that always taking the first one that changes
    /// anything leads to the end.
    fn good_steps(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend((0..state.late.len()).map(Step::Arrive));
        for (n, host) in state.hosts.iter().enumerate() {
            for hold in &host.held {
                let entry = hold.of.entry;
                steps.push(match hold.stage {
                    Stage::Claimed if host.life == Life::Stopping => Step::End(n, entry, Settlement::Release),
                    Stage::Claimed => Step::Begin(n, entry),
                    Stage::Gated if host.life == Life::Stopping => Step::End(n, entry, Settlement::Release),
                    Stage::Gated => Step::Alone(n, entry),
                    Stage::Begun | Stage::Running | Stage::Alone => Step::End(n, entry, Settlement::Complete),
                    Stage::Lost => Step::Drop(n, entry),
                    Stage::Settling(_) => Step::Settle(n, entry),
                });
                if matches!(hold.stage, Stage::Begun | Stage::Running | Stage::Alone)
                    && host.life == Life::Stopping
                {
                    steps.push(Step::End(n, entry, Settlement::Release));
                }
                if hold.stage == Stage::Begun {
                    steps.push(Step::Tell(n, entry));
                }
            }
            if self.may_claim(host) {
                steps.push(if host.unseen { Step::Recover(n) } else { Step::Read(n) });
                steps.push(Step::Reclaim(n));
            }
        }
        if state.hosts.iter().any(|host| host.life == Life::Up) {
            steps.extend((0..state.store.delayed.len()).map(Step::Promote));
        }
        let abandoned =
            state.store.stream.iter().filter(|entry| can_expire(entry) && is_abandoned(state, entry.id));
        steps.extend(abandoned.map(|entry| Step::Expire(entry.id)));
        steps.extend((0..HOSTS).filter(|&n| state.hosts[n].life == Life::Down).map(Step::Start));
    }

    /// Whether all tasks end from this state without further faults.
    pub fn comes_to_an_end(&self, from: &State) -> bool {
        let mut state = from.clone();
        let mut steps = Vec::new();
        for _ in 0..100 {
            if state.store.all_ended() {
                return true;
            }
            steps.clear();
            self.good_steps(&state, &mut steps);
            match steps.iter().find_map(|&step| self.next_state(&state, step)) {
                Some(next) => state = next,
                None => return false,
            }
        }
        false
    }

    fn may_claim(&self, host: &Host) -> bool {
        host.life == Life::Up && host.held.len() < self.permits && !self.is_taken(host)
    }

    /// Whether no task may begin in this host, since one runs alone.
    fn is_taken(&self, host: &Host) -> bool {
        self.guards.suspects_run_alone && host.held.iter().any(|hold| hold.is_alone)
    }

    /// Takes a step. None when it is not possible.
    fn take(&self, state: &mut State, step: Step) -> Option<()> {
        let State { store, hosts, late, left, is_miscounted } = state;
        match step {
            Step::Read(n) => {
                let delivered = store.read(hosts[n].consumer)?;
                admit(
                    &mut hosts[n],
                    delivered,
                    if delivered.payload.is_new { Stage::Begun } else { Stage::Claimed },
                );
            }
            Step::ReadUnheard(n) => {
                store.read(hosts[n].consumer)?;
                hosts[n].unseen = true;
                left.lost_replies -= 1;
            }
            Step::Recover(n) => {
                let host = &mut hosts[n];
                match store.recover(host.consumer, |id| host.held.iter().any(|hold| hold.of.entry == id)) {
                    Some(delivered) => admit(host, delivered, Stage::Claimed),
                    None => host.unseen = false,
                }
            }
            Step::Reclaim(n) => {
                let delivered = store.reclaim(hosts[n].consumer, &self.guards)?;
                admit(&mut hosts[n], delivered, Stage::Claimed);
            }
            Step::ReclaimUnheard(n) => {
                store.reclaim(hosts[n].consumer, &self.guards)?;
                hosts[n].unseen = true;
                left.lost_replies -= 1;
            }
            Step::Begin(n, entry) => {
                let is_suspect = store::is_suspect(&held(&mut hosts[n], entry)?.of.payload);
                if !is_suspect && self.is_taken(&hosts[n]) {
                    return None;
                }
                self.begin(
                    store,
                    &mut hosts[n],
                    entry,
                    if is_suspect { Stage::Gated } else { Stage::Running },
                )?;
            }
            Step::Alone(n, entry) => {
                if self.guards.suspects_run_alone && hosts[n].held.iter().any(is_running) {
                    return None;
                }
                self.begin(store, &mut hosts[n], entry, Stage::Alone)?;
            }
            Step::Tell(n, entry) => {
                let consumer = hosts[n].consumer;
                let hold = held(&mut hosts[n], entry)?;
                // A heartbeat finds out if the lease is lost.
                store.begin(consumer, hold.of, false, &self.guards);
                hold.stage = Stage::Running;
            }
            Step::Heartbeat(n, entry) => {
                let consumer = hosts[n].consumer;
                let hold = held(&mut hosts[n], entry)?;
                if !store.heartbeat(consumer, entry, &self.guards)
                    && !matches!(hold.stage, Stage::Settling(_))
                {
                    hold.stage = Stage::Lost;
                }
            }
            Step::End(n, entry, settlement) => {
                held(&mut hosts[n], entry)?.stage = Stage::Settling(settlement);
            }
            Step::Drop(n, entry) => release(&mut hosts[n], entry),
            Step::Settle(n, entry) => {
                let hold = *held(&mut hosts[n], entry)?;
                let Stage::Settling(settlement) = hold.stage else { return None };
                if !may_send(&hosts[n], entry) {
                    return None;
                }
                let call = Call { number: Some(entry), is_repeated: hold.is_sent };
                let is_done = store.settle(hosts[n].consumer, hold.of, settlement, call, &self.guards);
                *is_miscounted |= hold.is_settled && !is_done;
                release(&mut hosts[n], entry);
            }
            Step::SettleUnheard(n, entry) => {
                let hold = *held(&mut hosts[n], entry)?;
                let Stage::Settling(settlement) = hold.stage else { return None };
                late.push(Late {
                    consumer: hosts[n].consumer,
                    of: hold.of,
                    settlement,
                    is_repeated: hold.is_sent,
                    is_forgotten: false,
                });
                held(&mut hosts[n], entry)?.is_sent = true;
                left.lost_replies -= 1;
            }
            Step::Arrive(index) => {
                let Late { consumer, of, settlement, is_repeated, is_forgotten } = late.remove(index);
                let call = Call { number: (!is_forgotten).then_some(of.entry), is_repeated };
                if store.settle(consumer, of, settlement, call, &self.guards) && !is_forgotten {
                    let sender = hosts.iter_mut().find(|host| host.consumer == consumer);
                    sender
                        .and_then(|host| held(host, of.entry))
                        .into_iter()
                        .for_each(|hold| hold.is_settled = true);
                }
            }
            Step::Promote(index) => store.promote(index),
            Step::Cancel(task) => {
                left.cancels -= 1;
                store.cancel(task, &self.guards);
            }
            Step::Expire(id) => {
                let is_kept = hosts.iter().any(|host| keeps(host, store, id));
                left.stalls -= u8::from(is_kept);
                store.stream.iter_mut().find(|entry| entry.id == id)?.pending.as_mut()?.expired = true;
            }
            Step::Crash(n) => {
                left.crashes -= 1;
                down(&mut hosts[n]);
            }
            Step::Stop(n) => {
                left.stops -= 1;
                hosts[n].life = Life::Stopping;
            }
            Step::Start(n) => {
                let used = |name| {
                    let owns = store.stream.iter().filter_map(|entry| entry.pending.as_ref());
                    owns.flat_map(|pending| [pending.owner, pending.claimed_by]).any(|owner| owner == name)
                        || late.iter().any(|late| late.consumer == name)
                        || hosts.iter().any(|host| host.life != Life::Down && host.consumer == name)
                };
                let consumer = (0..GONE).find(|&name| !used(name))?;
                hosts[n] = Host { life: Life::Up, consumer, held: Vec::new(), unseen: false };
            }
        }
        Some(())
    }

    /// Calls the gate for a task, which then is in this stage if it may run.
    fn begin(&self, store: &mut Store, host: &mut Host, entry: u8, stage: Stage) -> Option<()> {
        let consumer = host.consumer;
        let hold = held(host, entry)?;
        match store.begin(consumer, hold.of, stage == Stage::Alone, &self.guards) {
            Begun::Owned => (hold.stage, hold.is_alone) = (stage, stage == Stage::Alone),
            Begun::Crashed => hold.stage = Stage::Settling(Settlement::Reject),
            Begun::Dropped => release(host, entry),
        }
        Some(())
    }
}

/// Takes in a delivered entry. An entry that is held already stays as it is.
fn admit(host: &mut Host, of: Delivered, stage: Stage) {
    if host.held.iter().any(|hold| hold.of.entry == of.entry) {
        return;
    }
    host.held.push(Hold { of, stage, is_alone: false, is_sent: false, is_settled: false });
}

/// Whether the attempt runs. One that is being stopped still does.
fn is_running(hold: &Hold) -> bool {
    hold.is_alone || matches!(hold.stage, Stage::Begun | Stage::Running | Stage::Lost)
}

/// Whether the host may send this settlement: it repeats a call until there is a reply, and sends no other
/// meanwhile.
fn may_send(host: &Host, entry: u8) -> bool {
    host.held.iter().all(|hold| hold.of.entry == entry || !hold.is_sent)
}

fn held(host: &mut Host, entry: u8) -> Option<&mut Hold> {
    host.held.iter_mut().find(|hold| hold.of.entry == entry)
}

fn release(host: &mut Host, entry: u8) {
    host.held.retain(|hold| hold.of.entry != entry);
}

fn down(host: &mut Host) {
    *host = Host { life: Life::Down, consumer: GONE, held: Vec::new(), unseen: false };
}

fn can_expire(entry: &store::Entry) -> bool {
    entry.pending.as_ref().is_some_and(|pending| !pending.expired)
}

/// Whether a host that owns the entry renews its lease.
fn keeps(host: &Host, store: &Store, id: u8) -> bool {
    store.owns(host.consumer, id) && host.held.iter().any(|hold| hold.of.entry == id)
}

fn is_abandoned(state: &State, id: u8) -> bool {
    !state.hosts.iter().any(|host| keeps(host, &state.store, id))
}

/// Ends hosts that stop and hold nothing. Then it renames consumers and entries, so that states that differ
/// only in names become equal.
fn tidy(state: &mut State) {
    let State { store, hosts, late, .. } = state;
    for host in hosts.iter_mut() {
        if host.life == Life::Stopping && host.held.is_empty() {
            down(host);
        }
        host.held.sort_unstable();
    }
    for (task, known) in store.tasks.iter_mut().enumerate() {
        // These are read only for tasks that are pending, or have not ended.
        known.runs_alone &= store
            .stream
            .iter()
            .any(|entry| usize::from(entry.payload.task) == task && entry.pending.is_some());
        known.died_alone &= (known.commits, known.cancelled) == (0, 0);
    }
    for entry in store.stream.clone() {
        let owner = hosts.iter().find(|host| host.life != Life::Down && store.owns(host.consumer, entry.id));
        let Some(host) = owner else { continue };
        let mut running = host.held.iter().filter(|hold| is_running(hold));
        let is_it = |hold: &Hold| hold.of.entry == entry.id && hold.is_alone;
        let runs_alone = running.next().is_some_and(is_it) && running.next().is_none();
        store.tasks[usize::from(entry.payload.task)].runs_alone = runs_alone;
    }
    // Replies that no sender waits for are never read.
    let asks = |consumer: u8, entry: u8| {
        let of = |host: &&Host| host.consumer == consumer;
        hosts
            .iter()
            .find(of)
            .is_some_and(|host| host.held.iter().any(|hold| hold.of.entry == entry && hold.is_sent))
    };
    store.replies.retain(|(consumer, entry, _)| asks(*consumer, *entry));
    late.iter_mut().for_each(|late| late.is_forgotten |= !asks(late.consumer, late.of.entry));
    let known: BTreeSet<u8> =
        hosts.iter().map(|host| host.consumer).chain(late.iter().map(|late| late.consumer)).collect();
    for pending in store.stream.iter_mut().filter_map(|entry| entry.pending.as_mut()) {
        for name in [&mut pending.owner, &mut pending.claimed_by] {
            if !known.contains(name) {
                *name = GONE;
            }
        }
    }
    let ids = store.stream.iter().map(|entry| entry.id).chain(store.delayed.iter().map(|(from, _)| *from));
    let ids = ids
        .chain(hosts.iter().flat_map(|host| &host.held).map(|hold| hold.of.entry))
        .chain(late.iter().map(|late| late.of.entry));
    let ids: Vec<u8> = ids.collect::<BTreeSet<u8>>().into_iter().collect();
    let rename = |id| ids.binary_search(&id).map_or(0, |index| index as u8 + 1);
    store.rename_entries(rename, ids.len() as u8 + 1);
    hosts.iter_mut().flat_map(|host| &mut host.held).for_each(|hold| hold.of.entry = rename(hold.of.entry));
    late.iter_mut().for_each(|late| late.of.entry = rename(late.of.entry));
    late.sort_unstable();
}
