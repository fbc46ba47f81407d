//! The script behind `make site`: the links that it makes of those in the pages, and those that it refuses.
//!
//! Not here: mdBook itself, which `make site` installs, and that each page has its place (`tidy`).

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::pages::root;

/// Runs `scripts/site.py` with these arguments and this input.
fn site(args: &[&str], input: &str) -> Output {
    let mut script = Command::new("python3");
    script.arg(root().join("scripts/site.py")).args(args);
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = script.spawn().expect("run python3");
    script.stdin.take().expect("its input").write_all(input.as_bytes()).expect("write the input");
    script.wait_with_output().expect("the script ends")
}

fn chapter(path: &str, content: &str) -> Value {
    json!({ "Chapter": { "name": path, "content": content, "path": path, "sub_items": [] } })
}

/// The path and the content of each chapter, as mdBook gets them.
fn made(repository: Option<&str>) -> Vec<(String, String)> {
    let readme = "[a](docs/acl.md#hosts) ![b](docs/demo.svg) [the\ntest](tests/tidy.rs \"name\")\n\
                  <img src=\"docs/demo.svg\"> `[c](docs/acl.md)`\n```\n[d](docs/acl.md)\n```\n";
    let acl = "[e](../README.md) [f](../clients/README.md#x) [g](../tests/cli) [h](https://example.com/) \
               [i](#j)";
    let chapters =
        [("../README.md", readme), ("acl.md", acl), ("../clients/README.md", "[k](../docs/acl.md)")];
    let items: Vec<Value> = chapters.iter().map(|(path, content)| chapter(path, content)).collect();
    let context = json!({ "config": { "output": { "html": { "git-repository-url": repository } } } });
    let output = site(&[], &json!([context, { "items": items }]).to_string());
    assert!(output.status.success(), "{output:?}");
    let book: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let items = book["items"].as_array().expect("chapters");
    items.iter().map(|item| (text(&item["Chapter"]["path"]), text(&item["Chapter"]["content"]))).collect()
}

#[test]
fn links_of_pages_stay_within_the_site_or_lead_to_the_repository() {
    let code = "`[c](docs/acl.md)`\n```\n[d](docs/acl.md)\n```\n";
    let plain = format!(
        "[a](acl.md#hosts) ![b](demo.svg) <span title=\"tests/tidy.rs: name\">the\ntest</span>\n\
         <img src=\"demo.svg\"> {code}"
    );
    let acl = "[e](index.md) [f](clients/index.md#x) <span title=\"tests/cli\">g</span> \
               [h](https://example.com/) [i](acl.md#j)";
    let clients = "[k](../acl.md)";
    let expected = [("index.md", plain.as_str()), ("acl.md", acl), ("clients/index.md", clients)];
    assert_eq!(made(None), expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
    let linked = made(Some("https://example.com/tqhost/"));
    let test = "[the\ntest](https://example.com/tqhost/blob/main/tests/tidy.rs \"name\")";
    assert!(linked[0].1.contains(test), "{}", linked[0].1);
    assert!(linked[1].1.contains("[g](https://example.com/tqhost/tree/main/tests/cli)"), "{}", linked[1].1);
}

#[test]
fn links_of_the_built_site_that_lead_nowhere_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("write");
    let links = "<h1 id=\"here\"></h1><a href=\"1.html#here\"><a href=\"//example.com/x\">";
    for n in 0..10 {
        page(&format!("{n}.html"), links);
    }
    let path = folder.path().to_str().expect("UTF-8");
    let good = site(&["check", path], "");
    assert!(good.status.success(), "{good:?}");
    let told = ["nowhere.html", "1.html#nowhere", "../outside.html", "picture.png"].map(|link| {
        page("0.html", &format!("<a href=\"2.html\"><img src=\"{link}\">"));
        let bad = site(&["check", path], "");
        assert!(!bad.status.success(), "{link}: {bad:?}");
        String::from_utf8_lossy(&bad.stderr).into_owned()
    });
    insta::assert_snapshot!(told.concat(), @"
    site: links that lead nowhere:
    0.html links to nowhere.html, which is not in the site
    site: links that lead nowhere:
    0.html links to 1.html#nowhere, but there is no such heading
    site: links that lead nowhere:
    0.html links to ../outside.html, which is not in the site
    site: links that lead nowhere:
    0.html links to picture.png, which is not in the site
    ");
}
