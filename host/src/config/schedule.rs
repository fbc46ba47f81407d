//! `[queues.NAME.schedule]`: tasks that the host enqueues at given times.
//!
//! In: the table. Out: a [`Schedule`].
//!
//! Not here: what cron expressions and time zones mean (`times`).

use toml::de::DeValue;

use super::keys;
use super::model::Schedule;
use super::reader::{Item, Table};
use super::times::{ScheduleTimes, parse_cron, parse_zone};
use crate::field::reserved;

const MAX_EXPRESSIONS: usize = 100;
const MAX_FIELDS: usize = 100;

/// Returns none, and adds a problem, if anything in the table is wrong.
pub(super) fn read(item: &Item) -> Option<Schedule> {
    if !item.value().is_table() {
        return item.refuse("must be a table: write [queues.NAME.schedule], and in it cron = \"0 3 * * *\"");
    }
    let table = item.table(&keys::SCHEDULE)?;
    let usual = || parse_zone(keys::SCHEDULE.text("timezone")).ok();
    let zone = table.get("timezone").map_or_else(usual, |item| parsed(&item, parse_zone));
    let missed = table.word("missed").unwrap_or_else(|| keys::SCHEDULE.word("missed"));
    let fields = table.get("fields").map_or(Some(Vec::new()), |item| read_fields(&item));
    let crons = read_crons(item, &table);
    Some(Schedule { times: ScheduleTimes::new(crons?, zone?), missed, fields: fields? })
}

fn read_crons(item: &Item, table: &Table) -> Option<Vec<(String, croner::Cron)>> {
    let Some(cron) = table.get("cron") else {
        return item.refuse("has no cron expression: write cron = \"0 3 * * *\" for every day at 03:00");
    };
    match cron.value() {
        DeValue::String(_) => parsed(&cron, parse_cron).map(|cron| vec![cron]),
        DeValue::Array(_) => {
            let items = cron.list()?;
            if items.is_empty() || items.len() > MAX_EXPRESSIONS {
                let count = items.len();
                return cron.refuse(format!(
                    "has {count} entries: write 1 to {MAX_EXPRESSIONS}, \
                     like [\"0 3 * * *\", \"0 12 * * MON\"]"
                ));
            }
            let read: Vec<_> = items.iter().map(|item| parsed(item, parse_cron)).collect();
            read.into_iter().collect()
        }
        _ => cron.wrong_type("a cron expression like \"0 3 * * *\", or a list of them"),
    }
}

fn read_fields(item: &Item) -> Option<Vec<(String, String)>> {
    let named = item.named();
    if named.len() > MAX_FIELDS {
        return item.refuse(format!("has {} fields: write at most {MAX_FIELDS}", named.len()));
    }
    let field = |(name, item): (&str, Item)| {
        if let Some(prefix) = reserved(name) {
            return item.refuse(format!(
                "names that start with `{prefix}` are reserved for tqhost: write another name"
            ));
        }
        if name == Schedule::TIME_FIELD {
            return item
                .refuse("is written by tqhost: it holds the time of the schedule. Write another name");
        }
        Some((name.to_owned(), item.string()?.to_owned()))
    };
    let read: Vec<_> = named.into_iter().map(field).collect();
    read.into_iter().collect()
}

/// Reads a string with `parse`. An error becomes a problem of the item.
fn parsed<T>(item: &Item, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    item.checked(|text| parse(text).map(drop)).and_then(|text| parse(&text).ok())
}

#[cfg(test)]
mod tests {
    use super::super::model::Missed;
    use super::super::testing::{all_wrong, parse, problem};
    use super::*;

    fn read_one(lines: &str) -> Schedule {
        let config = parse(&format!("[queues.a]\n[queues.a.schedule]\n{lines}"))
            .unwrap_or_else(|errors| panic!("{errors}"));
        config.queues[0].schedule.clone().expect("a schedule")
    }

    #[test]
    fn good_schedules() {
        let schedule = read_one("cron = \"0 3 * * *\"");
        assert_eq!(
            (schedule.times.expressions(), schedule.times.zone_name()),
            (&["0 3 * * *".to_owned()][..], "UTC")
        );
        assert_eq!((schedule.missed, schedule.fields.as_slice()), (Missed::Once, &[][..]));
        let text = "cron = [\"0 3 * * *\", \"*/10 * * * * *\"]\ntimezone = \"Europe/Berlin\"\n\
                    missed = \"skip\"\nfields = { kind = \"nightly\", n = \"1\" }";
        let schedule = read_one(text);
        assert_eq!(schedule.times.name(), "0 3 * * * | */10 * * * * * Europe/Berlin");
        assert_eq!((schedule.missed, schedule.fields.len()), (Missed::Skip, 2));
    }

    #[test]
    fn bad_schedules() {
        let table = [
            ("", "queues.a.schedule: has no cron expression: write cron = \"0 3 * * *\""),
            ("cron = 5", "queues.a.schedule.cron: is an integer, but must be a cron expression"),
            ("cron = []", "has 0 entries: write 1 to 100"),
            ("cron = \"\"", "\"\" has 0 fields: write minute, hour"),
            ("cron = \"0 3 * *\"", "\"0 3 * *\" has 4 fields"),
            ("cron = \"0 0 3 * * * 2026\"", "has 7 fields"),
            ("cron = \"61 3 * * *\"", "\"61 3 * * *\" cannot be read: its minute \"61\" must be 0 to 59"),
            ("cron = \"0 24 * * *\"", "its hour \"24\" must be 0 to 23"),
            ("cron = \"0 0 0 * *\"", "its day of the month \"0\" must be 1 to 31"),
            ("cron = \"0 0 * 13 *\"", "its month \"13\" must be 1 to 12 or JAN to DEC"),
            ("cron = \"0 0 * * MONDAY\"", "its day of the week \"MONDAY\" must be 0 to 7 or SUN to SAT"),
            ("cron = \"JAN 0 * * *\"", "its minute \"JAN\" must be"),
            ("cron = \"60 0 3 * * *\"", "its second \"60\" must be 0 to 59"),
            ("cron = \"*/0 * * * *\"", "its minute \"*/0\""),
            ("cron = \"0 0 30 2 *\"", "\"0 0 30 2 *\" never comes: there is no such day"),
            ("cron = \"@reboot\"", "is not a time: the words for times are @hourly"),
            ("cron = [\"0 3 * * *\", \"x\"]", "queues.a.schedule.cron[1]: \"x\" has 1 field:"),
            (
                "cron = \"@daily\"\ntimezone = \"Berlin\"",
                "queues.a.schedule.timezone: \"Berlin\" is not a time zone: did you mean \"Europe/Berlin\"?",
            ),
            (
                "cron = \"@daily\"\ntimezone = \"Mars/Olympus\"",
                "write a name of the IANA database, like \"Europe/Berlin\", or \"UTC\"",
            ),
            (
                "cron = \"@daily\"\nmissed = \"all\"",
                "\"all\" is not what missed can be: write \"once\" or \"skip\"",
            ),
            ("cron = \"@daily\"\nfields = 5", "queues.a.schedule.fields: is an integer, but must be a table"),
            (
                "cron = \"@daily\"\nfields = { n = 5 }",
                "queues.a.schedule.fields.n: is an integer, but must be a string",
            ),
            ("cron = \"@daily\"\nfields = { tq-id = \"x\" }", "reserved for tqhost"),
            ("cron = \"@daily\"\nfields = { \"end.id\" = \"x\" }", "that start with `end.` are reserved"),
            ("cron = \"@daily\"\nfields = { scheduled_at = \"x\" }", "it holds the time of the schedule"),
            ("cron = \"@daily\"\nzone = \"UTC\"", "unknown key"),
            ("cron = \"@daily\"\ntime_zone = \"UTC\"", "did you mean `timezone`"),
            ("every = \"5m\"\ncron = \"@daily\"", "is written as a cron expression"),
        ];
        all_wrong("[queues.a]\n[queues.a.schedule]\n{}", "1 problem\n", &table);
        assert!(
            problem("[queues.a]\nschedule = \"0 3 * * *\"")
                .contains("queues.a.schedule: must be a table: write [queues.NAME.schedule]")
        );
    }
}
