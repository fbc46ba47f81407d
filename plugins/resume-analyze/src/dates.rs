//! Periods of time, and years of experience.
//!
//! In: a line of text, and the month that counts as now. Out: [`Period`]s such as `Jan 2019 - Present`,
//! `2018.03 - 2021.06` and `2019年7月-至今`, the sum of several periods, and years that the text itself states
//! (`5+ years`, `8年经验`).
//!
//! Not here: which periods are work ([`crate::analysis`]).

use std::sync::LazyLock;

use regex_lite::Regex;
use serde::{Serialize, Serializer};

/// A month, counted from the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(pub i32);

impl Month {
    pub fn new(year: i32, month: i32) -> Month {
        Month(year * 12 + month - 1)
    }

    /// The month of a time in milliseconds since the Unix epoch, in UTC.
    pub fn of_epoch_ms(ms: u64) -> Month {
        // The date of a day, by Howard Hinnant's algorithm `civil_from_days`.
        let days = i64::try_from(ms / 86_400_000).unwrap_or(0) + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Month::new(i32::try_from(year).unwrap_or(i32::MAX / 24), month as i32)
    }

    pub fn year(self) -> i32 {
        self.0.div_euclid(12)
    }
}

/// From the start of the month `from` up to the start of the month `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Period {
    #[serde(serialize_with = "year_month")]
    pub from: Month,
    #[serde(serialize_with = "year_month_before")]
    pub to: Month,
    pub present: bool,
}

fn year_month<S: Serializer>(month: &Month, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{}-{:02}", month.year(), month.0.rem_euclid(12) + 1))
}

/// The last month of a period is the one before its end.
fn year_month_before<S: Serializer>(month: &Month, s: S) -> Result<S::Ok, S::Error> {
    year_month(&Month(month.0 - 1), s)
}

static POINT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)(?P<now>\bpresent\b|\bcurrent(?:ly)?\b|\bnow\b|\btoday\b|\bongoing\b|至今|现在|目前)",
        r"|\b(?P<mon>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?,?\s*'?(?P<mony>\d{4})\b",
        r"|\b(?P<m>\d{1,2})/(?P<my>\d{4})\b",
        r"|\b(?P<y>\d{4})\s*[./年-]\s*(?P<ym>\d{1,2})\b(?:\s*月)?",
        r"|\b(?P<year>\d{4})\b(?:\s*年)?",
    ))
    .expect("a valid expression")
});

static BETWEEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)^\s*(?:-+|~|to|until|till|through|至|到)?\s*$").expect("a valid expression")
});

/// A point in time as written: a month, a year without a month, or the present.
#[derive(Clone, Copy)]
enum Point {
    Month(Month),
    Year(i32),
    Present,
}

/// The periods of one line.
pub fn periods(line: &str, now: Month) -> Vec<Period> {
    let points: Vec<_> = POINT
        .captures_iter(line)
        .filter_map(|found| Some((found.get(0)?.range(), point(&found, now)?)))
        .collect();
    let mut periods = Vec::new();
    let mut at = 0;
    while at + 1 < points.len() {
        let ((first, from), (second, to)) = (&points[at], &points[at + 1]);
        let between = &line[first.end..second.start];
        // "2019 至今" is a period; two bare dates side by side are not.
        let joined =
            BETWEEN.is_match(between) && (!between.trim().is_empty() || matches!(to, Point::Present));
        match joined.then(|| period(*from, *to, now)).flatten() {
            Some(period) => {
                periods.push(period);
                at += 2;
            }
            None => at += 1,
        }
    }
    periods
}

/// The years in a line, for an entry with only one date: `B.Sc., 2019`.
pub fn years(line: &str, now: Month) -> Vec<i32> {
    POINT
        .captures_iter(line)
        .filter_map(|found| match point(&found, now)? {
            Point::Month(month) => Some(month.year()),
            Point::Year(year) => Some(year),
            Point::Present => None,
        })
        .collect()
}

/// The line without its dates.
pub fn without_dates(line: &str) -> String {
    POINT.replace_all(line, " ").into_owned()
}

fn point(found: &regex_lite::Captures<'_>, now: Month) -> Option<Point> {
    let number = |name: &str| found.name(name).and_then(|part| part.as_str().parse::<i32>().ok());
    let likely = |year: i32| (1950..=now.year() + 8).contains(&year);
    if found.name("now").is_some() {
        return Some(Point::Present);
    }
    if let (Some(name), Some(year)) = (found.name("mon"), number("mony")) {
        let names = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
        let month = names.iter().position(|known| name.as_str().eq_ignore_ascii_case(known))? as i32 + 1;
        return likely(year).then(|| Point::Month(Month::new(year, month)));
    }
    if let Some((month, year)) = number("m").zip(number("my")).or(number("ym").zip(number("y"))) {
        return (likely(year) && (1..=12).contains(&month)).then(|| Point::Month(Month::new(year, month)));
    }
    number("year").filter(|&year| likely(year)).map(Point::Year)
}

fn period(from: Point, to: Point, now: Month) -> Option<Period> {
    let start = match from {
        Point::Month(month) => month,
        Point::Year(year) => Month::new(year, 1),
        Point::Present => return None,
    };
    let (end, present) = match to {
        Point::Month(month) => (Month(month.0 + 1), false),
        // "2018 - 2021" counts as three years, and "2019 - 2019" as half a year.
        Point::Year(year) if year == start.year() => (Month(start.0 + 6), false),
        Point::Year(year) => (Month::new(year, 1), false),
        Point::Present => (Month(now.0 + 1), true),
    };
    (start < end && end.0 - start.0 <= 60 * 12).then_some(Period { from: start, to: end, present })
}

/// The number of months that the periods cover, up to now. Overlaps count once.
pub fn months_covered(periods: &[Period], now: Month) -> i32 {
    let mut sorted = periods.to_vec();
    sorted.sort();
    let mut total = 0;
    let mut reached = Month(i32::MIN);
    for period in sorted {
        let end = period.to.min(Month(now.0 + 1));
        let start = period.from.max(reached);
        total += (end.0 - start.0).max(0);
        reached = reached.max(end);
    }
    total
}

static STATED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(\d{1,2})\s*\+\s*(?:years?|yrs?)\b",
        r"|\b(\d{1,2})\s*(?:years?|yrs?)'?\s+(?:of\s+)?(?:[a-z/-]+\s+){0,4}?experience\b",
        r"|\bexperience\W{0,3}(?:of\s+)?(?:over\s+)?(\d{1,2})\s*(?:years?|yrs?)\b",
        r"|(\d{1,2})\s*(?:多|余|\+)?\s*年(?:多|以上)?[^\d,。;:]{0,12}?经验",
        r"|(?:经验|年限)[:\s]*(\d{1,2})\s*年",
    ))
    .expect("a valid expression")
});

/// The largest number of years of experience that the line states.
pub fn stated_years(line: &str) -> Option<i32> {
    STATED
        .captures_iter(line)
        .filter_map(|found| {
            (1..=5).find_map(|group| found.get(group)).and_then(|number| number.as_str().parse().ok())
        })
        .filter(|years| (1..=50).contains(years))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Month = Month(2026 * 12); // January 2026

    #[test]
    fn the_epoch_is_read() {
        let table = [
            (0, (1970, 1)),
            (951_782_400_000, (2000, 2)),
            (1_767_225_599_999, (2025, 12)),
            (1_767_225_600_000, (2026, 1)),
        ];
        for (ms, (year, month)) in table {
            assert_eq!(Month::of_epoch_ms(ms), Month::new(year, month), "{ms}");
        }
    }

    #[test]
    fn periods_are_read_as_people_write_them() {
        let table = [
            ("Jan 2019 - Present", 85),
            ("September 2015 to June 2018", 34),
            ("2018.03 - 2021.06", 40),
            ("2018-03 - 2021-06", 40),
            ("2018/03-2021/06", 40),
            ("03/2018 - 06/2021", 40),
            ("2019年7月-至今", 79),
            ("2019年7月 至 2020年6月", 12),
            ("2018-2021", 36),
            ("2018 - now", 97),
            ("2019 - 2019", 6),
            ("2020.01-2020.03 and 2021.01-2021.03", 6),
            ("2021 - 2018", 0),
            ("phone 138-0013-8000, born 1990", 0),
            ("2018 2021", 0),
            ("room 2018 - 3021", 0),
        ];
        for (line, months) in table {
            assert_eq!(months_covered(&periods(line, NOW), NOW), months, "{line}");
        }
    }

    #[test]
    fn overlaps_count_once() {
        let all: Vec<Period> = ["2015 - 2018", "2017 - 2019", "2016.01 - 2016.06", "2030 - 2031"]
            .iter()
            .flat_map(|line| periods(line, NOW))
            .collect();
        assert_eq!(months_covered(&all, NOW), 48);
        assert_eq!(months_covered(&[], NOW), 0);
    }

    #[test]
    fn stated_years_need_a_reason() {
        let table = [
            ("5+ years building things", Some(5)),
            ("over 12 years of hands-on software experience", Some(12)),
            ("Experience: 7 years", Some(7)),
            ("8年经验", Some(8)),
            ("拥有10年以上后端开发经验", Some(10)),
            ("工作年限:6年", Some(6)),
            ("3 years old, 2 years ago", None),
            ("2019年7月获得经验", None),
        ];
        for (line, years) in table {
            assert_eq!(stated_years(line), years, "{line}");
        }
    }
}
