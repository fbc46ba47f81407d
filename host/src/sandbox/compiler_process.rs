//! Compiles plugins in a separate process.
//!
//! In: the bytes of a plugin. Out: compiled code, or an error that says what is wrong with the file.
//!
//! Plugin files are not trusted, and the compiler was written for well-formed files. A bad file may cause
//! endless work, use all memory or overflow the stack. That harms only the separate process.
//!
//! ```text
//! host: compile ── the file ─▶ stdin of `tqhost compile`: serve ─▶ validated, compiled
//!          ▲                                                          │
//!          └──── the code or the error, and a byte that says which ── stdout ◀┘
//! ```
//!
//! For an author, the functions of earlier compilations go before the file, and the answer has those for the
//! next one behind the code.
//!
//! The process has none of the host's environment, files and connections, so it knows no secret. It ends with
//! the host. It is not a sandbox: it runs as the same user.
//!
//! Not here: the compilation itself (`compiler`).

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use super::compiler::{self, Allowance, Cores};
use super::error::{LoadError, MAX_FILE};
use super::functions::{self, Functions};
use super::machine;

/// Processor time for one file, in seconds, over all threads. Components of 12 MB in JavaScript and 18 MB in
/// Python take 12 s.
const MAX_SECONDS: u64 = 600;
/// Elapsed time for one file. A process may make no progress: stopped, without memory, without a core.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// The most memory for one file, in bytes, where there is plenty. The components named at [`MAX_SECONDS`]
/// take a third of a GiB, and no file is larger than [`MAX_FILE`].
const MAX_MEMORY: u64 = 4 << 30;
/// The memory for one file where half of the host's is less: enough for the components named at
/// [`MAX_SECONDS`].
const USUAL_MEMORY: u64 = 512 << 20;
/// Largest compiled code of one file, in bytes; the host holds it in memory. The components named at
/// [`MAX_SECONDS`] give 35 MB, two or three times their own size.
const MAX_CODE: u64 = 512 << 20;
/// Bytes kept of the stderr of a process that failed.
const MAX_WORDS: u64 = 4096;
/// The time between two checks whether the compilation is cancelled.
const STILL_WANTED: Duration = Duration::from_millis(50);
/// The last byte of an answer. It says whether the answer is code, or an error as JSON.
const CODE: u8 = b'c';
const ERROR: u8 = b'e';
/// The variable that tells the program's loader where its libraries are. The process gets no other variable.
const LIBRARIES: &str = "LD_LIBRARY_PATH";
/// The command of the program, and its options.
const COMMAND: &str = "compile";
const RESERVATION: &str = "--reservation";
const HOST: &str = "--host";
const LOW_PRIORITY: &str = "--behind";
const KEEPS: &str = "--keeps-functions";
/// The bytes that say how long the functions are.
const LENGTH: usize = 8;

/// Where plugins are compiled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Compiler {
    /// This process: for files that are trusted not to harm it.
    #[default]
    Here,
    /// Another process of this program, one for each file.
    Separate(PathBuf),
}

impl Compiler {
    /// This program, as it was when it started. Its file may have been replaced since.
    pub fn separate() -> Compiler {
        let program = Path::new("/proc/self/exe");
        let program = if program.exists() { Ok(program.to_owned()) } else { std::env::current_exe() };
        program.map_or_else(
            |error| {
                tracing::warn!(
                    %error,
                    "cannot find the file of this program: plugins are compiled in the host, \
                     and a bad plugin can end the host"
                );
                Compiler::Here
            },
            Compiler::Separate,
        )
    }
}

/// The answer to a file.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) code: Vec<u8>,
    /// The functions for the next compilation, if some were not known before.
    pub(crate) functions: Option<Vec<u8>>,
}

/// Compiles a file in a new process. Blocks until the process has ended. `functions` are those of earlier
/// compilations; `None`: they are not to be kept.
pub(super) fn compile(
    program: &Path,
    reservation: u64,
    allowance: &Allowance,
    functions: Option<&[u8]>,
    wasm: &[u8],
) -> Result<Compiled, LoadError> {
    if wasm.len() as u64 > MAX_FILE {
        return Err(LoadError::TooLarge);
    }
    let mut command = Command::new(program);
    // Lists of processes show this name. Without it they would show the link /proc/self/exe.
    command
        .arg0("tqhost")
        .arg(COMMAND)
        .arg(RESERVATION)
        .arg(reservation.to_string())
        .arg(HOST)
        .arg(std::process::id().to_string())
        .args((allowance.cores == Cores::Half).then_some(LOW_PRIORITY))
        .args(functions.map(|_| KEEPS));
    command.env_clear().envs(std::env::var_os(LIBRARIES).map(|path| (OsString::from(LIBRARIES), path)));
    // A terminal sends its signals to the host's group, so the process has another group.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        LoadError::Hindered(format!("cannot start the process that compiles it: {error}"))
    })?;
    let length = functions.map(|functions| (functions.len() as u64).to_le_bytes());
    let file = [length.as_ref().map_or(&[][..], |length| length), functions.unwrap_or_default(), wasm];
    let most = MAX_CODE + functions.map_or(0, |_| functions::MAX_BYTES as u64);
    let said = converse(&mut child, file, most, &allowance.cancel);
    if said.is_err() {
        // This fails only if the process has ended already.
        let _ = child.kill();
    }
    let lost =
        |error| LoadError::Hindered(format!("cannot speak with the process that compiles it: {error}"));
    let status = child.wait().map_err(lost)?;
    let (mut answer, words) = said.map_err(lost)?;
    match answer.pop().filter(|_| status.success()) {
        Some(CODE) => Ok(answer_of(answer, functions.is_some())),
        Some(_) if answer.len() as u64 >= MAX_CODE => {
            Err(LoadError::TooCostly(format!("more than {} MiB of code", MAX_CODE >> 20)))
        }
        Some(ERROR) => Err(serde_json::from_slice(&answer).unwrap_or_else(|error| {
            LoadError::Malformed(format!("compiling it fails, and the reason cannot be read: {error}"))
        })),
        _ if allowance.cancel.is_cancelled() => Err(LoadError::Cancelled),
        _ => Err(failed(status, &words)),
    }
}

/// Sends the file to the process, and reads its answer, of `most` bytes, and the first part of its stderr.
/// Kills the process when the compilation is cancelled.
fn converse(
    child: &mut Child,
    file: [&[u8]; 3],
    most: u64,
    stop: &CancellationToken,
) -> io::Result<(Vec<u8>, String)> {
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let thread = || thread::Builder::new().name("tq-compile".into());
    // However this function ends, it drops `until`, and that ends the thread which waits on `over`.
    let (until, over) = mpsc::channel::<()>();
    thread::scope(move |scope| {
        let _until = until;
        thread().spawn_scoped(scope, move || {
            let end = Instant::now() + MAX_WAIT;
            while over.recv_timeout(STILL_WANTED) == Err(RecvTimeoutError::Timeout) {
                if stop.is_cancelled() || Instant::now() > end {
                    let _ = child.kill();
                    return;
                }
            }
        })?;
        // This write fails if the process ends early; its exit status then says why.
        thread().spawn_scoped(scope, move || drop(file.iter().try_for_each(|part| stdin.write_all(part))))?;
        let words = thread().spawn_scoped(scope, move || {
            let mut words = Vec::new();
            let _ = stderr.by_ref().take(MAX_WORDS).read_to_end(&mut words);
            let _ = io::copy(&mut stderr, &mut io::sink());
            String::from_utf8_lossy(&words).into_owned()
        })?;
        let mut answer = Vec::new();
        // If the process writes more than this, its writes fail once `stdout` is dropped.
        stdout.by_ref().take(most + 1).read_to_end(&mut answer)?;
        Ok((answer, words.join().unwrap_or_default()))
    })
}

/// Takes an answer apart: the code, then, if functions are kept, these and their length.
fn answer_of(mut answer: Vec<u8>, keeps: bool) -> Compiled {
    let length = answer.last_chunk::<LENGTH>().filter(|_| keeps).map(|length| u64::from_le_bytes(*length));
    let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else {
        return Compiled { code: answer, functions: None };
    };
    answer.truncate(answer.len() - LENGTH);
    let functions = answer.split_off(answer.len().saturating_sub(length));
    Compiled { code: answer, functions: Some(functions).filter(|functions| !functions.is_empty()) }
}

/// The error for a process that gave no answer.
fn failed(status: ExitStatus, words: &str) -> LoadError {
    // The first text is Rust's. The second is the allocator's, which reports only a lack of memory.
    let is_out_of_memory = words.starts_with("memory allocation of") || words.starts_with("<jemalloc>: ");
    let words = words.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
    match signal {
        Some(Signal::SIGXCPU) => LoadError::TooCostly(format!("more than {MAX_SECONDS} s of processor time")),
        Some(Signal::SIGABRT) if is_out_of_memory => LoadError::TooCostly(format!(
            "more memory than it may have, {} MiB or what the system allows",
            memory_of(machine::memory()) >> 20
        )),
        // The system killed it for lack of memory, somebody killed it, or it made no progress. A later
        // compilation of the same file may succeed.
        Some(Signal::SIGKILL) => LoadError::Hindered(
            "the process that compiled it was killed, as a system without free memory does".into(),
        ),
        Some(signal @ (Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP)) => {
            LoadError::Hindered(format!("the process that compiled it was ended by {}", signal.as_str()))
        }
        Some(signal) => LoadError::Malformed(format!("compiling it ends with {}: {words}", signal.as_str())),
        None => LoadError::Malformed(format!("compiling it ends with {status}: {words}")),
    }
}

/// Runs `tqhost compile`: reads a file from stdin, and writes the answer to stdout. `host` is the process
/// that waits for the answer.
pub(crate) fn serve(reservation: u64, cores: Cores, host: u32, keeps: bool) -> anyhow::Result<()> {
    let hindered = |error: String| LoadError::Hindered(format!("the process that compiles it: {error}"));
    let compile = || -> Result<Vec<u8>, LoadError> {
        confine(host).map_err(|error| hindered(error.to_string()))?;
        let (functions, wasm) = read(keeps).map_err(|error| hindered(error.to_string()))?;
        let engine = super::engine::that_compiles(reservation, functions.clone())
            .map_err(|error| hindered(format!("{error:#}")))?;
        let mut answer = compiler::compile(&engine, cores, &wasm)?;
        if let Some(functions) = functions {
            let all = functions.all().unwrap_or_default();
            answer.extend_from_slice(&all);
            answer.extend_from_slice(&(all.len() as u64).to_le_bytes());
        }
        Ok(answer)
    };
    let (kind, answer) = match compile() {
        Ok(answer) => (CODE, answer),
        Err(error) => (ERROR, serde_json::to_vec(&error)?),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(&answer)?;
    stdout.write_all(&[kind])?;
    Ok(stdout.flush()?)
}

/// Reads the functions, if they are kept, and the file.
fn read(keeps: bool) -> io::Result<(Option<Arc<Functions>>, Vec<u8>)> {
    let mut stdin = io::stdin().lock();
    let functions = if keeps {
        let mut length = [0; LENGTH];
        stdin.read_exact(&mut length)?;
        let mut kept = Vec::new();
        stdin.by_ref().take(u64::from_le_bytes(length)).read_to_end(&mut kept)?;
        Some(Arc::new(Functions::new(kept)))
    } else {
        None
    };
    let mut wasm = Vec::new();
    stdin.take(MAX_FILE + 1).read_to_end(&mut wasm)?;
    Ok((functions, wasm))
}

/// Bounds what this process takes, and ties it to the host.
fn confine(host: u32) -> io::Result<()> {
    bound(Resource::Cpu, MAX_SECONDS)?;
    // This counts memory that may be written to. `As` would also count address space that is only reserved.
    bound(Resource::Data, memory_of(machine::memory()))?;
    // No core dump, because the process holds the plugin's file.
    bound(Resource::Core, 0)?;
    // Block these signals: a service manager sends them to all processes of a service, and the host would see
    // a failed compilation. This process ends with the host.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGHUP);
    signals.thread_block()?;
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_name(c"tq-compile")?;
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        if nix::unistd::getppid().as_raw().unsigned_abs() != host {
            return Err(io::Error::other("the host that started it has ended"));
        }
        // If memory runs out, the system kills this process before the host. Some systems do not allow this
        // setting.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    Ok(())
}

/// Memory for one file, where the host and its compilers together may use `all`: half of it, or up to three
/// quarters where half of it is not enough for a usual file. None: unknown.
fn memory_of(all: Option<u64>) -> u64 {
    all.map_or(MAX_MEMORY, |all| (all / 2).max(USUAL_MEMORY).min(all / 4 * 3).min(MAX_MEMORY))
}

/// Lowers the soft limit of a resource to `most`, and never raises it. The hard limit stays: at the hard
/// limit of processor time the kernel sends SIGKILL, which does not show the cause.
fn bound(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let current = now.current.map_or(most, |now| now.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(current), ..now })?)
}

#[cfg(test)]
mod tests {
    use super::super::error::RefusedImport;
    use super::*;

    fn of(signal: Signal, words: &str) -> String {
        failed(ExitStatus::from_raw(signal as i32), words).to_string()
    }

    #[test]
    fn a_compilation_has_a_share_of_the_memory_that_there_is() {
        const MIB: u64 = 1 << 20;
        let table = [
            (None, 4096),
            (Some(256), 192),
            (Some(512), 384),
            (Some(1024), 512),
            (Some(3000), 1500),
            (Some(64_000), 4096),
        ];
        for (all, expected) in table {
            assert_eq!(memory_of(all.map(|all| all * MIB)), expected * MIB, "{all:?}");
        }
    }

    #[test]
    fn the_end_of_the_process_says_the_next_step() {
        assert_eq!(of(Signal::SIGXCPU, ""), "compiling it takes more than 600 s of processor time");
        for words in
            ["memory allocation of 7 bytes failed\n", "<jemalloc>: background thread creation failed (11)\n"]
        {
            assert_eq!(
                of(Signal::SIGABRT, words),
                format!(
                    "compiling it takes more memory than it may have, {} MiB or what the system allows",
                    memory_of(machine::memory()) >> 20
                )
            );
        }
        assert_eq!(
            of(Signal::SIGABRT, "\nthread 'x' has overflowed its stack\n"),
            "not a valid WebAssembly component: compiling it ends with SIGABRT: \
             thread 'x' has overflowed its stack"
        );
        assert_eq!(
            of(Signal::SIGSEGV, ""),
            "not a valid WebAssembly component: compiling it ends with SIGSEGV: it said nothing"
        );
        let killed = failed(ExitStatus::from_raw(Signal::SIGKILL as i32), "");
        assert!(killed.may_pass(), "{killed}");
        assert!(!failed(ExitStatus::from_raw(1 << 8), "no").may_pass());
    }

    #[test]
    fn a_program_that_is_not_there_is_no_fault_of_the_file() {
        let error = compile(Path::new("/nowhere"), 1 << 16, &Allowance::full(), None, b"").unwrap_err();
        assert!(error.may_pass() && error.to_string().contains("cannot start the process"), "{error}");
    }

    #[test]
    fn a_program_that_says_something_else_gives_no_code() {
        for program in ["/bin/true", "/bin/false", "/bin/echo"] {
            let error = compile(Path::new(program), 1 << 16, &Allowance::full(), None, &vec![0; 1 << 20])
                .unwrap_err();
            assert!(error.to_string().contains("compiling it ends with exit status"), "{program}: {error}");
        }
    }

    #[test]
    fn a_process_that_nobody_waits_for_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sleeps");
        // Another process writes the program. If this one did, a child that another thread starts meanwhile
        // could inherit the open file, and then the program could not be run.
        let write = "printf '#!/bin/sh\\nexec sleep 1000000\\n' > \"$0\" && chmod 700 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&program).status().unwrap().success());
        let allowance = Allowance::full();
        let stop = allowance.cancel.clone();
        let compiling =
            thread::spawn(move || compile(&program, 1 << 16, &allowance, None, &vec![0; 1 << 20]));
        stop.cancel();
        assert!(matches!(compiling.join().unwrap(), Err(LoadError::Cancelled)));
    }

    #[test]
    fn errors_are_the_same_on_the_other_side() {
        let refused = |name: &str| RefusedImport {
            name: name.to_owned(),
            why: "why".into(),
            callers: vec!["f".into()],
        };
        for error in [
            LoadError::WrongVersion { found: "a".into(), offered: "b".into() },
            LoadError::CoreModuleWithoutComponentType { wasip1: true },
            LoadError::TooLarge,
            LoadError::NotOffered { imports: vec![refused("a"), refused("b")] },
        ] {
            let json = serde_json::to_vec(&error).unwrap();
            assert_eq!(serde_json::from_slice::<LoadError>(&json).unwrap().to_string(), error.to_string());
        }
    }
}
