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
    use super::super::testing::{parse, problem, refusals};
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
        let texts = [
            "",
            "cron = 5",
            "cron = []",
            "cron = \"\"",
            "cron = \"0 3 * *\"",
            "cron = \"0 0 3 * * * 2026\"",
            "cron = \"61 3 * * *\"",
            "cron = \"0 24 * * *\"",
            "cron = \"0 0 0 * *\"",
            "cron = \"0 0 * 13 *\"",
            "cron = \"0 0 * * MONDAY\"",
            "cron = \"JAN 0 * * *\"",
            "cron = \"60 0 3 * * *\"",
            "cron = \"*/0 * * * *\"",
            "cron = \"0 0 30 2 *\"",
            "cron = \"@reboot\"",
            "cron = [\"0 3 * * *\", \"x\"]",
            "cron = \"@daily\"\ntimezone = \"Berlin\"",
            "cron = \"@daily\"\ntimezone = \"Mars/Olympus\"",
            "cron = \"@daily\"\nmissed = \"all\"",
            "cron = \"@daily\"\nfields = 5",
            "cron = \"@daily\"\nfields = { n = 5 }",
            "cron = \"@daily\"\nfields = { tq-id = \"x\" }",
            "cron = \"@daily\"\nfields = { \"end.id\" = \"x\" }",
            "cron = \"@daily\"\nfields = { scheduled_at = \"x\" }",
            "cron = \"@daily\"\nzone = \"UTC\"",
            "cron = \"@daily\"\ntime_zone = \"UTC\"",
            "every = \"5m\"\ncron = \"@daily\"",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[queues.a.schedule]\n{}", &texts));
        insta::assert_snapshot!(problem("[queues.a]\nschedule = \"0 3 * * *\""), @"
        /etc/tqhost/tqhost.toml: 1 problem
          line 2: queues.a.schedule: is a string, but must be a table: write [queues.NAME.schedule], and in \
          it cron = \"0 3 * * *\"
        ");
    }
}
