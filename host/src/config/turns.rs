//! `max_running`, `order` and `serial`: which tasks of a queue may run beside each other, in all hosts
//! together.
//!
//! In: the table of a queue. Out: the [`RunLimits`]. Only `max_running` may be in `[defaults]`.

use super::names::check_key;
use super::reader::{Item, Table};
use super::rules::{RunLimits, Tracks};

pub(super) fn read(queue: &Table) -> RunLimits {
    let max_running = queue.value("max_running");
    let serial = queue.own("serial");
    let tracks = match queue.own("order").filter(is_strict) {
        Some(order) => {
            check_strict(queue, &order, max_running);
            Some(Tracks { field: None, limit: 1 })
        }
        None => serial.and_then(|_| read_serial(&queue.table("serial"))),
    };
    RunLimits { max_running, tracks }
}

/// Reports the keys of a queue that do not go with `order = "strict"`.
fn check_strict(queue: &Table, order: &Item, max_running: Option<u32>) {
    if max_running != Some(1) {
        order.problem("\"strict\" needs max_running = 1 in the same queue: one task after the other");
    }
    if queue.own("serial").is_some() {
        order.problem(
            "\"strict\" puts all tasks in one order, and serial those of one key: keep one of the two",
        );
    }
    if let Some(batch) = queue.own("batch") {
        batch.problem("a queue with order = \"strict\" runs one task at a time: take batch out");
    }
}

fn is_strict(order: &Item) -> bool {
    let check = |text: &str| match text {
        "strict" => Ok(()),
        _ => Err("is not an order: write \"strict\", or take order out".to_owned()),
    };
    order.checked(check).is_some()
}

fn read_serial(table: &Table) -> Option<Tracks> {
    let field = table.required("field", "write serial = { field = \"sessionId\" }")?.checked(check_key)?;
    Some(Tracks { field: Some(field), limit: table.value_or_default("limit") })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, problem, refusals};
    use super::*;

    #[test]
    fn good_turns() {
        let tracks = |field: Option<&str>, limit| Some(Tracks { field: field.map(str::to_owned), limit });
        let table = [
            ("max_running = 3", Some(3), None),
            ("max_running = 1\norder = \"strict\"", Some(1), tracks(None, 1)),
            ("serial = { field = \"sessionId\" }", None, tracks(Some("sessionId"), 1)),
            ("max_running = 9\nserial = { field = \"s\", limit = 4 }", Some(9), tracks(Some("s"), 4)),
        ];
        for (text, max_running, tracks) in table {
            let queue = parse(&format!("[queues.a]\n{text}\n")).expect(text).queues.remove(0);
            assert_eq!(queue.turns, RunLimits { max_running, tracks }, "{text}");
        }
        let text = "[defaults]\nmax_running = 1\n[queues.a]\norder = \"strict\"\n[queues.b]\nmax_running = 2";
        let queues = parse(text).expect(text).queues;
        assert!(queues[0].turns.are_strict() && !queues[1].turns.are_strict());
        assert!(queues.iter().all(|queue| queue.turns.are_limited()));
    }

    #[test]
    fn bad_turns() {
        let texts = [
            "order = \"fifo\"\nmax_running = 1",
            "order = \"strict\"",
            "order = \"strict\"\nmax_running = 1\nserial = { field = \"s\" }",
            "order = \"strict\"\nmax_running = 1\nbatch = { max_tasks = 5 }",
            "serial = { limit = 1 }",
            "serial = { field = \"\" }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n{}\n", &texts));
        insta::assert_snapshot!(problem("[defaults]\norder = \"strict\"\n[queues.a]\n"), @r"
        /etc/tqhost/tqhost.toml: 1 problem
          line 2: defaults.order: makes no sense as a default: write it in each [queues.NAME] that needs it
        ");
    }
}
