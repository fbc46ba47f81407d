//! The contact details of the resume's owner.
//!
//! In: the text. Out: a [`Contact`] with name, email, phone, location and links. A field is `None` if no rule
//! finds it.
//!
//! Emails and links count everywhere. A name, a place, and a phone number without a label count only near the
//! top, where people write them.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde::Serialize;

use crate::text::{Text, is_cjk};

/// The number of lines with text that count as the top.
const TOP_LINES: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Contact {
    pub name: Option<String>,
    pub email: Option<String>,
    pub phone: Option<String>,
    pub location: Option<String>,
    pub links: Vec<String>,
}

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("a valid expression")
}

static EMAIL: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"(?i)([a-z0-9._%+-]+)(?:@|\s*[\[(]\s*at\s*[\])]\s*)([a-z0-9-]+(?:\.[a-z0-9-]+)+)")
});
static LINK: LazyLock<Regex> = LazyLock::new(|| {
    expression(concat!(
        r"(?i)(?:https?://|www\.",
        r"|(?:github|gitlab|gitee|linkedin|orcid|scholar\.google|zhihu|juejin)\.(?:com|cn|org|io)/)",
        r"[a-z0-9._~:/?#@!&=%+-]+",
    ))
});
static PHONE: LazyLock<Regex> = LazyLock::new(|| expression(r"\+?\(?\d[\d ().-]{6,18}\d"));
static PHONE_LABEL: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?i)\b(?:phone|tel|telephone|mobile|cell)\b|电话|手机|联系方式"));
static CHINESE_MOBILE: LazyLock<Regex> = LazyLock::new(|| expression(r"\b1[3-9]\d[ -]?\d{4}[ -]?\d{4}\b"));
static YEARS: LazyLock<Regex> =
    LazyLock::new(|| expression(r"\b(?:19|20)\d\d\s*[./-]|[./-]\s*(?:19|20)\d\d\b"));
static NAME_LABEL: LazyLock<Regex> =
    LazyLock::new(|| expression(r"(?i)(?:^|\s)(?:full name|name|姓\s*名)\s*:\s*([^|,;\t]+)"));
static PLACE_LABEL: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r"(?i)(?:^|[\s|])(?:location|address|based in|city|现居地|现居|居住地|所在地|所在城市|地址|城市|籍贯)\s*:?\s*([^|;\t]+)",
    )
});
static PLACE: LazyLock<Regex> = LazyLock::new(|| {
    expression(concat!(
        r"^[A-Z][A-Za-z.'-]+(?: [A-Z][A-Za-z.'-]+){0,2}, ?",
        r"(?:[A-Z]{2,3}|[A-Z][a-z]+(?: [A-Z][a-z]+){0,2})(?: \d{5})?$",
    ))
});

const CITIES: &[&str] = &[
    "北京",
    "上海",
    "广州",
    "深圳",
    "杭州",
    "南京",
    "成都",
    "武汉",
    "西安",
    "苏州",
    "天津",
    "重庆",
    "长沙",
    "厦门",
    "青岛",
    "大连",
    "郑州",
    "合肥",
    "香港",
    "台北",
    "Beijing",
    "Shanghai",
    "Shenzhen",
    "Hangzhou",
    "Singapore",
    "London",
    "Berlin",
    "Paris",
    "Amsterdam",
    "Dublin",
    "Toronto",
    "Sydney",
    "Zurich",
    "Munich",
    "Vienna",
    "New York",
    "San Francisco",
    "Seattle",
    "Boston",
];

/// Words that are not part of a name but often stand where a name could be.
const NO_NAME: &[&str] = &[
    "resume",
    "curriculum",
    "vitae",
    "cv",
    "engineer",
    "developer",
    "manager",
    "designer",
    "analyst",
    "scientist",
    "student",
    "teacher",
    "consultant",
    "software",
    "senior",
    "junior",
    "lead",
    "profile",
    "contact",
    "page",
    "confidential",
    "professor",
    "university",
    "assistant",
    "director",
    "specialist",
    "recipe",
    "soup",
    "with",
    "and",
    "the",
    "for",
    "of",
    "email",
    "phone",
];

impl Contact {
    pub fn find(text: &Text) -> Contact {
        let top: Vec<&str> = text.filled().map(|(_, line)| line).take(TOP_LINES).collect();
        let email = text
            .filled()
            .find_map(|(_, line)| EMAIL.captures(line))
            .map(|found| format!("{}@{}", &found[1], &found[2]).to_lowercase());
        let mut links: Vec<String> = Vec::new();
        for (_, line) in text.filled() {
            for found in LINK.find_iter(line) {
                let link = found.as_str().trim_end_matches(['.', ',', ')', ';', ':', '/']).to_string();
                if !links.contains(&link) && links.len() < 10 {
                    links.push(link);
                }
            }
        }
        let name = name(text, &top);
        let location = location(&top, name.as_deref());
        Contact { name, email, phone: phone(text, &top), location, links }
    }
}

fn phone(text: &Text, top: &[&str]) -> Option<String> {
    let number = |line: &str| {
        // Digits of a link or an email are not part of a phone number.
        let line = LINK.replace_all(line, " ");
        let line = EMAIL.replace_all(&line, " ");
        PHONE.find_iter(&line).map(|found| found.as_str().trim().to_string()).find(|number| {
            let digits = number.chars().filter(char::is_ascii_digit).count();
            (8..=15).contains(&digits) && !YEARS.is_match(number)
        })
    };
    text.filled()
        .find_map(|(_, line)| CHINESE_MOBILE.find(line).map(|found| found.as_str().to_string()))
        .or_else(|| {
            text.filled().filter(|(_, line)| PHONE_LABEL.is_match(line)).find_map(|(_, line)| number(line))
        })
        .or_else(|| top.iter().find_map(|line| number(line)))
}

fn parts(line: &str) -> impl Iterator<Item = &str> {
    line.split(['|', '·', '•', '\t', '/'])
        .flat_map(|part| part.split("   "))
        .flat_map(|part| part.split(" - "))
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn name(text: &Text, top: &[&str]) -> Option<String> {
    if let Some(found) = top.iter().find_map(|line| NAME_LABEL.captures(line)) {
        let name = found[1].split("  ").next().unwrap_or("").trim();
        let name = if name.starts_with(is_cjk) { name.split_whitespace().next().unwrap_or("") } else { name };
        if !name.is_empty() && name.chars().count() <= 40 {
            return Some(name.to_string());
        }
    }
    top.iter().take(6).flat_map(|line| parts(line).take(2)).find_map(|part| name_of(part, text.all_caps))
}

fn name_of(part: &str, all_caps: bool) -> Option<String> {
    let part = part.trim_matches(|c: char| !c.is_alphanumeric());
    let chinese: String = part
        .split(['(', ' ', ','])
        .next()
        .unwrap_or("")
        .trim_end_matches("的简历")
        .trim_end_matches("个人简历")
        .chars()
        .collect();
    let count = chinese.chars().count();
    if (2..=4).contains(&count) && chinese.chars().all(is_cjk) {
        const SURNAMES: &str = concat!(
            "王李张刘陈杨黄赵吴周徐孙马朱胡郭何林高罗郑梁谢宋唐许邓韩冯曹彭曾肖田董潘袁蔡蒋余于杜叶程魏苏吕丁任卢",
            "姚沈钟姜崔谭陆范汪廖石金韦贾夏付方邹熊白孟秦邱侯江尹薛闫段雷龙黎史陶贺毛郝顾龚邵万覃武钱戴严莫孔向常欧阳",
        );
        let titled = ["简历", "工程师", "经历", "教育", "技能", "信息", "高级", "项目"]
            .iter()
            .any(|word| chinese.contains(word));
        return (SURNAMES.contains(chinese.chars().next()?) && !titled).then_some(chinese);
    }
    let part = part.split(['(', ',']).next().unwrap_or("").trim();
    let title = |word: &&str| {
        ["dr", "prof", "mr", "mrs", "ms"].contains(&word.trim_end_matches('.').to_lowercase().as_str())
    };
    let words: Vec<&str> = part.split_whitespace().skip_while(title).collect();
    let named = (2..=4).contains(&words.len())
        && words.iter().all(|word| {
            word.chars().all(|c| c.is_alphabetic() && !is_cjk(c) || ".'-".contains(c))
                && (word.starts_with(char::is_uppercase)
                    || ["de", "van", "von", "der", "da", "bin"].contains(word))
                && !NO_NAME.contains(&word.to_lowercase().as_str())
        });
    // In a text of capitals every line looks like a name. The search begins at the top, so it takes the
    // first line.
    let cased = |word: &&str| {
        if all_caps || word.chars().all(|c| !c.is_lowercase()) && word.len() > 2 {
            title_case(word)
        } else {
            word.to_string()
        }
    };
    named.then(|| words.iter().map(cased).collect::<Vec<_>>().join(" "))
}

fn title_case(word: &str) -> String {
    let mut upper = true;
    word.chars()
        .map(|c| {
            let c = if upper { c } else { c.to_lowercase().next().unwrap_or(c) };
            upper = !c.is_alphabetic();
            c
        })
        .collect()
}

fn location(top: &[&str], name: Option<&str>) -> Option<String> {
    if let Some(found) = top.iter().find_map(|line| PLACE_LABEL.captures(line)) {
        let place = found[1].split("  ").next().unwrap_or("").trim().trim_end_matches(['.', ',']);
        if !place.is_empty() && place.chars().count() <= 80 {
            return Some(place.to_string());
        }
    }
    let parts = || top.iter().take(8).flat_map(|line| parts(line)).filter(|part| name != Some(*part));
    parts()
        .find(|part| {
            // "Lead Designer, Studio Nord" looks like a place but is not one.
            let other = |word: &str| {
                NO_NAME.contains(&word.to_lowercase().as_str()) || ["College", "Inc", "Ltd"].contains(&word)
            };
            PLACE.is_match(part) && !part.split([' ', ',']).any(other)
        })
        .or_else(|| {
            parts()
                .find(|part| CITIES.iter().any(|city| part.trim_end_matches('市').eq_ignore_ascii_case(city)))
        })
        .map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(top: &str) -> Contact {
        let filler =
            "\nand then a lot of other text follows, long enough that the whole can be read by rules at all";
        Contact::find(&Text::read(&format!("{top}{filler}")).unwrap())
    }

    #[test]
    fn an_english_header_is_read() {
        let found = contact(
            "Jane Q. Doe\nSenior Engineer | Portland, OR | +1 (503) 555-0142\n\
             Jane.Doe@Example.com · github.com/janedoe. https://jane.example.org/",
        );
        assert_eq!(found.name.as_deref(), Some("Jane Q. Doe"));
        assert_eq!(found.email.as_deref(), Some("jane.doe@example.com"));
        assert_eq!(found.phone.as_deref(), Some("+1 (503) 555-0142"));
        assert_eq!(found.location.as_deref(), Some("Portland, OR"));
        assert_eq!(found.links, ["github.com/janedoe", "https://jane.example.org"]);
    }

    #[test]
    fn a_chinese_header_is_read() {
        let found = contact(
            "个人简历\n姓名：李小明   性别：男\n手机：138 0013 8000  邮箱：lxm@example.cn\n现居地：杭州\n2018.03 - 2021.06 工作",
        );
        assert_eq!(found.name.as_deref(), Some("李小明"));
        assert_eq!(found.email.as_deref(), Some("lxm@example.cn"));
        assert_eq!(found.phone.as_deref(), Some("138 0013 8000"));
        assert_eq!(found.location.as_deref(), Some("杭州"));
    }

    #[test]
    fn what_is_no_contact_is_not_taken_for_one() {
        let found = contact(
            "Curriculum Vitae\n2018.03 - 2021.06\n2018 - 2021\nSoftware Engineer\nwrite to me @ home",
        );
        assert_eq!(found, Contact::default());
        assert_eq!(
            contact("JOHN MCALLISTER-SMITH\nx [at] example.com").name.as_deref(),
            Some("John Mcallister-Smith")
        );
        assert_eq!(
            contact("x\nmail: john (at) mail.example.com").email.as_deref(),
            Some("john@mail.example.com")
        );
    }
}
