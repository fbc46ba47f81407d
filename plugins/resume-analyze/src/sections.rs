//! The resume's sections, by their headings.
//!
//! In: the text. Out: the [`Section`]s found, with their line ranges, and the kind of section of each line.
//!
//! A heading is a line with only a known phrase, in any decoration (`== SKILLS ==`, `【教育背景】`,
//! `E D U C A T I O N`), or a known phrase and a colon in front of the section's content. If a line has two
//! headings, two columns were merged when the text was copied. Then both sections are found, and the lines
//! below have no kind.

use serde::Serialize;

use crate::text::{Text, is_cjk};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Summary,
    Experience,
    Education,
    Skills,
    Projects,
    Certifications,
    Publications,
    Awards,
    Languages,
    Interests,
    Volunteering,
    References,
    Contact,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Section {
    pub kind: Kind,
    pub heading: String,
    pub from_line: usize,
    pub to_line: usize,
}

#[derive(Debug)]
pub struct Sections {
    pub found: Vec<Section>,
    /// The kind of each line, from 0. `None` before the first heading and in merged columns.
    kinds: Vec<Option<Kind>>,
}

impl Sections {
    pub fn find(text: &Text) -> Sections {
        let mut found: Vec<Section> = Vec::new();
        let mut kinds = Vec::with_capacity(text.lines.len());
        let mut open: Vec<usize> = Vec::new();
        for (at, line) in text.lines.iter().enumerate() {
            let headings = headings(line);
            if !headings.is_empty() {
                open.clear();
                for (kind, heading) in headings {
                    open.push(found.len());
                    found.push(Section { kind, heading, from_line: at + 1, to_line: at + 1 });
                }
            }
            if !line.trim().is_empty() {
                for &section in &open {
                    found[section].to_line = at + 1;
                }
            }
            kinds.push(if let [only] = open[..] { Some(found[only].kind) } else { None });
        }
        Sections { found, kinds }
    }

    /// The kind of the section of a line. The first line is 1.
    pub fn of_line(&self, line: usize) -> Option<Kind> {
        self.kinds.get(line.wrapping_sub(1)).copied().flatten()
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.found.iter().any(|section| section.kind == kind)
    }
}

/// The known phrases of each kind, in lower case and without `&` and `and`, as [`bare`] gives them.
#[rustfmt::skip] // one paragraph per kind
const HEADINGS: &[(Kind, &[&str])] = &[
    (Kind::Summary, &[
        "summary", "professional summary", "career summary", "executive summary", "profile",
        "professional profile", "personal profile", "about", "about me", "objective", "career objective",
        "个人简介", "自我评价", "个人总结", "自我介绍", "个人评价", "求职意向", "个人优势", "职业概述",
    ]),
    (Kind::Experience, &[
        "experience", "work experience", "professional experience", "employment", "employment history",
        "work history", "career history", "relevant experience", "industry experience", "research experience",
        "teaching experience", "teaching", "academic appointments", "appointments", "positions",
        "internships", "internship experience", "internship", "previous career", "工作经历", "工作经验", "职业经历",
        "实习经历", "实习经验", "任职经历", "工作履历", "从业经历",
    ]),
    (Kind::Education, &[
        "education", "academic background", "educational background", "education training",
        "academic qualifications", "qualifications", "studies", "教育背景", "教育经历", "学历", "学历背景", "教育", "教育程度",
    ]),
    (Kind::Skills, &[
        "skills", "technical skills", "core skills", "key skills", "skills tools", "core competencies",
        "competencies", "technologies", "tech stack", "technical expertise", "expertise", "tools", "专业技能",
        "技能", "技能清单", "技术栈", "个人技能", "掌握技能", "技能特长", "职业技能", "技术能力",
    ]),
    (Kind::Projects, &[
        "projects", "personal projects", "selected projects", "key projects", "project experience",
        "side projects", "course projects", "academic projects", "open source", "项目经历", "项目经验", "项目", "个人项目",
        "课程项目", "开源项目",
    ]),
    (Kind::Certifications, &[
        "certifications", "certificates", "licenses", "licenses certifications", "courses", "training", "证书",
        "资格证书", "技能证书", "培训经历",
    ]),
    (Kind::Publications, &[
        "publications", "selected publications", "papers", "research", "research interests", "presentations",
        "invited talks", "grants", "论文", "发表论文", "学术成果", "研究方向",
    ]),
    (Kind::Awards, &[
        "awards", "honors", "honours", "honors awards", "awards honors", "achievements", "scholarships",
        "获奖经历", "荣誉奖项", "荣誉", "奖项", "所获荣誉", "获奖情况",
    ]),
    (Kind::Languages, &[
        "languages", "language skills", "语言能力", "语言", "外语水平",
    ]),
    (Kind::Interests, &[
        "interests", "hobbies", "hobbies interests", "interests hobbies", "activities", "兴趣爱好", "爱好",
    ]),
    (Kind::Volunteering, &[
        "volunteering", "volunteer experience", "volunteer work", "community", "志愿者经历", "校园经历", "社会实践",
        "社团经历",
    ]),
    (Kind::References, &[
        "references", "referees", "推荐人",
    ]),
    (Kind::Contact, &[
        "contact", "contact information", "contact details", "personal details", "personal information",
        "基本信息", "个人信息", "联系方式",
    ]),
];

fn headings(line: &str) -> Vec<(Kind, String)> {
    let trimmed = line.trim();
    if let Some(kind) = heading(trimmed) {
        return vec![(kind, bare(trimmed))];
    }
    if let Some((front, _)) = trimmed.split_once(':')
        && let Some(kind) = heading(front)
        // "Languages: Rust, Go" in the skills, and "Contact: …", are labels, not headings.
        && !matches!(kind, Kind::Languages | Kind::Contact | Kind::References)
        && !is_label(front)
    {
        return vec![(kind, bare(front))];
    }
    let columns: Vec<&str> = trimmed
        .split('\t')
        .flat_map(|part| part.split("   "))
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    if columns.len() < 2 {
        return Vec::new();
    }
    let found: Vec<(Kind, String)> =
        columns.iter().filter_map(|part| Some((heading(part)?, bare(part)))).collect();
    // A known phrase beside other text may be anything. Two known phrases are two columns.
    if found.len() >= 2 { found } else { Vec::new() }
}

/// Phrases that, before a colon, describe only their line, and not the lines below.
fn is_label(front: &str) -> bool {
    matches!(
        bare(front).to_lowercase().as_str(),
        "experience"
            | "tools"
            | "technologies"
            | "tech stack"
            | "学历"
            | "技术栈"
            | "项目"
            | "语言"
            | "教育"
            | "教育程度"
            | "about"
            | "training"
            | "courses"
    )
}

fn heading(part: &str) -> Option<Kind> {
    let phrase = bare(part).to_lowercase();
    if phrase.is_empty() || phrase.chars().count() > 40 {
        return None;
    }
    let known =
        |phrase: &str| HEADINGS.iter().find(|(_, phrases)| phrases.contains(&phrase)).map(|(kind, _)| *kind);
    // "Summary 个人简介" is one phrase in two languages.
    known(&phrase).or_else(|| {
        let (chinese, other): (String, String) = phrase.chars().partition(|&c| is_cjk(c));
        known(chinese.trim()).filter(|kind| known(other.trim()) == Some(*kind))
    })
}

/// The phrase without decoration, numbering, spaces between letters, `&` and `and`.
fn bare(part: &str) -> String {
    let part = part.trim_matches(|c: char| !c.is_alphanumeric());
    let part = match part.split_once(['.', ',', ' ', ')']) {
        Some((number, rest))
            if number.chars().all(|c| c.is_ascii_digit() || "一二三四五六七八九十".contains(c)) =>
        {
            rest
        }
        _ => part,
    };
    let words: Vec<&str> = part
        .split(|c: char| c.is_whitespace() || c == '&' || c == '/')
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("and"))
        .collect();
    if words.len() > 3 && words.iter().all(|word| word.chars().count() == 1) {
        words.concat()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_seen_through_their_decoration() {
        let table = [
            ("EDUCATION", Some(Kind::Education)),
            ("## Work Experience ##", Some(Kind::Experience)),
            ("== Honors & Awards ==", Some(Kind::Awards)),
            ("E X P E R I E N C E", Some(Kind::Experience)),
            ("【教育背景】", Some(Kind::Education)),
            ("一,工作经历:", Some(Kind::Experience)),
            ("2. Projects", Some(Kind::Projects)),
            ("Summary 个人简介", Some(Kind::Summary)),
            ("Summary 个人技能", None),
            ("Skills: Rust, Go", Some(Kind::Skills)),
            ("Languages: Rust, Go", None),
            ("I have experience in education", None),
            ("Tools of the trade", None),
        ];
        for (line, kind) in table {
            assert_eq!(headings(line).first().map(|(kind, _)| *kind), kind, "{line}");
        }
    }

    #[test]
    fn lines_belong_to_the_section_above_them_unless_columns_ran_together() {
        let content = "Jane Doe, a person with enough of a text to be read by the rules\n\
                       SKILLS\nRust\n\nEDUCATION      EXPERIENCE\nMIT    Acme\n";
        let sections = Sections::find(&Text::read(content).unwrap());
        let found: Vec<_> =
            sections.found.iter().map(|section| (section.kind, section.from_line, section.to_line)).collect();
        assert_eq!(found, [(Kind::Skills, 2, 3), (Kind::Education, 5, 6), (Kind::Experience, 5, 6)]);
        assert_eq!(
            [sections.of_line(1), sections.of_line(3), sections.of_line(6)],
            [None, Some(Kind::Skills), None]
        );
    }
}
