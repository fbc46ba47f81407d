//! `list`: the Redis list that feeds a queue.
//!
//! In: the list's key, or `{ key, items }`. Out: a [`List`].

use toml::de::DeValue;

use super::keys;
use super::model::List;
use super::names::check_key;
use super::reader::Item;

pub(super) fn read(item: &Item) -> Option<List> {
    let usual = || keys::LIST.word("items");
    match item.value() {
        DeValue::String(_) => Some(List { key: item.checked(check_key)?, items: usual() }),
        DeValue::Table(_) => {
            let table = item.table(&keys::LIST)?;
            let items = table.word("items").unwrap_or_else(usual);
            let Some(key) = table.get("key") else {
                return item.refuse("has no key: write list = { key = \"report:queue\", items = \"json\" }");
            };
            Some(List { key: key.checked(check_key)?, items })
        }
        _ => item.wrong_type(
            "a string like \"report:queue\", or a table like { key = \"report:queue\", items = \"json\" }",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Items;
    use super::super::testing::{all_wrong, parse};
    use super::*;

    #[test]
    fn good_lists() {
        let table = [
            ("\"report:queue\"", Items::Bytes),
            ("{ key = \"report:queue\" }", Items::Bytes),
            ("{ key = \"report:queue\", items = \"bytes\" }", Items::Bytes),
            ("{ key = \"report:queue\", items = \"json\" }", Items::Json),
        ];
        for (value, items) in table {
            let queue = parse(&format!("[queues.a]\nlist = {value}")).expect(value).queues.remove(0);
            assert_eq!(queue.list, Some(List { key: "report:queue".into(), items }), "{value}");
        }
    }

    #[test]
    fn bad_lists() {
        let table = [
            (
                "5",
                "queues.a.list: is an integer, but must be a string like \"report:queue\", \
                 or a table like { key = ",
            ),
            ("\"\"", "queues.a.list: \"\" is empty"),
            ("{ items = \"json\" }", "queues.a.list: has no key: write list = { key = "),
            ("{ key = \"\" }", "queues.a.list.key: \"\" is empty: write a name"),
            ("{ key = 5 }", "queues.a.list.key: is an integer, but must be a string"),
            (
                "{ key = \"l\", items = \"JSON\" }",
                "queues.a.list.items: \"JSON\" is not what items can be: write \"bytes\" or \"json\"",
            ),
            ("{ key = \"l\", items = true }", "queues.a.list.items: is a boolean, but must be a string"),
            ("{ key = \"l\", item = \"json\" }", "queues.a.list.item: unknown key: did you mean `items`?"),
            ("{ key = \"b\", items = \"json\" }", "queues.a.list: \"b\" is a key of the queue \"b\" already"),
        ];
        all_wrong("[queues.a]\nlist = {}\n[queues.b]", "1 problem\n", &table);
    }
}
