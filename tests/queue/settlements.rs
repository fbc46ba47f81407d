//! Settlements of several attempts in one call, when the caller has lost some of them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::runtime::Runtime;
use tqhost::testing::config::Config;
use tqhost::testing::queue::codec::decode;
use tqhost::testing::queue::{
    Ending, EndingSubject, Queue, Redis, SettleCall, Settled, Settlement, StreamEntry,
};

use crate::support::Bench;

const STREAM: &str = "work";
const HOST: &str = "host";

/// The settlement that a host sends for a completed task whose status it never wrote.
fn completed(entry: &str, result: Option<&str>) -> Ending {
    let entry =
        StreamEntry { id: entry.to_owned(), fields: vec![("content".into(), "x".into())], deliveries: 1 };
    let task = decode(&STREAM.into(), entry).expect("a task");
    let settlement = Settlement::Complete { result: result.map(Into::into), effects: None };
    Ending::new(
        EndingSubject::Task(Box::new(task)),
        settlement,
        "p@1".into(),
        Some(Duration::ZERO),
        false,
        None,
    )
}

struct Settler {
    queue: Queue,
    runtime: Runtime,
    calls: u64,
}

impl Settler {
    fn new(bench: &Bench) -> Settler {
        let rules = Config::load(&bench.config()).expect("a configuration").queues[0].clone();
        let queue = Queue::new(rules, Redis::open(&bench.redis.url()).expect("a URL").link());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(queue.ensure_group()).expect("a group");
        Settler { queue, runtime, calls: 0 }
    }

    fn settle(&mut self, endings: &[&Ending]) -> Vec<Settled> {
        self.calls += 1;
        self.settle_again(endings).expect("a reply for each")
    }

    /// Sends the last call again. None: Redis does not carry it out.
    fn settle_again(&mut self, endings: &[&Ending]) -> Option<Vec<Settled>> {
        let call = SettleCall { lane: 0, number: self.calls };
        let replies = self.runtime.block_on(self.queue.settle(HOST, call, endings)).ok()?;
        Some(replies.into_iter().map(|reply| reply.expect("not refused")).collect())
    }

    /// Asks for the results of the last call.
    fn settled_before(&mut self, endings: &[&Ending]) -> Option<Vec<Settled>> {
        let call = SettleCall { lane: 0, number: self.calls };
        let replies = self.runtime.block_on(self.queue.settled_before(HOST, call, endings)).expect("a reply");
        replies.map(|replies| replies.into_iter().map(|reply| reply.expect("not refused")).collect())
    }
}

fn deliver(bench: &mut Bench, consumer: &str) -> String {
    let id = bench.xadd(STREAM, &[("content", "x")]);
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", consumer, "COUNT", 1, "STREAMS", STREAM, ">"));
    id
}

/// Settles in one call, in this order: a task that is there, one that was cancelled, one whose entry somebody
/// deleted, one that was settled before, one with a result, and one whose delivery Redis forgot. Returns
/// their ids and their settlements.
fn settle_all(bench: &mut Bench) -> ([String; 6], Vec<Settled>) {
    let mut settler = Settler::new(bench);
    let [there, cancelled, deleted, settled, with_result] = [(); 5].map(|()| deliver(bench, HOST));
    let forgotten = deliver(bench, "gone");
    bench.tqhost(&["cancel", STREAM, &cancelled]).ok();
    let _: u64 = bench.redis("XDEL", (STREAM, &deleted));
    assert_eq!(settler.settle(&[&completed(&settled, None)]), [Settled::Done]);
    let _: u64 = bench.redis("XGROUP", ("DELCONSUMER", STREAM, "tqhost", "gone"));
    let _: String = bench.redis("XGROUP", ("SETID", STREAM, "tqhost", &with_result));
    let ids = [there, cancelled, deleted, settled, with_result, forgotten];
    let endings: Vec<Ending> =
        ids.iter().enumerate().map(|(n, id)| completed(id, (n == 4).then_some("result"))).collect();
    let settled = settler.settle(&endings.iter().collect::<Vec<_>>());
    let left: Vec<(String, redis::Value)> = bench.redis("XRANGE", (STREAM, "-", "+"));
    assert_eq!(left.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&ids[5]], "it is still to be delivered");
    (ids, settled)
}

#[test]
fn of_several_plain_tasks_only_those_are_completed_that_are_still_there() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let (ids, settled) = settle_all(&mut bench);
    let (done, overtaken) = (Settled::Done, Settled::Overtaken);
    assert_eq!(settled, [done, overtaken, done, overtaken, done, overtaken]);
    let statuses = ids
        .each_ref()
        .map(|id| bench.redis::<Option<String>>("HGET", (format!("tq:{{{STREAM}}}:task:{id}"), "status")));
    let expected =
        [Some("COMPLETED"), Some("CANCELLED"), Some("COMPLETED"), Some("COMPLETED"), Some("COMPLETED"), None];
    assert_eq!(statuses.each_ref().map(Option::as_deref), expected);
    assert_eq!(bench.status(STREAM, &ids[4], "result"), "result");
}

#[test]
fn plain_tasks_of_one_call_have_whole_statuses_of_their_own() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let mut settler = Settler::new(&bench);
    for ms in 1..=6 {
        let _: String = bench.redis("XADD", (STREAM, format!("{ms}000-0"), "content", "x"));
    }
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", HOST, "COUNT", 6, "STREAMS", STREAM, ">"));
    let results = [None, None, None, None, Some("e"), Some("f")];
    let endings: Vec<Ending> =
        (1..).zip(results).map(|(ms, result)| completed(&format!("{ms}000-0"), result)).collect();
    let settled = settler.settle(&endings.iter().collect::<Vec<_>>());
    assert_eq!(settled, [Settled::Done; 6]);
    for (ms, result) in (1..).zip(results) {
        let key = format!("tq:{{{STREAM}}}:task:{ms}000-0");
        let mut status: HashMap<String, String> = bench.redis("HGETALL", &key);
        assert_eq!(status.remove("started_at"), status.remove("finished_at"), "it ran for no time");
        let enqueued_at = format!("{ms}000");
        let mut expected = HashMap::from([
            ("status", "COMPLETED"),
            ("attempt", "1"),
            ("plugin", "p@1"),
            ("consumer", HOST),
            ("enqueued_at", &enqueued_at),
        ]);
        expected.extend(result.map(|result| ("result", result)));
        let found: HashMap<&str, &str> =
            status.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
        let lives_ms: u64 = bench.redis("PTTL", &key);
        assert!((86_000_000..=86_400_000).contains(&lives_ms), "{lives_ms}");
    }
}

#[test]
fn without_statuses_as_many_are_completed_as_were_still_there() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nretention = \"0s\"\n");
    let (ids, settled) = settle_all(&mut bench);
    assert_eq!(settled.iter().filter(|settled| **settled == Settled::Done).count(), 3);
    assert_eq!((settled[0], settled[4], settled[5]), (Settled::Done, Settled::Done, Settled::Overtaken));
    for (n, id) in ids.iter().enumerate() {
        let left: HashMap<String, String> = bench.redis("HGETALL", format!("tq:{{{STREAM}}}:task:{id}"));
        // A repeated cancel finds this note, which lives for a minute.
        let note = HashMap::from([("cancelled".to_owned(), "1".to_owned())]);
        assert_eq!(left, if n == 1 { note } else { HashMap::new() }, "{id} leaves no status");
    }
}

#[test]
fn a_repeated_call_may_name_its_attempts_in_another_form_and_order() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let mut settler = Settler::new(&bench);
    let (done, overtaken) = (Settled::Done, Settled::Overtaken);
    let [there, cancelled, late] = [(); 3].map(|()| deliver(&mut bench, HOST));
    bench.tqhost(&["cancel", STREAM, &cancelled]).ok();
    let mut endings = [there, cancelled].map(|id| completed(&id, None));
    assert_eq!(settler.settle(&endings.each_ref()), [done, overtaken]);
    // The reply was lost, and meanwhile another host may have taken over the first task.
    endings[0].may_be_known();
    let [first, second] = endings.each_ref();
    assert_eq!(settler.settle_again(&[first, second]), Some(vec![done, overtaken]));
    assert_eq!(settler.settle_again(&[second, first]), Some(vec![overtaken, done]));
    assert_eq!(settler.settled_before(&[first, second]), Some(vec![done, overtaken]));

    // Redis has not carried out this call, and does not carry it out when it arrives after all.
    let late = completed(&late, None);
    settler.calls += 1;
    assert_eq!([settler.settled_before(&[&late]), settler.settled_before(&[&late])], [None, None]);
    assert_eq!(settler.settle_again(&[&late]), None);
    settler.calls -= 1;
    assert_eq!(settler.settle_again(&[first]), None, "a later call has arrived");
    settler.calls += 1;
    assert_eq!(settler.settle(&[&late]), [done]);
}
