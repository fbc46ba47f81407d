//! The times of a schedule: cron expressions, read in a time zone.
//!
//! In: texts of the file. Out: [`ScheduleTimes`], whose answers depend only on their arguments; or a sentence
//! that says what is wrong. Times are whole seconds, given in milliseconds since the Unix epoch.
//!
//! When clocks change, an expression with a single time of day (`30 2 * * *`) differs from all others
//! (`*/30 * * * *`, `0,30 2 * * *`). When clocks are put forward, a single time that is skipped gives the end
//! of the gap; other expressions leave out the skipped times. When clocks are put back, a single time gives
//! the first of the two times; other expressions give both.
//!
//! Not here: the rest of a schedule (`schedule`), handling times that passed (`worker::scheduler`).

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::edits::{edits, most_edits};

const MAX_EXPRESSION_BYTES: usize = 256;
const NICKNAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];
/// The names of the fields, the signs that they allow beside digits and `* , - /`, and their values. `L` is
/// the last one, `W` the nearest weekday, `#` the nth one of the month, `?` any, and `+` before a day of the
/// week asks for both days at once.
const FIELDS: [(&str, &str, &str); 6] = [
    ("second", "", "0 to 59"),
    ("minute", "", "0 to 59"),
    ("hour", "", "0 to 23"),
    ("day of the month", "LW?", "1 to 31, or L for the last one"),
    ("month", "ABCDEFGJLMNOPRSTUVY", "1 to 12 or JAN to DEC"),
    ("day of the week", "ADEFHILMNORSTUW#+?", "0 to 7 or SUN to SAT"),
];
/// 2024-01-01. Expressions repeat, so one without a time after this date never has a time.
const SOME_TIME_MS: u64 = 1_704_067_200_000;

/// The times of one or more cron expressions in one time zone.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleTimes {
    expressions: Vec<Cron>,
    /// As they were written, except for the spaces.
    texts: Vec<String>,
    zone: TimeZone,
}

impl ScheduleTimes {
    /// Takes the results of [`parse_cron`] and [`parse_zone`].
    pub fn new(crons: Vec<(String, Cron)>, zone: TimeZone) -> ScheduleTimes {
        let (texts, expressions) = crons.into_iter().unzip();
        ScheduleTimes { expressions, texts, zone }
    }

    pub fn expressions(&self) -> &[String] {
        &self.texts
    }

    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// A name that is equal for equal expressions in one zone. The state of a schedule is kept under it.
    pub fn name(&self) -> String {
        format!("{} {}", self.texts.join(" | "), self.zone_name())
    }

    /// The first time after this one. None only beyond the range of calendars.
    pub fn next(&self, after_ms: u64) -> Option<u64> {
        let after = self.at(after_ms)?;
        self.expressions
            .iter()
            .filter_map(|cron| millis(&cron.find_next_occurrence(&after, false).ok()?))
            .min()
    }

    /// The last time that is not after this one.
    pub fn latest(&self, until_ms: u64) -> Option<u64> {
        let until = self.at(until_ms)?;
        self.expressions
            .iter()
            .filter_map(|cron| millis(&cron.find_previous_occurrence(&until, true).ok()?))
            .max()
    }

    fn at(&self, ms: u64) -> Option<Zoned> {
        let seconds = i64::try_from(ms / 1000).ok()?;
        Some(Timestamp::from_second(seconds).ok()?.to_zoned(self.zone.clone()))
    }
}

fn millis(time: &Zoned) -> Option<u64> {
    time.timestamp().as_millisecond().try_into().ok()
}

/// Reads an expression of five fields, of six with the second first, or a nickname. Returns it with single
/// spaces. The error continues a sentence that begins with the text.
pub fn parse_cron(text: &str) -> Result<(String, Cron), String> {
    if text.len() > MAX_EXPRESSION_BYTES {
        return Err(format!("must not be longer than {MAX_EXPRESSION_BYTES} bytes"));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let is_nickname = fields.len() == 1 && NICKNAMES.iter().any(|name| name.eq_ignore_ascii_case(fields[0]));
    if text.contains('@') && !is_nickname {
        return Err(format!("is not a time: the words for times are {}", NICKNAMES.join(", ")));
    }
    if !is_nickname {
        if fields.len() != 5 && fields.len() != 6 {
            let count = match fields.len() {
                1 => "1 field".to_owned(),
                count => format!("{count} fields"),
            };
            return Err(format!(
                "has {count}: write minute, hour, day of the month, month and day of the week, \
                 like \"0 3 * * *\"; or six, with the second first"
            ));
        }
        for (field, (name, letters, bounds)) in fields.iter().zip(&FIELDS[FIELDS.len() - fields.len()..]) {
            if !is_field(field, name, letters) {
                return Err(format!(
                    "cannot be read: its {name} {field:?} must be {bounds}, also with * , - and /"
                ));
            }
        }
    }
    let text = fields.join(" ");
    let cron = parser().parse(&text).map_err(|error| format!("cannot be read: {error}"))?;
    let some_time = ScheduleTimes::new(vec![(text.clone(), cron.clone())], TimeZone::UTC);
    if some_time.next(SOME_TIME_MS).is_none() {
        return Err("never comes: there is no such day".into());
    }
    Ok((text, cron))
}

/// Whether one field can be read, if the other ones allow every value.
fn is_field(field: &str, name: &str, letters: &str) -> bool {
    let known =
        |c: char| c.is_ascii_digit() || "*,-/".contains(c) || letters.contains(c.to_ascii_uppercase());
    let alone: Vec<&str> =
        FIELDS.iter().map(|(other, ..)| if *other == name { field } else { "*" }).collect();
    field.chars().all(known) && parser().parse(&alone.join(" ")).is_ok()
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build()
}

/// Looks up a time zone of the IANA database: the machine's, or else the built-in one. The error continues a
/// sentence that begins with the text.
pub fn parse_zone(text: &str) -> Result<TimeZone, String> {
    if let Ok(zone) = TimeZone::get(text)
        && !zone.is_unknown()
    {
        return Ok(zone);
    }
    let far = most_edits(text);
    // The name as a whole or only its place.
    let distance = |name: &str| {
        let place = name.rsplit_once('/').map_or(usize::MAX, |(_, place)| edits(place, text));
        edits(name, text).min(place)
    };
    let known = || {
        jiff::tz::db()
            .available()
            .map(|name| name.to_string())
            .filter(|name| !name.contains(|c: char| c.is_ascii_digit()))
    };
    let near = || {
        known()
            .map(|name| (distance(&name), name))
            .filter(|(distance, _)| *distance <= far)
            .min()
            .map(|(_, name)| name)
    };
    // Etc/GMT+2 and similar names have the opposite sign: no name with a number is suggested.
    let is_name = (1..=64).contains(&text.len()) && !text.contains(|c: char| c.is_ascii_digit());
    let meant = if is_name { near() } else { None };
    Err(match meant {
        Some(name) => format!("is not a time zone: did you mean {name:?}?"),
        None => {
            "is not a time zone: write a name of the IANA database, like \"Europe/Berlin\", or \"UTC\"".into()
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::table;
    use super::*;

    const BERLIN: &str = "Europe/Berlin";

    fn times(crons: &[&str], zone: &str) -> ScheduleTimes {
        let crons = crons.iter().map(|text| parse_cron(text).expect(text)).collect();
        ScheduleTimes::new(crons, parse_zone(zone).expect(zone))
    }

    fn ms(text: &str) -> u64 {
        text.parse::<Timestamp>().expect(text).as_millisecond().try_into().expect("after 1970")
    }

    /// The next `count` times after `from`, in UTC.
    fn after(times: &ScheduleTimes, from: &str, count: usize) -> Vec<String> {
        let show = |ms: &u64| Timestamp::from_millisecond(*ms as i64).expect("a time").to_string();
        let later = std::iter::successors(times.next(ms(from)), |ms| times.next(*ms));
        later.take(count).collect::<Vec<_>>().iter().map(show).collect()
    }

    #[test]
    fn a_time_of_day_in_the_gap_comes_right_after_it() {
        // On 2026-03-29 at 02:00 the clocks in Berlin are put forward to 03:00, which is 01:00 UTC.
        let daily = times(&["30 2 * * *"], BERLIN);
        assert_eq!(
            after(&daily, "2026-03-27T12:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        let before_it = times(&["30 1 * * *"], BERLIN);
        assert_eq!(
            after(&before_it, "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T00:30:00Z", "2026-03-29T23:30:00Z"]
        );
        let every_half_hour = times(&["*/30 * * * *"], BERLIN);
        assert_eq!(
            after(&every_half_hour, "2026-03-29T00:00:00Z", 3),
            ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
        );
        let twice = times(&["0,30 2 * * *"], BERLIN);
        assert_eq!(
            after(&twice, "2026-03-28T12:00:00Z", 2),
            ["2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"]
        );
    }

    #[test]
    fn a_time_of_day_in_the_overlap_comes_once() {
        // On 2026-10-25 at 03:00 the clocks in Berlin are put back to 02:00. From 00:00 to 02:00 UTC, the
        // hour from 2 to 3 occurs twice.
        let daily = times(&["30 2 * * *"], BERLIN);
        assert_eq!(
            after(&daily, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        let hourly = times(&["30 * * * *"], BERLIN);
        assert_eq!(
            after(&hourly, "2026-10-25T00:00:00Z", 3),
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]
        );
        assert_eq!(
            daily.latest(ms("2026-10-25T01:45:00Z")),
            Some(ms("2026-10-25T00:30:00Z")),
            "not the second half past two"
        );
    }

    #[test]
    fn several_expressions_are_one_schedule() {
        let both = times(&["0 3 * * *", "0 3,12 * * MON"], "UTC");
        assert_eq!(
            after(&both, "2026-11-21T12:00:00Z", 4),
            ["2026-11-22T03:00:00Z", "2026-11-23T03:00:00Z", "2026-11-23T12:00:00Z", "2026-11-24T03:00:00Z"]
        );
        assert_eq!(both.latest(ms("2026-11-23T11:59:59Z")), Some(ms("2026-11-23T03:00:00Z")));
        assert_eq!(both.name(), "0 3 * * * | 0 3,12 * * MON UTC");
    }

    #[test]
    fn a_time_is_its_own_latest_and_not_its_own_next() {
        let secondly = times(&["* * * * * *"], "UTC");
        assert_eq!(
            (secondly.latest(5_000), secondly.latest(5_999), secondly.next(5_000)),
            (Some(5_000), Some(5_000), Some(6_000))
        );
        assert_eq!((secondly.latest(u64::MAX), secondly.next(u64::MAX)), (None, None));
    }

    #[test]
    fn good_expressions() {
        let table = [
            " 0  3 * * * ",
            "*/5 8-18 * jan-mar mon-fri",
            "@daily",
            "@Weekly",
            "0 0 L * *",
            "0 0 15W * ?",
            "0 0 * * FRI#L",
            "0 0 * * mon#2",
            "0,1 9-17 1 * 7",
            "0-30/10 * * * *",
            "0 0 29 2 +MON",
        ];
        for text in table {
            assert!(parse_cron(text).is_ok(), "{text}: {:?}", parse_cron(text));
        }
        assert_eq!(parse_cron(" 0  3 * * * ").map(|(text, _)| text), Ok("0 3 * * *".into()));
    }

    #[test]
    fn zones_are_found_by_their_names_only() {
        let texts = ["Berlin", "Berln", "GMT+2", "Europe/Berln", "new-york", "UTC+2", "", "../../etc/passwd"];
        insta::assert_snapshot!(table(&texts, |text| parse_zone(text).expect_err(text)));
        assert_eq!(parse_zone("europe/berlin").expect("a zone").iana_name(), Some(BERLIN));
        assert_eq!(times(&["0 3 * * *"], "UTC").zone_name(), "UTC");
    }

    #[test]
    fn the_host_brings_a_database_along() {
        assert!(jiff::tz::TimeZoneDatabase::bundled().get(BERLIN).is_ok());
    }

    proptest! {
        #[test]
        fn looking_back_finds_what_looking_ahead_gave(
            // Around the changes of 2026 and elsewhere.
            base in prop::sample::select(vec![1_774_742_400u64, 1_792_886_400, 1_767_225_600]),
            offset in 0u64..200_000,
            cron in prop::sample::select(vec![
                "30 2 * * *", "0 3 * * *", "15 1 * * *", "*/30 * * * *",
                "0,30 2 * * *", "7 * * * * *", "0 0 1 * *",
            ]),
        ) {
            let times = times(&[cron], BERLIN);
            let now = (base + offset) * 1000;
            let next = times.next(now).expect("a next one");
            prop_assert!(next > now);
            prop_assert_eq!(times.latest(next), Some(next));
            let latest = times.latest(now).expect("an earlier one");
            prop_assert!(latest <= now);
            prop_assert_eq!(times.next(latest), Some(next), "nothing lies between {} and {}", latest, next);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9*,/LW#+?@A-Z -]{0,24}|.{0,20}") {
            let _ = (parse_cron(&text), parse_zone(&text));
        }
    }
}
