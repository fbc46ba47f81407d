//! `hold`: when a queue waits because something outside is down, and how long.
//!
//! In: `{ after, for }`, or `"none"`. Out: a [`HoldRules`], or none: the queue never waits.

use toml::de::DeValue;

use super::keys;
use super::model::HoldRules;
use super::reader::Item;
use super::units::show_text;

const FORMS: &str = "write { after = 5, for = \"30s\" } or \"none\"";

/// A key that is not given comes from `base`. Reports its problems, and keeps the values that are right.
pub(super) fn read(item: &Item, base: Option<HoldRules>) -> Option<HoldRules> {
    match item.value() {
        DeValue::String(text) if text == "none" => None,
        DeValue::String(text) => {
            item.problem(format!("{} is no hold: {FORMS}", show_text(text)));
            base
        }
        DeValue::Table(_) => {
            let Some(table) = item.table(&keys::HOLD) else { return base };
            Some(HoldRules {
                after: table.value_or("after", base.map(|base| base.after)),
                pause: table.value_or("for", base.map(|base| base.pause)),
            })
        }
        _ => item.wrong_type("a table like { after = 5, for = \"30s\" }, or the string \"none\"").or(base),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{all_wrong, parse};
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
        let table = [
            ("\"30s\"", "\"30s\" is no hold: write { after = 5, for = \"30s\" } or \"none\""),
            ("5", "is an integer, but must be a table like { after = 5, for = \"30s\" }"),
            ("{ after = 0 }", ".after: 0 is out of bounds: write 1 to 100"),
            ("{ for = \"2h\" }", ".for: \"2h\" is out of bounds"),
            ("{ for = \"10ms\" }", ".for: \"10ms\" is out of bounds"),
            ("{ pause = \"1s\" }", "pause"),
        ];
        all_wrong("[queues.a]\nhold = {}", "queues.a.hold", &table);
    }
}
