//! Scores the resume as a document, from 0 to 100, and suggests how to make it better.
//!
//! In: the [`Facts`]. Out: seven [`Part`]s, whose scores add up to the score; the strengths; and the
//! suggestions, the most useful first. Each part has its maximum and a reason. All texts are in the resume's
//! language.
//!
//! | part | most | looks at |
//! |---|---|---|
//! | contact | 15 | name, email, phone, place, link |
//! | structure | 15 | headings a reader looks for |
//! | experience | 25 | dated work (9), its years (8), lines of description for each position (8) |
//! | achievements | 15 | lines with figures (7), their share (4), lines with verbs of action (4) |
//! | skills | 15 | their number (8), the number of kinds (3), the number that is named again (4) |
//! | education | 5 | degree, school, field, years |
//! | form | 10 | length, capitals, very long lines, columns |
//!
//! Years, lines and skills have no upper limit, so each further one earns fewer points. A fair number of them
//! earns half of the points, and no number earns all of them. So a very good resume scores higher than a good
//! one, and few resumes come close to 100. A text that is not a resume gets no points for achievements and
//! form.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde::Serialize;

use crate::education::{Level, Study};
use crate::facts::Facts;
use crate::sections::Kind;
use crate::text::{Language, is_cjk};

/// The parts in their order, with their maximum.
pub const PARTS: [(&str, u32); 7] = [
    ("contact", 15),
    ("structure", 15),
    ("experience", 25),
    ("achievements", 15),
    ("skills", 15),
    ("education", 5),
    ("form", 10),
];

#[derive(Debug, Serialize)]
pub struct Part {
    pub name: &'static str,
    pub score: u32,
    pub max: u32,
    pub why: String,
}

/// A part, its strength if it is good, and suggestions if it is not.
struct Judged {
    part: Part,
    strength: Option<String>,
    suggestions: Vec<String>,
}

impl Judged {
    /// Limits the points to the part's maximum and rounds them. Nothing else rounds them.
    fn new(name: &'static str, points: f64, why: String) -> Judged {
        let max = PARTS.iter().find(|(other, _)| *other == name).map_or(0, |(_, max)| *max);
        let score = points.clamp(0.0, f64::from(max)).round() as u32;
        Judged { part: Part { name, score, max, why }, strength: None, suggestions: Vec::new() }
    }

    fn strong(mut self, strong: bool, strength: impl FnOnce() -> String) -> Judged {
        self.strength = strong.then(strength);
        self
    }

    fn advise(mut self, weak: bool, suggestion: impl FnOnce() -> String) -> Judged {
        self.suggestions.extend(weak.then(suggestion));
        self
    }
}

/// Rises from 0 towards 1 with `value`, ever more slowly. It is 0.5 at `half`.
fn rise(value: f64, half: f64) -> f64 {
    value / (value + half)
}

/// The points for the rows that a resume has, and the names of those that are missing.
struct Checklist {
    points: f64,
    missing: Option<String>,
}

impl Checklist {
    fn of(language: Language, rows: &[(u32, bool, &'static str, &'static str)]) -> Checklist {
        let points: u32 = rows.iter().filter(|(_, found, ..)| *found).map(|(points, ..)| points).sum();
        let missing: Vec<&str> =
            rows.iter().filter(|(_, found, ..)| !found).map(|(.., en, zh)| language.pick(en, zh)).collect();
        let missing = (!missing.is_empty()).then(|| missing.join(language.pick(", ", "、")));
        Checklist { points: points.into(), missing }
    }

    /// `intact` if nothing is missing, otherwise `lacking` and the missing names.
    fn why(&self, intact: &str, lacking: &str) -> String {
        self.missing.as_ref().map_or_else(|| intact.to_owned(), |missing| format!("{lacking}{missing}"))
    }

    fn judged(
        self,
        name: &'static str,
        language: Language,
        why: String,
        strength: &str,
        advice: &str,
    ) -> Judged {
        let judged =
            Judged::new(name, self.points, why).strong(self.missing.is_none(), || strength.to_owned());
        judged.advise(self.missing.is_some(), || {
            format!("{advice}{}{}", self.missing.unwrap_or_default(), language.pick(".", "。"))
        })
    }
}

pub fn score(facts: &Facts<'_>) -> (Vec<Part>, Vec<String>, Vec<String>) {
    let judged = [
        contact(facts),
        structure(facts),
        experience(facts),
        achievements(facts),
        skills(facts),
        education(facts),
        form(facts),
    ];
    if !facts.is_resume {
        let advice = facts.text.language.say(
            "Send the text of a resume: this does not look like one.",
            "请提交简历文本：当前内容不像简历。",
        );
        return (judged.into_iter().map(|judged| judged.part).collect(), Vec::new(), vec![advice]);
    }
    let mut parts = Vec::new();
    let mut strengths = Vec::new();
    let mut suggestions = Vec::new();
    for Judged { part, strength, suggestions: todo } in judged {
        strengths.extend(strength);
        suggestions.extend(todo.into_iter().map(|todo| (part.max - part.score, todo)));
        parts.push(part);
    }
    // The suggestions for the part with the most missing points come first.
    suggestions.sort_by_key(|(missing, _)| std::cmp::Reverse(*missing));
    (parts, strengths, suggestions.into_iter().map(|(_, todo)| todo).collect())
}

fn contact(facts: &Facts<'_>) -> Judged {
    let (language, found) = (facts.text.language, facts.contact);
    let list = Checklist::of(
        language,
        &[
            (4, found.name.is_some(), "name", "姓名"),
            (4, found.email.is_some(), "email", "邮箱"),
            (3, found.phone.is_some(), "phone", "电话"),
            (2, found.location.is_some(), "location", "所在地"),
            (2, !found.links.is_empty(), "a link to your work or profile", "个人主页或作品链接"),
        ],
    );
    let why = list.why(language.pick("complete", "完整"), language.pick("not found: ", "未找到："));
    let strength = language.pick("Complete contact details.", "联系方式完整。");
    list.judged("contact", language, why, strength, language.pick("Add to the top: ", "请在开头补充："))
}

fn structure(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let has = |kind| facts.sections.has(kind);
    let more = [Kind::Certifications, Kind::Publications, Kind::Awards, Kind::Languages, Kind::Volunteering];
    let list = Checklist::of(
        language,
        &[
            (5, has(Kind::Experience) || has(Kind::Projects), "experience", "工作经历"),
            (3, has(Kind::Education), "education", "教育背景"),
            (3, has(Kind::Skills), "skills", "专业技能"),
            (2, has(Kind::Summary), "summary", "个人简介"),
            (
                2,
                (has(Kind::Projects) && has(Kind::Experience)) || more.into_iter().any(has),
                "projects, certificates, awards or languages",
                "项目、证书、奖项或语言",
            ),
        ],
    );
    let why = list.why(
        language.pick("all expected headings are there", "常见标题齐全"),
        language.pick("no heading for: ", "缺少标题："),
    );
    let strength = language.pick("Clear sections that are easy to read.", "结构清晰，便于阅读。");
    let advice = language.pick("Give each of these a heading of its own: ", "请用单独的标题列出：");
    list.judged("structure", language, why, strength, advice)
}

fn experience(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let dated = facts.experience.years_from_dates.is_some();
    let years = facts.experience.years().unwrap_or(0.0);
    let positions = facts.experience.periods.len();
    let said = described(facts).count() as f64 / positions.max(1) as f64;
    let points = if dated { 9.0 } else { 0.0 }
        + 8.0 * rise(years, 2.0)
        + if years > 0.0 { 8.0 * rise(said, 1.5) } else { 0.0 };
    let figure = format!("{years:.1}");
    let why = match (dated, years > 0.0) {
        (true, _) => language.say(
            &format!("{figure} years in dated periods, {said:.1} lines on each"),
            &format!("按起止时间计算约{figure}年，每段经历约{said:.1}行描述"),
        ),
        (false, true) => language.say(
            &format!("{figure} years stated, no dated periods"),
            &format!("自述{figure}年，未写起止时间"),
        ),
        (false, false) => language.say("no dated work found", "未找到带起止时间的工作经历"),
    };
    let stated = facts.experience.years_stated.filter(|stated| dated && f64::from(*stated) > years + 2.0);
    Judged::new("experience", if facts.is_resume { points } else { 0.0 }, why)
        .strong(years >= 5.0 && dated, || {
            language.say(
                &format!("{figure} years of dated experience."),
                &format!("约{figure}年经历，时间清楚。"),
            )
        })
        .advise(!dated, || {
            language.say(
                "Give every position a start and an end, such as \"Mar 2021 - Present\".",
                "请为每段经历写明起止时间，例如“2021.03 - 至今”。",
            )
        })
        .advise(stated.is_some(), || {
            let stated = stated.unwrap_or_default();
            language.say(
                &format!(
                    "The text states {stated} years, but the dated positions add up to {figure}: make them \
                     agree."
                ),
                &format!("文中自述{stated}年经验，而各段经历合计约{figure}年，请保持一致。"),
            )
        })
        .advise(dated && said < 2.0, || {
            language.say(
                "Say more about each position: two or three points about what you did.",
                "请为每段经历补充两三条具体内容。",
            )
        })
}

/// The lines that describe work: they are long enough, and are not a date or a list of skills or schools.
fn described<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a str> {
    let Facts { text, sections, .. } = *facts;
    text.filled().filter_map(|(number, line)| {
        let kind = sections.of_line(number);
        let apart = matches!(
            kind,
            Some(
                Kind::Education
                    | Kind::Skills
                    | Kind::Contact
                    | Kind::References
                    | Kind::Languages
                    | Kind::Interests
                    | Kind::Summary
            )
        );
        let long = line.chars().map(|c| 1 + usize::from(is_cjk(c))).sum::<usize>() >= 24;
        (!apart && long && (!YEAR.is_match(line) || VERB.is_match(line))).then_some(line)
    })
}

static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\d\s?%|[$€£¥]\s?\d",
        r"|\d\s?(?:k|m|x|ms|million|billion|users|customers|people|students|engineers|requests|qps|tps",
        r"|gb|tb)\b",
        r"|\b\d{1,3}(?:,\d{3})+\b",
        r"|\d+\s?(?:万|亿|倍|人|次|毫秒|台|家|篇|项)|\bby (?:half|\d+)\b|\bfrom \d+\S* \S* ?to \d+",
    ))
    .expect("a valid expression")
});

static YEAR: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:19|20)\d\d").expect("a valid expression"));

static VERB: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(?:led|built|designed|developed|launched|reduced|increased|improved|created|implemented",
        r"|managed|delivered|migrated|automated|taught|won|founded|grew|saved|cut|raised|published",
        r"|organized|organised|introduced|shipped|wrote|mentored|optimized|negotiated|trained|supervised",
        r"|coordinated)\b",
        r"|负责|主导|设计|开发|优化|搭建|实现|推动|提升|降低|带领|完成|参与|撰写|组织|重构",
    ))
    .expect("a valid expression")
});

fn achievements(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    if !facts.is_resume {
        return Judged::new("achievements", 0.0, language.say("not judged", "未评估"));
    }
    let lines: Vec<&str> = described(facts).collect();
    let figures = lines.iter().filter(|line| FIGURE.is_match(line)).count();
    let verbs = lines.iter().filter(|line| VERB.is_match(line)).count();
    // The share is full if half of all lines have a figure.
    let share = (2.0 * figures as f64 / lines.len().max(1) as f64).min(1.0);
    // With fewer than three lines, the share says little, so it counts for a third.
    let share = if lines.len() < 3 { share / 3.0 } else { share };
    let why = language.say(
        &format!("{figures} of {} lines have figures, {verbs} describe an action", lines.len()),
        &format!("{}行描述中，{figures}行含量化结果，{verbs}行描述具体行动", lines.len()),
    );
    Judged::new(
        "achievements",
        7.0 * rise(figures as f64, 1.5) + 4.0 * share + 4.0 * rise(verbs as f64, 2.0),
        why,
    )
    .strong(figures >= 4, || language.say("Results are shown in figures.", "成果有量化数据支撑。"))
    .advise(figures < 3, || {
        language.say(
            "Show results in figures: how much faster, how many users, how much saved.",
            "请用数字说明成果，例如性能提升比例、用户规模、节省成本。",
        )
    })
    .advise(verbs < 4, || {
        language.say(
            "Begin lines with what you did: built, led, reduced.",
            "请用“主导、设计、优化”等动词说明自己的具体工作。",
        )
    })
}

fn skills(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let count = facts.skills.len();
    let mut kinds: Vec<_> = facts.skills.iter().map(|skill| skill.category).collect();
    kinds.dedup(); // they are sorted by category
    let again = facts.skills.iter().filter(|skill| skill.mentions > 1).count();
    let why = language.say(
        &format!("{count} known skills of {} kinds, {again} named more than once", kinds.len()),
        &format!("识别出{count}项技能，分属{}类，其中{again}项多次提及", kinds.len()),
    );
    let points = 8.0 * rise(count as f64, 4.0)
        + 3.0 * (kinds.len() as f64 / 6.0).min(1.0)
        + 4.0 * rise(again as f64, 1.5);
    Judged::new("skills", points, why)
        .strong(count >= 10, || {
            let names: Vec<&str> = facts.skills.iter().take(5).map(|skill| skill.name.as_ref()).collect();
            language.say(
                &format!("A broad set of skills, among them {}.", names.join(", ")),
                &format!("技能全面，包括{}等。", names.join("、")),
            )
        })
        .advise(count < 5, || {
            language.say("Name the tools and methods you work with.", "请列出熟练使用的工具与技术。")
        })
        .advise(count >= 5 && again < 2, || {
            language.say(
                "Do not only list your main skills: say where you used them.",
                "除列出技能外，请说明主要技能用在了哪些工作中。",
            )
        })
}

fn education(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let any = |has: fn(&Study) -> bool| facts.education.iter().any(has);
    let list = Checklist::of(
        language,
        &[
            (2, any(|study| study.degree.is_some()), "degree", "学历"),
            (1, any(|study| study.school.is_some()), "school", "学校"),
            (1, any(|study| study.field.is_some()), "field", "专业"),
            (1, any(|study| study.to.is_some()), "years", "就读时间"),
        ],
    );
    let why = if facts.education.is_empty() {
        language.say("none found", "未找到教育信息")
    } else {
        list.why(language.pick("complete", "完整"), language.pick("not found: ", "未找到："))
    };
    let advice = language.pick("Add to your education: ", "教育经历请补充：");
    let judged = list.judged("education", language, why, "", advice);
    judged.strong(any(|study| study.level >= Some(Level::Master)), || {
        language.say("An advanced degree.", "拥有硕士及以上学历。")
    })
}

fn form(facts: &Facts<'_>) -> Judged {
    let (language, text) = (facts.text.language, facts.text);
    if !facts.is_resume {
        return Judged::new("form", 0.0, language.say("not judged", "未评估"));
    }
    let very_long_line =
        text.filled().any(|(_, line)| line.chars().map(|c| 1 + usize::from(is_cjk(c))).sum::<usize>() > 600);
    // Dates at the right margin are not a column.
    let column = |line: &str| {
        line.split("    ").filter(|part| !part.trim().is_empty()).count() >= 2 && !YEAR.is_match(line)
    };
    let columns = text.filled().filter(|(_, line)| column(line)).count() >= 6;
    // A full page has about 250 words. A text with less loses points, at most 5 at 80 words.
    let short = (250.0 - text.words as f64).clamp(0.0, 170.0) / 34.0;
    let rows = [
        (
            text.words < 120,
            0.0,
            "very short",
            "篇幅过短",
            "Say more about what you did and learned.",
            "内容偏少，请补充经历细节。",
        ),
        (
            (120..200).contains(&text.words),
            0.0,
            "a little short",
            "篇幅略短",
            "There is room on the page: say more about your best results.",
            "篇幅尚有余地，可补充最有代表性的成果。",
        ),
        (
            text.words > 1800,
            3.0,
            "long",
            "篇幅过长",
            "Cut it to what matters for the position.",
            "篇幅较长，请精简与岗位无关的内容。",
        ),
        (
            text.all_caps,
            3.0,
            "all in capitals",
            "全部为大写字母",
            "Use normal case: capitals are hard to read.",
            "请使用正常大小写。",
        ),
        (
            very_long_line,
            3.0,
            "paragraphs without breaks",
            "段落过长",
            "Break long paragraphs into short points.",
            "请将长段落拆分为要点。",
        ),
        (
            columns,
            3.0,
            "columns run together",
            "分栏内容混在一起",
            "Send it in a single column.",
            "请使用单栏排版。",
        ),
    ];
    let faults: Vec<_> = rows.into_iter().filter(|(found, ..)| *found).collect();
    let cost: f64 = faults.iter().map(|(_, cost, ..)| cost).sum();
    let named: Vec<&str> = faults.iter().map(|(_, _, en, zh, ..)| language.pick(en, zh)).collect();
    let why = if named.is_empty() {
        language.say("good length, easy to read", "篇幅合适，易于阅读")
    } else {
        named.join(language.pick(", ", "、"))
    };
    let judged = Judged::new("form", 10.0 - short - cost, why);
    faults.into_iter().fold(judged, |judged, (.., en, zh)| judged.advise(true, || language.say(en, zh)))
}
