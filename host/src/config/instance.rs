//! `instance`: whether an instance of a plugin runs one task or several.
//!
//! In: the table of a plugin, whose `instance` is `"per-task"` or `{ warm, max_tasks, concurrent }`. Out: a
//! [`Warm`], or none: no instance is kept.

use super::model::Warm;
use super::reader::Table;

const FORMS: &str = "\"per-task\", or a table like { warm = 4, max_tasks = 1000 } or { concurrent = 100 }";

pub(super) fn read(plugin: &Table) -> Option<Warm> {
    let item = plugin.get("instance")?;
    if item.is("per-task") {
        return None;
    }
    let table = plugin.table_as("instance", FORMS);
    if table.is_there() && table.get("warm").or_else(|| table.get("concurrent")).is_none() {
        item.problem(format!("has no warm, the number of instances to keep: write {FORMS}"));
    }
    Some(Warm {
        idle: table.value_or_default("warm"),
        max_tasks: table.value_or_default("max_tasks"),
        concurrent: table.value_or_default("concurrent"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};
    use super::*;

    #[test]
    fn good_kinds() {
        let table = [
            ("\"per-task\"", None),
            ("{ warm = 4, max_tasks = 50 }", Some(Warm { idle: 4, max_tasks: 50, concurrent: 1 })),
            ("{ warm = 1 }", Some(Warm { idle: 1, max_tasks: 1000, concurrent: 1 })),
            ("{ concurrent = 100 }", Some(Warm { idle: 4, max_tasks: 1000, concurrent: 100 })),
        ];
        for (value, warm) in table {
            let config = parse(&format!("[queues.a]\n[plugins.a]\ninstance = {value}")).expect(value);
            assert_eq!(config.plugins["a"].warm, warm, "{value}");
        }
        assert_eq!(parse("[queues.a]\n[plugins.a]").expect("valid").plugins["a"].warm, None);
    }

    #[test]
    fn bad_kinds() {
        let texts = [
            "\"warm\"",
            "4",
            "true",
            "{}",
            "{ max_tasks = 5 }",
            "{ warm = 0 }",
            "{ warm = \"4\" }",
            "{ warm = 4, max_task = 5 }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\n[plugins.a]\ninstance = {}", &texts));
    }
}
