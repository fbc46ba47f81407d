//! From bytes to compiled code, on threads that stand behind everything else.
//!
//! In: the bytes of a plugin. Out: compiled code. Compiling is the one thing that a host does in parallel by itself; on threads like the
//! others it takes its share from the tasks of all queues. So while there may be tasks, these threads have a lower priority, and as many as half of the
//! cores. Not the lowest priority, since a new version must come through on a host that is never idle, too.
//!
//! Not here: that it is done in another process (`apart`), how many are compiled at once (`plugins::gate`).

use std::num::NonZeroUsize;

use tokio_util::sync::CancellationToken;

use super::component;
use super::error::LoadError;

/// By how much they are nicer than the rest of the host. To the scheduler of Linux, a thread that is nicer by 5 counts for about a third.
#[cfg(target_os = "linux")]
const NICER: i32 = 5;

/// What may be taken to compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// All cores, like anybody else: there are no tasks yet.
    All,
    /// Half of the cores, and what others leave of them: there may be some.
    Half,
}

/// What compiling may take, and until when.
#[derive(Debug, Clone)]
pub struct Allowance {
    pub cores: Cores,
    /// Breaks it off, where it is done in a process of its own.
    pub stop: CancellationToken,
}

impl Allowance {
    /// All cores, for as long as it takes.
    pub fn full() -> Allowance {
        Allowance { cores: Cores::All, stop: CancellationToken::new() }
    }
}

/// Validates a plugin's bytes and compiles them for this engine.
pub(super) fn compile(engine: &wasmtime::Engine, cores: Cores, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
    let compile = || {
        let component = component::from_bytes(wasm)?;
        component::interfaces(&component)?.check()?;
        engine.precompile_component(&component).map_err(|error| {
            match error.downcast_ref::<wasmtime::OutOfMemory>() {
                Some(_) => LoadError::TooCostly("more memory than there is".into()),
                None => LoadError::Malformed(format!("{error:#}")),
            }
        })
    };
    contained(|| behind(cores, compile))
}

/// Makes an error of a panic: what reads component types takes some files for impossible (found with bytes changed at random).
pub(super) fn contained<T>(read: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    // Nothing is left half done that is used again: a file is read into values of its own.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err(LoadError::Malformed("reading or compiling it fails".into())))
}

/// Runs the work on threads that exist for it only. Blocks until it is done; a panic of the work comes through.
fn behind<T: Send>(cores: Cores, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(cores.count())
        .thread_name(|_| "tq-compile".into())
        .start_handler(move |_| {
            if cores == Cores::Half {
                give_way();
            }
        })
        .build();
    match pool {
        Ok(pool) => pool.install(work),
        Err(error) => {
            tracing::warn!(%error, "no threads to compile on; compiling on one of the others, which may hold up tasks");
            work()
        }
    }
}

impl Cores {
    fn count(self) -> usize {
        let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        match self {
            Cores::All => all,
            Cores::Half => all.div_ceil(2),
        }
    }
}

/// Lowers the priority of this thread. It cannot be raised again without a privilege, which is why the threads are thrown away.
#[cfg(target_os = "linux")]
fn give_way() {
    use rustix::process::{getpriority_process, setpriority_process};
    // On Linux these speak of the calling thread, elsewhere of the whole process.
    let lowered = getpriority_process(None).and_then(|nice| setpriority_process(None, nice + NICER));
    if let Err(error) = lowered {
        tracing::debug!(%error, "a thread that compiles has the priority of the others");
    }
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_elsewhere_and_its_panic_comes_back() {
        let here = std::thread::current().id();
        assert_ne!(behind(Cores::Half, || std::thread::current().id()), here);
        let panicked = std::panic::catch_unwind(|| behind(Cores::All, || panic!("on purpose")));
        assert!(panicked.is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn its_threads_are_nicer_while_there_are_tasks_and_no_others() {
        let nice = || rustix::process::getpriority_process(None).expect("a priority");
        let before = nice();
        for (cores, expected) in [(Cores::Half, (before + NICER).min(19)), (Cores::All, before)] {
            let within = behind(cores, || {
                use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
                (0..64).into_par_iter().map(|_| nice()).collect::<Vec<_>>()
            });
            assert_eq!(within, vec![expected; 64], "{cores:?}");
        }
        assert_eq!(nice(), before);
    }
}
