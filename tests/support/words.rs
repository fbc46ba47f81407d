//! Texts for snapshots: the text of a page as people read it, and any text with its ids, times and ports
//! replaced by names.
//!
//! In: HTML, or what a command or the API says. Out: text for `insta::assert_snapshot!`. Not here: links and
//! forms of pages (`dashboard`).

/// The elements that begin a line of their own.
const BLOCKS: [&str; 21] = [
    "button", "caption", "details", "div", "dl", "dt", "form", "h1", "h2", "h3", "label", "li", "main",
    "nav", "option", "p", "pre", "section", "summary", "table", "tr",
];

/// The text of a page, or of a part of one, without tags: a line for each block, and ` | ` between cells.
pub fn text(html: &str) -> String {
    let (_, body) = html.split_once("</head>").unwrap_or(("", html));
    let mut text = String::new();
    for part in format!(">{body}").split('<') {
        let (tag, after) = part.split_once('>').unwrap_or((part, ""));
        match name(tag.trim_start_matches('/')) {
            block if BLOCKS.contains(&block) => text.push('\n'),
            "td" | "th" | "dd" if !tag.starts_with('/') => text += " | ",
            _ => {}
        }
        text += after;
    }
    let lines = text.lines().map(|line| line.trim().trim_start_matches("| "));
    unescaped(&lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// The name of a tag.
fn name(tag: &str) -> &str {
    tag.split([' ', '>']).next().unwrap_or_default()
}

pub fn unescaped(html: &str) -> String {
    html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// The first element with this in its tag, as `class="count"`. Panics when the page has none.
#[track_caller]
pub fn element<'p>(page: &'p str, mark: &str) -> &'p str {
    let at = page.find(mark).unwrap_or_else(|| panic!("no element with {mark} in {page}"));
    let start = page[..=at].rfind('<').expect("the tag of the mark");
    let own = name(&page[start + 1..]);
    let mut depth = 0;
    for (offset, _) in page[start..].match_indices('<') {
        let tag = &page[start + offset + 1..];
        match tag.strip_prefix('/') {
            Some(end) if name(end) == own => depth -= 1,
            None if name(tag) == own => depth += 1,
            _ => {}
        }
        if depth == 0 {
            return &page[start..start + offset];
        }
    }
    panic!("the element with {mark} has no end in {page}")
}

/// The text without what differs from run to run: each of `known` becomes its name, the id of a task ID, that
/// of a host HOST, digests and other hexadecimal numbers HEX, a date or a time of day TIME, a port of this
/// machine PORT, and how long ago something was, or how long it ran, AGE. Other durations stay: the
/// configuration may have them.
pub fn masked(text: &str, known: &[(&str, &str)]) -> String {
    let text = known.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
    let (mut masked, mut rest) = (String::new(), text.as_str());
    while let Some(start) = rest.find(is_part) {
        let (between, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_part(c)).unwrap_or(word.len()));
        let bare = word.trim_end_matches(['-', ':', '.']);
        masked += between;
        let is_told =
            ["TIME (", "TIME (in ", "ran for ", "AGE "].iter().any(|before| masked.ends_with(before));
        let next = after.split(' ').skip(1).find(|word| !is_duration(word));
        let is_age = is_duration(bare)
            && (is_told || next.is_some_and(|word| word.starts_with("ago") || word == "after"));
        masked += &if is_age { "AGE".into() } else { masked_word(bare) };
        masked += &word[bare.len()..];
        rest = after;
    }
    (masked + rest).replace("AGE AGE", "AGE")
}

/// Whether a word is a part of how long something took, as `12s`.
fn is_duration(word: &str) -> bool {
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < word.len() && ["ms", "s", "m", "h", "d"].contains(&unit)
}

fn masked_word(word: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_hex = |text: &str| text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shape = word.replace(|c: char| c.is_ascii_digit(), "0");
    let parts: Vec<&str> = word.split('-').collect();
    match parts[..] {
        _ if shape.starts_with("0000-00-00") || shape.starts_with("00:00") => "TIME".into(),
        _ if shape.starts_with("000.0.0.0:0") => "127.0.0.1:PORT".into(),
        [ms, count] if ms.len() == 13 && is_number(ms) && is_number(count) => "ID".into(),
        [_, _, _, _, end] if word.len() == 36 && is_hex(end) => "ID".into(),
        [.., pid, end] if parts.len() > 2 && is_number(pid) && is_hex(end) => "HOST".into(),
        _ => {
            let mask = |part: &str| {
                let bare = part.trim_end_matches(['-', ':', '.']);
                if is_hex(bare) { part.replace(bare, "HEX") } else { part.into() }
            };
            word.split_inclusive(['-', ':', '.']).map(mask).collect()
        }
    }
}

#[test]
fn words_are_the_same_in_each_run() {
    let page =
        "<head><title>x</title></head><p id=\"a\">1 &lt; <b>2</b></p><p>x<p>y</p></p><table><tr><th>a<td>b";
    assert_eq!(text(page), "1 < 2\nx\ny\na | b");
    assert_eq!(element(page, "id=\"a\""), "<p id=\"a\">1 &lt; <b>2</b>");
    let told = "mail@0123456789ab of /tmp/x/sha256:0123456789abcdef.wasm, at 127.0.0.1:4000\n\
                 vm-1.x-7-0123456789ab 1764528400123-0 and 0199f3c2-7a00-7000-8000-0123456789ab: 10s\n\
                since 2026-11-30T18:56:08.123Z, 18:56:08 (3m 12s ago). 5s ago, 19:00:00 (in 1h)";
    insta::assert_snapshot!(masked(told, &[("/tmp/x", "DIR")]), @r"
    mail@HEX of DIR/sha256:HEX.wasm, at 127.0.0.1:PORT
    HOST ID and ID: 10s
    since TIME, TIME (AGE ago). AGE ago, TIME (in AGE)
    ");
}
