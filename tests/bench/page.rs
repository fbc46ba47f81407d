//! Figures of several runs, as docs/performance.md has them.
//!
//! In: figures, and a section's text. Out: their spread, the line that says where they were measured, and the
//! page with this text between the two lines that name the section. Not here: measuring (the sections).

use std::path::Path;
use std::process::Command;

use super::median;

/// The median, the least and the most of several runs.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        let median = (!values.is_empty()).then(|| median(&mut values))?;
        Some(Spread { median, least: values[0], most: values[values.len() - 1] })
    }
}

/// Replaces the figures of a section in docs/performance.md by the text.
pub fn replace(section: &str, text: &str) {
    let page = repository().join("docs/performance.md");
    let begin = format!("<!-- {section}: written by `make bench SECTION={section} WRITE=1` -->");
    let end = format!("<!-- /{section} -->");
    let old = std::fs::read_to_string(&page).expect("read the page");
    let (before, rest) = old.split_once(&begin).expect("the page has the line at which figures begin");
    let (_, after) = rest.split_once(&end).expect("the page has the line at which figures end");
    std::fs::write(&page, format!("{before}{begin}\n{}\n{end}{after}", text.trim_end()))
        .expect("write the page");
    println!("docs/performance.md has these figures now");
}

/// The date, the commit, and the machine of the measurement.
pub fn machine(reps: usize) -> String {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(repository()).output().ok();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or(": unknown")
        .trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let version = said("redis-server", &["--version"]);
    let redis = version.split_once("v=").map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
    let today = jiff::Zoned::now().date();
    let (commit, kernel) = (said("git", &["rev-parse", "--short=10", "HEAD"]), said("uname", &["-r"]));
    format!(
        "{today}, commit {commit}: {reps} repetitions; \
         {cores} cores ({model}),\nLinux {kernel}, Redis {redis}."
    )
}

/// Digits with a comma before each group of three.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let with_comma = |(at, digit): (usize, char)| {
        let is_first = at == 0 || !(digits.len() - at).is_multiple_of(3);
        [(!is_first).then_some(','), Some(digit)]
    };
    digits.chars().enumerate().flat_map(with_comma).flatten().collect()
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}
