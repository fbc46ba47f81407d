//! `[queues.NAME.schedule]`: tasks that the host enqueues at given times.
//!
//! In: the table of a queue. Out: a [`Schedule`].
//!
//! Not here: what cron expressions and time zones mean (`times`).

use super::reader::{Item, Table};
use super::rules::Schedule;
use super::times::{ScheduleTimes, parse_cron, parse_zone};
use crate::field::reserved;

pub(super) fn read(queue: &Table) -> Option<Schedule> {
    queue.own("schedule")?;
    let table =
        queue.table_as("schedule", "a table: write [queues.NAME.schedule], and in it cron = \"0 3 * * *\"");
    table.required("cron", "write cron = \"0 3 * * *\" for every day at 03:00");
    let crons = table.one_or_list("cron", "a cron expression like \"0 3 * * *\", or a list of them");
    let crons = crons.iter().filter_map(|item| item.parsed(parse_cron)).collect();
    let zone = table.text_or_default("timezone", parse_zone);
    let fields = table.named("fields");
    Some(Schedule {
        times: ScheduleTimes::new(crons, zone),
        missed: table.word_or_default("missed"),
        fields: fields.into_iter().filter_map(|(name, item)| read_field(name, &item)).collect(),
    })
}

fn read_field(name: &str, item: &Item) -> Option<(String, String)> {
    if let Some(prefix) = reserved(name) {
        return item
            .refuse(format!("names that start with `{prefix}` are reserved for tqhost: write another name"));
    }
    if name == Schedule::TIME_FIELD {
        return item.refuse("is written by tqhost: it holds the time of the schedule. Write another name");
    }
    Some((name.to_owned(), item.string()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::rules::Missed;
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
            ("", "queues.a.schedule.cron: is required: write cron = \"0 3 * * *\""),
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
                ".missed: \"all\" is not a known word: write \"once\" or \"skip\"",
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
            problem("[queues.a]\nschedule = \"0 3 * * *\"").contains(
                "queues.a.schedule: is a string, but must be a table: write [queues.NAME.schedule]"
            )
        );
    }
}
