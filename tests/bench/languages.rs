//! Section `languages`: what a handler costs by its language.
//!
//! Out: size, compilation, loading, calls, memory, and a queue's speed, as ratios to the empty guest in Rust
//! in the same run. The handlers are those of this repository, each with a small task of its kind. Their work
//! differs; where it is small, the figures show the cost of the language.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use tokio::runtime::Runtime;
use tqhost::testing::config::{Plugin, Warm};
use tqhost::testing::sandbox::{Compiler, Handler, Sandbox, SandboxOptions};
use tqhost::testing::task::{Field, Outcome};

use super::attempt::{a_task, attempt};
use super::support::bench::guest_path;
use super::support::{Bench, within};
use super::{amount, median, quiet_host, sample};

/// Runs of each measurement except compiling; the median is shown.
static RUNS: LazyLock<usize> = LazyLock::new(|| amount(3, 1));
/// Calls of which the median time is shown.
static CALLS: LazyLock<usize> = LazyLock::new(|| amount(200, 5));
/// The longest wait for a plugin or for the tasks of a run.
const PATIENCE: Duration = Duration::from_secs(600);
/// Memory that a plugin is granted by default.
const MEMORY: u64 = 128 << 20;

struct Case {
    label: &'static str,
    guest: &'static str,
    fields: Vec<(String, Vec<u8>)>,
    /// Tasks of one run of a queue, with an instance per task and with warm instances.
    tasks: [usize; 2],
}

/// The figures of one handler.
struct Figures {
    bytes: usize,
    /// Processor time on all cores.
    compile_ms: f64,
    load_ms: f64,
    fresh_us: f64,
    warm_us: f64,
    peak: u64,
    /// Tasks per second, with an instance per task and with warm instances.
    rates: [Vec<f64>; 2],
}

pub fn costs() {
    let runs = *RUNS;
    println!("handlers by language, {runs} runs of each in turn: medians; ratios to the first line");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let sandbox = Sandbox::new(SandboxOptions {
        max_concurrent: 1,
        max_warm: 1,
        max_memory: MEMORY,
        compiler: Compiler::Here,
        backtraces: false,
    })
    .expect("a sandbox");
    let mut cases = cases();
    // A large handler is compiled for long.
    cases.truncate(amount(cases.len(), 4));
    let mut all: Vec<Figures> = cases.iter().map(|case| figures(case, &sandbox, &runtime)).collect();
    println!(
        "  {:34} {:>9} {:>14} {:>9} {:>16} {:>16} {:>10}",
        "", "file", "compile", "load", "fresh call", "warm call", "memory"
    );
    let first = &all[0];
    let (compile, fresh, warm) = (first.compile_ms, first.fresh_us, first.warm_us);
    for (case, seen) in cases.iter().zip(&all) {
        let (kib, memory) = (seen.bytes as f64 / 1024.0, seen.peak as f64 / (1 << 20) as f64);
        println!(
            "  {:34} {kib:>5.0} KiB {:>7.0} ms {:>3.0}x {:>6.1} ms {:>7.0} µs {:>5.1}x \
             {:>7.0} µs {:>5.1}x {memory:>6.1} MiB",
            case.label,
            seen.compile_ms,
            seen.compile_ms / compile,
            seen.load_ms,
            seen.fresh_us,
            seen.fresh_us / fresh,
            seen.warm_us,
            seen.warm_us / warm
        );
    }
    // All runs share a cache that stays, so each handler is compiled once.
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache/bench-languages");
    for _ in 0..runs {
        for (case, figures) in cases.iter().zip(&mut all) {
            for (grants, (tasks, rates)) in
                ["", "instance = { warm = 10 }"].iter().zip(case.tasks.iter().zip(&mut figures.rates))
            {
                rates.push(rate(case, grants, amount(*tasks, 50), &data));
            }
        }
    }
    let base = median(&mut all[0].rates[0].clone());
    println!("  {:34} {:>32} {:>32}", "a queue's tasks per second", "an instance per task", "warm instances");
    for (case, seen) in cases.iter().zip(&mut all) {
        let shown = seen.rates.each_mut().map(|rates| {
            let rate = median(rates);
            format!("{rate:.0} ({:.0} to {:.0}) {:>5.3}", rates[0], rates[rates.len() - 1], rate / base)
        });
        println!("  {:34} {:>32} {:>32}", case.label, shown[0], shown[1]);
    }
}

fn cases() -> Vec<Case> {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins");
    let field = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let of_sample = |handler: &str| -> Vec<(String, Vec<u8>)> {
        let text = fs::read_to_string(plugins.join(handler).join("task.json")).expect("a sample");
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        fields
            .iter()
            .map(|(name, value)| {
                field(name, value.as_str().map_or(value.to_string(), str::to_owned).as_bytes())
            })
            .collect()
    };
    let resume = fs::read(sample()).expect("a sample resume");
    let image = fs::read(plugins.join("image-info/sample.png")).expect("a sample image");
    let text = "x".repeat(200);
    let case = |label, guest, fields, tasks| Case { label, guest, fields, tasks };
    vec![
        case("Rust, empty, no std", "empty", vec![field("content", text.as_bytes())], [10_000, 10_000]),
        case("Rust, echo, with the SDK", "echo", vec![field("content", text.as_bytes())], [10_000, 10_000]),
        case(
            "Rust, resume-analyze",
            "resume-analyze",
            vec![field("resumeId", b"1"), field("content", &resume)],
            [300, 300],
        ),
        case("C, image-info", "image-info", vec![field("image", &image)], [10_000, 10_000]),
        case("JavaScript, report-csv", "report-csv", of_sample("report-csv"), [1_000, 10_000]),
        case("Python, in-python", "in-python", vec![field("content", text.as_bytes())], [500, 2_000]),
        case("Go, in-go", "in-go", vec![field("content", text.as_bytes())], [1_000, 2_000]),
    ]
}

/// The figures that are measured in this process, one call at a time.
fn figures(case: &Case, sandbox: &Sandbox, runtime: &Runtime) -> Figures {
    let wasm = fs::read(guest_path(case.guest)).expect("a guest");
    let file = tempfile::NamedTempFile::new().expect("a file");
    // Compiled once, and measured in processor time: it takes seconds on all cores, and other work on the
    // machine would change its wall-clock time.
    let before = processor_ms();
    fs::write(file.path(), sandbox.compile(&wasm).expect("it compiles")).expect("write");
    let compile_ms = processor_ms() - before;
    let mut loading = Vec::new();
    for _ in 0..*RUNS {
        let begin = Instant::now();
        let code = fs::read(file.path()).expect("read");
        sandbox.load(&code, &Plugin::default()).expect("it is loaded");
        loading.push(ms(begin));
    }
    let code = fs::read(file.path()).expect("read");
    let fresh = sandbox.load(&code, &Plugin::default()).expect("it is loaded");
    let kept = Warm { idle: 1, max_tasks: 1_000_000, concurrent: 1 };
    let warm = fresh.with_grants(&Plugin { warm: Some(kept), ..Plugin::default() });
    let (fresh_us, peak) = runtime.block_on(calls(&fresh, &case.fields));
    let (warm_us, _) = runtime.block_on(calls(&warm, &case.fields));
    let rates = [Vec::new(), Vec::new()];
    Figures { bytes: wasm.len(), compile_ms, load_ms: median(&mut loading), fresh_us, warm_us, peak, rates }
}

/// The median time of a call in µs, and the most memory of an instance.
async fn calls(handler: &Handler, fields: &[(String, Vec<u8>)]) -> (f64, u64) {
    let fields = fields
        .iter()
        .map(|(name, value)| Field { name: name.as_str().into(), value: value.clone() })
        .collect();
    let tasks = a_task(fields);
    let (mut times, mut peak) = (Vec::new(), 0);
    for _ in 0..*CALLS {
        let attempt = attempt(&tasks, PATIENCE);
        let begin = Instant::now();
        let report = handler.run(attempt).await.expect("it is not told to stop");
        times.push(ms(begin) * 1000.0);
        assert!(matches!(report.outcomes(1)[..], [Outcome::Completed { .. }]), "{report:?}");
        peak = peak.max(report.peak_memory);
    }
    (median(&mut times), peak)
}

/// Tasks per second of a queue with ten attempts at once, from the loading of the plugin to the end of the
/// last task.
fn rate(case: &Case, grants: &str, tasks: usize, data: &Path) -> f64 {
    let guest = case.guest;
    let config = format!(
        "data_dir = {data:?}\n[queues.work]\nplugin = \"{guest}\"\nconcurrency = 10\n\
         [plugins.{guest}]\n{grants}\n"
    );
    let mut bench = Bench::new(&config);
    for _ in 0..tasks.div_ceil(1000) {
        let mut pipe = redis::pipe();
        for _ in 0..tasks.min(1000) {
            let add = pipe.cmd("XADD").arg("work").arg("*");
            for (name, value) in &case.fields {
                add.arg(name).arg(value);
            }
            add.ignore();
        }
        pipe.query::<()>(&mut bench.db).expect("XADD");
    }
    let tasks: usize = bench.redis("XLEN", "work");
    let host = quiet_host(&bench);
    bench.install(guest, guest);
    // In the first run, this includes the compilation.
    within(PATIENCE, "the plugin is loaded", || (!host.logged("plugin loaded").is_empty()).then_some(()));
    let begin = Instant::now();
    within(PATIENCE, "all tasks are settled", || (bench.redis::<usize>("XLEN", "work") == 0).then_some(()));
    let rate = tasks as f64 / begin.elapsed().as_secs_f64();
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    rate
}

/// Processor time of this process so far, in ms.
fn processor_ms() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage");
    [used.user_time(), used.system_time()]
        .iter()
        .map(|time| time.tv_sec() as f64 * 1000.0 + time.tv_usec() as f64 / 1000.0)
        .sum()
}

fn ms(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1000.0
}
