//! Ten everyday programs in Rust. The field `program` says which one runs.

use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use tqhost_handler::http::Request;
use tqhost_handler::{Failure, Json, OrFail, Task, blobs, config, handler, log};

// With Debian's compiler std has no random numbers, so they come from the interface itself.
wit_bindgen::generate!({
    inline: "
        package test:everyday;
        world program { import wasi:random/random@0.2.3; }

        package wasi:random@0.2.3 {
            interface random {
                get-random-bytes: func(len: u64) -> list<u8>;
                get-random-u64: func() -> u64;
            }
        }
    ",
    world: "test:everyday/program",
    generate_all,
});
use wasi::random::random::{get_random_bytes, get_random_u64};

fn packages() -> Value {
    let other = regex_lite::Regex::new("[^a-z0-9]+").expect("an expression");
    json!({ "used": other.replace_all(&"Creme Brulee".to_lowercase(), "-") })
}

fn dates(task: &Task) -> Result<Value, Failure> {
    // A date of HTTP has no zone, so its hour is changed by hand.
    let date = httpdate::parse_http_date("Sat, 28 Feb 2026 21:30:00 GMT").or_reject("reading the date")?;
    let date = date + Duration::from_secs(24 * 60 * 60);
    let shown = httpdate::fmt_http_date(date);
    let day = if shown.starts_with("Sun, ") { "Sunday" } else { "another day" };
    let since = date.duration_since(UNIX_EPOCH).or_reject("the date")?.as_secs();
    let hour = since / 3600 % 24;
    let date = format!("2026-03-01T{hour:02}:{:02}:00Z", since / 60 % 60);
    Ok(json!({ "date": date, "day": day, "shown": shown, "seconds": task.deadline_ms / 1000 }))
}

fn uuids() -> Value {
    let mut bytes = get_random_bytes(16);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let uuid = [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-");
    json!({ "uuid": uuid })
}

fn logging() -> Value {
    log::info(format_args!("an everyday line {}", 1));
    log::warn("an everyday warning");
    Value::Null
}

fn request(task: &Task) -> Result<Value, Failure> {
    let response = Request::post(config::require("service")?, json!({ "words": ["one", "two"] }).to_string())
        .header("content-type", "application/json")
        .header("x-task", &task.id)
        .send()?;
    Ok(json!({ "status": response.status, "body": String::from_utf8_lossy(&response.body) }))
}

#[derive(Deserialize)]
struct Order {
    items: Vec<Item>,
    name: String,
}

#[derive(Deserialize)]
struct Item {
    price: f64,
    n: f64,
}

fn sum(task: &Task) -> Result<Value, Failure> {
    let order: Order = task.json("order")?;
    let total: f64 = order.items.iter().map(|item| item.price * item.n).sum();
    Ok(json!({ "total": total, "name": order.name }))
}

fn files(task: &Task) -> Result<Value, Failure> {
    let rows: String = (0..100_000).map(|n| format!("{n},row {n}\n")).collect();
    let name = format!("{}/rows.csv", task.id);
    blobs::put(&name, "text/csv", rows)?;
    let read = String::from_utf8(blobs::get(&name)?).or_reject("reading the rows")?;
    let numbers = read.lines().map(|row| row.split(',').next().unwrap_or_default().parse::<u64>());
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().or_reject("reading a row")?;
    Ok(json!({ "rows": numbers.len(), "sum": numbers.iter().sum::<u64>() }))
}

#[derive(Debug)]
struct NoPrice(NoBook);

#[derive(Debug)]
struct NoBook(u8);

impl fmt::Display for NoPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the order has no price: {}", self.0)
    }
}

impl fmt::Display for NoBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no book {}", self.0)
    }
}

impl std::error::Error for NoBook {}
impl std::error::Error for NoPrice {}

fn order() -> Result<(), NoPrice> {
    Err(NoPrice(NoBook(7)))
}

/// Ends with its value when it was polled often enough.
struct Later(u32, u32);

impl Future for Later {
    type Output = u32;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
        if self.1 == 0 {
            return Poll::Ready(self.0);
        }
        self.1 -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

fn waits() -> Value {
    let mut both = pin!(async { Later(1, 3).await + Later(2, 3).await });
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(sum) = both.as_mut().poll(&mut context) {
            return json!({ "sum": sum });
        }
    }
}

fn draws() -> Value {
    let one = || (get_random_u64() >> 11) as f64;
    json!({ "drawn": [one(), one()] })
}

pub fn everyday(task: Task) -> Result<Json<Value>, Failure> {
    let value = match task.text("program")? {
        "packages" => packages(),
        "dates" => dates(&task)?,
        "uuids" => uuids(),
        "logging" => logging(),
        "http" => request(&task)?,
        "json" => sum(&task)?,
        "files" => files(&task)?,
        "exceptions" => match order() {
            Ok(()) => Value::Null,
            Err(error) => panic!("the order failed: {error}"),
        },
        "async" => waits(),
        "random" => draws(),
        other => return Err(Failure::reject(format_args!("there is no program {other}"))),
    };
    Ok(Json(value))
}

handler!(everyday);
