//! `tqhost adopt`: takes over a queue that another consumer served, or gives it back.
//!
//! In: a queue's name, and what the operator decided. Out: what was found, and what is or was done about it.
//! With `--yes`, exit code 1 if something stands in the way, 2 if a decision is missing. Not here: looking
//! and doing (`crate::doctor::adopt`, `crate::doctor::give_back`).

use clap::Args;
use serde_json::json;

use super::context::{open, operator};
use super::exit::{CommandError, CommandResult};
use super::output::{Out, Paint, Tone};
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::Config;
use crate::doctor::adopt::{self, AdoptOrders, AdoptReport, Beginning};
use crate::doctor::dead_format::parse_pair;
use crate::doctor::give_back::{self, GiveBackOrders};
use crate::operations::changes::{self, ChangeKind, ChangeView};
use crate::operations::patiently;
use crate::queue::hosts;

#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Do what the command would do, instead of only telling it
    #[arg(long)]
    yes: bool,
    /// Where the group begins, if it does not exist yet: 0 (every entry runs), $ (only those to come), the id
    /// of the first entry that runs, or a time like 2026-11-24T08:00:00Z
    #[arg(long, value_name = "0|$|ID|TIME", value_parser = Beginning::parse)]
    from: Option<Beginning>,
    /// The old consumers are stopped, although one of them was heard from a moment ago; with --out: the hosts
    /// have ended, although their leases last
    #[arg(long)]
    stopped: bool,
    /// The old consumers worked beside hosts of tqhost: what was acknowledged since a host first came, and
    /// not deleted, is done too
    #[arg(long)]
    done: bool,
    /// Delete the entries that were acknowledged and not deleted
    #[arg(long)]
    delete_acked: bool,
    /// The use of a foreign dead letter's field: tq-id, tq-error, tq-failed-at, tq-attempts or tq-consumer; a
    /// field of the task; or * for an object whose members are the task's fields [default: what is known by
    /// its name]
    #[arg(long = "dead-field", value_name = "NEW=OLD", value_parser = parse_pair)]
    dead_fields: Vec<(String, String)>,
    /// Tell what going back takes; with --yes, give the tasks back and remove the keys of tqhost
    #[arg(long, conflicts_with_all = ["from", "done", "delete_acked", "dead_fields"])]
    out: bool,
    /// With --out: also give back tasks that a producer delayed and that are not due; they run at once
    #[arg(long, requires = "out")]
    early: bool,
}

pub(super) async fn run(config: &Config, args: AdoptArgs, out: &mut Out) -> CommandResult {
    let queue = open(config, &args.queue).await?;
    let AdoptArgs { yes, from, stopped, done, delete_acked, dead_fields, out: gives, early, .. } = args;
    let hosts = patiently(|| hosts::list(&queue.link)).await?;
    // Neither call is repeated: with --yes, a second one would not report what the first one did.
    let looked = async {
        if gives {
            let orders = GiveBackOrders { act: yes, early, are_stopped: stopped };
            return give_back::give_back(&queue, &hosts, orders).await;
        }
        let orders =
            AdoptOrders { act: yes, from, are_stopped: stopped, is_done: done, delete_acked, dead_fields };
        adopt::adopt(&queue, &orders).await
    };
    let so_far = match yes {
        true => "what was done by then stays so; run it again to go on",
        false => "nothing was changed",
    };
    let report = CommandProgress::begin()?.long_step("looking at every task", looked).await;
    let report = report.ok_or_else(|| interrupted(so_far))??;
    let rules = &queue.rules;
    if report.acted {
        let detail = if gives { "given back" } else { "taken over" };
        let change = ChangeView::new(ChangeKind::Adopt, &operator()).queue(&rules.name).detail(detail);
        changes::note(&queue.link, change).await;
    }
    let ok = !report.is_blocked() && !report.lacks_beginning;
    // The names are stable. `ok`: nothing stands in the way, and no decision is missing.
    let view = json!({
        "queue": rules.name, "stream": rules.stream, "group": rules.group, "found": report.items,
        "acted": report.acted, "ok": ok,
    });
    let title = format!("{}: stream {}, group {}", rules.name, rules.stream, rules.group);
    out.show(&view, |paint| render(&title, &report, paint));
    if ok || !yes {
        Ok(())
    } else if report.is_blocked() {
        Err(CommandError::Reported)
    } else {
        Err(CommandError::Usage(format!(
            "say with --from where the group {} begins: 0, $, the id of the first entry that runs, or a time",
            rules.group
        )))
    }
}

fn render(title: &str, report: &AdoptReport, paint: Paint) -> String {
    let mut lines = vec![paint.tone(Tone::Title, &text::escape(title)), String::new()];
    for item in &report.items {
        let tone = if item.blocks { Tone::Bad } else { Tone::Active };
        lines.push(format!(
            "{} {:>9}  {}",
            paint.tone(tone, &format!("{:<15}", item.kind.into_str())),
            item.count,
            text::escape(&item.what)
        ));
        if let Some(step) = &item.step {
            let (mark, tone) = match (item.done, item.blocks) {
                (true, _) => ("done", Tone::Good),
                (false, true) => ("first", Tone::Bad),
                (false, false) => ("--yes", Tone::Warning),
            };
            lines.push(format!("{:>25}  {}", paint.tone(tone, mark), text::escape(step)));
        }
    }
    if report.items.is_empty() {
        lines.push("Another consumer has left nothing.".to_owned());
    }
    let has_steps = report.items.iter().any(|item| item.step.is_some());
    lines.push(String::new());
    lines.push(match (report.acted, report.is_blocked(), has_steps) {
        (true, _, _) => paint.tone(Tone::Good, "Done."),
        (false, true, _) => paint.tone(Tone::Bad, "Nothing was changed: something stands in the way."),
        (false, false, true) => "Nothing was changed; --yes does what the marked lines say.".to_owned(),
        (false, false, false) => paint.tone(Tone::Good, "There is nothing to do."),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::adopt::{AdoptItem, AdoptKind};

    #[test]
    fn a_report_as_text() {
        let item = |kind, count, what: &str, step: Option<&str>| AdoptItem {
            kind,
            count,
            what: what.into(),
            step: step.map(str::to_owned),
            done: false,
            blocks: false,
        };
        let acked =
            item(AdoptKind::Acked, 1000, "entries were done before", Some("it is noted where they end"));
        let living = item(AdoptKind::LivingConsumer, 1, "c\u{1b}-1 lives", Some("stop it"));
        let mut report = AdoptReport {
            items: vec![item(AdoptKind::Waiting, 12, "entries wait", None), acked],
            ..AdoptReport::default()
        };
        insta::assert_snapshot!("adopt_plan", render("work: stream s, group g", &report, Paint::default()));
        report.items.push(AdoptItem { blocks: true, ..living });
        insta::assert_snapshot!(
            "adopt_blocked",
            render("work: stream s, group g", &report, Paint::default())
        );
    }
}
