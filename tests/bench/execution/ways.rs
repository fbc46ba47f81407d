//! Ways to run guests, each in its simplest form.
//!
//! In: a [`Way`] and calls of a small guest. Out: when each call ended, and how much it computed. A [`Host`]
//! has a runtime like the real host's, and the threads that the way gives to guests. Not here: what is
//! measured (`execution`).

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use wasmtime::component::{Component, InstancePre, Linker, TypedFunc};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store, UpdateDeadline};

/// How often a guest that computes is interrupted, as in the host.
const TICK: Duration = Duration::from_millis(10);

/// The guest. `short` returns at once, `busy` computes for ever and calls `count` on its way, `waits` returns
/// when the host lets it.
const GUEST: &str = r#"(component
    (import "count" (func $count))
    (import "wait" (func $wait))
    (core func $count-core (canon lower (func $count)))
    (core func $wait-core (canon lower (func $wait)))
    (core module $module
        (import "host" "count" (func $count))
        (import "host" "wait" (func $wait))
        (memory 17)
        (func (export "short") (i32.store (i32.const 65536) (i32.const 1)))
        (func (export "waits") (call $wait))
        (func (export "busy") (local $left i32)
            (loop $for-ever
                (local.set $left (i32.const 100000))
                (loop $part (br_if $part (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (call $count)
                (br $for-ever))))
    (core instance $instance (instantiate $module
        (with "host" (instance (export "count" (func $count-core)) (export "wait" (func $wait-core))))))
    (func (export "short") (canon lift (core func $instance "short")))
    (func (export "waits") (canon lift (core func $instance "waits")))
    (func (export "busy") (canon lift (core func $instance "busy"))))"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Guests run on fibers, on the threads of the host's runtime. At each tick, a guest gives its thread to
    /// the next.
    Shared,
    /// Guests run on fibers, on separate threads, one for each core.
    Own,
    /// Guests run on fibers, on two separate threads for each core. Of the guests that have computed for a
    /// tick, only as many go on at once as there are cores.
    Turns,
    /// Each guest has a thread and no fiber, and the operating system shares the cores among them.
    Thread,
}

/// A way to run guests.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub label: &'static str,
    pub kind: Kind,
    /// Added to the niceness of the guests' threads.
    pub nice: i32,
}

/// A function of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Short,
    Waits,
    Busy,
}

/// How a call ended.
pub struct Ended {
    pub at: Instant,
    /// How often `busy` called `count`.
    pub work: u64,
    /// The instance, for the next call.
    pub instance: Instance,
}

/// An instance and its function.
pub struct Instance {
    store: Store<Data>,
    func: Option<TypedFunc<(), ()>>,
}

struct Data {
    work: u64,
    gate: Arc<Gate>,
}

/// The event that `waits` waits for.
pub struct Gate {
    pub waiting: AtomicUsize,
    open: Semaphore,
}

/// A host that runs guests in one way.
pub struct Host {
    pub runtime: Runtime,
    /// The runtime of the guests; none when they run on the host's.
    guests: Option<Runtime>,
    shared: Arc<Shared>,
}

struct Shared {
    way: Way,
    engine: Engine,
    pre: InstancePre<Data>,
    gate: Arc<Gate>,
    turns: Arc<Semaphore>,
}

impl Host {
    pub fn new(engine: &Engine, component: &Component, way: Way) -> Host {
        let cores = cores();
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores)
            .enable_all()
            .event_interval(4)
            .build()
            .expect("a runtime");
        let threads = match way.kind {
            Kind::Shared | Kind::Own => cores,
            Kind::Turns => 2 * cores,
            Kind::Thread => 1,
        };
        let mut guests = Builder::new_multi_thread();
        guests.worker_threads(threads).enable_time().event_interval(4).max_blocking_threads(2000);
        if way.nice > 0 {
            // On Linux, this changes the calling thread only.
            guests.on_thread_start(move || {
                rustix::process::setpriority_process(None, way.nice).expect("a lower priority")
            });
        }
        let guests = (way.kind != Kind::Shared).then(|| guests.build().expect("a runtime"));
        let mut linker = Linker::new(engine);
        let mut root = linker.root();
        root.func_wrap("count", |mut store: wasmtime::StoreContextMut<'_, Data>, ()| {
            store.data_mut().work += 1;
            Ok(())
        })
        .expect("count");
        if way.kind == Kind::Thread {
            root.func_wrap("wait", |store: wasmtime::StoreContextMut<'_, Data>, ()| {
                Handle::current().block_on(store.data().gate.clone().wait());
                Ok(())
            })
            .expect("wait");
        } else {
            root.func_wrap_async("wait", |store: wasmtime::StoreContextMut<'_, Data>, ()| {
                let gate = store.data().gate.clone();
                Box::new(async move {
                    gate.wait().await;
                    Ok(())
                })
            })
            .expect("wait");
        }
        let pre = linker.instantiate_pre(component).expect("what it imports is there");
        let gate = Arc::new(Gate { waiting: AtomicUsize::new(0), open: Semaphore::new(0) });
        let turns = Arc::new(Semaphore::new(cores));
        Host { runtime, guests, shared: Arc::new(Shared { way, engine: engine.clone(), pre, gate, turns }) }
    }

    pub fn starter(&self) -> Starter {
        let guests = self.guests.as_ref().unwrap_or(&self.runtime).handle().clone();
        Starter { guests, shared: self.shared.clone() }
    }

    pub fn gate(&self) -> &Gate {
        &self.shared.gate
    }
}

impl Gate {
    async fn wait(self: Arc<Gate>) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.open.acquire().await.expect("it is not closed").forget();
    }

    pub fn open(&self) {
        self.open.add_permits(self.waiting.load(Ordering::Relaxed));
    }
}

/// Starts calls.
#[derive(Clone)]
pub struct Starter {
    guests: Handle,
    shared: Arc<Shared>,
}

impl Starter {
    /// Starts a call that ends at the deadline at the latest. It uses the given instance, or a new one.
    pub fn start(&self, call: Call, deadline: Instant, instance: Option<Instance>) -> JoinHandle<Ended> {
        let shared = self.shared.clone();
        match self.shared.way.kind {
            Kind::Thread => {
                self.guests.spawn_blocking(move || on_a_thread(&shared, call, deadline, instance))
            }
            _ => self.guests.spawn(on_a_fiber(shared, call, deadline, instance)),
        }
    }
}

impl Shared {
    fn instance(&self, instance: Option<Instance>) -> Instance {
        instance.unwrap_or_else(|| {
            let data = Data { work: 0, gate: self.gate.clone() };
            Instance { store: Store::new(&self.engine, data), func: None }
        })
    }
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Short => "short",
            Call::Waits => "waits",
            Call::Busy => "busy",
        }
    }
}

fn on_a_thread(shared: &Shared, call: Call, deadline: Instant, instance: Option<Instance>) -> Ended {
    let mut instance = shared.instance(instance);
    let Instance { store, func } = &mut instance;
    store.epoch_deadline_callback(move |_| {
        Ok(if Instant::now() >= deadline { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) })
    });
    store.set_epoch_deadline(1);
    let func = func.get_or_insert_with(|| {
        let instance = shared.pre.instantiate(&mut *store).expect("an instance");
        instance.get_typed_func(&mut *store, call.name()).expect("a function")
    });
    ended(func.call(&mut *store, ()), call);
    Ended { at: Instant::now(), work: instance.store.data().work, instance }
}

async fn on_a_fiber(shared: Arc<Shared>, call: Call, deadline: Instant, instance: Option<Instance>) -> Ended {
    let mut instance = shared.instance(instance);
    let turn = Turn::default();
    let (turns, held) = ((shared.way.kind == Kind::Turns).then(|| shared.turns.clone()), turn.clone());
    instance.store.epoch_deadline_callback(move |_| {
        if Instant::now() >= deadline {
            return Ok(UpdateDeadline::Interrupt);
        }
        let (turns, held) = (turns.clone(), held.clone());
        Ok(UpdateDeadline::YieldCustom(
            1,
            Box::pin(async move {
                tokio::task::yield_now().await;
                if let Some(turns) = turns {
                    let turn = turns.acquire_owned().await.expect("it is not closed");
                    *held.0.lock().expect("a turn") = Some(turn);
                }
            }),
        ))
    });
    instance.store.set_epoch_deadline(1);
    let Instance { store, func } = &mut instance;
    let running = async {
        if func.is_none() {
            let instance = shared.pre.instantiate_async(&mut *store).await.expect("an instance");
            *func = Some(instance.get_typed_func(&mut *store, call.name()).expect("a function"));
        }
        func.as_ref().expect("a function").call_async(&mut *store, ()).await
    };
    tokio::select! {
        biased;
        result = (InTurn { call: Box::pin(running), turn }) => ended(result, call),
        () = tokio::time::sleep_until(deadline.into()) => {
            assert!(call != Call::Short, "a short call takes no time");
        }
    }
    Ended { at: Instant::now(), work: instance.store.data().work, instance }
}

fn ended(result: wasmtime::Result<()>, call: Call) {
    match (result, call) {
        (Ok(()), Call::Short | Call::Waits) => {}
        (Err(error), Call::Busy) if matches!(error.downcast_ref(), Some(wasmtime::Trap::Interrupt)) => {}
        (result, call) => panic!("{call:?} has ended as {result:?}"),
    }
}

/// The permit that a guest needs to compute after its first tick.
#[derive(Clone, Default)]
struct Turn(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

/// A call that gives its turn back whenever it stops computing.
struct InTurn<F> {
    call: Pin<Box<F>>,
    turn: Turn,
}

impl<F: Future> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.call.as_mut().poll(context);
        drop(self.turn.0.lock().expect("a turn").take());
        polled
    }
}

/// An engine with a pool like the host's, and the guest compiled for it.
pub fn engine(instances: u32) -> (Engine, Component) {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(4 * instances)
        .total_memories(instances)
        .total_tables(instances)
        .total_stacks(instances)
        .linear_memory_keep_resident(20 * 64 * 1024);
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    let engine = Engine::new(&config).expect("an engine");
    let component = Component::new(&engine, wat::parse_str(GUEST).expect("a guest")).expect("a component");
    (engine, component)
}

/// Increments the engine's epoch at each tick until it is dropped.
pub struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Ticker {
    pub fn start(engine: &Engine) -> Ticker {
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (engine.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        });
        Ticker { stop, thread: Some(thread) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
