//! A model of the relay: tasks that two hosts take from one slot to another one of a cluster.
//!
//! In all orders of the steps, each task is enqueued once, and none gets lost: hosts look, stall, die, and
//! send calls that arrive late; replies get lost; tasks end, and their statuses go. One thing is taken for
//! granted: a task that was enqueued leaves the slot it came from a little earlier than its status goes, by
//! the time for which a call counts. A sweep each second sees to that, unless the way between the slots is
//! cut for 50 seconds. Models that each lack one guard have to be found out.
//!
//! Not here: how a task comes into `out`, which is a part of its settlement (`system`).

use stateright::{Checker, HasDiscoveries, Model, Property};

/// How long a call counts after its host asked the clock, and how long a status lives after the end.
const COUNTS: u8 = 1;
const LIVES: u8 = 3;
/// The time for which the model runs.
const END_OF_TIME: u8 = 5;
const TASKS: usize = 1;
/// The calls that may be on their way at once.
const MOST_CALLS: usize = 2;

/// The guards: a mutated model goes without one of them.
#[derive(Debug, Clone, Copy)]
struct Guards {
    /// relay.lua leaves a task alone whose id has a status.
    knows_the_id: bool,
    /// relay.lua does nothing after the end of its time.
    has_a_deadline: bool,
    /// A host asks the clock before it looks which tasks are there.
    asks_the_clock_first: bool,
    /// A host takes a task out of there only after a reply.
    waits_for_the_reply: bool,
    /// The time for which a call counts is shorter than the life of a status.
    counts_for_less: bool,
}

const ALL: Guards = Guards {
    knows_the_id: true,
    has_a_deadline: true,
    asks_the_clock_first: true,
    waits_for_the_reply: true,
    counts_for_less: true,
};

#[derive(Debug, Clone, Copy)]
struct Relay {
    guards: Guards,
    crashes: u8,
    lost_replies: u8,
}

const SOME: Relay = Relay { guards: ALL, crashes: 1, lost_replies: 1 };

/// The target's view of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Status {
    None,
    Lives,
    /// It ended at this time.
    Ended(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Host {
    Idle,
    /// It asked the clock.
    Timed(u8),
    /// It has a task, and until when a call for it counts.
    Looked {
        task: usize,
        until: u8,
    },
    /// Its call is on the way.
    Waits(usize),
    Told(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Call {
    host: usize,
    task: usize,
    until: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    /// Whether the task waits in the slot it comes from.
    out: [bool; TASKS],
    target: [Status; TASKS],
    enqueued: [u8; TASKS],
    hosts: [Host; 2],
    calls: Vec<Call>,
    crashes: u8,
    lost_replies: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A host asks the clock of the target.
    Ask(usize),
    /// It looks which tasks wait.
    Look(usize, usize),
    Send(usize),
    /// A call arrives at the target, and its reply at the host.
    Arrive(Call),
    /// As `Arrive`, and the reply gets lost.
    ArriveUnheard(Call),
    /// A host stops to wait for a reply.
    GiveUp(usize),
    Remove(usize),
    Crash(usize),
    EndTask(usize),
    Tick,
}

impl Relay {
    fn until(&self, now: u8) -> u8 {
        if self.guards.counts_for_less { now + COUNTS } else { now + LIVES + 2 }
    }

    fn arrive(&self, state: &mut State, call: Call) {
        state.calls.retain(|other| *other != call);
        if self.guards.has_a_deadline && state.now > call.until {
            return;
        }
        if !self.guards.knows_the_id || state.target[call.task] == Status::None {
            state.enqueued[call.task] += 1;
            state.target[call.task] = Status::Lives;
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Ask(host) => state.hosts[host] = Host::Timed(state.now),
            Step::Look(host, task) => {
                let Host::Timed(asked) = state.hosts[host] else { return };
                state.hosts[host] = Host::Looked { task, until: self.until(asked) };
            }
            Step::Send(host) => {
                let Host::Looked { task, until } = state.hosts[host] else { return };
                let until = if self.guards.asks_the_clock_first { until } else { self.until(state.now) };
                state.calls.push(Call { host, task, until });
                state.calls.sort_unstable();
                state.hosts[host] = Host::Waits(task);
                if !self.guards.waits_for_the_reply {
                    state.out[task] = false;
                }
            }
            Step::Arrive(call) => {
                let counts = !self.guards.has_a_deadline || state.now <= call.until;
                self.arrive(state, call);
                if state.hosts[call.host] == Host::Waits(call.task) {
                    state.hosts[call.host] = if counts { Host::Told(call.task) } else { Host::Idle };
                }
            }
            Step::ArriveUnheard(call) => {
                self.arrive(state, call);
                state.lost_replies -= 1;
            }
            Step::GiveUp(host) => state.hosts[host] = Host::Idle,
            Step::Remove(host) => {
                let Host::Told(task) = state.hosts[host] else { return };
                state.out[task] = false;
                state.hosts[host] = Host::Idle;
            }
            Step::Crash(host) => {
                state.hosts[host] = Host::Idle;
                state.crashes -= 1;
            }
            Step::EndTask(task) => state.target[task] = Status::Ended(state.now),
            Step::Tick => {
                state.now += 1;
                for status in &mut state.target {
                    if matches!(status, Status::Ended(at) if *at + LIVES <= state.now) {
                        *status = Status::None;
                    }
                }
            }
        }
    }
}

impl Model for Relay {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            out: [true; TASKS],
            target: [Status::None; TASKS],
            enqueued: [0; TASKS],
            hosts: [Host::Idle; 2],
            calls: Vec::new(),
            crashes: self.crashes,
            lost_replies: self.lost_replies,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, host) in state.hosts.iter().enumerate() {
            match host {
                Host::Idle => steps.push(Step::Ask(number)),
                Host::Timed(_) => {
                    let waiting = (0..TASKS).filter(|task| state.out[*task]);
                    steps.extend(waiting.map(|task| Step::Look(number, task)));
                }
                Host::Looked { .. } if state.calls.len() < MOST_CALLS => steps.push(Step::Send(number)),
                Host::Looked { .. } => {}
                Host::Waits(_) => steps.push(Step::GiveUp(number)),
                Host::Told(_) => steps.push(Step::Remove(number)),
            }
            if state.crashes > 0 && *host != Host::Idle {
                steps.push(Step::Crash(number));
            }
        }
        for call in &state.calls {
            steps.push(Step::Arrive(*call));
            if state.lost_replies > 0 {
                steps.push(Step::ArriveUnheard(*call));
            }
        }
        let lives = (0..TASKS).filter(|task| state.target[*task] == Status::Lives);
        steps.extend(lives.map(Step::EndTask));
        let goes = |task: usize| {
            let Status::Ended(at) = state.target[task] else { return false };
            at + LIVES <= state.now + 1 + COUNTS
        };
        // This is what is taken for granted.
        if state.now < END_OF_TIME && (0..TASKS).all(|task| !(goes(task) && state.out[task])) {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Relay>> {
        vec![
            Property::always(ONCE, |_, state: &State| state.enqueued.iter().all(|count| *count <= 1)),
            Property::always(THERE, |_, state: &State| {
                (0..TASKS).all(|task| {
                    let is_on_its_way = state.calls.iter().any(|call| call.task == task);
                    state.out[task] || state.enqueued[task] > 0 || is_on_its_way
                })
            }),
            Property::sometimes("a call comes too late", |_, state: &State| {
                state.calls.iter().any(|call| call.until < state.now && !state.out[call.task])
            }),
            Property::sometimes("all is done", |_, state: &State| {
                state.out == [false; TASKS] && state.calls.is_empty()
            }),
        ]
    }
}

const ONCE: &str = "a task is enqueued once";
const THERE: &str = "a task is not lost";

#[test]
fn each_task_is_enqueued_once_whatever_is_late() {
    let checker = SOME.checker().threads(2).spawn_bfs().join();
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the model is smaller than it was meant to be");
}

fn found_out(change: impl FnOnce(&mut Guards), property: &'static str) {
    let mut model = SOME;
    change(&mut model.guards);
    let checker =
        model.checker().threads(1).finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("not found out: {property}"));
    let steps: Vec<Step> = path.into_vec().into_iter().filter_map(|(_, step)| step).take(14).collect();
    println!("{property}: {steps:?}");
}

#[test]
fn every_guard_of_the_relay_that_is_missing_is_found_out() {
    found_out(|guards| guards.knows_the_id = false, ONCE);
    found_out(|guards| guards.has_a_deadline = false, ONCE);
    found_out(|guards| guards.asks_the_clock_first = false, ONCE);
    found_out(|guards| guards.counts_for_less = false, ONCE);
    found_out(|guards| guards.waits_for_the_reply = false, THERE);
}
