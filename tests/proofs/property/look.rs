//! Compares Redis with the reference.
//!
//! In: a [`World`]. Out: an error when a task, a status or a key differs. It reads Redis directly, without
//! the library. Not here: the reference's rules (`reference`), the operations (`world`).

use std::collections::{BTreeMap, HashMap};

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use tqhost::testing::queue::Status;

use super::VALUES;
use super::reference::Place;
use super::world::{GROUP, LIST, RECORD, STREAM, Step, World, failed};

/// A Lua script that lists the delayed tasks: each member, then the task's name from its fields, else its id.
pub const PARKED: &str = "local out = {}
    for i, value in ipairs(redis.call('HGETALL', KEYS[1])) do
      if i % 2 == 1 then out[#out + 1] = value else
        local fields, name, id = cmsgpack.unpack(value), nil, nil
        for n = 1, #fields, 2 do
          if fields[n] == 'n' or fields[n] == 'data' then name = fields[n + 1]
          elseif fields[n] == 'tq-id' then id = fields[n + 1] end
        end
        out[#out + 1] = name or id
      end
    end
    return out";

impl World {
    /// Compares every place, status and key in Redis with the reference.
    pub fn compare(&mut self) -> Step {
        let mut found: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        let mut order = Vec::new();
        let Places { pending, entries, mut members, parked, letters, paused, mut items } = self.places()?;
        items.reverse();
        prop_assert_eq!(&self.reference.list, &items, "the list");
        let mut pending: HashMap<String, (String, u32)> = pending
            .into_iter()
            .map(|(entry, consumer, _, deliveries)| (entry, (consumer, deliveries)))
            .collect();
        for (entry, fields) in entries {
            let name = name_of(&fields, &entry);
            let number = |name: &str, otherwise| {
                fields.get(name).map_or(otherwise, |text: &String| text.parse().unwrap_or(u32::MAX))
            };
            let known = self.reference.task(&name);
            prop_assert_eq!(
                (number("tq-attempt", 1), number("tq-deferrals", 0)),
                (known.attempt, known.deferrals),
                "{}",
                name
            );
            prop_assert_eq!(fields.get("tq-id").unwrap_or(&known.id), &known.id);
            let place = match pending.remove(&entry) {
                Some((consumer, deliveries)) => Place::Pending { entry, consumer, deliveries },
                None => {
                    order.push(name.clone());
                    Place::Queued
                }
            };
            found.entry(name).or_default().push(place);
        }
        prop_assert!(pending.is_empty(), "pending without an entry: {:?}", pending);
        prop_assert_eq!(order, self.reference.queue.iter().cloned().collect::<Vec<_>>());
        members.sort();
        prop_assert_eq!(members, sorted(parked.iter().map(|(member, _)| member.clone())));
        parked.into_iter().for_each(|(_, name)| found.entry(name).or_default().push(Place::Delayed));
        letters
            .iter()
            .for_each(|(entry, fields)| found.entry(name_of(fields, entry)).or_default().push(Place::Dead));
        let statuses =
            self.reference.said.keys().map(|id| ("HGET", (format!("tq:{{{STREAM}}}:task:{id}"), "status")));
        let statuses: Vec<Option<String>> = all(&mut self.db, statuses)?;
        for ((id, said), status) in self.reference.said.iter().zip(statuses) {
            prop_assert_eq!(
                status.as_deref(),
                said.status.as_ref().map(Status::into_str),
                "{}: {:?}",
                id,
                said
            );
        }
        for (name, known) in &self.reference.tasks {
            let expected: Vec<&Place> = Some(&known.place)
                .into_iter()
                .filter(|place| !matches!(place, Place::Nowhere | Place::Kept { .. }))
                .collect();
            let places = found.remove(name).unwrap_or_default();
            prop_assert_eq!(places.iter().collect::<Vec<_>>(), expected, "{}", name);
        }
        prop_assert!(found.is_empty(), "nobody knows {:?}", found);
        let keys = &self.reference.keys;
        let markers = |name| keys.keys().map(move |key| (name, format!("tq:{{{STREAM}}}:key:k{key}")));
        let holders: Vec<Option<String>> = all(&mut self.db, markers("GET"))?;
        let expiries: Vec<i64> = all(&mut self.db, markers("PTTL"))?;
        for ((key, (id, lives)), (holder, expires)) in keys.iter().zip(holders.iter().zip(expiries)) {
            prop_assert_eq!((holder.as_ref(), expires == -1), (Some(id), *lives), "the key {}", key);
        }
        prop_assert_eq!(paused, self.reference.paused);
        let counted = self.reference.counted;
        let mut effects = redis::pipe();
        effects.cmd("GET").arg(format!("tq:{{{STREAM}}}:state:{STREAM}:count")).cmd("HLEN").arg(RECORD);
        let (count, record): (Option<u64>, u64) = effects.query(&mut self.db).map_err(failed)?;
        prop_assert_eq!((count.unwrap_or(0), record), (counted, counted), "what attempts have counted");
        let keys: Vec<String> = (0..VALUES).map(|n| format!("v{n}")).collect();
        let state = keys.iter().map(|key| ("GET", format!("tq:{{{STREAM}}}:state:{STREAM}:{key}")));
        let found: Vec<Option<String>> = all(&mut self.db, state)?;
        let expected: Vec<Option<String>> =
            keys.iter().map(|key| self.reference.values.get(key).cloned()).collect();
        prop_assert_eq!(found, expected, "the values that attempts have set");
        Ok(())
    }

    /// Everything in Redis except statuses and idempotency keys, read in one pipeline.
    fn places(&mut self) -> Result<Places, TestCaseError> {
        let key = |name: &str| format!("tq:{{{STREAM}}}:{name}");
        let mut pipe = redis::pipe();
        pipe.cmd("XPENDING").arg(STREAM).arg(GROUP).arg("-").arg("+").arg(1000);
        pipe.cmd("XRANGE").arg(STREAM).arg("-").arg("+");
        pipe.cmd("ZRANGE").arg(key("delayed")).arg(0).arg(-1);
        pipe.cmd("EVAL").arg(PARKED).arg(1).arg(key("parked"));
        pipe.cmd("XRANGE").arg(key("dead")).arg("-").arg("+");
        pipe.cmd("EXISTS").arg(key("paused"));
        pipe.cmd("LRANGE").arg(LIST).arg(0).arg(-1);
        let (pending, entries, members, parked, letters, paused, items) =
            pipe.query(&mut self.db).map_err(failed)?;
        Ok(Places { pending, entries, members, parked, letters, paused, items })
    }
}

pub type Entries = Vec<(String, HashMap<String, String>)>;

struct Places {
    /// Entry, consumer, idle ms, deliveries.
    pending: Vec<(String, String, u64, u32)>,
    entries: Entries,
    members: Vec<String>,
    /// Members and names of delayed tasks.
    parked: Vec<(String, String)>,
    letters: Entries,
    paused: bool,
    /// The list, newest first.
    items: Vec<String>,
}

/// The replies to commands, sent in one pipeline.
fn all<T: redis::FromRedisValue>(
    db: &mut redis::Connection,
    commands: impl Iterator<Item = (&'static str, impl redis::ToRedisArgs)>,
) -> Result<Vec<T>, TestCaseError> {
    let mut pipe = redis::pipe();
    for (name, args) in commands {
        pipe.cmd(name).arg(args);
    }
    if pipe.is_empty() { Ok(Vec::new()) } else { pipe.query(db).map_err(failed) }
}

/// The name of a task, from its fields. For a task of the list, it is the item, and for one of a schedule the
/// id.
pub fn name_of<'f, N: AsRef<[u8]> + 'f, V: AsRef<[u8]> + 'f>(
    fields: impl IntoIterator<Item = (&'f N, &'f V)>,
    id: &str,
) -> String {
    let fields: Vec<(&[u8], &[u8])> =
        fields.into_iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
    let value = |name: &[u8]| {
        fields.iter().find(|field| field.0 == name).map(|field| String::from_utf8_lossy(field.1).into_owned())
    };
    value(b"n").or_else(|| value(b"data")).or_else(|| value(b"tq-id")).unwrap_or_else(|| id.to_owned())
}

pub fn pairs(fields: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    fields.iter().map(|(name, value)| (name, value))
}

fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.sort();
    all
}
