//! How good the resume is as a document, out of 100, and what would make it better.
//!
//! In: the [`Facts`]. Out: seven [`Part`]s whose scores add up to the whole, each with its most and why; what is strong; what to do, the most
//! useful first. All texts are in the resume's language.
//!
//! | part | most | looks at |
//! |---|---|---|
//! | contact | 15 | name, email, phone, place or link |
//! | structure | 15 | headings a reader looks for |
//! | experience | 25 | dated work, and how much of it |
//! | achievements | 15 | lines with figures, verbs of doing |
//! | skills | 15 | how many, of how many kinds |
//! | education | 5 | degree and school |
//! | form | 10 | length, capitals, very long lines |
//!
//! What is no resume gets nothing for achievements and form: figures and length say nothing there.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde::Serialize;

use crate::analysis::Facts;
use crate::sections::Kind;
use crate::text::is_cjk;

#[derive(Debug, Serialize)]
pub struct Part {
    pub name: &'static str,
    pub score: u32,
    pub max: u32,
    pub why: String,
}

/// A part, the strength it shows when it is good, and what to do when it is not.
struct Judged {
    part: Part,
    strength: Option<String>,
    suggestions: Vec<String>,
}

pub fn score(facts: &Facts<'_>) -> (Vec<Part>, Vec<String>, Vec<String>) {
    let judged = [contact(facts), structure(facts), experience(facts), achievements(facts), skills(facts), education(facts), form(facts)];
    if !facts.is_resume {
        let advice =
            facts.text.language.say("Send the text of a resume: this does not look like one.", "请提交简历文本：当前内容不像简历。");
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
    // Where most points are missing comes first.
    suggestions.sort_by_key(|(missing, _)| std::cmp::Reverse(*missing));
    (parts, strengths, suggestions.into_iter().map(|(_, todo)| todo).collect())
}

fn contact(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let found = facts.contact;
    let rows = [
        (4, found.name.is_some(), "name", "姓名"),
        (5, found.email.is_some(), "email", "邮箱"),
        (4, found.phone.is_some(), "phone", "电话"),
        (2, found.location.is_some() || !found.links.is_empty(), "location or link", "所在地或个人链接"),
    ];
    let missing: Vec<&str> = rows
        .iter()
        .filter(|(_, found, ..)| !found)
        .map(|(.., en, zh)| if language == crate::text::Language::Zh { *zh } else { *en })
        .collect();
    let list = missing.join(&language.say(", ", "、"));
    let why = if missing.is_empty() { language.say("complete", "完整") } else { language.say("not found: ", "未找到：") + &list };
    Judged {
        part: Part { name: "contact", score: rows.iter().filter(|(_, found, ..)| *found).map(|(points, ..)| points).sum(), max: 15, why },
        strength: missing.is_empty().then(|| language.say("Complete contact details.", "联系方式完整。")),
        suggestions: if missing.is_empty() {
            vec![]
        } else {
            vec![language.say("Add to the top: ", "请在开头补充：") + &list + &language.say(".", "。")]
        },
    }
}

fn structure(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let has = |kind| facts.sections.has(kind);
    let rows = [
        (5, has(Kind::Experience) || has(Kind::Projects), "experience", "工作经历"),
        (4, has(Kind::Education), "education", "教育背景"),
        (4, has(Kind::Skills), "skills", "专业技能"),
        (
            2,
            has(Kind::Summary) || (has(Kind::Projects) && has(Kind::Experience)) || has(Kind::Publications),
            "summary or projects",
            "个人简介或项目经历",
        ),
    ];
    let missing: Vec<&str> = rows
        .iter()
        .filter(|(_, found, ..)| !found)
        .map(|(.., en, zh)| if language == crate::text::Language::Zh { *zh } else { *en })
        .collect();
    let list = missing.join(&language.say(", ", "、"));
    let why = if missing.is_empty() {
        language.say("all expected headings are there", "常见标题齐全")
    } else {
        language.say("no heading for: ", "缺少标题：") + &list
    };
    Judged {
        part: Part { name: "structure", score: rows.iter().filter(|(_, found, ..)| *found).map(|(points, ..)| points).sum(), max: 15, why },
        strength: missing.is_empty().then(|| language.say("Clear sections, easy to find one's way in.", "结构清晰，便于阅读。")),
        suggestions: if missing.is_empty() {
            vec![]
        } else {
            vec![language.say("Give each of these a heading of its own: ", "请用单独的标题列出：") + &list + &language.say(".", "。")]
        },
    }
}

fn experience(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let dated = facts.experience.years_from_dates;
    let years = facts.experience.years().unwrap_or(0.0);
    // Ten for dated periods, the rest by years up to eight: beyond that more years make no better resume.
    let points = if dated.is_some() { 10.0 } else { 0.0 } + (years / 8.0).min(1.0) * 15.0;
    let figure = format!("{years:.1}");
    let why = match (dated, years > 0.0) {
        (Some(_), _) => language.say(&format!("{figure} years in dated periods"), &format!("按起止时间计算约{figure}年")),
        (None, true) => language.say(&format!("{figure} years stated, no dated periods"), &format!("自述{figure}年，未写起止时间")),
        (None, false) => language.say("no dated work found", "未找到带起止时间的工作经历"),
    };
    let mut suggestions = Vec::new();
    if dated.is_none() {
        suggestions.push(language.say(
            "Give every position a start and an end, such as \"Mar 2021 - Present\".",
            "请为每段经历写明起止时间，例如“2021.03 - 至今”。",
        ));
    } else if let Some(stated) = facts.experience.years_stated.filter(|stated| f64::from(*stated) > years + 2.0) {
        suggestions.push(language.say(
            &format!("The text states {stated} years, the dated positions add up to {figure}: make them agree."),
            &format!("文中自述{stated}年经验，而各段经历合计约{figure}年，请保持一致。"),
        ));
    }
    Judged {
        part: Part { name: "experience", score: if facts.is_resume { points.round() as u32 } else { 0 }, max: 25, why },
        strength: (years >= 5.0 && dated.is_some())
            .then(|| language.say(&format!("{figure} years of dated experience."), &format!("约{figure}年经历，时间清楚。"))),
        suggestions,
    }
}

static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\d\s?%|[$€£¥]\s?\d|\d\s?(?:k|m|x|ms|million|billion|users|customers|people|students|engineers|requests|qps|tps|gb|tb)\b|\b\d{1,3}(?:,\d{3})+\b",
        r"|\d+\s?(?:万|亿|倍|人|次|毫秒|台|家|篇|项)|\bby (?:half|\d+)\b|\bfrom \d+\S* \S* ?to \d+",
    ))
    .expect("a valid expression")
});

static YEAR: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:19|20)\d\d").expect("a valid expression"));

static VERB: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(?:led|built|designed|developed|launched|reduced|increased|improved|created|implemented|managed|delivered|migrated|automated|taught|won|",
        r"founded|grew|saved|cut|raised|published|organized|organised|introduced|shipped|wrote|mentored|optimized|negotiated|trained|supervised|coordinated)\b",
        r"|负责|主导|设计|开发|优化|搭建|实现|推动|提升|降低|带领|完成|参与|撰写|组织|重构",
    ))
    .expect("a valid expression")
});

fn achievements(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let lines = || {
        facts.text.filled().filter(|(number, line)| {
            !matches!(facts.sections.of_line(*number), Some(Kind::Education | Kind::Skills | Kind::Contact | Kind::References))
                && line.chars().count() >= 8
        })
    };
    let figures = lines().filter(|(_, line)| FIGURE.is_match(line)).count();
    let verbs = lines().filter(|(_, line)| VERB.is_match(line)).count();
    let points = if facts.is_resume { (figures.min(5) * 2 + verbs.min(5)) as u32 } else { 0 };
    let why = if facts.is_resume {
        language.say(
            &format!("{figures} lines with figures, {verbs} with what was done"),
            &format!("{figures}行含量化结果，{verbs}行描述具体行动"),
        )
    } else {
        language.say("not judged", "未评估")
    };
    let mut suggestions = Vec::new();
    if figures < 3 {
        suggestions.push(language.say(
            "Show results in figures: how much faster, how many users, how much saved.",
            "请用数字说明成果，例如性能提升比例、用户规模、节省成本。",
        ));
    }
    if verbs < 4 {
        suggestions
            .push(language.say("Begin lines with what you did: built, led, reduced.", "请用“主导、设计、优化”等动词说明自己的具体工作。"));
    }
    Judged {
        part: Part { name: "achievements", score: points, max: 15, why },
        strength: (figures >= 4).then(|| language.say("Results are shown in figures.", "成果有量化数据支撑。")),
        suggestions,
    }
}

fn skills(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let count = facts.skills.len();
    let mut kinds: Vec<_> = facts.skills.iter().map(|skill| skill.category).collect();
    kinds.dedup(); // they are sorted by category
    let points = (count.min(10) + kinds.len().min(5)) as u32;
    let why =
        language.say(&format!("{count} known skills of {} kinds", kinds.len()), &format!("识别出{count}项技能，分属{}类", kinds.len()));
    Judged {
        part: Part { name: "skills", score: points, max: 15, why },
        strength: (count >= 10).then(|| {
            let names: Vec<&str> = facts.skills.iter().take(5).map(|skill| skill.name).collect();
            language.say(
                &format!("A broad set of skills, among them {}.", names.join(", ")),
                &format!("技能全面，包括{}等。", names.join("、")),
            )
        }),
        suggestions: if count < 5 {
            vec![language.say("Name the tools and methods you work with.", "请列出熟练使用的工具与技术。")]
        } else {
            vec![]
        },
    }
}

fn education(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let degree = facts.education.iter().any(|study| study.degree.is_some());
    let school = facts.education.iter().any(|study| study.school.is_some());
    let why = match (degree, school) {
        (true, true) => language.say("degree and school", "学历与学校齐全"),
        (false, true) => language.say("a school without a degree", "有学校，未写学历"),
        (true, false) => language.say("a degree without a school", "有学历，未写学校"),
        (false, false) => language.say("none found", "未找到教育信息"),
    };
    let complete = degree && school;
    Judged {
        part: Part { name: "education", score: u32::from(degree) * 3 + u32::from(school) * 2, max: 5, why },
        strength: facts
            .education
            .iter()
            .any(|study| study.level >= Some(crate::education::Level::Master))
            .then(|| language.say("An advanced degree.", "拥有硕士及以上学历。")),
        suggestions: if complete {
            vec![]
        } else {
            vec![language.say("Name degree, school and years of your education.", "请写明学历、学校与就读时间。")]
        },
    }
}

fn form(facts: &Facts<'_>) -> Judged {
    let language = facts.text.language;
    let text = facts.text;
    let mut points = 10u32;
    let mut faults = Vec::new();
    let mut suggestions = Vec::new();
    let mut fault = |cost: u32, fault: String, todo: String| {
        points = points.saturating_sub(cost);
        faults.push(fault);
        suggestions.push(todo);
    };
    if text.words < 120 {
        fault(
            5,
            language.say("very short", "篇幅过短"),
            language.say("Say more about what you did and learned.", "内容偏少，请补充经历细节。"),
        );
    } else if text.words > 1800 {
        fault(
            3,
            language.say("long", "篇幅过长"),
            language.say("Cut it to what matters for the position.", "篇幅较长，请精简与岗位无关的内容。"),
        );
    }
    if text.all_caps {
        fault(
            4,
            language.say("all in capitals", "全部为大写字母"),
            language.say("Use normal case: capitals are hard to read.", "请使用正常大小写。"),
        );
    }
    if text.filled().any(|(_, line)| line.chars().map(|c| 1 + usize::from(is_cjk(c))).sum::<usize>() > 600) {
        fault(
            3,
            language.say("paragraphs without breaks", "段落过长"),
            language.say("Break long paragraphs into short points.", "请将长段落拆分为要点。"),
        );
    }
    // Dates at the right margin are no column.
    let column = |line: &str| line.split("    ").filter(|part| !part.trim().is_empty()).count() >= 2 && !YEAR.is_match(line);
    if text.filled().filter(|(_, line)| column(line)).count() >= 6 {
        fault(3, language.say("columns run together", "分栏内容混在一起"), language.say("Send it in a single column.", "请使用单栏排版。"));
    }
    let (score, why) = if !facts.is_resume {
        (0, language.say("not judged", "未评估"))
    } else if faults.is_empty() {
        (points, language.say("good length, easy to read", "篇幅合适，易于阅读"))
    } else {
        (points, faults.join(&language.say(", ", "、")))
    };
    Judged { part: Part { name: "form", score, max: 10, why }, strength: None, suggestions }
}
