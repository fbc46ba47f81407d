//! The person's studies.
//!
//! In: the text and its sections. Out: [`Study`] entries with degree, school, field and years. A field is
//! `None` if the text does not have it.
//!
//! Under a heading of education every line counts. Elsewhere a line counts only if it names a school together
//! with a degree or a year.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde::Serialize;

use crate::dates::{self, Month};
use crate::sections::{Kind, Sections};
use crate::text::{Text, is_cjk};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    School,
    Associate,
    Bachelor,
    Master,
    Doctor,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Study {
    pub level: Option<Level>,
    pub degree: Option<String>,
    pub school: Option<String>,
    pub field: Option<String>,
    pub from: Option<i32>,
    pub to: Option<i32>,
}

/// The most entries. A longer list is a list of courses, or the text is not a resume.
const MOST: usize = 8;

static DEGREES: LazyLock<Vec<(Level, Regex)>> = LazyLock::new(|| {
    [
        (Level::Doctor, r"(?i)\bph\.?\s?d\b\.?|\bdoctor of [a-z]+|\bdoctorate\b|博士"),
        (
            Level::Master,
            concat!(
                r"\b(?i:master(?:'s)?(?: of (?:business administration|[a-z]+))?",
                r"|m\.\s?sc\.?|m\.?b\.?a|m\.\s?eng)\b\.?",
                r"|\bMSc\b|\bMEng\b|\bM\.S\.|\bM\.A\.|\bMS\b|\bMA\b|\bMFA\b|硕士|研究生",
            ),
        ),
        (
            Level::Bachelor,
            concat!(
                r"\b(?i:bachelor(?:'s)?(?: of (?:business administration|[a-z]+))?",
                r"|b\.\s?sc\.?|b\.\s?eng)\b\.?",
                r"|\bBSc\b|\bBEng\b|\bB\.S\.|\bB\.A\.|\bB\.Ed\.|\bBS\b|\bBA\b|\bBEd\b|本科|学士",
            ),
        ),
        (Level::Associate, r"(?i)\bassociate(?:'s)? (?:degree|of)\b(?: [a-z]+)?|大专|专科"),
        (Level::School, r"(?i)\bhigh school\b|\ba-levels?\b|\babitur\b|高中"),
    ]
    .map(|(level, text)| (level, Regex::new(text).expect("a valid expression")))
    .into()
});

static SCHOOL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?:[A-Z][A-Za-z.'&-]* (?:(?:of|and|the|at|de|for) )?){0,5}",
        r"(?i:university|college|polytechnic|universität|université|institute of technology|high school)",
        r"(?: (?:of|at|in) (?:the )?[A-Z][A-Za-z.'-]*(?: [A-Z][a-z][A-Za-z.'-]*){0,2})?",
        r"|\b(?:MIT|ETH Zurich|UCLA|Caltech)\b",
        r"|[\u{4e00}-\u{9fff}]{2,14}(?:大学|学院|中学|学校)(?:[\u{4e00}-\u{9fff}]{2,10}学院)?",
    ))
    .expect("a valid expression")
});

static FIELD_LABEL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)(?:专业|major|field)\s*:\s*([^|,;:\s][^|,;:]*)").expect("a valid expression")
});

pub fn find(text: &Text, sections: &Sections, now: Month) -> Vec<Study> {
    let sure = sections.has(Kind::Education);
    let mut found: Vec<Study> = Vec::new();
    let mut open = false;
    for (number, line) in text.filled() {
        let inside = sections.of_line(number) == Some(Kind::Education);
        // If there is a heading of education, lines with another kind are left out. Lines of merged columns
        // have no kind, so they stay.
        if sure && !inside && sections.of_line(number).is_some() {
            open = false;
            continue;
        }
        let parts = read(line, now);
        let counts = inside || (parts.school.is_some() && (parts.degree.is_some() || parts.to.is_some()));
        if !counts || (parts.school.is_none() && parts.degree.is_none() && (!open || parts.to.is_none())) {
            continue;
        }
        match found.last_mut() {
            Some(last) if open && last.takes(&parts) => last.merge(parts),
            _ if parts.school.is_some() || parts.degree.is_some() => found.push(parts),
            _ => continue,
        }
        open = inside;
    }
    found.truncate(MOST);
    found
}

/// Whether a line names a school or a degree. Then its dates belong to a study, not to work.
pub fn is_about_study(line: &str) -> bool {
    SCHOOL.is_match(line) || DEGREES.iter().any(|(_, degree)| degree.is_match(line))
}

impl Study {
    /// Whether a line continues this entry: it has no school, degree or year that the entry already has.
    fn takes(&self, more: &Study) -> bool {
        !(self.school.is_some() && more.school.is_some()
            || self.degree.is_some() && more.degree.is_some()
            || self.to.is_some() && more.to.is_some())
    }

    fn merge(&mut self, more: Study) {
        self.level = self.level.or(more.level);
        self.degree = self.degree.take().or(more.degree);
        self.school = self.school.take().or(more.school);
        self.field = self.field.take().or(more.field);
        self.from = self.from.or(more.from);
        self.to = self.to.or(more.to);
    }
}

fn read(line: &str, now: Month) -> Study {
    let (from, to) = match dates::periods(line, now).first() {
        Some(period) => (
            Some(period.from.year()),
            Some(if period.present {
                now.year()
            } else {
                Month(period.to.0 - 1).year().max(period.from.year())
            }),
        ),
        None => (None, dates::years(line, now).into_iter().max()),
    };
    // A period such as "2018 - 2021" counts up to January of its last year. The entry has the written year.
    let to = dates::years(line, now)
        .into_iter()
        .max()
        .filter(|_| from.is_some())
        .map(|year| if dates::periods(line, now)[0].present { now.year() } else { year })
        .or(to);
    let bare = dates::without_dates(line);
    let school = SCHOOL.find(&bare).map(|found| found.as_str().trim().trim_end_matches(',').to_string());
    let rest = match &school {
        Some(school) => bare.replace(school.as_str(), " | "),
        None => bare.clone(),
    };
    let degree = DEGREES.iter().find_map(|(level, degree)| Some((*level, degree.find(&rest)?)));
    let field = FIELD_LABEL
        .captures(line)
        .map(|found| found[1].trim().to_string())
        .or_else(|| degree.as_ref().and_then(|(_, found)| field_after(&rest[found.end()..])))
        .or_else(|| (school.is_some() || degree.is_some()).then(|| chinese_field(&rest)).flatten());
    Study {
        level: degree.as_ref().map(|(level, _)| *level),
        degree: degree.map(|(_, found)| found.as_str().trim().to_string()),
        school,
        field,
        from,
        to,
    }
}

/// The field in the text after the degree: `B.Sc. in Computer Science, …`, `Bachelor of Arts, History`.
fn field_after(rest: &str) -> Option<String> {
    let rest = rest.trim_start_matches(|c: char| c.is_whitespace() || ",.:-".contains(c));
    let rest = rest.strip_prefix("degree ").unwrap_or(rest);
    let rest = rest
        .strip_prefix("in ")
        .or_else(|| rest.strip_prefix("IN "))
        .or_else(|| rest.strip_prefix("of "))
        .unwrap_or(rest);
    let field = rest
        .split([',', '|', ';', '(', '\t', '.', ':'])
        .next()?
        .split(" - ")
        .next()?
        .split("  ")
        .next()?
        .trim();
    let words = field.split_whitespace().count();
    let named = field.chars().next()?.is_uppercase() && !field.chars().any(|c| c.is_ascii_digit());
    (named && (1..=6).contains(&words) && !field.starts_with("GPA")).then(|| field.to_string())
}

/// The field in a Chinese line, which is the part that is neither school nor degree:
/// `清华大学 计算机科学与技术 本科`.
fn chinese_field(rest: &str) -> Option<String> {
    let part = rest.split(|c: char| c.is_whitespace() || "|,;()·/-".contains(c)).find(|part| {
        part.chars().filter(|&c| is_cjk(c)).count() >= 2
            && !DEGREES.iter().any(|(_, degree)| degree.is_match(part))
            && !part.contains(':')
            && part.chars().count() <= 16
    })?;
    let field = part.trim_end_matches("专业");
    (!field.is_empty()).then(|| field.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Month = Month(2026 * 12);

    fn study(lines: &str) -> Vec<Study> {
        let text = Text::read(&format!(
            "This line makes it long enough for anything to be read at all by rules\nEducation\n{lines}"
        ))
        .unwrap();
        find(&text, &Sections::find(&text), NOW)
    }

    fn row(study: &Study) -> (Option<Level>, &str, &str, Option<i32>, Option<i32>) {
        (
            study.level,
            study.school.as_deref().unwrap_or(""),
            study.field.as_deref().unwrap_or(""),
            study.from,
            study.to,
        )
    }

    #[test]
    fn one_line_entries() {
        let table = [
            (
                "B.Sc. in Computer Science, Riverton University, 2012 - 2016",
                (Some(Level::Bachelor), "Riverton University", "Computer Science", Some(2012), Some(2016)),
            ),
            (
                "Master of Science, Applied Statistics | University of Lakeside | 2018",
                (Some(Level::Master), "University of Lakeside", "Applied Statistics", None, Some(2018)),
            ),
            (
                "2014.09 - 2018.06  云江大学  计算机科学与技术  本科",
                (Some(Level::Bachelor), "云江大学", "计算机科学与技术", Some(2014), Some(2018)),
            ),
            (
                "东岭理工学院 软件工程专业 硕士 2018年9月-2021年6月",
                (Some(Level::Master), "东岭理工学院", "软件工程", Some(2018), Some(2021)),
            ),
            (
                "PhD, Physics, Hillcrest University, 2020 - present",
                (Some(Level::Doctor), "Hillcrest University", "Physics", Some(2020), Some(2026)),
            ),
        ];
        for (line, expected) in table {
            let found = study(line);
            assert_eq!(found.iter().map(row).collect::<Vec<_>>(), [expected], "{line}");
        }
    }

    #[test]
    fn entries_go_over_lines() {
        let found =
            study("Riverton University\nBachelor of Arts, History\n2008 - 2011\nLakeside College\nMBA\n2015");
        assert_eq!(
            found.iter().map(row).collect::<Vec<_>>(),
            [
                (Some(Level::Bachelor), "Riverton University", "History", Some(2008), Some(2011)),
                (Some(Level::Master), "Lakeside College", "", None, Some(2015))
            ]
        );
    }
}
