//! Analyzes a resume by the rules.
//!
//! In: the resume's id and text, and the month that counts as now. Out: the [`Analysis`], which becomes the
//! task's result.
//!
//! This file decides which periods are work, and whether the text is a resume at all.

use serde::Serialize;

use crate::contact::Contact;
use crate::dates::{self, Month};
use crate::education::{self, Study};
use crate::facts::{Experience, Facts};
use crate::score::{self, Part};
use crate::sections::{Kind, Section, Sections};
use crate::skills::{self, Skill};
use crate::text::{Language, Text, Unreadable};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Analysis {
    /// `rules`, or `model` when a model has read the resume.
    pub method: &'static str,
    /// The model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A remark for the reader: for example, that the model did not get the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub resume_id: String,
    pub language: Language,
    pub is_resume: bool,
    /// The evidence that the text is a resume, or what is missing.
    pub is_resume_because: String,
    pub score: u32,
    pub parts: Vec<Part>,
    pub strengths: Vec<String>,
    pub suggestions: Vec<String>,
    pub contact: Contact,
    /// The years of the dated periods. If there are none, the years that the text states.
    pub years_of_experience: Option<f64>,
    pub experience: Experience,
    pub education: Vec<Study>,
    pub skills: Vec<Skill>,
    pub sections: Vec<Section>,
    pub words: usize,
}

pub fn analyze(resume_id: &str, content: &str, now: Month) -> Result<Analysis, Unreadable> {
    let text = Text::read(content)?;
    let sections = Sections::find(&text);
    let contact = Contact::find(&text);
    let skills = skills::find(&text, &sections);
    let education = education::find(&text, &sections, now);
    let experience = experience(&text, &sections, now);
    let (is_resume, is_resume_because) =
        verdict(&text, &sections, &contact, &experience, &education, &skills);
    let facts = Facts {
        text: &text,
        sections: &sections,
        contact: &contact,
        experience: &experience,
        education: &education,
        skills: &skills,
        is_resume,
    };
    let (parts, strengths, suggestions) = score::score(&facts);
    Ok(Analysis {
        method: "rules",
        model: None,
        note: None,
        resume_id: resume_id.to_string(),
        language: text.language,
        is_resume,
        is_resume_because,
        score: parts.iter().map(|part| part.score).sum(),
        parts,
        strengths,
        suggestions,
        years_of_experience: experience.years(),
        contact,
        experience,
        education,
        skills,
        words: text.words,
        sections: sections.found,
    })
}

/// The periods under a heading of experience. Without such a heading, every period that is not near a school
/// or a degree.
fn experience(text: &Text, sections: &Sections, now: Month) -> Experience {
    let headed = sections.has(Kind::Experience);
    let lines: Vec<(usize, &str)> = text.filled().collect();
    let mut periods = Vec::new();
    for (at, (number, line)) in lines.iter().enumerate() {
        let found = dates::periods(line, now);
        if found.is_empty() {
            continue;
        }
        let work = match sections.of_line(*number) {
            Some(Kind::Experience) => true,
            kind @ (Some(Kind::Summary) | None) => {
                // The lines above and below count as well, because a school's name often stands there. If
                // there is a heading of experience, only lines in merged columns do: neither those of a
                // summary nor those before the first heading.
                let beside = &lines[at.saturating_sub(1)..(at + 2).min(lines.len())];
                let in_columns = kind.is_none()
                    && sections
                        .found
                        .iter()
                        .any(|section| section.from_line <= *number && *number <= section.to_line);
                (!headed || in_columns) && !beside.iter().any(|(_, line)| education::is_about_study(line))
            }
            Some(_) => false,
        };
        if work {
            periods.extend(found);
        }
    }
    Experience::new(periods, text.filled().filter_map(|(_, line)| dates::stated_years(line)).max(), now)
}

/// Whether the text is a resume, and why. A resume has contact details, and says what the person has done or
/// learned. Four points of evidence are enough.
fn verdict(
    text: &Text,
    sections: &Sections,
    contact: &Contact,
    experience: &Experience,
    education: &[Study],
    skills: &[Skill],
) -> (bool, String) {
    let titled = text.filled().take(3).any(|(_, line)| {
        ["resume", "résumé", "curriculum vitae", "简历"].iter().any(|word| line.to_lowercase().contains(word))
    });
    let evidence = [
        (2, contact.email.is_some() || contact.phone.is_some(), "an email or phone number", "邮箱或电话"),
        (2, sections.has(Kind::Experience) || experience.years().is_some(), "work experience", "工作经历"),
        (2, !education.is_empty(), "a school or degree", "学校或学历"),
        (1, sections.has(Kind::Skills) || skills.len() >= 3, "skills", "技能"),
        (1, sections.found.len() >= 3, "a resume's headings", "简历常见的标题"),
        (1, titled, "a title that says so", "简历标题"),
    ];
    let points: u32 = evidence.iter().filter(|(_, found, ..)| *found).map(|(points, ..)| points).sum();
    let names = |wanted: bool| -> String {
        let names: Vec<&str> = evidence
            .iter()
            .filter(|(_, found, ..)| *found == wanted)
            .map(|(.., en, zh)| text.language.pick(en, zh))
            .collect();
        names.join(&text.language.say(", ", "、"))
    };
    if points >= 4 {
        (true, text.language.say("it has ", "包含") + &names(true))
    } else {
        (false, text.language.say("it lacks ", "缺少") + &names(false))
    }
}
