//! Tests of the entries of a stream: what is read, what is malformed, and what a task keeps when it is
//! parked or requeued.

use proptest::prelude::*;

use super::*;

#[test]
fn entry_ids_are_compared_as_numbers() {
    assert_eq!(later("9-0", "10-0"), "10-0");
    assert_eq!(later("10-2", "10-11"), "10-11");
    assert_eq!(later("10-2", "0-0"), "10-2");
    assert!(comes_after("10-0", "9-5") && !comes_after("9-5", "9-5") && !comes_after("9-5", "10-0"));
}

fn entry(fields: &[(&str, &str)]) -> StreamEntry {
    let fields = fields.iter().map(|(name, value)| raw(name, *value)).collect();
    StreamEntry { id: "1700000000123-4".into(), fields, deliveries: 1 }
}

fn decoded(fields: &[(&str, &str)]) -> Result<Task, Malformed> {
    let entry = entry(fields);
    decode(&"q".into(), entry.clone()).map_err(|(why, back)| {
        assert_eq!(back, entry, "it comes back whole");
        why
    })
}

#[test]
fn a_task_says_where_it_comes_from() {
    let origin = |fields| decoded(fields).unwrap().origin;
    assert_eq!(origin(&[("a", "1")]), Origin::Producer);
    assert_eq!(origin(&[("tq-id", "x")]), Origin::Other, "another task may have an id that a producer chose");
    assert_eq!(origin(&[("tq-id", "x"), ("tq-enqueued-at", "1")]), Origin::Host);
    assert_eq!(origin(&[("tq-id", "x"), ("tq-enqueued-at", "1"), ("tq-attempt", "1")]), Origin::Other);
    assert_eq!(origin(&[("tq-enqueued-at", "1")]), Origin::Other);
}

#[test]
fn an_entry_of_a_plain_producer_is_a_task_on_its_first_attempt() {
    let task = decoded(&[("resumeId", "7"), ("content", "…"), ("resumeId", "8")]).unwrap();
    assert_eq!(
        (task.id.as_str(), task.attempt, task.enqueued_at_ms),
        ("1700000000123-4", 1, 1_700_000_000_123)
    );
    assert_eq!(
        task.fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        ["resumeId", "content", "resumeId"]
    );
}

#[test]
fn the_wait_for_the_first_attempt_counts_from_enqueueing_or_from_the_due_time() {
    let since = |fields| decoded(fields).unwrap().waits_since_ms;
    assert_eq!(since(&[("a", "1")]), Some(1_700_000_000_123));
    assert_eq!(since(&[("tq-id", "x")]), Some(1_700_000_000_123));
    assert_eq!(since(&[("tq-id", "x"), ("tq-enqueued-at", "5")]), Some(5));
    assert_eq!(since(&[("tq-due-at", "9"), ("tq-id", "x"), ("tq-enqueued-at", "5")]), Some(9));
    assert_eq!(since(&[("tq-id", "x"), ("tq-attempt", "1")]), None, "it was given back");
    // The time in an entry's id tells nothing if it is before 2000, because its producer chose it.
    let old = StreamEntry { id: "1-1".into(), fields: Vec::new(), deliveries: 1 };
    assert_eq!(decode(&"q".into(), old).expect("a task").waits_since_ms, None);
    let parked = [("tq-id", "x"), ("tq-attempt", "1"), ("tq-enqueued-at", "5"), ("tq-due-at", "9")];
    assert_eq!(since(&parked), Some(9), "its producer asked for a delay");
}

#[test]
fn unreadable_entries_are_malformed() {
    assert_eq!(decoded(&[("tq-id", "")]), Err(Malformed::BadId));
    assert_eq!(decoded(&[("tq-id", &"x".repeat(257))]), Err(Malformed::BadId));
    assert_eq!(decoded(&[("tq-attempt", "two")]), Err(Malformed::NotANumber("tq-attempt")));
    assert_eq!(decoded(&[("tq-delay-ms", "31536000001")]), Err(Malformed::DelayTooLong(31_536_000_001)));
    let many = vec![("a", "b"); MAX_FIELDS + 1];
    assert_eq!(decoded(&many), Err(Malformed::TooManyFields(MAX_FIELDS + 1)));
    let large = |name: &str, bytes: usize| decoded(&[(name, &"x".repeat(bytes - name.len()))]);
    assert!(large("a", MAX_TASK_BYTES).is_ok() && large("tq-key", MAX_RESERVED_BYTES).is_ok());
    assert_eq!(large("a", MAX_TASK_BYTES + 1), Err(Malformed::TooLarge(MAX_TASK_BYTES + 1)));
    let too_large = Err(Malformed::ReservedTooLarge(MAX_RESERVED_BYTES + 1));
    assert_eq!(large("tq-key", MAX_RESERVED_BYTES + 1), too_large);
    assert_eq!(
        decoded(&vec![("tq-key", "k"); MAX_RESERVED + 1]),
        Err(Malformed::TooManyReserved(MAX_RESERVED + 1))
    );
    let binary = StreamEntry { id: "1-0".into(), fields: vec![(vec![0xff], vec![])], deliveries: 1 };
    assert_eq!(decode(&"q".into(), binary.clone()), Err((Malformed::NameNotUtf8, binary)));
}

/// The script keeps 64 KiB for what it adds to the fields of the ended task.
#[test]
fn a_task_that_tells_of_the_end_of_another_is_not_too_large() {
    let lua = include_str!("../scripts/ends.lua");
    assert!(lua.contains(&format!("MOST_TOLD = {MAX_TASK_BYTES} - 65536\n")));
}

#[test]
fn a_number_that_no_host_writes_is_malformed() {
    let max = u64::MAX.to_string();
    for (name, most) in [(FENCE, MAX_FENCE), (ENQUEUED_AT, LATEST_MS), (DUE_AT, LATEST_MS)] {
        assert_eq!(decoded(&[(name, &max)]), Err(Malformed::TooHigh { name, most }));
        assert!(decoded(&[(name, &most.to_string())]).is_ok());
    }
    let late = Task { enqueued_at_ms: u64::MAX, ..decoded(&[("a", "1")]).unwrap() };
    assert_eq!(
        due_at(&late, LONGEST_DELAY),
        raw(DUE_AT, &max),
        "a sum that is too high is the highest number"
    );
}

#[test]
fn an_entry_needs_a_proof_if_it_has_fields_that_only_hosts_write() {
    // An id that a host made cannot be guessed. It may be known, since commands and the API return it, so it
    // is no proof.
    let id_of_host = "01890a5d-ac96-774b-bcce-b302099a8057";
    let table = [
        (vec![("a", "1")], false),
        (vec![("tq-id", "x"), ("tq-key", "k"), ("tq-delay-ms", "1"), ("traceparent", "t")], false),
        (vec![("tq-id", id_of_host), ("tq-flow", "0 f")], false),
        (vec![("tq-id", id_of_host), ("tq-enqueued-at", "1"), ("tq-due-at", "2"), ("tq-flow", "0 f")], true),
        (vec![("tq-id", id_of_host), ("tq-enqueued-at", "1"), ("tq-delay-ms", "1")], true),
        (vec![("tq-id", "x"), ("tq-enqueued-at", "1")], true),
        (vec![("tq-crashes", "2")], true),
        (vec![("tq-unknown", "2")], true),
        // It is malformed, so it never runs.
        (vec![("tq-attempt", "many")], false),
    ];
    for (fields, needs) in table {
        assert_eq!(needs_proof(&entry(&fields)), needs, "{fields:?}");
    }
}

#[test]
fn an_item_that_is_no_json_is_malformed_and_the_place_is_told_but_not_the_text() {
    let read_json = |item: &[u8]| items::read(config::Items::Json, item);
    let array = " {\"a\": [1, null, \"\\u00e9\"]} \n";
    for text in ["0", "\u{feff}{\"a\": 1}", array, "\"\"", "-1e-400", "\"é\"", "\"\\ud800\""] {
        assert_eq!(read_json(text.as_bytes()), Ok(ItemTimes::default()), "{text}");
    }
    let deep = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
    assert_eq!(read_json(deep.as_bytes()), Ok(ItemTimes::default()), "depth costs no stack");
    let bad: [(&[u8], &str); 8] = [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (b"secret", "expected value at line 1 column 1"),
        (b"{\"RecordId\": 1,\n \"secret}", "EOF while parsing a string at line 2 column 9"),
        (b"{'a': 1}", "key must be a string at line 1 column 2"),
        (b"{} {}", "trailing characters at line 1 column 4"),
        (b"01", "invalid number at line 1 column 2"),
        (b"\"a\nb\"", "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 2"),
        (b"{\"a\": \"\xff\"}", "not UTF-8 at byte 7"),
    ];
    for (bytes, why) in bad {
        assert_eq!(read_json(bytes), Err(ItemFault::NotJson(why.into())), "{}", bytes.escape_ascii());
    }
}

#[test]
fn redeliveries_and_earlier_crashes_add_up() {
    let mut entry = entry(&[("tq-crashes", "1")]);
    entry.deliveries = 3;
    assert_eq!(decode(&"q".into(), entry).unwrap().crashes, 3);
}

#[test]
fn a_dead_letter_comes_back_on_its_first_attempt() {
    let dead = vec![
        raw("a", &1),
        raw("tq-id", "x"),
        raw("tq-attempt", &4),
        raw("tq-reason", "rejected"),
        raw("tq-requeued-at", &5),
        raw("tq-key", "k"),
    ];
    assert_eq!(revived("x", &dead), [raw("a", &1), raw("tq-key", "k"), raw("tq-id", "x")]);
    // Nobody asked for a proof of an entry that could not be read, so only the fields of a producer stay.
    let unproven = vec![raw("tq-reason", "malformed"), raw("tq-joins", "f"), raw("tq-key", "k")];
    assert_eq!(revived("x", &unproven), [raw("tq-key", "k"), raw("tq-id", "x")]);
}

proptest! {
    #[test]
    fn a_task_survives_being_parked(
        fields in prop::collection::vec(("[a-z]{0,8}", prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        attempt in 1u32..1000, deferrals in 0u32..100, crashes in 0u32..5,
    ) {
        let raw_fields = fields.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
        let first = StreamEntry { id: "5-1".into(), fields: raw_fields, deliveries: 1 + crashes };
        let before = decode(&"q".into(), first).unwrap();
        let fields = encode(&before, attempt, deferrals);
        let second = StreamEntry { id: "9-0".into(), fields, deliveries: 1 };
        let after = decode(&"q".into(), second).unwrap();
        let fence = before.fence + 1;
        let (entry, origin) = ("9-0".into(), Origin::Other);
        let expected = Task { entry, attempt, deferrals, fence, origin, waits_since_ms: None, ..before };
        prop_assert_eq!(after, expected);
    }
}
