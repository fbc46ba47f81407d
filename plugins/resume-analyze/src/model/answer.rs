//! Checks a model's answer.
//!
//! In: the text that the model has written. Out: an [`Answer`], in which every value has the right type and
//! is within its bounds, or the problem, in words that the model and a person understand. An answer then
//! becomes an [`Analysis`].
//!
//! Code fences and text around the object are ignored, and so are unknown keys. Texts and lists that are too
//! long are cut. The score is always the sum of the parts, whatever sum the model gives. An email, phone
//! number or link counts only if the resume contains it, so a prompt injection cannot add one.

use model_server::line;
use serde_json::Value;

use crate::analysis::Analysis;
use crate::contact::Contact;
use crate::dates::{Month, Period};
use crate::education::{Level, Study};
use crate::facts::Experience;
use crate::score::{PARTS, Part};
use crate::skills::{self, Category, Skill};
use crate::text::Text;

pub const LEVELS: [(&str, Level); 5] = [
    ("school", Level::School),
    ("associate", Level::Associate),
    ("bachelor", Level::Bachelor),
    ("master", Level::Master),
    ("doctor", Level::Doctor),
];

pub const CATEGORIES: [(&str, Category); 9] = [
    ("language", Category::Language),
    ("framework", Category::Framework),
    ("data", Category::Data),
    ("cloud", Category::Cloud),
    ("practice", Category::Practice),
    ("analysis", Category::Analysis),
    ("design", Category::Design),
    ("business", Category::Business),
    ("soft", Category::Soft),
];

/// The most characters of a sentence and of a name.
const SENTENCE: usize = 300;
const NAME: usize = 120;
/// The most items of each list.
const SENTENCES: usize = 8;
const LINKS: usize = 10;
const PERIODS: usize = 30;
const STUDIES: usize = 8;
const SKILLS: usize = 60;
/// The years that may occur in a resume.
const YEARS: std::ops::RangeInclusive<i32> = 1930..=2100;

#[derive(Debug)]
pub struct Answer {
    is_resume: bool,
    is_resume_because: String,
    parts: Vec<Part>,
    strengths: Vec<String>,
    suggestions: Vec<String>,
    contact: Contact,
    experience: Experience,
    education: Vec<Study>,
    skills: Vec<(String, Category)>,
}

impl Answer {
    pub fn check(text: &str, now: Month) -> Result<Answer, String> {
        let json: Value = match object(text) {
            Some(object) => serde_json::from_str(object).map_err(|why| format!("it is not JSON: {why}"))?,
            None => return Err("it has no JSON object".into()),
        };
        let all = At { value: &json, path: String::new() };
        let is_resume = all.key("isResume").yes()?;
        let parts = all.key("parts");
        let parts = PARTS.iter().map(|(name, max)| {
            let part = parts.key(name);
            // The rules do the same: if the text is not a resume, these two parts get no points.
            let most =
                if is_resume || !["achievements", "form"].contains(name) { i64::from(*max) } else { 0 };
            Ok(Part {
                name,
                score: part.key("score").whole(0..=most)? as u32,
                max: *max,
                why: part.key("why").text(SENTENCE)?,
            })
        });
        let contact = all.key("contact");
        let periods = all.key("experience").key("periods").list(PERIODS, |period| period.period(now))?;
        let stated = all
            .key("experience")
            .key("yearsStated")
            .or_null(|years| years.whole(0..=70))?
            .map(|years| years as i32);
        Ok(Answer {
            is_resume,
            is_resume_because: all.key("isResumeBecause").text(SENTENCE)?,
            parts: parts.collect::<Result<_, String>>()?,
            strengths: all.key("strengths").list(SENTENCES, |item| item.text(SENTENCE))?,
            suggestions: all.key("suggestions").list(SENTENCES, |item| item.text(SENTENCE))?,
            contact: Contact {
                name: contact.key("name").text_or_null()?,
                email: contact.key("email").text_or_null()?,
                phone: contact.key("phone").text_or_null()?,
                location: contact.key("location").text_or_null()?,
                links: contact.key("links").list(LINKS, |item| item.text(SENTENCE))?,
            },
            experience: Experience::new(periods, stated, now),
            education: all.key("education").list(STUDIES, |study| study.study())?,
            skills: all.key("skills").list(SKILLS, |skill| {
                Ok((skill.key("name").text(NAME)?, skill.key("category").one_of(&CATEGORIES)?))
            })?,
        })
    }

    /// Merges the answer into the rules' analysis. From the rules it takes everything that can be counted,
    /// and an email or phone number that the answer has wrong.
    pub fn analysis(self, rules: Analysis, content: &str, model: &str, note: Option<String>) -> Analysis {
        let lower = content.to_lowercase();
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
        let all_digits = digits(content);
        let has_number = |phone: &String| digits(phone).len() >= 6 && all_digits.contains(&digits(phone));
        let has_text =
            |text: &String| !text.contains(char::is_whitespace) && lower.contains(&text.to_lowercase());
        let contact = Contact {
            email: self
                .contact
                .email
                .filter(|email| email.contains('@') && has_text(email))
                .or(rules.contact.email),
            phone: self.contact.phone.filter(has_number).or(rules.contact.phone),
            links: self.contact.links.into_iter().filter(has_text).collect(),
            ..self.contact
        };
        // The rules have read this content, so it is readable.
        let text = Text::read(content).ok();
        let mentions = |name: &str| text.as_ref().map_or(0, |text| skills::mentions(text, name));
        let mut skills: Vec<Skill> = Vec::new();
        for (name, category) in self.skills {
            if !skills.iter().any(|other| other.name.eq_ignore_ascii_case(&name)) {
                skills.push(Skill { mentions: mentions(&name), name: name.into(), category });
            }
        }
        skills.sort_by(|a, b| {
            a.category.cmp(&b.category).then(b.mentions.cmp(&a.mentions)).then(a.name.cmp(&b.name))
        });
        Analysis {
            method: "model",
            model: Some(model.to_owned()),
            note,
            is_resume: self.is_resume,
            is_resume_because: self.is_resume_because,
            score: self.parts.iter().map(|part| part.score).sum(),
            parts: self.parts,
            strengths: self.strengths,
            suggestions: self.suggestions,
            contact,
            years_of_experience: self.experience.years(),
            experience: self.experience,
            education: self.education,
            skills,
            ..rules
        }
    }
}

/// The JSON object in a text that may have a code fence or other text around it.
fn object(text: &str) -> Option<&str> {
    // Some models write their reasoning first.
    let text = text.rsplit_once("</think>").map_or(text, |(_, text)| text);
    let (start, end) = (text.find('{')?, text.rfind('}')?);
    text.get(start..=end)
}

/// A value and its path in the answer.
struct At<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> At<'a> {
    /// The value of a key, or null if there is no such key.
    fn key(&self, name: &str) -> At<'a> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        At { value: self.value.get(name).unwrap_or(&Value::Null), path }
    }

    fn wrong<T>(&self, must: &str) -> Result<T, String> {
        Err(format!("`{}` must be {must}", self.path))
    }

    fn yes(&self) -> Result<bool, String> {
        self.value.as_bool().map_or_else(|| self.wrong("true or false"), Ok)
    }

    fn text(&self, most: usize) -> Result<String, String> {
        match self.value.as_str().map(|text| line(text, most)) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => self.wrong("text"),
        }
    }

    /// An empty text counts as null.
    fn text_or_null(&self) -> Result<Option<String>, String> {
        match self.value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(line(text, NAME)).filter(|text| !text.is_empty())),
            _ => self.wrong("text or null"),
        }
    }

    fn or_null<T>(&self, read: impl Fn(&Self) -> Result<T, String>) -> Result<Option<T>, String> {
        if self.value.is_null() { Ok(None) } else { read(self).map(Some) }
    }

    fn whole(&self, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
        let must = || format!("a whole number from {} to {}", range.start(), range.end());
        // Some models write 12.0 instead of 12.
        let number = self.value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64);
        number.filter(|number| range.contains(number)).map_or_else(|| self.wrong(&must()), Ok)
    }

    fn list<T>(&self, most: usize, read: impl Fn(&At<'a>) -> Result<T, String>) -> Result<Vec<T>, String> {
        let Some(items) = self.value.as_array() else { return self.wrong("a list") };
        let at = |(at, value)| read(&At { value, path: format!("{}[{at}]", self.path) });
        items.iter().take(most).enumerate().map(at).collect()
    }

    fn one_of<T: Copy>(&self, known: &[(&str, T)]) -> Result<T, String> {
        let found = self
            .value
            .as_str()
            .and_then(|text| known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)));
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        found.map_or_else(|| self.wrong(&format!("one of {}", names.join(", "))), |(_, value)| Ok(*value))
    }

    fn month(&self) -> Result<Month, String> {
        let month = self.value.as_str().and_then(|text| {
            let (year, month) = text.trim().split_once('-')?;
            let (year, month) = (year.parse().ok()?, month.parse().ok()?);
            (YEARS.contains(&year) && (1..=12).contains(&month)).then(|| Month::new(year, month))
        });
        month.map_or_else(|| self.wrong("a month such as 2021-03"), Ok)
    }

    fn period(&self, now: Month) -> Result<Period, String> {
        let present = self.key("present").or_null(At::yes)?.unwrap_or(self.key("to").value.is_null());
        let from = self.key("from").month()?;
        // `to` of a period is the month after its last month.
        let last = if present { now } else { self.key("to").month()? };
        if last < from {
            return self.wrong("a period that does not end before it begins");
        }
        Ok(Period { from, to: Month(last.0 + 1), present })
    }

    fn study(&self) -> Result<Study, String> {
        let year = |name| {
            self.key(name).or_null(|at| {
                at.whole(i64::from(*YEARS.start())..=i64::from(*YEARS.end())).map(|year| year as i32)
            })
        };
        Ok(Study {
            level: self.key("level").or_null(|level| level.one_of(&LEVELS))?,
            degree: self.key("degree").text_or_null()?,
            school: self.key("school").text_or_null()?,
            field: self.key("field").text_or_null()?,
            from: year("from")?,
            to: year("to")?,
        })
    }
}
