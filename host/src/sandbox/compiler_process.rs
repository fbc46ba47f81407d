//! Compiles plugins in a separate process.
//!
//! In: the bytes of a plugin. Out: compiled code, or an error that says what is wrong with the file.
//!
//! Plugin files are not trusted, and the compiler was written for well-formed files. A bad file may cause
//! endless work, use all memory or overflow the stack. That harms only the separate process.
//!
//! ```text
//! host: compile ── functions, the file ─▶ stdin of `tqhost compile`: serve ─▶ validated, compiled
//!          ▲                                                                     │
//!          └─ functions, the code or the error, and a byte that says which ── stdout ◀┘
//! ```
//!
//! Both sides send compiled functions first: the host those of earlier compilations, and the process those
//! for the next one. The host copies them between file and pipe, and never has all of them in its memory.
//!
//! The process has none of the host's environment, files and connections, so it knows no secret. It ends with
//! the host. It is not a sandbox: it runs as the same user.
//!
//! Not here: the compilation itself (`compiler`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
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
/// take half a GiB, and no file is larger than [`MAX_FILE`].
const MAX_MEMORY: u64 = 4 << 30;
/// The memory for one file on a host where half of the memory would be less: enough for the components named
/// at [`MAX_SECONDS`].
const USUAL_MEMORY: u64 = 512 << 20;
/// Functions are kept if a compilation may have this much memory, in bytes. The known functions take up to
/// [`functions::MAX_BYTES`], and the new ones as much as their code.
const MEMORY_FOR_FUNCTIONS: u64 = 1 << 30;
/// Largest compiled code of one file, in bytes; the host holds it in memory. The components named at
/// [`MAX_SECONDS`] give 35 MB, two or three times their own size.
const MAX_CODE: u64 = 512 << 20;
/// Bytes kept of the stderr of a process that failed.
const MAX_STDERR: u64 = 4096;
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

/// Where functions are kept.
pub(crate) struct FunctionFiles<'a> {
    /// The functions of earlier compilations.
    pub(crate) known: Option<File>,
    /// Makes the file for the functions of the next compilation. It is called when these arrive.
    pub(crate) next: &'a mut dyn FnMut() -> Option<File>,
}

/// The answer to a file.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) code: Vec<u8>,
    /// Whether the file of [`FunctionFiles::next`] has the functions for the next compilation.
    pub(crate) has_functions: bool,
}

/// Compiles a file in a new process. Blocks until the process has ended.
pub(super) fn compile(
    program: &Path,
    reservation: u64,
    allowance: &Allowance,
    functions: FunctionFiles<'_>,
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
        .args((allowance.cores == Cores::Half).then_some(LOW_PRIORITY));
    command.env_clear().envs(std::env::var_os(LIBRARIES).map(|path| (OsString::from(LIBRARIES), path)));
    // A terminal sends its signals to the host's group, so the process has another group.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        LoadError::Hindered(format!("cannot start the process that compiles it: {error}"))
    })?;
    let conversation = converse(&mut child, functions, wasm, &allowance.cancel);
    if conversation.is_err() {
        // This fails only if the process has ended already.
        let _ = child.kill();
    }
    let lost =
        |error| LoadError::Hindered(format!("cannot speak with the process that compiles it: {error}"));
    let status = child.wait().map_err(lost)?;
    let (mut answer, has_functions, stderr) = conversation.map_err(lost)?;
    match answer.pop().filter(|_| status.success()) {
        Some(CODE) => Ok(Compiled { code: answer, has_functions }),
        Some(_) if answer.len() as u64 >= MAX_CODE => {
            Err(LoadError::TooCostly(format!("more than {} MiB of code", MAX_CODE >> 20)))
        }
        Some(ERROR) => Err(serde_json::from_slice(&answer).unwrap_or_else(|error| {
            LoadError::Malformed(format!("compiling it fails, and the reason cannot be read: {error}"))
        })),
        _ if allowance.cancel.is_cancelled() => Err(LoadError::Cancelled),
        _ => Err(failed(status, &stderr)),
    }
}

/// Sends functions and file to the process. Returns its answer, whether the functions for the next
/// compilation were kept, and the first part of its stderr. Kills the process when the compilation is
/// cancelled.
fn converse(
    child: &mut Child,
    FunctionFiles { known, next }: FunctionFiles<'_>,
    wasm: &[u8],
    stop: &CancellationToken,
) -> io::Result<(Vec<u8>, bool, String)> {
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let thread = || thread::Builder::new().name("tq-compile".into());
    // `running` is dropped when this function ends in any way. Then `ended` is disconnected, and the thread
    // that waits for it ends.
    let (running, ended) = mpsc::channel::<()>();
    thread::scope(move |scope| {
        let _running = running;
        thread().spawn_scoped(scope, move || {
            let end = Instant::now() + MAX_WAIT;
            while ended.recv_timeout(STILL_WANTED) == Err(RecvTimeoutError::Timeout) {
                if stop.is_cancelled() || Instant::now() > end {
                    let _ = child.kill();
                    return;
                }
            }
        })?;
        // This write fails if the process ends early; its exit status then says why.
        thread().spawn_scoped(scope, move || {
            let _ = send_functions(known, &mut stdin).and_then(|()| stdin.write_all(wasm));
        })?;
        let stderr = thread().spawn_scoped(scope, move || {
            let mut first = Vec::new();
            let _ = stderr.by_ref().take(MAX_STDERR).read_to_end(&mut first);
            let _ = io::copy(&mut stderr, &mut io::sink());
            String::from_utf8_lossy(&first).into_owned()
        })?;
        let has_functions = receive_functions(&mut stdout, next)?;
        let mut answer = Vec::new();
        // If the process writes more than this, its writes fail once `stdout` is dropped.
        stdout.by_ref().take(MAX_CODE + 1).read_to_end(&mut answer)?;
        Ok((answer, has_functions, stderr.join().unwrap_or_default()))
    })
}

/// Sends the functions, after the number of their bytes.
fn send_functions(known: Option<File>, to: &mut impl Write) -> io::Result<()> {
    let length = known.as_ref().map_or(Ok(0), |known| known.metadata().map(|about| about.len()));
    let length = length.ok().filter(|length| *length <= functions::MAX_FILE_BYTES).unwrap_or(0);
    to.write_all(&length.to_le_bytes())?;
    match known {
        Some(known) => io::copy(&mut known.take(length), to).map(drop),
        None => Ok(()),
    }
}

/// Reads the functions of the answer into a file, and returns whether it has them all. A file that cannot be
/// written costs time in the next compilation, nothing else.
fn receive_functions(from: &mut impl Read, to: &mut dyn FnMut() -> Option<File>) -> io::Result<bool> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let length = u64::from_le_bytes(length).min(functions::MAX_FILE_BYTES);
    let mut functions = from.take(length);
    let to = (length > 0).then(to).flatten();
    let copied = to.map(|mut to| io::copy(&mut functions, &mut to));
    io::copy(&mut functions, &mut io::sink())?;
    Ok(copied.is_some_and(|copied| copied.is_ok_and(|copied| copied == length)))
}

/// The error for a process that gave no answer. `words` are from its stderr.
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
pub(crate) fn serve(reservation: u64, cores: Cores, host: u32) -> anyhow::Result<()> {
    let hindered = |error: String| LoadError::Hindered(format!("the process that compiles it: {error}"));
    let compile = || -> Result<(Arc<Functions>, Vec<u8>), LoadError> {
        confine(host).map_err(|error| hindered(error.to_string()))?;
        let keeps_functions = memory_of(machine::memory()) >= MEMORY_FOR_FUNCTIONS;
        let (functions, wasm) = read(keeps_functions).map_err(|error| hindered(error.to_string()))?;
        let engine = super::engine::that_compiles(reservation, keeps_functions.then(|| functions.clone()))
            .map_err(|error| hindered(format!("{error:#}")))?;
        Ok((functions, compiler::compile(&engine, cores, &wasm)?))
    };
    let (kind, answer, functions) = match compile() {
        Ok((functions, code)) => (CODE, code, functions),
        Err(error) => (ERROR, serde_json::to_vec(&error)?, Arc::default()),
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    functions.write(functions::MAX_BYTES, &mut stdout)?;
    stdout.write_all(&answer)?;
    stdout.write_all(&[kind])?;
    Ok(stdout.flush()?)
}

/// Reads the functions and the file. Skips the functions unless `keeps_functions`.
fn read(keeps_functions: bool) -> io::Result<(Arc<Functions>, Vec<u8>)> {
    let mut stdin = io::stdin().lock();
    let mut length = [0; 8];
    stdin.read_exact(&mut length)?;
    let (mut kept, mut wasm) = (Vec::new(), Vec::new());
    let mut functions = stdin.by_ref().take(u64::from_le_bytes(length));
    if keeps_functions {
        functions.read_to_end(&mut kept)?;
    }
    io::copy(&mut functions, &mut io::sink())?;
    stdin.take(MAX_FILE + 1).read_to_end(&mut wasm)?;
    Ok((Arc::new(Functions::new(kept)), wasm))
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
    use crate::config::testing::table;

    fn message(signal: Signal, words: &str) -> String {
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
        insta::assert_snapshot!(message(Signal::SIGXCPU, ""), @r"
        compiling it takes more than 600 s of processor time
        ");
        for words in
            ["memory allocation of 7 bytes failed\n", "<jemalloc>: background thread creation failed (11)\n"]
        {
            assert_eq!(
                message(Signal::SIGABRT, words),
                format!(
                    "compiling it takes more memory than it may have, {} MiB or what the system allows",
                    memory_of(machine::memory()) >> 20
                )
            );
        }
        insta::assert_snapshot!(message(Signal::SIGABRT, "\nthread 'x' has overflowed its stack\n"), @r"
        not a valid WebAssembly component: compiling it ends with SIGABRT: thread 'x' has overflowed its stack
        ");
        insta::assert_snapshot!(message(Signal::SIGSEGV, ""), @r"
        not a valid WebAssembly component: compiling it ends with SIGSEGV: it said nothing
        ");
        let killed = failed(ExitStatus::from_raw(Signal::SIGKILL as i32), "");
        assert!(killed.may_pass(), "{killed}");
        assert!(!failed(ExitStatus::from_raw(1 << 8), "no").may_pass());
    }

    fn compiled_by(program: &Path, allowance: &Allowance, wasm: &[u8]) -> Result<Compiled, LoadError> {
        let functions = FunctionFiles { known: None, next: &mut || None };
        compile(program, 1 << 16, allowance, functions, wasm)
    }

    #[test]
    fn a_program_that_is_not_there_is_no_fault_of_the_file() {
        let error = compiled_by(Path::new("/nowhere"), &Allowance::full(), b"").unwrap_err();
        assert!(error.may_pass(), "{error}");
        insta::assert_snapshot!(error, @"
        it cannot be compiled or loaded for now: cannot start the process that compiles it: No such file or \
        directory (os error 2)
        ");
    }

    #[test]
    fn a_program_that_says_something_else_gives_no_code() {
        let programs = ["/bin/true", "/bin/false", "/bin/echo"];
        insta::assert_snapshot!(table(&programs, |program| {
            let none = compiled_by(Path::new(program), &Allowance::full(), &vec![0; 1 << 20]);
            none.unwrap_err().to_string()
        }), @r"
        /bin/true
            not a valid WebAssembly component: compiling it ends with exit status: 0: it said nothing
        /bin/false
            not a valid WebAssembly component: compiling it ends with exit status: 1: it said nothing
        /bin/echo
            not a valid WebAssembly component: compiling it ends with exit status: 0: it said nothing
        ");
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
        let compiling = thread::spawn(move || compiled_by(&program, &allowance, &vec![0; 1 << 20]));
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
