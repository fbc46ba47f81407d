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
    use super::super::testing::{parse, refusals};
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
        let texts = [
            "5",
            "\"never\"",
            "[\"10s\"]",
            "{ base = \"0s\" }",
            "{ base = \"5m\" }",
            "{ base = \"5s\", max = \"1s\" }",
            "{ jitter = 1.1 }",
            "{ jitter = nan }",
            "{ jitter = \"0.2\" }",
            "{ delays = [] }",
            many.as_str(),
            "{ delays = [\"1s\", \"2\"] }",
            "{ delays = \"1s\" }",
            "{ delays = [\"1s\"], jitter = 0.1 }",
            "{ factor = 2 }",
            "{ base = \"5s\", max = \"1s\", jitter = 2 }",
            "{ base = \"2m\", max = \"31d\" }",
            "{ base = \"31d\", max = \"500ms\" }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\nbackoff = {}", &texts));
    }
}
