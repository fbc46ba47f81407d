//! `backoff`: how long a failed task waits for its next attempt.
//!
//! In: the table of a queue, whose `backoff` is `{ base, max, jitter }`, `{ delays = […] }` or `"none"`. Out:
//! a [`Backoff`]. The missing parts of an exponential backoff come from the backoff of `[defaults]`, if that
//! is exponential too.

use std::time::Duration;

use super::bounded::read_duration;
use super::reader::{Item, Table};
use super::rules::Backoff;
use super::units::show_duration;

const FORMS: &str = "a table like { base = \"1s\", max = \"60s\", jitter = 0.2 }, \
                     or { delays = [\"10s\", \"30s\"] }, or \"none\"";

pub(super) fn read(queue: &Table) -> Backoff {
    let item = queue.get("backoff");
    if item.as_ref().is_some_and(|item| item.is("none")) {
        return Backoff::None;
    }
    // `get` also finds the parts of `[defaults]`, unless that is `"none"`; `own` does not.
    let table = queue.table_as("backoff", FORMS);
    // Own parts of an exponential backoff replace the delays of `[defaults]`.
    let delays = if table.is_there() { table.own("delays") } else { table.get("delays") };
    if delays.is_some() { read_delays(&table) } else { read_exponential(&table, item) }
}

fn read_exponential(table: &Table, item: Option<Item>) -> Backoff {
    // None: the file has a wrong value, which is not compared with the other one.
    let right = |name| match table.get(name) {
        Some(_) => table.value::<Duration>(name),
        None => Some(table.value_or_default(name)),
    };
    let (base, max) = (right("base"), right("max"));
    if let (Some(item), Some(base), Some(max)) = (item, base, max)
        && base > max
    {
        let hint = if table.own("max").is_some() { "" } else { " (which was not set here)" };
        item.problem(format!(
            "base (\"{}\") is longer than max (\"{}\"){hint}: raise max or lower base",
            show_duration(base),
            show_duration(max)
        ));
    }
    Backoff::Exponential {
        base: base.unwrap_or_default(),
        max: max.unwrap_or_default(),
        jitter: table.value_or_default("jitter"),
    }
}

fn read_delays(table: &Table) -> Backoff {
    for other in ["base", "max", "jitter"].iter().filter_map(|name| table.own(name)) {
        other.problem("does not go with delays: keep one of them");
    }
    let read = |item: &Item| read_duration(item.value(), "0s", "30d").map_err(|why| item.problem(why)).ok();
    Backoff::Delays(table.list("delays").iter().filter_map(read).collect())
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
