//! A model of turns: the tasks of one row, two hosts, leases, retries, lost replies and crashes.
//!
//! In all orders of the steps, at most one handler of the row runs, tasks begin in their order, each is in
//! one place, and all come to an end. Models that each lack one guard have to be found out. A lease is
//! modelled by what it has to keep: Redis may end one only when its owner's host does not count on it any
//! more, unless the host counts from a later time than Redis. Not here: what the other model has (`system`,
//! `store`), keys of several rows, which do not touch each other.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The guards of the scripts: a mutated model goes without one of them.
#[derive(Debug, Clone, Copy)]
struct Guards {
    /// begin.lua renews the lease of a task that was delivered before.
    begin_renews: bool,
    /// begin.lua checks the owner.
    begin_looks_for_the_owner: bool,
    /// settle.lua completes a task only for its owner.
    settlement_looks_for_the_owner: bool,
    /// claim.lua holds a task while another one has the turn.
    claim_looks_at_the_turn: bool,
    /// A task that waits for its retry keeps its turn.
    retries_keep_the_turn: bool,
    /// The end of a task passes its turn on.
    ends_pass_the_turn_on: bool,
}

const ALL: Guards = Guards {
    begin_renews: true,
    begin_looks_for_the_owner: true,
    settlement_looks_for_the_owner: true,
    claim_looks_at_the_turn: true,
    retries_keep_the_turn: true,
    ends_pass_the_turn_on: true,
};

#[derive(Debug, Clone)]
struct Row {
    tasks: u8,
    faults: Faults,
    guards: Guards,
}

/// Faults that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Faults {
    crashes: u8,
    /// Claims whose replies are lost.
    lost_replies: u8,
    /// Leases that a host that lives cannot renew in time.
    stalls: u8,
    retries: u8,
}

const SOME: Row =
    Row { tasks: 3, faults: Faults { crashes: 1, lost_replies: 1, stalls: 1, retries: 1 }, guards: ALL };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pending {
    owner: u8,
    /// It went without a renewal for a whole lease.
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    id: u8,
    task: u8,
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// It waits for the gate. Another host may have run it under the same entry if it came again.
    Claimed {
        again: bool,
    },
    Running,
    Settling(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Complete,
    Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Hold {
    entry: u8,
    task: u8,
    stage: Stage,
    /// The host counts the lease from a later time than Redis does.
    counts_late: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Host {
    /// Unique for each start of a process.
    consumer: u8,
    held: Vec<Hold>,
    /// A call failed: entries may have been delivered unseen.
    unseen: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    stream: Vec<Entry>,
    /// The tasks that are held, in their order.
    held: Vec<u8>,
    /// The tasks that wait for a retry.
    delayed: Vec<u8>,
    ended: Vec<u8>,
    /// The task that has its turn.
    turn: Option<u8>,
    hosts: [Host; 2],
    left: Faults,
    next_entry: u8,
    next_consumer: u8,
    /// Watched: a task began before an earlier one had ended.
    is_out_of_order: bool,
}

/// A step of the model. Hosts are numbers, entries are ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Claim(usize),
    ClaimUnheard(usize),
    Recover(usize),
    Reclaim(usize),
    Begin(usize, u8),
    Heartbeat(usize, u8),
    /// The host stops a handler whose lease it could not renew.
    GiveUp(usize, u8),
    End(usize, u8, End),
    Settle(usize, u8),
    Promote,
    /// A lease is over in Redis.
    Over(u8),
    /// A host dies, and another one starts.
    Crash(usize),
}

impl State {
    fn running(&self) -> usize {
        let held = self.hosts.iter().flat_map(|host| &host.held);
        held.filter(|hold| hold.stage == Stage::Running).count()
    }

    fn places(&self, task: u8) -> usize {
        let lists = [&self.held, &self.delayed, &self.ended];
        self.stream.iter().filter(|entry| entry.task == task).count()
            + lists.iter().map(|list| list.iter().filter(|other| **other == task).count()).sum::<usize>()
    }

    fn add(&mut self, task: u8) {
        self.stream.push(Entry { id: self.next_entry, task, pending: None });
        self.next_entry += 1;
    }

    fn pending(&mut self, entry: u8) -> Option<&mut Pending> {
        self.stream.iter_mut().find(|one| one.id == entry)?.pending.as_mut()
    }

    fn owns(&self, n: usize, entry: u8) -> bool {
        let its = |one: &Entry| one.pending.is_some_and(|pending| pending.owner == self.hosts[n].consumer);
        self.stream.iter().any(|one| one.id == entry && its(one))
    }

    fn hold(&mut self, n: usize, entry: u8) -> Option<&mut Hold> {
        self.hosts[n].held.iter_mut().find(|hold| hold.entry == entry)
    }

    fn drop(&mut self, n: usize, entry: u8) {
        self.hosts[n].held.retain(|hold| hold.entry != entry);
    }

    /// An entry that is held already stays as it is.
    fn admit(&mut self, n: usize, Entry { id, task, .. }: Entry, again: bool) {
        if self.hosts[n].held.iter().all(|hold| hold.entry != id) {
            let stage = Stage::Claimed { again };
            self.hosts[n].held.push(Hold { entry: id, task, stage, counts_late: again });
        }
    }

    /// claim.lua with a limit of 1. None: nothing was there. The entry, unless it is held.
    fn claim(&mut self, n: usize, guards: &Guards) -> Option<Option<Entry>> {
        let owner = self.hosts[n].consumer;
        let at = self.stream.iter().position(|entry| entry.pending.is_none())?;
        let task = self.stream[at].task;
        let is_free = self.turn.is_none() && self.held.is_empty();
        if self.turn == Some(task) || is_free || !guards.claim_looks_at_the_turn {
            self.turn = Some(task);
            self.stream[at].pending = Some(Pending { owner, is_over: false });
            return Some(Some(self.stream[at]));
        }
        self.stream.remove(at);
        self.held.push(task);
        Some(None)
    }

    fn pass_on(&mut self) {
        self.turn = None;
        if !self.held.is_empty() {
            let next = self.held.remove(0);
            self.turn = Some(next);
            self.add(next);
        }
    }

    /// settle.lua for one attempt.
    fn settle(&mut self, n: usize, hold: Hold, end: End, guards: &Guards) {
        let is_free = end == End::Complete && !guards.settlement_looks_for_the_owner;
        if self.pending(hold.entry).is_none() || !is_free && !self.owns(n, hold.entry) {
            return;
        }
        self.stream.retain(|entry| entry.id != hold.entry);
        match end {
            End::Complete => {
                self.ended.push(hold.task);
                if guards.ends_pass_the_turn_on {
                    self.pass_on();
                }
            }
            End::Retry => {
                self.delayed.push(hold.task);
                if !guards.retries_keep_the_turn {
                    self.pass_on();
                }
            }
        }
    }

    /// Whether a host renews the lease of an entry, and counts it no later than Redis.
    fn is_kept(&self, entry: &Entry) -> bool {
        let Some(Pending { owner, .. }) = entry.pending else { return false };
        self.hosts
            .iter()
            .filter(|host| host.consumer == owner)
            .any(|host| host.held.iter().any(|hold| hold.entry == entry.id && !hold.counts_late))
    }
}

impl Row {
    /// The steps without further faults. Their order is such that always taking the first one that changes
    /// anything leads to the end.
    fn good_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (n, host) in state.hosts.iter().enumerate() {
            steps.extend(host.held.iter().map(|hold| match hold.stage {
                Stage::Claimed { .. } => Step::Begin(n, hold.entry),
                Stage::Running => Step::End(n, hold.entry, End::Complete),
                Stage::Settling(_) => Step::Settle(n, hold.entry),
            }));
            steps.extend([Step::Recover(n), Step::Claim(n), Step::Reclaim(n)]);
        }
        steps.push(Step::Promote);
        let over = |entry: &&Entry| entry.pending.is_some() && !state.is_kept(entry);
        steps.extend(state.stream.iter().filter(over).map(|entry| Step::Over(entry.id)));
    }

    fn comes_to_an_end(&self, from: &State) -> bool {
        let mut state = from.clone();
        for _ in 0..100 {
            if state.ended.len() == usize::from(self.tasks) {
                return true;
            }
            let mut steps = Vec::new();
            self.good_steps(&state, &mut steps);
            match steps.into_iter().find_map(|step| self.next_state(&state, step)) {
                Some(next) => state = next,
                None => return false,
            }
        }
        false
    }

    /// Takes a step. None when it is not possible.
    fn take(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Claim(n) => {
                if let Some(entry) = state.claim(n, &self.guards)? {
                    state.admit(n, entry, false);
                }
            }
            Step::ClaimUnheard(n) => {
                state.claim(n, &self.guards)?;
                state.left.lost_replies -= 1;
                state.hosts[n].unseen = true;
            }
            Step::Recover(n) => {
                let Host { consumer, held, unseen } = &state.hosts[n];
                let is_unseen = |entry: &&Entry| {
                    entry.pending.is_some_and(|pending| pending.owner == *consumer)
                        && held.iter().all(|hold| hold.entry != entry.id)
                };
                let found = state.stream.iter().find(is_unseen).filter(|_| *unseen).copied();
                match found {
                    Some(entry) => state.admit(n, entry, true),
                    None => state.hosts[n].unseen = false,
                }
            }
            Step::Reclaim(n) => {
                let owner = state.hosts[n].consumer;
                let is_over = |entry: &&mut Entry| entry.pending.is_some_and(|pending| pending.is_over);
                let entry = state.stream.iter_mut().find(is_over)?;
                entry.pending = Some(Pending { owner, is_over: false });
                let entry = *entry;
                state.admit(n, entry, true);
            }
            Step::Begin(n, entry) => {
                let Stage::Claimed { again } = state.hold(n, entry)?.stage else { return None };
                if !state.owns(n, entry) && self.guards.begin_looks_for_the_owner {
                    state.drop(n, entry);
                    return Some(());
                }
                let is_renewed = again && self.guards.begin_renews;
                if is_renewed && let Some(pending) = state.pending(entry) {
                    pending.is_over = false;
                }
                let hold = state.hold(n, entry)?;
                hold.stage = Stage::Running;
                hold.counts_late &= !is_renewed;
                let task = hold.task;
                state.is_out_of_order |= (0..task).any(|earlier| !state.ended.contains(&earlier));
            }
            Step::Heartbeat(n, entry) => {
                if matches!(state.hold(n, entry)?.stage, Stage::Settling(_)) {
                    return None;
                }
                if !state.owns(n, entry) {
                    state.drop(n, entry);
                    return Some(());
                }
                state.pending(entry)?.is_over = false;
                state.hold(n, entry)?.counts_late = false;
            }
            Step::GiveUp(n, entry) => {
                if matches!(state.hold(n, entry)?.stage, Stage::Settling(_)) {
                    return None;
                }
                state.left.stalls -= 1;
                state.drop(n, entry);
                state.hosts[n].unseen = true;
            }
            Step::End(n, entry, end) => {
                state.left.retries -= u8::from(end == End::Retry);
                let hold = state.hold(n, entry)?;
                hold.stage = Stage::Settling(end);
                // It renews the lease, but its end does not matter any more.
                hold.counts_late = false;
            }
            Step::Settle(n, entry) => {
                let hold = *state.hold(n, entry)?;
                let Stage::Settling(end) = hold.stage else { return None };
                state.settle(n, hold, end, &self.guards);
                state.drop(n, entry);
            }
            Step::Promote => {
                if state.delayed.is_empty() {
                    return None;
                }
                let task = state.delayed.remove(0);
                state.add(task);
            }
            Step::Over(entry) => {
                let is_kept = state.stream.iter().any(|one| one.id == entry && state.is_kept(one));
                state.left.stalls -= u8::from(is_kept);
                state.pending(entry)?.is_over = true;
            }
            Step::Crash(n) => {
                state.left.crashes -= 1;
                state.hosts[n] = Host { consumer: state.next_consumer, held: Vec::new(), unseen: false };
                state.next_consumer += 1;
            }
        }
        Some(())
    }
}

impl Model for Row {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            stream: Vec::new(),
            held: Vec::new(),
            delayed: Vec::new(),
            ended: Vec::new(),
            turn: None,
            hosts: [0, 1].map(|consumer| Host { consumer, held: Vec::new(), unseen: false }),
            left: self.faults,
            next_entry: 0,
            next_consumer: 2,
            is_out_of_order: false,
        };
        (0..self.tasks).for_each(|task| state.add(task));
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.good_steps(state, steps);
        let left = state.left;
        for (n, host) in state.hosts.iter().enumerate() {
            for hold in &host.held {
                steps.push(Step::Heartbeat(n, hold.entry));
                if left.stalls > 0 {
                    steps.push(Step::GiveUp(n, hold.entry));
                }
                if left.retries > 0 && hold.stage == Stage::Running {
                    steps.push(Step::End(n, hold.entry, End::Retry));
                }
                // Redis may end the lease while a settlement is on its way, whose handler is over.
                let is_settling = matches!(hold.stage, Stage::Settling(_)) && state.owns(n, hold.entry);
                if left.stalls > 0 && is_settling {
                    steps.push(Step::Over(hold.entry));
                }
            }
            if left.lost_replies > 0 {
                steps.push(Step::ClaimUnheard(n));
            }
            if left.crashes > 0 {
                steps.push(Step::Crash(n));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step)?;
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Row>> {
        vec![
            Property::always(OWNER, |_, state: &State| state.running() <= 1),
            Property::always(ORDER, |_, state: &State| !state.is_out_of_order),
            Property::always(PLACE, |row: &Row, state: &State| {
                (0..row.tasks).all(|task| state.places(task) == 1)
            }),
            Property::always(END, Row::comes_to_an_end),
            Property::sometimes("begun again", |_, state: &State| {
                let held = state.hosts.iter().flat_map(|host| &host.held);
                held.clone().any(|hold| hold.stage == Stage::Claimed { again: true })
            }),
            Property::sometimes("a retry holds the others up", |_, state: &State| {
                !state.delayed.is_empty() && state.held.len() == 2
            }),
        ]
    }
}

const OWNER: &str = "one task of the row runs at once";
const ORDER: &str = "tasks begin in their order";
const PLACE: &str = "a task is in one place";
const END: &str = "an end can be reached";

#[test]
fn one_row_two_hosts_and_every_fault() {
    // A second lease that cannot be renewed makes the model several times as large.
    let is_large = std::env::var_os("TQHOST_MODEL_LARGE").is_some();
    let faults = Faults { stalls: if is_large { 2 } else { 1 }, ..SOME.faults };
    let checker = Row { faults, ..SOME }.checker().threads(2).spawn_bfs().join();
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the model is smaller than it was meant to be");
}

/// The steps to a state in which `property` does not hold.
fn found_out(change: impl FnOnce(&mut Guards), property: &'static str) -> Vec<Step> {
    let mut model = SOME;
    change(&mut model.guards);
    let checker =
        model.checker().threads(1).finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("not found out: {property}"));
    let is_held = checker.model().property(property).condition;
    let good = path.into_vec().into_iter().take_while(|(state, _)| is_held(checker.model(), state));
    let steps: Vec<Step> = good.filter_map(|(_, step)| step).collect();
    println!("{property}: {steps:?}");
    steps
}

#[test]
fn a_run_that_begins_again_under_an_old_lease_is_a_second_owner() {
    let path = found_out(|guards| guards.begin_renews = false, OWNER);
    assert!(path.iter().any(|step| matches!(step, Step::Recover(_) | Step::Reclaim(_))), "{path:?}");
}

#[test]
fn every_other_guard_of_turns_that_is_missing_is_found_out() {
    found_out(|guards| guards.begin_looks_for_the_owner = false, OWNER);
    found_out(|guards| guards.settlement_looks_for_the_owner = false, OWNER);
    found_out(|guards| guards.claim_looks_at_the_turn = false, OWNER);
    found_out(|guards| guards.retries_keep_the_turn = false, ORDER);
    found_out(|guards| guards.ends_pass_the_turn_on = false, END);
}
