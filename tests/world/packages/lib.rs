//! Uses each package of docs/languages/packages.md. The field `package` says which one.
//!
//! `model` of the plugin's config is a server with the interface of OpenAI, and `web` one with the pages of
//! the tests.

use std::error::Error;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use backon::{BlockingRetryable, ConstantBuilder};
use hmac::{KeyInit, Mac};
use serde_json::{Value, json};
use tqhost_handler::http::Request;
use tqhost_handler::{Failure, Task, config, handler};

type Done = Result<(), Box<dyn Error>>;

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Order {
    name: String,
    count: u32,
}

fn order() -> Order {
    Order { name: "x, y".into(), count: 1 }
}

/// Compares what a package found with what it should find.
fn is<T: Debug + PartialEq<U>, U: Debug>(found: T, expected: U) -> Done {
    (found == expected).then_some(()).ok_or_else(|| format!("{found:?} is not {expected:?}").into())
}

fn of_async_openai(model: &str, _: &str) -> Done {
    use async_openai::types::chat;
    let message = chat::ChatCompletionRequestUserMessage::from("x");
    let question =
        chat::CreateChatCompletionRequestArgs::default().model("m").messages([message.into()]).build()?;
    let asked = serde_json::to_vec(&question)?;
    let response = Request::post(format!("{model}/chat/completions"), asked).send()?;
    let said: chat::CreateChatCompletionResponse = serde_json::from_slice(&response.body)?;
    is(said.choices[0].message.content.as_deref(), Some("Hello"))
}

fn of_wstd(model: &str, web: &str) -> Done {
    use wstd::http::{Body, Client, Request};
    wstd::runtime::block_on(async {
        let client = Client::new();
        // Without the length, a body is sent in chunks. Of a GET, `wstd` writes the empty body, which
        // the host refuses if the request was sent before.
        let ask = async |url: String, body: String| {
            let request = Request::post(url).header("content-length", body.len()).body(Body::from(body))?;
            client.send(request).await
        };
        let question = json!({ "model": "m", "messages": [] }).to_string();
        let answer = ask(format!("{model}/chat/completions"), question).await?;
        let said: Value = answer.into_body().json().await?;
        is(&said["choices"][0]["message"]["content"], "Hello")?;
        let size = || ask(format!("{web}/size"), "12345".into());
        let (first, second) = futures_lite::future::try_zip(size(), size()).await?;
        is(first.into_body().str_contents().await?, "5")?;
        is(second.into_body().str_contents().await?, "5")?;
        let mut client = Client::new();
        client.set_first_byte_timeout(Duration::from_millis(100));
        let late = client.send(Request::post(format!("{web}/silent")).body(Body::from("x"))?).await;
        is(late.is_err(), true)
    })
}

fn of_waki(_: &str, web: &str) -> Done {
    let client = waki::Client::new();
    let size = client.post(&format!("{web}/size")).body("12345").send()?.body()?;
    is(size, b"5")?;
    is(client.get(&format!("{web}/status?418")).send()?.status_code(), 418_u16)
}

fn of_backon(_: &str, web: &str) -> Done {
    let mut tries = 0;
    let ask = || {
        tries += 1;
        let response = Request::get(format!("{web}/status?{}", if tries == 3 { 200 } else { 503 })).send()?;
        if response.status == 200 { Ok(()) } else { Err(Failure::retry("again")) }
    };
    ask.retry(ConstantBuilder::default().with_delay(Duration::from_millis(5)))
        .call()
        .map_err(|_| "failed")?;
    is(tries, 3)
}

fn of_serde_json(_: &str, _: &str) -> Done {
    let read: Value = serde_json::from_str(&serde_json::to_string(&order())?)?;
    is(read, json!({ "name": "x, y", "count": 1 }))
}

fn of_regex(_: &str, _: &str) -> Done {
    let pattern = regex::Regex::new(r"(?i)\b(\p{L}+)-(\d+)")?;
    is(&pattern.captures("see Zürich-42").ok_or("no match")?[1], "Zürich")
}

fn of_uuid(_: &str, _: &str) -> Done {
    use uuid::Uuid;
    is(Uuid::new_v5(&Uuid::NAMESPACE_URL, b"x").to_string(), "4cd605e7-afa2-5360-b5b9-c5e9fb5c76f4")?;
    is(Uuid::now_v7().get_version_num(), 7)?;
    is(Uuid::new_v4() != Uuid::new_v4(), true)
}

fn of_chrono(_: &str, _: &str) -> Done {
    let day = chrono::NaiveDate::from_ymd_opt(2026, 2, 28).ok_or("no day")?;
    is((day + chrono::Days::new(1)).format("%F %A").to_string(), "2026-03-01 Sunday")?;
    is(chrono::Utc::now().date_naive() > day, true)
}

fn of_jiff(_: &str, _: &str) -> Done {
    let time: jiff::ZonedDateTime = "2026-03-29T01:30+01:00[Europe/Berlin]".parse()?;
    is(time.checked_add(jiff::Span::new().hours(1))?.to_string(), "2026-03-29T03:30:00+02:00[Europe/Berlin]")
}

fn of_csv(_: &str, _: &str) -> Done {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(order())?;
    let text = writer.into_inner().map_err(|error| error.to_string())?;
    let read: Result<Vec<Order>, _> = csv::Reader::from_reader(&text[..]).deserialize().collect();
    is(read?, [order()])
}

fn of_toml(_: &str, _: &str) -> Done {
    is(toml::from_str::<Order>(&toml::to_string(&order())?)?, order())
}

fn of_minijinja(_: &str, _: &str) -> Done {
    let page = minijinja::Environment::new();
    let page =
        page.render_str("{% for x in xs %}<{{ x|upper }}>{% endfor %}", minijinja::context! { xs => ["a"] })?;
    is(page, "<A>")
}

fn of_scraper(_: &str, _: &str) -> Done {
    let page = scraper::Html::parse_document("<ul><li>1<li><b>2</b></ul>");
    let found: Vec<String> =
        page.select(&scraper::Selector::parse("ul li b")?).map(|b| b.inner_html()).collect();
    is(found, ["2"])
}

fn of_pulldown_cmark(_: &str, _: &str) -> Done {
    let mut page = String::new();
    pulldown_cmark::html::push_html(&mut page, pulldown_cmark::Parser::new("*a*"));
    is(page, "<p><em>a</em></p>\n")
}

fn of_hmac(_: &str, _: &str) -> Done {
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(b"key")?;
    mac.update(b"The quick brown fox jumps over the lazy dog");
    is(&mac.finalize().into_bytes()[..4], [0xf7, 0xbc, 0x83, 0xf4])
}

fn of_jsonschema(_: &str, _: &str) -> Done {
    let schema = jsonschema::validator_for(&json!({ "type": "object", "required": ["a"] }))?;
    is((schema.is_valid(&json!({})), schema.is_valid(&json!({ "a": 1 }))), (false, true))
}

fn of_lopdf(_: &str, _: &str) -> Done {
    use lopdf::content::{Content, Operation};
    use lopdf::{Document, Object, Stream, dictionary};
    let mut file = Document::with_version("1.5");
    let pages = file.new_object_id();
    let font =
        file.add_object(dictionary! { "Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Courier" });
    let operations = vec![
        Operation::new("BT", vec![]),
        Operation::new("Tf", vec!["F1".into(), 48.into()]),
        Operation::new("Tj", vec![Object::string_literal("Hello")]),
        Operation::new("ET", vec![]),
    ];
    let text = file.add_object(Stream::new(dictionary! {}, Content { operations }.encode()?));
    let resources = dictionary! { "Font" => dictionary! { "F1" => font } };
    let page = file.add_object(dictionary! {
        "Type" => "Page", "Parent" => pages, "Contents" => text, "Resources" => resources,
    });
    let kids = dictionary! { "Type" => "Pages", "Kids" => vec![page.into()], "Count" => 1 };
    file.objects.insert(pages, Object::Dictionary(kids));
    let catalog = file.add_object(dictionary! { "Type" => "Catalog", "Pages" => pages });
    file.trailer.set("Root", catalog);
    let mut bytes = Vec::new();
    file.save_to(&mut bytes)?;
    is(Document::load_mem(&bytes)?.extract_text(&[1])?.trim(), "Hello")
}

fn of_tiktoken_rs(_: &str, _: &str) -> Done {
    is(tiktoken_rs::o200k_base()?.encode_ordinary("hello world"), [24912, 2375])
}

fn of_rayon(_: &str, _: &str) -> Done {
    use rayon::prelude::*;
    is((1..=10_u32).into_par_iter().sum::<u32>(), 55_u32)
}

fn of_tokio(_: &str, _: &str) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let begun = Instant::now();
        let wait = async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            1
        };
        is(tokio::join!(wait(), wait()), (1, 1))?;
        is(begun.elapsed() < Duration::from_millis(95), true)
    })
}

/// This does not work.
fn of_ureq(_: &str, web: &str) -> Done {
    is(ureq::get(format!("{web}/echo")).call()?.status().as_u16(), 200_u16)
}

fn run(task: Task) -> Result<(), Failure> {
    let package = task.text("package")?;
    let used = match package {
        "async-openai" => of_async_openai,
        "wstd" => of_wstd,
        "waki" => of_waki,
        "backon" => of_backon,
        "serde_json" => of_serde_json,
        "regex" => of_regex,
        "uuid" => of_uuid,
        "chrono" => of_chrono,
        "jiff" => of_jiff,
        "csv" => of_csv,
        "toml" => of_toml,
        "minijinja" => of_minijinja,
        "scraper" => of_scraper,
        "pulldown-cmark" => of_pulldown_cmark,
        "hmac" => of_hmac,
        "jsonschema" => of_jsonschema,
        "lopdf" => of_lopdf,
        "tiktoken-rs" => of_tiktoken_rs,
        "rayon" => of_rayon,
        "tokio" => of_tokio,
        "ureq" => of_ureq,
        _ => return Err(Failure::reject("it is not known")),
    };
    used(&config::require("model")?, &config::require("web")?).map_err(|error| Failure::reject(error))
}

handler!(run);
