//! Pages that are sent again when they change.

use serde_json::json;

use super::{Browser, guarded};
use crate::support::http::{Event, Events};
use crate::support::proxy::Proxy;
use crate::support::{Bench, eventually};

fn open(browser: &Browser<'_>, path: &str) -> Events {
    let cookie = browser.cookie.as_deref().unwrap_or_default();
    let headers = [("accept", "text/event-stream"), ("cookie", cookie)];
    Events::open(browser.host.admin(), path, &headers)
}

/// The first page that has this text.
#[track_caller]
fn until(events: &mut Events, text: &str) {
    let found = events.by_ref().take(20).find(|event| {
        assert_eq!(event.kind, "page", "{event:?}");
        event.data.as_str().expect("a page").contains(text)
    });
    assert!(found.is_some(), "no page has {text:?}");
}

#[test]
fn a_page_is_sent_again_when_it_has_changed_until_the_session_is_over() {
    let (mut bench, host) = guarded();
    let browser = Browser::logged_in(&host, "s3cret");
    let mut events = open(&browser, "/queues/work?state=queued");
    assert_eq!(events.status, 200);
    until(&mut events, "data-live=\"figures\"");
    let id = bench.xadd("work", &[("data", "x")]);
    until(&mut events, &id);
    let mut missing = open(&browser, "/queues/nothing");
    assert_eq!(missing.next().map(|event| (event.kind, event.data)), Some(("none".to_owned(), json!(404))));
    // A stream does not hold up the end of a session, nor its end the stream.
    let page = browser.page("/");
    assert_eq!(browser.press(&page, "/logout", &[]).status, 303);
    let last: Vec<Event> = events.collect();
    assert_eq!(last.last().map(|event| (&*event.kind, &event.data)), Some(("over", &json!({}))));
    let strange: Vec<Event> = open(&Browser::new(&host), "/").collect();
    assert_eq!(strange.iter().map(|event| &*event.kind).collect::<Vec<_>>(), ["over"]);
    host.stop();
}

#[test]
fn nobody_holds_a_place_for_streams_without_a_page_to_look_at() {
    let (_bench, host) = guarded();
    let nobody = Browser::new(&host);
    let reader = Browser::logged_in(&host, "peek");
    // The form of the login is a plain answer, also to somebody who asks for a stream.
    let strange: Vec<Events> = (0..24).map(|_| open(&nobody, "/login")).collect();
    assert!(strange.iter().all(|answer| answer.status == 200));
    let streams: Vec<Events> = (0..24).map(|_| open(&reader, "/")).collect();
    assert!(streams.iter().all(|stream| stream.status == 200), "all places are free");
    assert_eq!(open(&reader, "/").status, 503);
    let over: Vec<Event> = open(&nobody, "/").collect();
    assert_eq!(over.iter().map(|event| &*event.kind).collect::<Vec<_>>(), ["over"], "it needs no place");
    drop((strange, streams));
    host.stop();
}

#[test]
fn a_foreign_name_gets_no_stream_and_a_still_page_is_none() {
    let bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"missing\"\n[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\"]\n"
    ));
    let host = bench.host();
    let headers = [("accept", "text/event-stream"), ("host", "evil.example")];
    assert_eq!(Events::open(host.admin(), "/", &headers).status, 403, "a foreign name gets no stream");
    // Where nothing changes by itself there is no stream: the page is answered once.
    let stream = [("accept", "text/event-stream")];
    for (page, status) in
        [("/queues/work/drain", 200), ("/search?q=x", 200), ("/queues/work/dead/export", 200)]
    {
        let answer = Browser::new(&host).ask("GET", page, &stream, None);
        assert_eq!(answer.status, status, "{page}: {answer:?}");
        assert_ne!(answer.header("content-type"), Some("text/event-stream"), "{page}");
    }
    host.stop();
}

#[test]
fn more_pages_than_are_answered_at_once_are_all_shown() {
    const QUEUES: &str = "[queues.work]\nplugin = \"missing\"\n";
    let bench = Bench::new(QUEUES);
    let way = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, way.port);
    let host = bench.host();
    let browser = Browser::new(&host);
    // Sixteen requests are answered at once, and now each of them takes some time.
    way.delay(100..101);
    let mut streams: Vec<Events> = (0..24).map(|_| open(&browser, "/queues/work?state=queued")).collect();
    for stream in &mut streams {
        until(stream, "data-live=\"figures\"");
    }
    way.heal();
    drop(streams);
    host.stop();
}

#[test]
fn a_stream_of_a_page_ends_with_the_host_and_has_one_of_the_places_for_streams() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let host = bench.host();
    let browser = Browser::new(&host);
    let mut streams: Vec<Events> = (0..24).map(|_| open(&browser, "/")).collect();
    assert!(streams.iter().all(|stream| stream.status == 200));
    assert_eq!(open(&browser, "/").status, 503);
    until(&mut streams[0], "work");
    drop(streams.pop());
    let mut sorted = eventually("a place is free again", || {
        Some(open(&browser, "/?sort=queue&order=desc")).filter(|stream| stream.status == 200)
    });
    until(&mut sorted, "aria-sort=\"descending\"");
    drop(sorted);
    host.stop();
    for stream in streams {
        stream.for_each(drop);
    }
}
