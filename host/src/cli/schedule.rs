//! A queue's schedule, as the commands show it.
//!
//! In: the configuration's schedule, and the time by this machine's clock. Out: a line. Not here: when hosts
//! enqueue (`worker::scheduler`, by the clock of Redis), a schedule as JSON (`operations::queues`).

use super::text;
use crate::config::Schedule;

/// The expressions, the time zone, and the next time in that zone.
pub(super) fn words(schedule: &Schedule, now_ms: u64) -> String {
    let times = &schedule.times;
    let next = times.next(now_ms);
    let next =
        next.map_or_else(|| text::NONE.to_owned(), |next_ms| text::when(next_ms, now_ms, times.zone()));
    format!("{} ({}), next {next}", times.expressions().join(" and "), times.zone_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Missed;
    use crate::config::times::{ScheduleTimes, parse_cron, parse_zone};
    use crate::operations::ScheduleView;

    #[test]
    fn the_next_time_is_told_in_its_zone() {
        let crons = ["0 3 * * *", "0 12 * * MON"].map(|text| parse_cron(text).expect(text)).to_vec();
        let times = ScheduleTimes::new(crons, parse_zone("Europe/Berlin").expect("a zone"));
        let schedule = Schedule { times, missed: Missed::Once, fields: Vec::new() };
        // 2023-11-14 22:13:20 in UTC.
        let now_ms = 1_700_000_000_000;
        insta::assert_snapshot!(words(&schedule, now_ms), @r"
        0 3 * * * and 0 12 * * MON (Europe/Berlin), next 2023-11-15 03:00:00 (in 3h 46m)
        ");
        assert_eq!(ScheduleView::new(&schedule, now_ms).next_ms, Some(1_700_013_600_000));
    }
}
