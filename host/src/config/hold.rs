//! `hold`: when a queue waits because something outside is down, and how long.
//!
//! In: the table of a queue, whose `hold` is `{ after, for }` or `"none"`. Out: a [`HoldRules`], or none: the
//! queue never waits.

use super::reader::Table;
use super::rules::HoldRules;

const FORMS: &str = "a table like { after = 5, for = \"30s\" }, or \"none\"";

pub(super) fn read(queue: &Table) -> Option<HoldRules> {
    if queue.get("hold")?.is("none") {
        return None;
    }
    let table = queue.table_as("hold", FORMS);
    Some(HoldRules { after: table.value_or_default("after"), pause: table.value_or_default("for") })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{parse, refusals};
    use super::*;

    #[test]
    fn good_holds() {
        let hold = |after, seconds| Some(HoldRules { after, pause: Duration::from_secs(seconds) });
        let table = [
            ("hold = { after = 3, for = \"1m\" }", hold(3, 60)),
            ("hold = {}", hold(5, 30)),
            ("hold = { for = \"10s\" }", hold(5, 10)),
            ("hold = \"none\"", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(parse(&format!("[queues.a]\n{line}")).expect(line).queues[0].hold, expected, "{line}");
        }
        let config = parse(
            "[defaults]\nhold = { after = 7 }\n[queues.a]\n[queues.b]\nhold = { for = \"2s\" }\n\
             [queues.c]\nhold = \"none\"",
        )
        .expect("valid");
        let found: Vec<_> = config.queues.iter().map(|queue| queue.hold).collect();
        assert_eq!(found, [hold(7, 30), hold(7, 2), None]);
    }

    #[test]
    fn bad_holds() {
        let texts = ["\"30s\"", "5", "{ after = 0 }"];
        insta::assert_snapshot!(refusals("[queues.a]\nhold = {}", &texts));
    }
}
