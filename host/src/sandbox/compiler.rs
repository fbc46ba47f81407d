//! Compiles a plugin on threads that have a lower priority than the rest of the host.
//!
//! In: the bytes of a plugin. Out: compiled code. Compilation uses several cores, and would slow the tasks of
//! all queues. While there may be tasks, its threads have a lower priority, and use at most half of the
//! cores. Their priority is not the lowest, so that a new version is also compiled on a host that is never
//! idle.
//!
//! Not here: the separate process (`compiler_process`), the number of compilations at once (`plugins::line`).

use std::num::NonZeroUsize;

use tokio_util::sync::CancellationToken;

use super::component;
use super::error::LoadError;

/// The niceness of these threads, above that of the host. On Linux, a thread that is nicer by 5 gets about a
/// third of the time.
#[cfg(target_os = "linux")]
const NICER: i32 = 5;

/// The cores that a compilation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// All cores, at normal priority: there are no tasks yet.
    All,
    /// Half of the cores, at a lower priority: there may be tasks.
    Half,
}

/// The limits of one compilation.
#[derive(Debug, Clone)]
pub(crate) struct Allowance {
    pub cores: Cores,
    /// Cancels the compilation, if it runs in a separate process.
    pub cancel: CancellationToken,
}

impl Allowance {
    /// All cores, and a new token that cancels.
    pub(crate) fn full() -> Allowance {
        Allowance { cores: Cores::All, cancel: CancellationToken::new() }
    }
}

/// Validates a plugin's bytes and compiles them for this engine.
pub(super) fn compile(engine: &wasmtime::Engine, cores: Cores, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
    let compile = || {
        let component = component::from_bytes(wasm)?;
        component::check(&component)?;
        engine.precompile_component(&component).map_err(|error| {
            match error.downcast_ref::<wasmtime::OutOfMemory>() {
                Some(_) => LoadError::TooCostly("more memory than there is".into()),
                None => invalid(format!("{error:#}")),
            }
        })
    };
    contained(|| on_own_threads(cores, compile))
}

/// The error of a file that the validator refuses. Async functions are told by a text, as the validator has
/// no type for that reason; a test checks the text.
fn invalid(why: String) -> LoadError {
    if why.contains("component model async feature") { LoadError::Async } else { LoadError::Malformed(why) }
}

/// Turns a panic into an error. The reader of component types panics for some malformed files.
pub(super) fn contained<T>(read: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    // A panic leaves no half-done value that is used again, since each file is read into new values.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err(LoadError::Malformed("reading or compiling it fails".into())))
}

/// Runs the work on threads that exist only for it. Blocks until it is done. A panic of the work is passed
/// on.
fn on_own_threads<T: Send>(cores: Cores, work: impl FnOnce() -> T + Send) -> T {
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
            tracing::warn!(
                %error,
                "cannot start threads that compile: compiling on a thread of the host, which may delay tasks"
            );
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

/// Lowers the priority of this thread. Only a privileged process could raise it again, so these threads are
/// not reused.
#[cfg(target_os = "linux")]
fn give_way() {
    use rustix::process::{getpriority_process, setpriority_process};
    // On Linux these calls apply to the calling thread, elsewhere to the whole process.
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
        assert_ne!(on_own_threads(Cores::Half, || std::thread::current().id()), here);
        let panicked = std::panic::catch_unwind(|| on_own_threads(Cores::All, || panic!("on purpose")));
        assert!(panicked.is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn its_threads_are_nicer_while_there_are_tasks_and_no_others() {
        let nice = || rustix::process::getpriority_process(None).expect("a priority");
        let before = nice();
        for (cores, expected) in [(Cores::Half, (before + NICER).min(19)), (Cores::All, before)] {
            let within = on_own_threads(cores, || {
                use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
                (0..64).into_par_iter().map(|_| nice()).collect::<Vec<_>>()
            });
            assert_eq!(within, vec![expected; 64], "{cores:?}");
        }
        assert_eq!(nice(), before);
    }
}
