//! A node of a cluster that is away, with no replica to take its place: the queues of the others go on.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Bench, Cluster, eventually};

/// A bench with this many queues on each of three primaries, each of which serves its slots alone.
fn bench(each: usize) -> (Bench, Cluster, Vec<Vec<String>>) {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), 3, false);
    for number in 0..3 {
        let set = redis::cmd("CONFIG").arg("SET").arg("cluster-require-full-coverage").arg("no").to_owned();
        cluster.ok(number, &set);
    }
    let tags: Vec<String> = (0..3).map(|primary| cluster.name_on(primary)).collect();
    let names: Vec<Vec<String>> =
        tags.iter().map(|tag| (0..each).map(|n| format!("{tag}-{n}")).collect()).collect();
    let queue = |(tag, name): (&String, &String)| {
        format!("[queues.{name}]\nstream = \"{{{tag}}}:{name}\"\nplugin = \"empty\"\nlease = \"5s\"\n")
    };
    let queues = tags.iter().zip(&names).flat_map(|(tag, names)| names.iter().map(move |name| (tag, name)));
    let queues: String = queues.map(queue).collect();
    bench.configure(&format!("{queues}{}", cluster.config()));
    bench.install("empty", "empty");
    let streams = tags.iter().zip(names);
    let streams =
        streams.map(|(tag, names)| names.iter().map(|name| format!("{{{tag}}}:{name}")).collect()).collect();
    (bench, cluster, streams)
}

fn add(cluster: &Cluster, node: usize, stream: &str, more: &[(&str, &str)]) {
    eventually("a task is added", || {
        let mut add = redis::cmd("XADD");
        add.arg(stream).arg("*").arg("n").arg(1).arg(more);
        cluster.ask::<String>(node, &add).ok()
    });
}

#[track_caller]
fn until_empty(cluster: &Cluster, node: usize, streams: &[String]) {
    eventually("all tasks are done", || {
        let left = streams.iter().map(|stream| {
            let delayed = format!("tq:{stream}:delayed");
            let waiting: u64 = cluster.ask(node, redis::cmd("XLEN").arg(stream)).ok()?;
            Some(waiting + cluster.ask::<u64>(node, redis::cmd("ZCARD").arg(delayed)).ok()?)
        });
        (left.sum::<Option<u64>>()? == 0).then_some(())
    });
}

#[test]
fn the_other_queues_are_shown() {
    let (bench, mut cluster, streams) = bench(1);
    // The node with what hosts share stays. That which knows a host goes.
    let shared = cluster.owner("tq:hosts");
    let mut hosts = Vec::new();
    let away = loop {
        hosts.push(bench.host());
        let ids: Vec<String> = cluster.query(redis::cmd("ZRANGE").arg("tq:hosts").arg(0).arg(-1));
        let owner = ids.iter().map(|id| cluster.owner(&format!("tq:host:{id}"))).find(|on| *on != shared);
        if let Some(owner) = owner {
            break owner;
        }
    };
    let host = &hosts[0];
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let told = bench.tqhost(&["queues", "--json"]).ok().json();
    let shown: Vec<&str> =
        told.as_array().into_iter().flatten().filter_map(|queue| queue["node"].as_str()).collect();
    assert_eq!(shown, nodes, "{told}");
    let table = bench.tqhost(&["queues"]).ok().stdout;
    assert!(nodes.iter().all(|node| table.contains(node)), "{table}");
    cluster.nodes[away].kill();
    let list = eventually("the other queues are shown", || {
        let body = host.get("/v1/queues").body;
        let list: Value = serde_json::from_str(&body).ok()?;
        (list["queues"].as_array()?.len() == 2).then_some(list)
    });
    let failed = list["failed"][0]["queue"].as_str().expect("a queue");
    assert!(streams[away][0].ends_with(failed), "{list}");
    let other = list["queues"][0]["queue"].as_str().expect("a queue");
    let one = host.get(&format!("/v1/queues/{other}"));
    assert_eq!(one.status, 200, "{}", one.body);
    // Commands find the others, too.
    let seen = bench.tqhost(&["queues", "--json"]).json();
    assert_eq!(seen.as_array().map(Vec::len), Some(2), "{seen}");
    hosts.iter().for_each(|host| host.signal(Signal::SIGKILL));
}

#[test]
fn queues_go_on_while_the_keys_of_all_hosts_are_away() {
    for shared in ["tq:hosts:told", "tq:hosts:duties"] {
        let (bench, mut cluster, streams) = bench(5);
        let host = bench.host();
        for (node, streams) in streams.iter().enumerate() {
            streams.iter().for_each(|stream| add(&cluster, node, stream, &[]));
            until_empty(&cluster, node, streams);
        }
        let away = cluster.owner(shared);
        let node = (away + 1) % 3;
        cluster.nodes[away].kill();
        let began = Instant::now();
        for _ in 0..3 {
            streams[node].iter().for_each(|stream| add(&cluster, node, stream, &[]));
            until_empty(&cluster, node, &streams[node]);
        }
        streams[node].iter().for_each(|stream| add(&cluster, node, stream, &[("tq-delay-ms", "500")]));
        until_empty(&cluster, node, &streams[node]);
        println!("{shared} away: {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        host.signal(Signal::SIGKILL);
    }
}
