//! Fields that are hidden (`mask` in `[admin]`): no filter of a page finds a task by them.

use super::{Browser, counted};
use crate::support::Bench;
use crate::support::words::text as shown;

#[test]
fn no_filter_finds_a_task_by_what_is_hidden() {
    let mut bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.bad]\nplugin = \"rejects\"\n[queues.waits]\nplugin = \"missing\"\n\
         [redis]\nurl = \"redis://127.0.0.1:{redis}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         token = \"s3cret\"\nread_token = \"peek\"\nmask = [\"email\"]\n"
    ));
    bench.install("rejects", "rejects");
    let host = bench.host();
    let [dead, waits] = ["bad", "waits"]
        .map(|queue| bench.xadd(queue, &[("email", "ada@lovelace"), ("text", "in-the-open")]));
    bench.until("bad", &dead, "FAILED");
    let reader = Browser::logged_in(&host, "peek");
    for (page, id) in [("/queues/waits?state=queued&", &waits), ("/queues/bad/dead?", &dead)] {
        for (text, is_found) in [("lovelace", false), ("in-the-open", true)] {
            let page = shown(&reader.page(&format!("{page}text={text}")));
            assert_eq!(page.contains(id), is_found, "{text}: {page}");
        }
    }
    for page in [
        "/queues/waits/drain?",
        "/queues/bad/dead/confirm?what=purge&",
        "/queues/bad/dead/confirm?what=requeue&",
    ] {
        for (filter, count) in [("lovelace", "0 "), ("in-the-open", "1 ")] {
            let told = counted(&reader.page(&format!("{page}text={filter}")));
            assert!(told.starts_with(count), "{filter}: {told}");
        }
    }
    host.stop();
}
