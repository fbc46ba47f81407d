//! `tqhost dead list --by` and `tasks --by`: dead letters, or tasks of a state, counted in groups.
//!
//! In: a queue, a filter, the property that makes the groups. Out: a table, or the groups as JSON. One
//! command looks at 100,000 tasks, and says where it goes on. Not here: the groups themselves
//! (`operations::groups`).

use jiff::tz::TimeZone;

use super::exit::CommandError;
use super::output::{Out, Paint, Tone};
use super::progress::{CommandProgress, StepEnd};
use super::table::{Cell, Column, TextTable};
use super::text;
use crate::clock;
use crate::operations::{TaskGroup, TaskGrouping, TaskGroups};
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
) -> Result<(), CommandError> {
    let mut progress = CommandProgress::begin()?;
    while grouping.examined < LOOKS && !progress.is_interrupted() {
        match progress.step(grouping.step(queue, filter)).await {
            StepEnd::Done(goes_on) => {
                if !goes_on? {
                    break;
                }
            }
            StepEnd::Cut => break,
        }
        progress.tell(|| format!("{} looked at", text::plural(grouping.examined as u64, noun)));
    }
    let groups = grouping.finish(limit);
    let is_whole = groups.next.is_none() || groups.examined >= LOOKS;
    let looked_at = format!("{} looked at", text::plural(groups.examined as u64, noun));
    let cut = progress.cut(is_whole, &looked_at, groups.next.as_deref());
    if out.json {
        out.json(&groups);
        return cut.map_or(Ok(()), Err);
    }
    if !groups.groups.is_empty() {
        out.line(table(&groups, clock::now_ms(), &TimeZone::system(), out.paint));
    }
    if let Some(cut) = cut {
        return Err(cut);
    }
    out.line(out.paint.tone(Tone::Faint, &footer(&queue.rules.name, noun, &groups)));
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

pub(super) fn table(groups: &TaskGroups, now_ms: u64, zone: &TimeZone, paint: Paint) -> String {
    // All groups are told apart by the same properties, or by the value of a field that some may not have.
    let has = |is_there: fn(&TaskGroup) -> bool| groups.groups.first().is_some_and(is_there);
    let by_value = has(|group| {
        let TaskGroup { reason, version, error, .. } = group;
        [reason, version, error].iter().all(|it| it.is_none()) && group.hour.is_none()
    });
    let mut columns: Vec<Column> = [
        (has(|group| group.reason.is_some()), Column::text("REASON")),
        (has(|group| group.version.is_some()), Column::name("VERSION")),
        (has(|group| group.hour.is_some()), Column::fixed("HOUR")),
        (by_value, Column::text("VALUE")),
    ]
    .into_iter()
    .filter_map(|(is_there, column)| is_there.then_some(column))
    .collect();
    columns.extend(["COUNT", "OLDEST", "NEWEST"].map(Column::figure));
    columns.push(Column::id("EXAMPLE"));
    columns.extend(has(|group| group.error.is_some()).then_some(Column::text("ERROR")));
    let mut table = TextTable::new(&columns, &["OLDEST", "EXAMPLE", "NEWEST"]);
    for group in &groups.groups {
        let TaskGroup { reason, version, error, hour, value, count, oldest_at, newest_at, example } = group;
        let name = |name: &Option<String>| {
            name.as_deref()
                .map(|name| if name.is_empty() { text::NONE.to_owned() } else { text::escape(name) })
        };
        let mut cells: Vec<Cell> =
            name(reason).map(|reason| Cell::tone(reason, Tone::Warning)).into_iter().collect();
        cells.extend(name(version).map(Cell::from));
        cells.extend(hour.map(|hour| Cell::from(text::local(hour, zone, "%Y-%m-%d %H:%M"))));
        if by_value {
            let shown =
                |value: &String| if value.is_empty() { "\"\"".to_owned() } else { text::escape(value) };
            cells.push(value.as_ref().map_or_else(|| text::NONE.to_owned(), shown).into());
        }
        cells.push((*count).into());
        cells.extend([*oldest_at, *newest_at].map(|ms| Cell::from(text::died(ms, now_ms))));
        cells.push(text::escape(example).into());
        cells.extend(error.as_deref().map(|error| {
            Cell::from(if error.is_empty() { text::NONE.to_owned() } else { text::escape(error) })
        }));
        table.row(cells);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(next: Option<&str>) -> TaskGroups {
        let some = |text: &str| Some(text.to_owned());
        let group = |error: &str, count| TaskGroup {
            reason: some("rejected"),
            version: some(""),
            error: some(error),
            hour: None,
            value: None,
            count,
            oldest_at: 1_000,
            newest_at: 61_000,
            example: "id-1".into(),
        };
        let groups = vec![group("no such page …", 1200), group("", 7)];
        let next = next.map(str::to_owned);
        TaskGroups {
            by: "cause".to_owned(),
            groups,
            more_groups: 2,
            others: 3,
            matching: 1210,
            examined: 5000,
            next,
        }
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
        assert_eq!(
            footer("work", DEAD, &groups(None)),
            "1210 of 5000 dead letters. 3 of them are in 2 smaller groups; --limit shows more."
        );
        let more = footer("work", DEAD, &groups(Some("abc")));
        assert!(more.contains("that were looked at") && more.contains("--cursor abc goes on"), "{more}");
        let none = TaskGroups { others: 0, examined: 0, ..groups(None) };
        assert_eq!(footer("work", DEAD, &none), "Queue work has no dead letters.");
    }
}
