//! Tests that the rules find the right things in each sample resume.
//!
//! In: `samples/*.txt`, which are all invented. Every sample has a row of expectations. The current month is
//! January 2026 in all tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use resume_analyze::analysis::{Analysis, analyze};
use resume_analyze::dates::Month;
use resume_analyze::text::Language::{self, En, Zh};
use resume_analyze::text::Unreadable;

struct Expected {
    sample: &'static str,
    language: Language,
    name: &'static str,
    email: &'static str,
    years: std::ops::RangeInclusive<f64>,
    skills: &'static [&'static str],
    /// The schools in the resume's order, the newest first.
    schools: &'static [&'static str],
    score: std::ops::RangeInclusive<u32>,
}

#[rustfmt::skip]
fn expectations() -> Vec<Expected> {
    let row = |sample, language, name, email, years, skills, schools, score| Expected {
        sample, language, name, email, years, skills, schools, score,
    };
    vec![
        row(
            "one-page-en", En, "Maya Lindqvist", "maya.lindqvist@example.com", 10.2..=10.7,
            &["Rust", "Go", "Kafka", "PostgreSQL", "Kubernetes"],
            &["Riverton University"],
            84..=92,
        ),
        row(
            "one-page-zh", Zh, "陈思远", "chen.siyuan@example.cn", 8.3..=8.8,
            &["Java", "Go", "Redis", "Microservices", "Kubernetes"],
            &["东岭理工大学"],
            85..=93,
        ),
        row(
            "long", En, "Robert J. Whitfield", "robert.whitfield@example.com", 24.0..=25.0,
            &["Java", "Scala", "AWS", "Kafka"],
            &["Narragansett University", "Narragansett University"],
            89..=96,
        ),
        row(
            "messy", En, "Tomasz Wieczorek", "tomasz.wieczorek@example.org", 9.0..=10.0,
            &["React", "TypeScript", "Node.js", "PHP"],
            &["Vistula College"],
            70..=79,
        ),
        row(
            "no-headings", En, "Amara Okonkwo", "amara.okonkwo@example.co.uk", 12.0..=14.5,
            &["Excel", "Power BI", "Project Management"],
            &["University of Eastmoor"],
            55..=65,
        ),
        row(
            "career-changer", En, "Daniel Ferreira", "daniel.ferreira@example.com", 8.5..=9.2,
            &["Python", "SQL", "Tableau"],
            &["Lakeside University", "Lakeside University"],
            82..=90,
        ),
        row(
            "student", En, "Priya Raman", "priya.raman@students.example.edu", 0.1..=0.5,
            &["C", "C++", "Python"],
            &["Deccan Institute of Technology"],
            67..=76,
        ),
        row(
            "academic", En, "Ingrid Solheim", "ingrid.solheim@example.no", 9.5..=10.5,
            &["R", "Python", "Machine Learning"],
            &["Fjordhavn University", "University of Vestland", "University of Vestland"],
            64..=73,
        ),
        row(
            "mixed-language", En, "林嘉怡", "joyce.lin@example.sg", 6.3..=6.8,
            &["SQL", "Tableau", "User Research", "A/B Testing"],
            &["海州大学", "Hillcrest University"],
            78..=86,
        ),
        row(
            "all-caps", En, "Carlos Mendoza-Ruiz", "carlos.mendoza@example.com", 12.3..=12.9,
            &["Excel", "ERP", "Power BI"],
            &["GULF COAST UNIVERSITY"],
            69..=77,
        ),
        row(
            "two-column", En, "Hannah Vogel", "hannah.vogel@example.de", 9.0..=10.0,
            &["Figma", "User Research"],
            &["Spree University"],
            60..=69,
        ),
        row(
            "executive-zh", Zh, "王雅琴", "wang.yaqin@example.com", 8.0..=8.5,
            &["Excel", "Accounting", "Budgeting"],
            &["江南财经大学", "江南财经大学"],
            72..=81,
        ),
    ]
}

fn read(sample: &str) -> String {
    fs::read_to_string(Path::new("samples").join(sample).with_extension("txt")).unwrap()
}

fn run(sample: &str) -> Analysis {
    let analysis = analyze("7", &read(sample), Month::new(2026, 1)).unwrap();
    assert_eq!(
        analysis.score,
        analysis.parts.iter().map(|part| part.score).sum::<u32>(),
        "{sample}: the parts add up"
    );
    assert_eq!(analysis.parts.iter().map(|part| part.max).sum::<u32>(), 100, "{sample}");
    assert!(analysis.parts.iter().all(|part| part.score <= part.max), "{sample}: no part exceeds its most");
    analysis
}

#[test]
fn each_sample_is_understood() {
    let mut problems = Vec::new();
    for expected in expectations() {
        let sample = expected.sample;
        let found = run(sample);
        let mut check = |good: bool, what: String| {
            if !good {
                problems.push(format!("{sample}: {what}"));
            }
        };
        check(found.is_resume, format!("no resume: {}", found.is_resume_because));
        check(found.language == expected.language, format!("language {:?}", found.language));
        check(found.contact.name.as_deref() == Some(expected.name), format!("name {:?}", found.contact.name));
        check(
            found.contact.email.as_deref() == Some(expected.email),
            format!("email {:?}", found.contact.email),
        );
        let years = found.years_of_experience.unwrap_or(0.0);
        check(expected.years.contains(&years), format!("years {years}, {:?}", found.experience));
        for skill in expected.skills {
            check(
                found.skills.iter().any(|other| other.name == *skill),
                format!("no {skill} in {:?}", found.skills),
            );
        }
        let schools: Vec<&str> = found.education.iter().filter_map(|study| study.school.as_deref()).collect();
        check(schools == expected.schools, format!("education {:?}", found.education));
        check(expected.score.contains(&found.score), format!("score {}, {:?}", found.score, found.parts));
        check(found.score >= 90 || !found.suggestions.is_empty(), "nothing to suggest".into());
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_recipe_is_no_resume_and_says_so() {
    let recipe = run("recipe");
    assert!(!recipe.is_resume);
    assert!(recipe.is_resume_because.contains("work experience"), "{}", recipe.is_resume_because);
    assert!(recipe.score <= 15, "{}: {:?}", recipe.score, recipe.parts);
    assert_eq!(recipe.skills, []);
    assert_eq!(recipe.suggestions.len(), 1);
    let worst = expectations().iter().map(|expected| run(expected.sample).score).min().unwrap();
    assert!(worst > recipe.score + 40, "the worst resume has {worst}, the recipe {}", recipe.score);
}

#[test]
fn an_empty_content_is_unreadable() {
    assert_eq!(analyze("7", &read("empty"), Month::new(2026, 1)).unwrap_err(), Unreadable::Empty);
}

#[test]
fn better_resumes_score_better() {
    let scores: BTreeMap<_, _> =
        expectations().iter().map(|expected| (expected.sample, run(expected.sample).score)).collect();
    for (better, worse) in [
        ("one-page-en", "no-headings"),
        ("one-page-zh", "student"),
        ("long", "all-caps"),
        ("career-changer", "two-column"),
    ] {
        assert!(scores[better] > scores[worse], "{better} over {worse}: {scores:?}");
    }
    // The scores separate good resumes from very good ones, and none is perfect.
    let different: BTreeSet<u32> = scores.values().copied().collect();
    assert!(different.len() >= scores.len() - 2, "{scores:?}");
    assert!(
        different.last() < Some(&100)
            && different.last() >= different.first().map(|least| least + 25).as_ref(),
        "{scores:?}"
    );
}

#[test]
fn what_makes_a_resume_better_raises_its_score() {
    let good = read("one-page-en");
    let score = |content: &str| analyze("7", content, Month::new(2026, 1)).unwrap();
    let before = score(&good);
    let part =
        |analysis: &Analysis, name: &str| analysis.parts.iter().find(|part| part.name == name).unwrap().score;
    let without_figures: Vec<String> = good
        .lines()
        .map(|line| {
            if line.trim_start().starts_with(['-', '*', '•']) {
                line.replace(|c: char| c.is_ascii_digit(), "")
            } else {
                line.to_owned()
            }
        })
        .collect();
    for (name, worse) in [
        ("contact", good.replace("maya.lindqvist@example.com", "")),
        ("achievements", without_figures.join("\n")),
        (
            "skills",
            ["Kubernetes", "Kafka", "Go", "Docker", "Rust", "Redis", "PostgreSQL", "Python"]
                .iter()
                .fold(good.clone(), |text, skill| text.replace(skill, "")),
        ),
        ("experience", good.replace("20", "")),
    ] {
        let worse = score(&worse);
        assert!(part(&worse, name) < part(&before, name), "{name}: {:?} and {:?}", worse.parts, before.parts);
        assert!(worse.score < before.score, "{name}");
    }
}

#[test]
fn advice_is_in_the_language_of_the_resume() {
    let chinese = |text: &str| text.chars().any(resume_analyze::text::is_cjk);
    for expected in expectations() {
        let found = run(expected.sample);
        for text in
            found.strengths.iter().chain(&found.suggestions).chain(found.parts.iter().map(|part| &part.why))
        {
            assert_eq!(chinese(text), expected.language == Zh, "{}: {text}", expected.sample);
        }
    }
}

#[test]
fn columns_are_told_from_dates_at_the_margin() {
    assert_eq!(run("two-column").contact.location.as_deref(), Some("Berlin"));
    let form = |sample: &str| run(sample).parts.into_iter().find(|part| part.name == "form").unwrap().why;
    assert!(form("two-column").contains("columns"), "{}", form("two-column"));
    assert!(!form("long").contains("columns"), "{}", form("long"));
}

#[test]
fn a_period_in_a_summary_counts_only_without_a_section_of_experience() {
    let rest = format!("\nSkills\n{}", "Rust, Redis and PostgreSQL\n".repeat(10));
    let years =
        |text: &str| analyze("7", &format!("{text}{rest}"), Month::new(2026, 1)).unwrap().years_of_experience;
    let summary = "Jane Roe\njane@example.com\n\nSummary\nEngineer at Acme, 2005 - 2010\n";
    let experience = "\nExperience\nEngineer at Beta, 2020 - 2021\n";
    assert!(years(summary) > years(experience), "{:?} and {:?}", years(summary), years(experience));
    assert_eq!(years(&format!("{summary}{experience}")), years(experience));
}

#[test]
fn every_sample_is_tested() {
    let mut tested: Vec<String> = expectations().iter().map(|expected| expected.sample.to_string()).collect();
    tested.extend(["recipe".into(), "empty".into()]);
    for entry in fs::read_dir("samples").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(tested.contains(&name), "{name} has no expectations");
    }
}

#[test]
fn the_result_is_json_with_stable_names() {
    let json = serde_json::to_value(run("one-page-en")).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = vec![
        "method",
        "resumeId",
        "language",
        "isResume",
        "isResumeBecause",
        "score",
        "parts",
        "strengths",
        "suggestions",
        "contact",
        "yearsOfExperience",
        "experience",
        "education",
        "skills",
        "sections",
        "words",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(
        (&json["method"], &json["language"], &json["resumeId"]),
        (&"rules".into(), &"en".into(), &"7".into())
    );
    assert_eq!(
        json["experience"]["periods"][0],
        serde_json::json!({ "from": "2021-03", "to": "2026-01", "present": true })
    );
}
