//! Dead letters, or tasks of a state, counted in groups: `tqhost dead list --by` and `tasks --by`.
//!
//! In: a queue, a filter, the property by which groups are made. Out: a table, or the groups as JSON. A
//! command looks at no more than 100,000 tasks, and then says with which cursor it can go on. Not here: the
//! groups themselves (`operations::groups`).

use jiff::tz::TimeZone;

use super::exit::CommandResult;
use super::output::{Out, Paint, Tone};
use super::progress::CommandProgress;
use super::table::{Cell, TextTable};
use super::text;
use crate::clock;
use crate::operations::{GroupKey, TaskGroup, TaskGrouping, TaskGroups};
use crate::queue::{Queue, TaskFilter};

/// The most tasks that one command looks at.
const LOOKS: usize = 100_000;
/// The word for a dead letter.
pub(super) const DEAD: &str = "dead letter";

/// `noun` is the word for one of the tasks, and `limit` the most groups that are shown.
pub(super) async fn list(
    queue: &Queue,
    mut grouping: TaskGrouping,
    filter: &TaskFilter,
    (noun, limit): (&str, usize),
    out: &mut Out,
) -> CommandResult {
    let mut progress = CommandProgress::begin()?;
    while grouping.examined < LOOKS && !progress.is_interrupted() {
        let Some(has_more) = progress.step(grouping.step(queue, filter)).await else { break };
        if !has_more? {
            break;
        }
        progress.tell(|| format!("{} looked at", text::plural(grouping.examined as u64, noun)));
    }
    let groups = grouping.finish(limit);
    let is_whole = groups.next.is_none() || groups.examined >= LOOKS;
    let looked_at = format!("{} looked at", text::plural(groups.examined as u64, noun));
    let cut = progress.cut(is_whole, &looked_at, groups.next.as_deref());
    if out.json {
        out.json(&groups);
    } else if !groups.groups.is_empty() {
        out.line(table(&groups, clock::now_ms(), &TimeZone::system(), out.paint));
    }
    if let Some(cut) = cut {
        return Err(cut);
    }
    if !out.json {
        out.line(out.paint.tone(Tone::Faint, &footer(&queue.rules.name, noun, &groups)));
    }
    Ok(())
}

fn footer(name: &str, noun: &str, groups: &TaskGroups) -> String {
    let TaskGroups { more_groups, others, matching, examined, next, .. } = groups;
    let looked_at = text::plural(*examined as u64, noun);
    let mut footer = match next {
        None if *examined == 0 => format!("Queue {name} has no {noun}s."),
        None => format!("{matching} of {looked_at}."),
        Some(next) => format!(
            "{matching} of the {looked_at} that were looked at{}. There are more: --cursor {next} goes on.",
            if noun == DEAD { ", the newest first" } else { "" }
        ),
    };
    if *others > 0 {
        let more = text::plural(*more_groups as u64, "smaller group");
        footer += &format!(" {others} of them are in {more}; --limit shows more.");
    }
    footer
}

fn table(groups: &TaskGroups, now_ms: u64, zone: &TimeZone, paint: Paint) -> String {
    // All groups have the same properties, so the first one has the columns of the table. A group without any
    // is one by the value of a field, which its tasks need not have.
    let first = groups.groups.first().map(|group| group.key.clone()).unwrap_or_default();
    let by_reason = first.reason.is_some();
    let by_version = first.version.is_some();
    let by_hour = first.hour.is_some();
    let by_error = first.error.is_some();
    let by_value = !(by_reason || by_version || by_hour || by_error);
    let mut table = TextTable::with_spare(&["OLDEST", "EXAMPLE", "NEWEST"])
        .texts(by_reason.then_some("REASON"))
        .names(by_version.then_some("VERSION"))
        .fixed(by_hour.then_some("HOUR"))
        .texts(by_value.then_some("VALUE"))
        .figures(["COUNT", "OLDEST", "NEWEST"])
        .id("EXAMPLE")
        .texts(by_error.then_some("ERROR"));
    for group in &groups.groups {
        let TaskGroup { key, count, oldest_at, newest_at, example } = group;
        let GroupKey { reason, version, error, hour, value } = key;
        let shown = |value: &String| if value.is_empty() { "\"\"".to_owned() } else { value.clone() };
        let reason = reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or(text::NONE);
        let hour = hour.map(|hour| text::local(hour, zone, "%Y-%m-%d %H:%M"));
        let [oldest, newest] = [*oldest_at, *newest_at].map(|ms| text::died(ms, now_ms).into());
        let cells = [
            (by_reason, Cell::tone(reason, Tone::Warning)),
            (by_version, Cell::known(version.as_ref())),
            (by_hour, Cell::known(hour)),
            (by_value, Cell::known(value.as_ref().map(shown))),
            (true, count.into()),
            (true, oldest),
            (true, newest),
            (true, example.into()),
            (by_error, Cell::known(error.as_ref())),
        ];
        table.row(cells.into_iter().filter_map(|(is_there, cell)| is_there.then_some(cell)));
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(next: Option<&str>) -> TaskGroups {
        let some = |text: &str| Some(text.to_owned());
        let group = |error: &str, count| TaskGroup {
            key: GroupKey {
                reason: some("rejected"),
                version: some(""),
                error: some(error),
                ..GroupKey::default()
            },
            count,
            oldest_at: 1_000,
            newest_at: 61_000,
            example: "id-1".into(),
        };
        let groups = vec![group("no such page …", 1200), group("", 7)];
        let (by, next) = ("cause".to_owned(), next.map(str::to_owned));
        TaskGroups { by, groups, more_groups: 2, others: 3, matching: 1210, examined: 5000, next }
    }

    #[test]
    fn groups_have_their_counts() {
        let plain = Paint { colour: false, width: None };
        let shown = table(&groups(None), 121_000, &TimeZone::UTC, plain);
        insta::assert_snapshot!(shown, @r"
        REASON    VERSION  COUNT  OLDEST  NEWEST  EXAMPLE  ERROR
        rejected  –         1200  2m ago  1m ago  id-1     no such page …
        rejected  –            7  2m ago  1m ago  id-1     –
        ");
    }

    #[test]
    fn the_footer_says_how_much_was_looked_at() {
        insta::assert_snapshot!(footer("work", DEAD, &groups(None)), @r"
        1210 of 5000 dead letters. 3 of them are in 2 smaller groups; --limit shows more.
        ");
        insta::assert_snapshot!(footer("work", DEAD, &groups(Some("abc"))), @"
        1210 of the 5000 dead letters that were looked at, the newest first. There are more: --cursor abc \
        goes on. 3 of them are in 2 smaller groups; --limit shows more.
        ");
        let none = TaskGroups { others: 0, examined: 0, ..groups(None) };
        insta::assert_snapshot!(footer("work", DEAD, &none), @"Queue work has no dead letters.");
    }
}
