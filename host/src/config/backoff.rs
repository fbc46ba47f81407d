//! `backoff`: how long a failed task waits for its next attempt.
//!
//! In: `{ base, max, jitter }`, `{ delays = […] }` or `"none"`. Out: a [`Backoff`]. The missing parts of an
//! exponential backoff come from the backoff of `[defaults]`, if that is exponential too.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::keys;
use super::model::Backoff;
use super::reader::{Item, Table};
use super::units::show_duration;

const DELAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(30 * 86_400);
const MAX_DELAYS: usize = 100;

pub(super) fn default() -> Backoff {
    let part = |name| keys::BACKOFF.default(name);
    Backoff::Exponential { base: part("base"), max: part("max"), jitter: keys::BACKOFF.default("jitter") }
}

pub(super) fn read(item: &Item, default: &Backoff) -> Option<Backoff> {
    match item.value() {
        DeValue::Table(_) => {
            let table = item.table(&keys::BACKOFF)?;
            match table.get("delays") {
                Some(delays) => read_delays(&table, &delays),
                None => read_exponential(item, &table, default),
            }
        }
        DeValue::String(text) if text == "none" => Some(Backoff::None),
        _ => item.refuse(
            "must be a table like { base = \"1s\", max = \"60s\", jitter = 0.2 }, \
                 or { delays = [\"10s\", \"30s\"] }, or \"none\"",
        ),
    }
}

fn read_exponential(item: &Item, table: &Table, default: &Backoff) -> Option<Backoff> {
    let (base, max, jitter) = match *default {
        Backoff::Exponential { base, max, jitter } => (Some(base), Some(max), Some(jitter)),
        _ => (None, None, None),
    };
    let is_wrong = |name| table.get(name).is_some() && table.value::<Duration>(name).is_none();
    let jitter = table.value_or("jitter", jitter);
    // A value with a problem is not compared with another one.
    if is_wrong("base") | is_wrong("max") {
        return None;
    }
    let base: Duration = table.value_or("base", base);
    let max = table.value_or("max", max);
    if base > max {
        let told = if table.get("max").is_some() { "" } else { " (which was not set here)" };
        let why = format!(
            "base (\"{}\") is longer than max (\"{}\"){told}: raise max or lower base",
            show_duration(base),
            show_duration(max)
        );
        return item.refuse(why);
    }
    Some(Backoff::Exponential { base, max, jitter })
}

fn read_delays(table: &Table, delays: &Item) -> Option<Backoff> {
    for name in ["base", "max", "jitter"] {
        if let Some(other) = table.get(name) {
            other.problem("does not go with delays: keep one of them");
        }
    }
    let items = delays.list()?;
    if items.is_empty() || items.len() > MAX_DELAYS {
        let count = items.len();
        return delays.refuse(format!(
            "has {count} entries: write 1 to {MAX_DELAYS}, like [\"10s\", \"30s\", \"60s\"]"
        ));
    }
    let read: Vec<_> = items.iter().map(|item| item.duration(DELAY)).collect();
    read.into_iter().collect::<Option<Vec<_>>>().map(Backoff::Delays)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{all_wrong, parse, problem};
    use super::*;

    fn exponential(base_s: u64, max_s: u64, jitter: f64) -> Backoff {
        Backoff::Exponential { base: Duration::from_secs(base_s), max: Duration::from_secs(max_s), jitter }
    }

    #[test]
    fn good_backoffs() {
        let delays = Backoff::Delays([10, 30, 60].map(Duration::from_secs).to_vec());
        let table = [
            ("{}", exponential(1, 60, 0.2)),
            ("{ base = \"2s\", max = \"5m\", jitter = 1 }", exponential(2, 300, 1.0)),
            ("{ jitter = 0.0 }", exponential(1, 60, 0.0)),
            ("{ base = \"60s\" }", exponential(60, 60, 0.2)),
            ("{ delays = [\"10s\", \"30s\", \"60s\"] }", delays),
            ("{ delays = [\"0s\"] }", Backoff::Delays(vec![Duration::ZERO])),
            ("\"none\"", Backoff::None),
        ];
        for (value, expected) in table {
            let config = parse(&format!("[queues.a]\nbackoff = {value}")).expect(value);
            assert_eq!(config.queues[0].backoff, expected, "{value}");
        }
    }

    #[test]
    fn parts_come_from_the_default_backoff() {
        let backoff_of = |defaults: &str, own: &str| {
            parse(&format!("[defaults]\nbackoff = {defaults}\n[queues.a]\nbackoff = {own}"))
                .expect(own)
                .queues
                .remove(0)
                .backoff
        };
        assert_eq!(
            backoff_of("{ base = \"5s\", max = \"2m\" }", "{ jitter = 0.5 }"),
            exponential(5, 120, 0.5)
        );
        assert_eq!(backoff_of("{ delays = [\"5s\"] }", "{ jitter = 0.5 }"), exponential(1, 60, 0.5));
    }

    #[test]
    fn bad_backoffs() {
        let many = format!("{{ delays = [{}] }}", "\"1s\",".repeat(101));
        let table = [
            ("5", "must be a table like"),
            ("\"never\"", "or \"none\""),
            ("[\"10s\"]", "or { delays = "),
            ("{ base = \"0s\" }", "queues.a.backoff.base: \"0s\" is out of bounds"),
            ("{ max = \"31d\" }", "queues.a.backoff.max"),
            (
                "{ base = \"5m\" }",
                "queues.a.backoff: base (\"5m\") is longer than max (\"1m\") (which was not set here)",
            ),
            ("{ base = \"5s\", max = \"1s\" }", "is longer than max (\"1s\"): raise max"),
            ("{ jitter = 1.1 }", "write 0 to 1"),
            ("{ jitter = nan }", "out of bounds"),
            ("{ jitter = \"0.2\" }", "must be a number"),
            ("{ delays = [] }", "has 0 entries"),
            (many.as_str(), "has 101 entries"),
            ("{ delays = [\"1s\", \"2\"] }", "queues.a.backoff.delays[1]: \"2\" has no unit"),
            ("{ delays = \"1s\" }", "must be a list"),
            ("{ delays = [\"1s\"], jitter = 0.1 }", "queues.a.backoff.jitter: does not go with delays"),
            ("{ factor = 2 }", "unknown key: the keys here are base, max, jitter, delays"),
        ];
        all_wrong("[queues.a]\nbackoff = {}", "", &table);
        let both = problem("[queues.a]\nbackoff = { base = \"5s\", max = \"1s\", jitter = 2 }");
        for pair in ["base = \"2m\", max = \"31d\"", "base = \"31d\", max = \"500ms\""] {
            let told = problem(&format!("[queues.a]\nbackoff = {{ {pair} }}"));
            assert!(told.contains("1 problem\n") && told.contains("out of bounds"), "{told}");
        }
        for why in ["backoff.jitter: 2 is out of bounds", "is longer than max (\"1s\")", "2 problems\n"] {
            assert!(both.contains(why), "{both}");
        }
    }
}
